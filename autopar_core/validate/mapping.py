"""A measured run as a job and a strategy. Constants follow system, framework, version and flags."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from attrs import frozen

from autopar_core.config.catalogue import Profiles
from autopar_core.config.tables import deep_merge
from autopar_core.units import counted
from autopar_core.validate.rows import Run, dictionary


# Modes that count layers of a stage.
ALTERNATE, BLOCK = "alternate", "block"
# A scale-up domain of more devices is a rack: how many of them share a host says nothing about it.
_NODE = 16
_MODEL = ("num_layers", "hidden", "ffn_hidden", "heads", "vocab")
_SHARD = re.compile(r"(?:shard\s*=|fsdp\s*=|shard group)\s*(\d+)", re.IGNORECASE)


class MissingFactError(Exception):
    """A fact that the prediction needs is missing, or an effect has no model; says which."""


@frozen(kw_only=True)
class Mapped:
    """What a run is in this project's words.

    Attributes:
        tables: The input file of its job; equal for runs that can be estimated together.
        fields: Field values of its strategy.
        stage: Pipeline rank whose memory was measured; None where the largest counts.
        alone: Collectives cost nothing and nobody is waited for.
        no_memory: Fact without which its memory has no prediction; empty where it has one.
    """

    tables: Mapping[str, Any]
    fields: Mapping[str, Any]
    stage: int | None
    alone: bool
    no_memory: str


def fits(run: Run, when: Mapping[str, str]) -> bool:
    """Whether every pattern is found in its column."""
    for column, pattern in when.items():
        if pattern.startswith((">", "<")):
            more, bound = run.whole(column, 1) - int(pattern[1:]), pattern[0]
            if more <= 0 if bound == ">" else more >= 0:
                return False
        elif not re.search(pattern, run.text(column), re.IGNORECASE):
            return False
    return True


def first(run: Run, kind: str) -> Mapping[str, Any] | None:
    """The first entry of a kind that fits."""
    for entry in dictionary()[kind]:
        if fits(run, entry["when"]):
            found: Mapping[str, Any] = entry
            return found
    return None


def map_run(run: Run, systems: Profiles) -> Mapped:
    """The job and strategy of a run.

    Raises:
        MissingFactError: Saying the fact that is missing.
        InputError: When a cell holds something of the wrong kind.
    """
    _check(run)
    words, roles = dictionary(), dictionary()["roles"]
    degrees = {column: max(1, run.whole(column, 1)) for column in words["degrees"]}
    if not run.text(roles["replicas"]):
        others = [value for column, value in degrees.items() if column != roles["replicas"]]
        degrees[roles["replicas"]] = max(1, run.whole("gpus") // _product(others))
    if _product(degrees.values()) != run.whole("gpus"):
        raise MissingFactError("gpus that equal the product of the degrees")
    entry = first(run, "framework") or {"name": "generic"}
    chunks = max(1, run.whole("vpp", 1))
    layers, ranks = run.whole("num_layers"), degrees[roles["stages"]]
    stage = _stage(run, ranks)
    parts = degrees[roles["tensor"]]
    split = stage_split(run, layers, ranks, chunks, entry.get("split", "even"), parts)
    fields = {words["degrees"][column]: value for column, value in degrees.items()}
    fields |= _fields(run, entry, degrees, chunks)
    return Mapped(
        tables=_tables(run, systems, entry["name"], split, chunks), fields=fields, stage=stage,
        alone=run.text("collectives").lower() == "none", no_memory=_no_memory(run),
    )  # fmt: skip


def _check(run: Run) -> None:
    for entry in dictionary()["skip"]:
        if fits(run, entry["when"]):
            raise MissingFactError(entry["fact"])
    for column in dictionary()["facts"]:
        if not run.text(column):
            raise MissingFactError(f"{column} is not stated")
        if column not in ("framework", "gpu") and not run.whole(column):
            raise MissingFactError(f"{column} is zero")


def _product(values: Any) -> int:
    product = 1
    for value in values:
        product *= value
    return product


def _stage(run: Run, ranks: int) -> int | None:
    if run.text("measured_stage"):
        stage = run.whole("measured_stage")
        if stage >= ranks:
            raise MissingFactError(f"a measured_stage below {counted(ranks, 'stage')}")
        return stage
    # a table of the first rank's memory says so in words
    return 0 if re.search(r"\brank 0\b", run.text("mem_kind")) else None


def _no_memory(run: Run) -> str:
    entry = first(run, "no_memory")
    return entry["fact"] if entry else ""


def ends_split(layers: int, stages: int) -> list[int]:
    """Embedding and head count as one layer each; the first stages take what is left over."""
    if stages == 1:
        return [layers]
    base, extra = divmod(layers + 2, stages)
    split = [base + (stage < extra) for stage in range(stages)]
    split[0] -= 1
    split[-1] -= 1
    return split


def even_split(layers: int, stages: int) -> list[int]:
    """Even; one layer less on both ends where only that divides; else the first stages take more."""
    if stages > 1 and layers % stages and (layers + 2) % stages == 0:
        return ends_split(layers, stages)
    base, extra = divmod(layers, stages)
    return [base + (stage < extra) for stage in range(stages)]


def cost_split(run: Run, layers: int, stages: int, parts: int = 1) -> list[int]:
    """Layers until their parameters pass a stage's share of all, where the head counts as well.

    The first stage whose share is passed ends there, so early stages take more: nanotron's
    ``build_model`` with the block costs of its Llama model (4 h x width of the heads + 3 h ffn a layer,
    h x vocab the head). ``parts`` is what the rows of the vocabulary are padded to a multiple of.
    """
    hidden = run.whole("hidden")
    width = run.whole("heads") * run.whole("head_dim") or hidden
    layer = 4 * hidden * width + 3 * hidden * run.whole("ffn_hidden")
    total = layers * layer + hidden * -(-run.whole("vocab") // parts) * parts
    split = [0] * stages
    stage = 0
    for count in range(1, layers + 1):
        split[stage] += 1
        if count * layer * stages > total * (stage + 1) and stage < stages - 1:
            stage += 1
    return split


def stage_split(
    run: Run, layers: int, ranks: int, chunks: int, rule: str, parts: int = 1
) -> list[int]:
    """Layers of every virtual stage, chunk by chunk: as stated, else by the framework's rule."""
    stages = ranks * chunks
    stated = [int(each) for each in re.findall(r"\d+", run.text("stage_layers"))]
    if len(stated) == stages and sum(stated) == layers:
        return stated
    if rule == "costs" and not stated:
        return cost_split(run, layers, stages, parts)
    rules = [ends_split, even_split] if rule == "ends" else [even_split, ends_split]
    splits = [each(layers, stages) for each in rules]
    if len(stated) == 1 and run.text("measured_stage"):
        stage = run.whole("measured_stage")
        for split in splits:
            if stated[0] in (split[stage], sum(split[stage::ranks])):
                return split
        if chunks == 1 and stages > 1 and stated[0] < layers:
            others = even_split(layers - stated[0], stages - 1)
            return [*others[:stage], stated[0], *others[stage:]]
        raise MissingFactError("the layers of every stage")
    return splits[0]


def _fields(
    run: Run, entry: Mapping[str, Any], degrees: Mapping[str, int], chunks: int
) -> dict[str, Any]:
    roles = dictionary()["roles"]
    replicas, batch = degrees[roles["replicas"]], run.whole("micro_batch")
    if run.whole("global_batch") % (replicas * batch):
        raise MissingFactError("a global_batch that replicas and micro_batch divide")
    zero = zero_stage(run)
    stated = _SHARD.search(run.text("zero_or_fsdp"))
    shard = replicas if zero else 1
    if zero and stated and 0 < int(stated[1]) < replicas and replicas % int(stated[1]) == 0:
        shard = int(stated[1])
    exchange = first(run, "exchange")
    kind = exchange["type"] if exchange else entry.get("exchange", "p2p")
    return {
        "micro_batch_size": batch,
        "micro_batch_num": run.whole("global_batch") // (replicas * batch),
        "vpp_degree": chunks if degrees[roles["stages"]] > 1 else 1,
        "schedule": _schedule(run, degrees[roles["stages"]], chunks),
        "sequence_parallel": degrees[roles["tensor"]] > 1 and run.flag("sequence_parallel"),
        "zero_stage": zero, "shard_degree": shard, "replicate_degree": replicas // shard if zero else 1,
        roles["context_exchange"]: kind if degrees[roles["context"]] > 1 else "none",
    }  # fmt: skip


def _schedule(run: Run, ranks: int, chunks: int) -> str:
    if ranks == 1:
        return "none"
    found = first(run, "schedule")
    if found is None:
        raise MissingFactError(f"schedule {run.text('schedule')!r} is not modelled")
    if found["name"] != "1f1b":
        return str(found["name"])
    return "interleaved" if chunks > 1 else "1f1b"


def zero_stage(run: Run) -> int:
    """Sharding of states as the row states it.

    Raises:
        MissingFactError: For an unknown spelling.
    """
    if run.text("zero_or_fsdp").lower() in ("", "none", "ddp", "0"):
        return 0
    found = first(run, "zero")
    if found is None:
        raise MissingFactError(f"zero_or_fsdp {run.text('zero_or_fsdp')!r} is not known")
    return int(found["stage"])


def recompute_plan(run: Run, split: Sequence[int]) -> Any:
    """The recompute of every stage.

    Raises:
        MissingFactError: For a spelling without a plan.
    """
    found = first(run, "recompute")
    if found is None:
        raise MissingFactError(f"recompute {run.text('recompute')!r} is not modelled")
    if found["mode"] == ALTERNATE:
        return {"every": 2}
    if found["mode"] == BLOCK:
        first_layers = int(re.findall(r"block\D*(\d+)", run.text("recompute"), re.IGNORECASE)[0])
        return {"full": [min(count, first_layers) for count in split]}
    return found["mode"]


def _tables(
    run: Run, systems: Profiles, framework: str, split: list[int], chunks: int
) -> dict[str, Any]:
    model: dict[str, Any] = {name: run.whole(name) for name in _MODEL}
    model["kv_heads"] = run.whole("kv_heads") or model["heads"]
    model["gated_mlp"] = run.flag("gated_mlp")
    model["tied_embeddings"] = run.flag("tied_embeddings")
    if run.text("head_dim"):
        model["head_dim"] = run.whole("head_dim")
    model |= _changes(run, "model")
    if model.get("position") == "learned":
        model["position_rows"] = run.whole("seq_len")
    change = deep_merge(_changes(run, "override"), _offload(run))
    plan = recompute_plan(run, split)
    if isinstance(plan, dict) and "every" not in plan:
        plan = {mode: _rows(counts, chunks) for mode, counts in plan.items()}
        # no setting of the framework says so; the run states it layer by layer
        change = deep_merge(change, {"core": {"recompute_granularity": "stage"}})
    change = deep_merge(change, dictionary()["stated_split"].get(framework, {}))
    if 0 in split:
        change = deep_merge(change, dictionary()["empty_stages"])
    profile: dict[str, Any] = {"name": framework}
    if change:
        profile["override"] = change
    return {
        "model": model,
        "training": {
            "global_batch_size": run.whole("global_batch"), "seq_len": run.whole("seq_len"),
            "precision": _precision(run),
        },
        "cluster": _cluster(run, systems),
        "framework": profile,
        "search": {"stage_partition": _rows(split, chunks), "layer_recompute": plan},
    }  # fmt: skip


def _rows(counts: Sequence[int], chunks: int) -> list[Any]:
    """Layers of virtual stages as an input lists them: ``[stage]``, or ``[chunk][stage]``."""
    if chunks == 1:
        return list(counts)
    ranks = len(counts) // chunks
    return [list(counts[start : start + ranks]) for start in range(0, len(counts), ranks)]


def _offload(run: Run) -> dict[str, Any]:
    """Share of the activations in host memory as the row states it."""
    entry = first(run, "offload")
    if entry is None:
        return {}
    for key, whole in (("share", 1), ("layers", run.whole("num_layers"))):
        stated = re.search(entry.get(key, "(?!)"), run.text("other_flags"), re.IGNORECASE)
        if stated:
            return {"core": {"offload": {"share": float(stated[1]) / whole}}}
    return {}


def _changes(run: Run, kind: str) -> dict[str, Any]:
    """Changes of every entry of a kind that fits, in order."""
    change: dict[str, Any] = {}
    for entry in dictionary()[kind]:
        if fits(run, entry["when"]):
            change = deep_merge(change, entry["change"])
    return change


def _precision(run: Run) -> str:
    found = first(run, "precision")
    if found is not None:
        return str(found["name"])
    words = run.text("precision")
    raise MissingFactError(
        f"precision {words!r} is not modelled" if words else "precision is not stated"
    )


def _cluster(run: Run, systems: Profiles) -> dict[str, Any]:
    entry = systems.entry(run.text("gpu"))
    if entry is None:
        raise MissingFactError(f"a system of the catalogue for gpu {run.text('gpu')!r}")
    cluster: dict[str, Any] = {"system": entry.table["name"], "devices": run.whole("gpus")}
    node, domain = run.whole("gpus_per_node"), entry.table.get("devices_per_domain", 0)
    if 0 < node < domain <= _NODE:
        cluster["devices_per_domain"] = node
    links = first(run, "links")
    if links:
        cluster["override"] = {"links": {"inter": {"bytes_per_second": links["inter"]}}}
    return cluster
