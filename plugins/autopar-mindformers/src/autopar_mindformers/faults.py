"""What MindFormers has no way to say about one strategy, and the nearest strategy that it can say."""

from __future__ import annotations

from math import gcd
from typing import Any

from autopar_core.api import CannotExpress, ExportRequest, counted
from autopar_mindformers.rules import PRECISIONS
from autopar_mindformers.shapes import shape_fault


NAME = "MindFormers"
ORDER = ("tp", "cp", "dp", "pp")
V_SHAPED = "zbv"
_SCHEDULES = ("none", "1f1b", "interleaved", V_SHAPED)


def check(request: ExportRequest) -> None:
    """Stop at what cannot be said.

    Raises:
        CannotExpress: The first fault, with a strategy that has none of them where there is one.
    """
    fault = shape_fault(request.model)
    if fault:
        raise CannotExpress(
            f"model.{fault}",
            f"{NAME} trains no model with {fault} {getattr(request.model, fault)}",
            {},
        )
    found: list[tuple[str, str, dict[str, Any]]] = [
        *_job(request), *_heads(request), *_pipeline(request), *_sharding(request),
    ]  # fmt: skip
    if found:
        field, reason, _ = found[0]
        nearest: dict[str, Any] = {}
        for _, _, changes in reversed(found):
            nearest |= changes
        raise CannotExpress(field, f"{NAME} {reason}", _redealt(request, nearest))


Found = list[tuple[str, str, dict[str, Any]]]


def _job(request: ExportRequest) -> Found:
    found: Found = []
    if request.training.precision not in PRECISIONS:
        found.append(("precision", f"computes in {', '.join(PRECISIONS)}", {"precision": "bf16"}))
    order = [name for name in request.framework.order if request.count(f"{name}_degree") > 1]
    if order != [name for name in ORDER if name in order]:
        found.append(
            (
                "framework.rank_order",
                f"orders ranks {'-'.join(ORDER)}",
                {"rank_order": "-".join(ORDER)},
            )
        )
    return found


def _heads(request: ExportRequest) -> Found:
    """Every tensor-parallel rank has whole heads and an equal share of every matrix."""
    model, tensor = request.model, request.count("tp_degree")
    common = gcd(model.kv_heads, model.heads, model.ffn_hidden, model.vocab)
    found: Found = []
    if common % tensor:
        fits = gcd(common, tensor)
        changes = {"tp_degree": fits, "dp_degree": request.count("dp_degree") * tensor // fits}
        if fits == 1:
            changes["sequence_parallel"] = False
        found.append(
            (
                "tp_degree", f"splits {model.kv_heads} key/value heads, a vocabulary of {model.vocab} "
                f"and an MLP of {model.ffn_hidden} into equal parts only", changes,
            )
        )  # fmt: skip
    ranks = tensor * request.count("cp_degree")
    if request["cp_comm_type"] == "a2a" and model.heads % ranks:
        found.append(
            ("cp_comm_type", f"exchanges whole heads among {ranks} ranks, and there are {model.heads}",
             {"cp_comm_type": "all_gather"})
        )  # fmt: skip
    return found


def _pipeline(request: ExportRequest) -> Found:
    found: Found = []
    if request["schedule"] not in _SCHEDULES:
        found.append(
            ("schedule", "is written with 1F1B, interleaved 1F1B or zero_bubble_v, not "
             f"{request['schedule']}",
             {"schedule": V_SHAPED if request["schedule"] == "dualpipev" else "1f1b"})
        )  # fmt: skip
    stages = list(request.stages)
    if any(count < 1 for count in stages[1:-1]):
        while 0 in stages[1:-1]:
            stages[stages.index(0, 1)] += 1
            stages[stages.index(max(stages))] -= 1
        found.append(
            ("stage_partition", "has no stage without layers but the first and the last",
             {"stage_partition": _shaped(request, stages)})
        )  # fmt: skip
    ranks, number = request.count("pp_degree"), request.count("micro_batch_num")
    least = 2 * ranks if request["schedule"] == V_SHAPED else ranks
    if ranks > 1 and number < least:
        size = request.count("micro_batch_size")
        sizes = [b for b in range(size, 0, -1) if size % b == 0 and number * size // b >= least]
        changes: dict[str, Any] = {}
        if sizes:
            changes = {"micro_batch_size": sizes[0], "micro_batch_num": number * size // sizes[0]}
        found.append(
            (
                "micro_batch_num",
                f"needs {counted(least, 'micro-batch')} for {counted(ranks, 'stage')}",
                changes,
            )
        )
    return found


def _shaped(request: ExportRequest, stages: list[int]) -> list[Any]:
    ranks = request.count("pp_degree")
    chunks = len(stages) // ranks
    if chunks == 1:
        return stages
    return [stages[chunk * ranks : (chunk + 1) * ranks] for chunk in range(chunks)]


def _sharding(request: ExportRequest) -> Found:
    stage = request.count("zero_stage")
    if stage <= 1:
        return []
    return [
        ("zero_stage", f"shards optimizer states in graph mode, no gradients or weights (ZeRO {stage})",
         {"zero_stage": 1})
    ]  # fmt: skip


def _redealt(request: ExportRequest, nearest: dict[str, Any]) -> dict[str, Any]:
    """The changes with the batch dealt to the replicas that there are then; empty if it cannot be."""
    if "dp_degree" not in nearest:
        return nearest
    data = nearest["dp_degree"]
    share, rest = divmod(request.training.global_batch_size, data)
    least = request.count("pp_degree") if request.count("pp_degree") > 1 else 1
    most = request.count("micro_batch_size")
    sizes = [b for b in range(1, most + 1) if share % b == 0 and share // b >= least]
    if rest or not sizes:
        return {}
    nearest |= {"micro_batch_size": max(sizes), "micro_batch_num": share // max(sizes)}
    if nearest.get("zero_stage", request.count("zero_stage")):
        nearest |= {"shard_degree": data, "replicate_degree": 1}
    else:
        nearest["replicate_degree"] = data
    return nearest
