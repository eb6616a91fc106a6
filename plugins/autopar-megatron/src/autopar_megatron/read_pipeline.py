"""Virtual stages, layers per stage and recompute of a Megatron run."""

from __future__ import annotations

from autopar_core.api import FORMAT_DEFAULT, Findings, counted
from autopar_megatron.partition import CHUNKS, EMBEDDING, LOSS, slashes, stages_of
from autopar_megatron.settings import Settings, fp8_recipe
from autopar_megatron.sizes import Batch, Degrees


# Megatron's flag, and the field of its configuration class that Megatron-Bridge and YAML files name.
GROUPS = ("microbatch_group_size_per_virtual_pipeline_stage", "microbatch_group_size_per_vp_stage")


def read_pipeline(settings: Settings, degrees: Degrees, batch: Batch, found: Findings) -> None:
    """Put the schedule, the layers of every stage and their recompute.

    Raises:
        InputError: For what Megatron refuses, with a legal alternative.
    """
    ranks = degrees.pipeline
    padded = settings.whole("num_layers")
    stages, place = stages_of(settings, padded, ranks)
    if "noop_layers" in settings:
        stages = _without_noop(stages, set(settings.numbers("noop_layers")))
    chunks = len(stages) // ranks
    place = place or f"{FORMAT_DEFAULT}: even"
    found.put("strategy.vpp_degree", chunks, place if chunks > 1 else FORMAT_DEFAULT)
    schedule = "none" if ranks == 1 else "interleaved" if chunks > 1 else "1f1b"
    found.put("strategy.schedule", schedule, "inferred: pipeline size and virtual stages")
    if chunks > 1:
        _interleaved(settings, ranks, chunks, batch, degrees, found)
    found.put("strategy.stage_partition", _rows(stages, chunks), place)
    _recompute(settings, stages, chunks, found)


def read_virtual_stages(settings: Settings, found: Findings) -> None:
    """Virtual stages of a file that leaves the model to another."""
    if CHUNKS in settings:
        found.put("strategy.vpp_degree", settings.whole(CHUNKS), settings.place(CHUNKS))
    if EMBEDDING in settings or LOSS in settings:
        found.note("the layers of each stage depend on the model, which is not in the file")


def _without_noop(stages: tuple[int, ...], noop: set[int]) -> tuple[int, ...]:
    made, start = [], 0
    for count in stages:
        made.append(count - sum(start <= layer < start + count for layer in noop))
        start += count
    return tuple(made)


def _interleaved(
    settings: Settings, ranks: int, chunks: int, batch: Batch, degrees: Degrees, found: Findings
) -> None:
    if ranks == 1:
        raise settings.wrong(
            "pipeline_model_parallel_size", f"{chunks} virtual stages need a pipeline size above 1"
        )
    if ranks == 2:
        if settings.on("no_overlap_p2p_communication"):
            raise settings.wrong(
                "no_overlap_p2p_communication", "virtual stages over 2 ranks need overlapped p2p "
                "communication; delete this flag or use a pipeline size above 2",
            )  # fmt: skip
        found.note("virtual stages over 2 ranks: older releases of Megatron refuse them")
    if name := settings.first(*GROUPS):
        _groups(settings, name, ranks, batch, found)
    elif batch.count and (batch.count < ranks or batch.count % ranks):
        each = batch.micro * degrees.data * ranks
        legal = sorted({max(each, batch.total // each * each), -(-batch.total // each) * each})
        raise settings.wrong(
            "global_batch_size", f"interleaving runs rounds of {counted(ranks, 'micro-batch')} and "
            f"{batch.count} (= {batch.total} / (micro-batch {batch.micro} x dp {degrees.data})) are no "
            f"whole rounds; nearest legal global batch: {' or '.join(map(str, legal))}",
        )  # fmt: skip


def _groups(settings: Settings, name: str, ranks: int, batch: Batch, found: Findings) -> None:
    """Micro-batches that run on one chunk in a row (megatron/core/pipeline_parallel/schedules.py)."""
    group, count = settings.whole(name), batch.count
    if group < ranks or (count and group > count):
        most = f" and at most all {counted(count, 'micro-batch')}" if count else ""
        legal = ranks if group < ranks or not count else count
        raise settings.wrong(
            name, f"{group} must be at least pipeline size {ranks}{most}; nearest legal: {legal}"
        )
    if count and 0 < count % group < ranks:
        raise settings.wrong(
            name, f"{count} micro-batches in groups of {group} leave {count % group}, fewer than "
            f"pipeline size {ranks}; legal is {ranks} where it divides them, or a group of all {count}",
        )  # fmt: skip
    if group != ranks:
        found.put("plugins.pp.group_size", group, settings.place(name))
        found.note(
            f"interleaving runs groups of {counted(group, 'micro-batch')} "
            f"({settings.place(name)}) in every "
            "strategy beside this one, too; plugins.pp.group_size = 0 takes the default"
        )


def _rows(stages: tuple[int, ...], chunks: int) -> list[int] | list[list[int]]:
    """``[stage]``, or ``[chunk][stage]`` when interleaved."""
    if chunks == 1:
        return list(stages)
    ranks = len(stages) // chunks
    return [list(stages[v * ranks : (v + 1) * ranks]) for v in range(chunks)]


def _recompute(settings: Settings, stages: tuple[int, ...], chunks: int, found: Findings) -> None:
    name, method, count = "recompute_granularity", "recompute_method", "recompute_num_layers"
    said = settings.text(name) if name in settings else ""
    if settings.on("recompute_activations"):
        said, name = "selective", "recompute_activations"
    full = selective = (0,) * len(stages)
    place = settings.place(name) or FORMAT_DEFAULT
    if said == "full":
        if method not in settings or count not in settings:
            raise settings.wrong(
                name, "full recompute needs --recompute-method and --recompute-num-layers"
            )
        full = _full(settings, stages, chunks, settings.text(method), settings.whole(count), found)
        place = f"{place}; {settings.place(count)}"
    elif said == "selective":
        for extra in (method, count):
            if extra in settings:
                raise settings.wrong(extra, "belongs to full recompute; selective takes none")
        selective = _selective(settings, stages, found)
    elif said:
        raise settings.wrong(name, f"{said!r:.40} is neither full nor selective")
    if settings.on("recompute_activation_function") or settings.on("recompute_norm"):
        where = settings.place("recompute_activation_function", "recompute_norm")
        found.note(f"{where}: this recompute is not modelled and is left out")
    for mode, layers in (("selective", selective), ("full", full)):
        found.put(f"strategy.layer_recompute.{mode}", _rows(layers, chunks), place)


def _full(
    settings: Settings,
    stages: tuple[int, ...],
    chunks: int,
    method: str,
    count: int,
    found: Findings,
) -> tuple[int, ...]:
    if method == "uniform":
        if count > 1:
            found.note(
                f"{settings.place('recompute_num_layers')}: every layer recomputes; that only one "
                f"input per {count} layers is kept is not modelled"
            )
        return stages
    if method != "block":
        raise settings.wrong("recompute_method", f"{method!r:.40} is neither uniform nor block")
    if count > max(stages):
        found.note(
            f"{settings.place('recompute_num_layers')}: no virtual stage has {counted(count, 'layer')} "
            f"({slashes(stages)}); all of them recompute"
        )
    if settings.on("enable_recompute_layers_per_pp_rank") and chunks > 1:
        ranks = len(stages) // chunks
        found.note(
            f"{settings.place('enable_recompute_layers_per_pp_rank')}: dealt to chunks in turn"
        )
        shares = [max(0, -(-(count - place // ranks) // chunks)) for place in range(len(stages))]
        return tuple(min(share, n) for share, n in zip(shares, stages, strict=True))
    return tuple(min(count, n) for n in stages)


def _selective(settings: Settings, stages: tuple[int, ...], found: Findings) -> tuple[int, ...]:
    name = "recompute_modules"
    if name not in settings:
        modules = {"core_attn"}
    else:
        values = " ".join(settings.found[name].values)
        for sign in "[]'\",":
            values = values.replace(sign, " ")
        modules = set(values.split())
    if fp8_recipe(settings) == "delayed" and modules & {"layernorm", "moe_act"}:
        raise settings.wrong(
            name, "Megatron recomputes no norms with delayed scaling; write --fp8-recipe tensorwise, or "
            "full recompute",
        )  # fmt: skip
    if {"mlp", "layernorm"} <= modules:
        return stages
    what = " ".join(sorted(modules))
    found.note(
        f"selective recompute of {what} ({settings.place(name) or FORMAT_DEFAULT}) is estimated as none: "
        "autopar's selective mode recomputes layernorm and mlp"
    )
    return (0,) * len(stages)
