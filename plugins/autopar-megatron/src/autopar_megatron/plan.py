"""A strategy in Megatron's terms, checked for what Megatron has no way to say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import frozen

from autopar_core.api import CannotExpress, ExportRequest


DEFAULT_ORDER, PIPELINE_INSIDE = "tp-cp-dp-pp", "tp-cp-pp-dp"
DELAYED, CURRENT = "fp8-delayed", "fp8-current"
PRECISIONS = ("bf16", "fp16", "fp32", DELAYED, CURRENT, "mxfp8", "nvfp4")
# Schedules whose second chunk runs through the ranks in reverse.
_V_SHAPED = ("zbv", "dualpipev")
_SHARDING = {2: "optim_grads", 3: "optim_grads_params"}
# What autopar's selective mode recomputes (framework profile, core.saved).
SELECTIVE_MODULES = ("layernorm", "mlp")


@frozen
class Recompute:
    """Recompute for every virtual stage: granularity, method, layers; all empty for none."""

    granularity: str = ""
    method: str = ""
    layers: int = 0


@frozen(kw_only=True)
class Plan:
    """What every exporter of this family writes.

    Attributes:
        chunks: Virtual stages per pipeline rank.
        stages: Layers of every virtual stage in the order of execution.
        even: All virtual stages have equally many layers.
        sharding: Megatron-FSDP strategy, empty without FSDP.
        instances: Copies of the sharded states (HSDP); 1 shards over all ranks.
        reduces: There are ranks whose gradients are summed.
        overlap_gradients, overlap_parameters: As the estimate assumes.
        gradient_bits: Width of the reduced gradients.
        vocabulary_multiple: ``make-vocab-size-divisible-by``.
        one_connection: CUDA_DEVICE_MAX_CONNECTIONS must be 1.
        group: Micro-batches that interleaving runs on one chunk in a row; 0 for the default.
    """

    tensor: int
    pipeline: int
    context: int
    data: int
    chunks: int
    stages: tuple[int, ...]
    even: bool
    sequence_parallel: bool
    exchange: str
    recompute: Recompute
    distributed_optimizer: bool
    sharding: str
    instances: int
    reduces: bool
    overlap_gradients: bool
    overlap_parameters: bool
    gradient_bits: int
    vocabulary_multiple: int
    precision: str
    pipeline_inside: bool
    micro_batch: int
    global_batch: int
    sequence: int
    group: int = 0

    @property
    def one_connection(self) -> bool:
        """Tensor and context parallelism order their kernels by one connection, FSDP forbids that."""
        return (self.tensor > 1 or self.context > 1) and not self.sharding

    @property
    def devices(self) -> int:
        """Ranks in all."""
        return self.tensor * self.pipeline * self.context * self.data


def plan_of(request: ExportRequest, frameworks: str = "Megatron") -> Plan:
    """The plan of a strategy.

    Raises:
        CannotExpress: When Megatron has no way to say it, with the nearest that it can.
    """
    stage, data = request.count("zero_stage"), request.count("dp_degree")
    pipeline, chunks = request.count("pp_degree"), request.count("vpp_degree")
    reduces = data * request.count("cp_degree") > 1
    _schedule(request, frameworks)
    stages = request.stages
    dp, tp = _section(request, "dp"), _section(request, "tp")
    shard = request.count("shard_degree") or data
    instances = data // shard if stage and shard else 1
    gradients = float(dp.get("gradient_reduce_bytes", 4.0))
    precision, recompute = _precision(request, frameworks), _recompute(request, stages, frameworks)
    _delayed(precision, recompute, frameworks)
    overlap = bool(dp.get("overlap_gradients", True))
    return Plan(
        tensor=request.count("tp_degree"), pipeline=pipeline, context=request.count("cp_degree"),
        data=data, chunks=chunks, stages=stages, even=len(set(stages)) == 1,
        sequence_parallel=bool(request["sequence_parallel"]),
        exchange=str(request["cp_comm_type"]) if request.count("cp_degree") > 1 else "",
        recompute=recompute,
        distributed_optimizer=bool(stage) and reduces,
        sharding=_SHARDING.get(stage, "") if reduces else "",
        instances=max(1, instances), reduces=reduces, overlap_gradients=reduces and overlap,
        overlap_parameters=reduces and overlap and stage > 0
        and bool(dp.get("overlap_parameters", True)),
        gradient_bits=16 if gradients <= 2 else 32,
        vocabulary_multiple=max(1, int(tp.get("vocabulary_multiple", 128))),
        precision=precision, pipeline_inside=_order(request, frameworks),
        micro_batch=request.count("micro_batch_size"),
        global_batch=request.training.global_batch_size, sequence=request.training.seq_len,
        group=int(request.plugins.get("pp", {}).get("group_size", 0)) if chunks > 1 else 0,
    )  # fmt: skip


def _section(request: ExportRequest, name: str) -> Mapping[str, Any]:
    return request.framework.sections.get(name, {})


def _schedule(request: ExportRequest, frameworks: str) -> None:
    schedule = str(request["schedule"])
    if schedule in ("none", "1f1b", "interleaved"):
        return
    nearest: dict[str, Any] = {"schedule": "1f1b"}
    if schedule in _V_SHAPED:  # as many layers on every rank
        first, second = request.strategy.stage_partition
        nearest["stage_partition"] = [a + b for a, b in zip(first, second, strict=True)]
    raise CannotExpress(
        "schedule", f"{frameworks} has 1F1B and interleaved 1F1B, no {schedule}", nearest
    )


def _order(request: ExportRequest, frameworks: str) -> bool:
    """Whether pipeline ranks come before data-parallel ranks."""
    order = [name for name in request.framework.order if request.count(f"{name}_degree") > 1]
    for known in (DEFAULT_ORDER, PIPELINE_INSIDE):
        if order == [name for name in known.split("-") if name in order]:
            return known == PIPELINE_INSIDE
    raise CannotExpress(
        "framework.rank_order", f"{frameworks} has the orders {DEFAULT_ORDER} and {PIPELINE_INSIDE}, "
        f"not {request.framework.rank_order}", {"rank_order": DEFAULT_ORDER},
    )  # fmt: skip


def _precision(request: ExportRequest, frameworks: str) -> str:
    precision = request.training.precision
    if precision not in PRECISIONS:
        raise CannotExpress(
            "training.precision", f"{frameworks} has {', '.join(PRECISIONS)}, no {precision}",
            {"precision": "bf16"},
        )  # fmt: skip
    return precision


def _recompute(request: ExportRequest, stages: tuple[int, ...], frameworks: str) -> Recompute:
    """One number for all virtual stages (megatron/core/transformer/transformer_block.py)."""
    full, selective = request.recomputed("full"), request.recomputed("selective")
    if any(full) and any(selective):
        raise CannotExpress(
            "layer_recompute", f"{frameworks} recomputes in one mode for all layers: full or selective",
            {"layer_recompute": "full" if full == stages else "selective"},
        )  # fmt: skip
    if any(selective):
        if selective != stages:
            raise CannotExpress(
                "layer_recompute", f"{frameworks} recomputes selectively in all layers or in none, not "
                f"in {_spelled(selective)} of {_spelled(stages)}", {"layer_recompute": "selective"},
            )  # fmt: skip
        return Recompute("selective")
    if not any(full):
        return Recompute()
    if full == stages:
        return Recompute("full", "uniform", 1)
    count = max(full)
    nearest = tuple(min(count, layers) for layers in stages)
    if full != nearest:
        raise CannotExpress(
            "layer_recompute", f"{frameworks} has one number of fully recomputed layers for every "
            f"stage, not {_spelled(full)}", {"layer_recompute": {"full": _shaped(request, nearest)}},
        )  # fmt: skip
    return Recompute("full", "block", count)


def _delayed(precision: str, recompute: Recompute, frameworks: str) -> None:
    """Megatron core transformer_config.py: no recompute of norms with delayed scaling."""
    if precision == DELAYED and recompute.granularity == "selective":
        raise CannotExpress(
            "layer_recompute", f"{frameworks} recomputes no norms with delayed scaling ({DELAYED})",
            {"precision": CURRENT},
        )  # fmt: skip


def _shaped(request: ExportRequest, values: tuple[int, ...]) -> list[Any]:
    chunks = request.count("vpp_degree")
    ranks = len(values) // max(1, chunks)
    rows = [list(values[v * ranks : (v + 1) * ranks]) for v in range(max(1, chunks))]
    return rows if chunks > 1 else list(values)


def _spelled(values: tuple[int, ...]) -> str:
    return "/".join(map(str, values))
