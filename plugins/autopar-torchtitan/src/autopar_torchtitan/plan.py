"""A strategy in TorchTitan's terms, checked for what it has no way to say."""

from __future__ import annotations

from typing import Any

from attrs import frozen

from autopar_core.api import CannotExpress, ExportRequest, ModelConfig
from autopar_torchtitan.flavors import FLAVORS, PYTHON_ERA, TOML_ERA, Flavor, flavor_of
from autopar_torchtitan.read_pipeline import SCHEDULES
from autopar_torchtitan.stages import every_nth, nearest_nth, nth_of, rows, spread, turned


PRECISIONS = {
    TOML_ERA: ("bf16", "fp32", "fp8-tensorwise", "fp8-rowwise", "mxfp8"),
    # Float8LinearConverter of 0.3.0 has rowwise scaling alone
    PYTHON_ERA: ("bf16", "fp32", "fp8-rowwise", "mxfp8", "nvfp4"),
}
NAME = "TorchTitan"


@frozen(kw_only=True)
class Plan:
    """What both forms write.

    Attributes:
        checkpoint: ``none``, ``selective`` (single operations), ``full``, or ``every`` (each
            ``nth`` layer of a rank in full, only up to 0.2.2).
        reshard: ``fsdp_reshard_after_forward``.
        stages: Layers of every stage in the order of the model.
        schedule: As TorchTitan spells it; empty without a pipeline.
        rotate: ``context_parallel_rotate_method``; empty without context parallelism.
        compiled: The estimate is for a compiled model.
    """

    flavor: Flavor
    replicate: int
    shard: int
    tensor: int
    pipeline: int
    context: int
    micro_batch: int
    micro_batches: int
    global_batch: int
    sequence: int
    sequence_parallel: bool
    stages: tuple[int, ...]
    schedule: str
    reshard: str
    rotate: str
    checkpoint: str
    nth: int
    precision: str
    compiled: bool

    @property
    def devices(self) -> int:
        """Ranks in all."""
        return self.replicate * self.shard * self.tensor * self.pipeline * self.context

    @property
    def local_batch(self) -> int:
        """Sequences of a data-parallel rank in one accumulation step."""
        return self.micro_batch * (self.micro_batches if self.pipeline > 1 else 1)


class Faults:
    """Every fault of a strategy, so that the nearest one that is named has none of them."""

    def __init__(self, request: ExportRequest) -> None:
        self.request = request
        self._found: list[tuple[str, str]] = []
        self._nearest: dict[str, Any] = {}

    def add(self, field: str, reason: str, **nearest: Any) -> None:
        """A fault; ``nearest`` are the fields that would repair it."""
        self._found.append((field, f"{NAME} {reason}"))
        self._nearest.update(nearest)

    def value(self, field: str) -> Any:
        """A field of the strategy as repaired so far."""
        return self._nearest.get(field, self.request[field])

    def raise_any(self) -> None:
        """Stop if there was a fault.

        Raises:
            CannotExpress: For the first one.
        """
        if not self._found:
            return
        field, reason = self._found[0]
        raise CannotExpress(field, reason, self._whole())

    def _whole(self) -> dict[str, Any]:
        """The nearest strategy with the batch dealt anew; empty where that does not divide."""
        nearest = dict(self._nearest)
        if "dp_degree" in nearest:
            share, rest = divmod(self.request.training.global_batch_size, nearest["dp_degree"])
            if rest:
                return {}
            most = int(self.request["micro_batch_size"])
            size = max(b for b in range(1, most + 1) if share % b == 0)
            nearest |= {"micro_batch_size": size, "micro_batch_num": share // size}
            if self.value("zero_stage"):
                nearest |= {"shard_degree": nearest["dp_degree"], "replicate_degree": 1}
            else:
                nearest["replicate_degree"] = nearest["dp_degree"]
        fields = self.request.strategy.fields
        return {k: v for k, v in nearest.items() if k not in fields or fields[k] != v}


def plan_of(request: ExportRequest, release: str) -> Plan:
    """The plan of a strategy for a release.

    Raises:
        CannotExpress: When the release has no way to say it, with the nearest that it can.
    """
    flavor = _flavor(request, release)
    if request.training.precision not in PRECISIONS[release]:
        known = ", ".join(PRECISIONS[release])
        raise CannotExpress(
            "training.precision", f"{NAME} {release} trains in {known}, not in "
            f"{request.training.precision}", {"precision": nearest_precision(request, release)},
        )  # fmt: skip
    _order(request)
    faults = Faults(request)
    _degrees(faults, flavor, release)
    _sharding(faults, release)
    _attention(faults, release)
    _pipeline(faults)
    checkpoint, nth = _checkpoint(faults, release)
    faults.raise_any()
    return _plan(request, flavor, release, checkpoint, nth)


def nearest_precision(request: ExportRequest, release: str) -> str:
    """A recipe of the release in the same number format that the profile has too, else bf16."""
    core = request.framework.core
    if request.training.precision not in core.precisions:
        return "bf16"
    wanted = core.recipe(request.training.precision).format
    same = (
        n for n in core.precisions if n in PRECISIONS[release] and core.recipe(n).format == wanted
    )
    return next(same, "bf16")


def _plan(request: ExportRequest, flavor: Flavor, release: str, checkpoint: str, nth: int) -> Plan:
    data, stage = request.count("dp_degree"), request.count("zero_stage")
    shard = request.count("shard_degree") if stage else 1
    pipeline, context = request.count("pp_degree"), request.count("cp_degree")
    rotate = ""
    if context > 1 and release == TOML_ERA:
        rotate = "alltoall" if request["cp_comm_type"] == "p2p" else "allgather"
    return Plan(
        flavor=flavor, replicate=data // max(1, shard), shard=max(1, shard),
        tensor=request.count("tp_degree"), pipeline=pipeline, context=context,
        micro_batch=request.count("micro_batch_size"), micro_batches=request.count("micro_batch_num"),
        global_batch=request.training.global_batch_size, sequence=request.training.seq_len,
        sequence_parallel=bool(request["sequence_parallel"]),
        stages=turned(request.stages, str(request["schedule"])),
        schedule=SCHEDULES[str(request["schedule"])] if pipeline > 1 else "",
        reshard="never" if stage == 2 else "default", rotate=rotate, checkpoint=checkpoint, nth=nth,
        precision=request.training.precision, compiled=request.framework.is_a("torchtitan-compile"),
    )  # fmt: skip


def _flavor(request: ExportRequest, release: str) -> Flavor:
    found = flavor_of(request.model, release)
    if found is not None:
        longest = found.longest if release == PYTHON_ERA else 0
        if longest and request.training.seq_len > longest:
            raise CannotExpress(
                "training.seq_len", f"{NAME}'s {found.family} {found.name} takes sequences of at most "
                f"{longest} tokens, not {request.training.seq_len}", {"seq_len": longest},
            )  # fmt: skip
        return found
    names = ", ".join(f"{one.family} {one.name}" for one in FLAVORS if release in one.releases)
    raise CannotExpress(
        "model", f"{NAME} {release} builds models by the name of a flavour and has none of this shape "
        f"({_shape(request.model)}); it has {names}", {},
    )  # fmt: skip


def _shape(model: ModelConfig) -> str:
    return (
        f"{model.num_layers} layers, hidden {model.hidden}, FFN {model.ffn_hidden}, {model.heads} and "
        f"{model.kv_heads} heads, vocabulary {model.vocab}"
    )


def _order(request: ExportRequest) -> None:
    """Meshes are [pp, replicate, shard, cp, tp], outermost first (``distributed/parallel_dims.py``)."""
    order = [name for name in request.framework.order if request.count(f"{name}_degree") > 1]
    if order != [name for name in ("tp", "cp", "dp", "pp") if name in order]:
        raise CannotExpress(
            "framework.rank_order", f"{NAME} has the order tp-cp-dp-pp, not "
            f"{request.framework.rank_order}",
            {"rank_order": "tp-cp-dp-pp"},
        )  # fmt: skip


def _degrees(faults: Faults, flavor: Flavor, release: str) -> None:
    tensor, heads = int(faults.request["tp_degree"]), faults.request.model.kv_heads
    if heads % tensor:
        fits = max(d for d in range(1, tensor + 1) if tensor % d == 0 and heads % d == 0)
        faults.add(
            "tp_degree", f"needs whole key/value heads on every rank and there are {heads}",
            tp_degree=fits,
            sequence_parallel=fits > 1 and bool(faults.request["sequence_parallel"]),
            dp_degree=int(faults.value("dp_degree")) * tensor // fits,
        )  # fmt: skip
    stages = int(faults.request["pp_degree"])
    why = ""
    if stages > 1 and faults.request.model.tied_embeddings:
        why = "cannot split a model with tied embeddings over pipeline stages"
    elif stages > 1 and release == TOML_ERA and flavor.family == "qwen3":
        why = f"{TOML_ERA} has no pipeline for qwen3"
    if why:
        faults.add(
            "pp_degree", why, pp_degree=1, vpp_degree=1, schedule="none",
            dp_degree=int(faults.value("dp_degree")) * stages,
        )  # fmt: skip
        # One stage has the sharding of a plain FSDP run.
        faults.add("pp_degree", why, **_sharded(faults))


def _sharded(faults: Faults) -> dict[str, Any]:
    return {
        "zero_stage": 3, "shard_degree": faults.value("dp_degree"), "replicate_degree": 1,
    }  # fmt: skip


def _sharding(faults: Faults, release: str) -> None:
    data, context = int(faults.value("dp_degree")), int(faults.value("cp_degree"))
    stage, pipeline = int(faults.value("zero_stage")), int(faults.value("pp_degree"))
    if data * context == 1:
        return
    if stage == 1:
        faults.add("zero_stage", "always shards parameters (FSDP2), not optimizer states alone",
                   **_sharded(faults))  # fmt: skip
    elif stage == 2 and pipeline > 1:
        faults.add("zero_stage", "keeps gathered parameters through a pipeline already: that is stage 3",
                   zero_stage=3)  # fmt: skip
    elif stage == 0 and context > 1:
        faults.add(
            "zero_stage", "shards parameters over context-parallel ranks", **_sharded(faults)
        )
    elif stage == 0 and release == TOML_ERA and int(faults.value("tp_degree")) * pipeline > 1:
        faults.add(
            "zero_stage", f"{TOML_ERA} combines DDP with no other dimension", **_sharded(faults)
        )


def _attention(faults: Faults, release: str) -> None:
    request = faults.request
    if (
        release == TOML_ERA
        and int(faults.value("tp_degree")) > 1
        and not faults.value("sequence_parallel")
    ):
        faults.add("sequence_parallel", f"{TOML_ERA} has tensor parallelism with sequence "
        "parallelism only",
                   sequence_parallel=True)  # fmt: skip
    known = ("all_gather", "p2p") if release == TOML_ERA else ("all_gather",)
    if request.count("cp_degree") > 1 and request["cp_comm_type"] not in known:
        faults.add(
            "cp_comm_type", f"{release} exchanges keys and values by {' or '.join(known)}",
            cp_comm_type="all_gather",
        )  # fmt: skip


def _pipeline(faults: Faults) -> None:
    request, ranks = faults.request, int(faults.value("pp_degree"))
    if ranks == 1:
        return
    schedule = str(request["schedule"])
    if schedule not in SCHEDULES:
        several = request.count("vpp_degree") > 1
        faults.add("schedule", f"has {', '.join(SCHEDULES.values())}, no {schedule}",
                   schedule="interleaved" if several else "1f1b")  # fmt: skip
    if all(turned(request.stages, schedule)[1:-1]):
        return
    layers, stages = request.model.num_layers, len(request.stages)
    if layers >= stages - 2:
        inner = (0, *spread(layers, stages - 2), 0)
        counts = spread(layers, stages) if layers >= stages else inner
        faults.add("stage_partition", "cannot build a stage without a module",
                   stage_partition=rows(turned(counts, schedule), ranks))  # fmt: skip
    else:
        faults.add("stage_partition", "cannot build a stage without a module")


def _checkpoint(faults: Faults, release: str) -> tuple[str, int]:
    """(mode, step of the layers): one choice for the whole model."""
    request, stages = faults.request, faults.request.stages
    full, selective = request.recomputed("full"), request.recomputed("selective")
    if not any(full) and not any(selective):
        return "none", 0
    if full == stages:
        return "full", 0
    if selective == stages:
        return "selective", 0
    if any(selective):
        word = "full" if any(full) else "selective"
        faults.add(
            "layer_recompute", "recomputes in one way for the whole model", layer_recompute=word
        )
        return word, 0
    ranks = request.count("pp_degree")
    if release != TOML_ERA:
        faults.add(
            "layer_recompute", f"{release} recomputes all layers or none, not {_spelled(full)} of "
            f"{_spelled(stages)}", layer_recompute="full",
        )  # fmt: skip
        return "full", 0
    nth = nth_of(stages, ranks, full)
    if not nth:
        nearest = nearest_nth(stages, ranks, full)
        faults.add(
            "layer_recompute", f"{release} recomputes every nth layer of a rank, which gives "
            f"{_spelled(every_nth(stages, ranks, 2))} with 2 but never {_spelled(full)}",
            layer_recompute="full" if nearest == stages else {"full": rows(nearest, ranks)},
        )  # fmt: skip
    return "every", nth


def _spelled(values: tuple[int, ...]) -> str:
    return "/".join(map(str, values))
