"""Rankers: what "best" means.

Every key depends on its own row and on the job, never on other rows: a row keeps its key when the
search space grows, shrinks or is judged in chunks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autopar_core.api import EvalContext, Floats, InputError, Ints, Ranker


DEFAULT_WEIGHTS: Mapping[str, float] = {"step_time": 0.7, "memory": 0.3}


def ideal_seconds(ctx: EvalContext[Any, Any]) -> float:
    """Seconds of a step if every device ran the model's matrix products at its peak.

    6 FLOP per weight of a matrix and token, plus 6 tokens^2/2 x width per sequence and layer for
    each of the two products of causal attention, over devices x peak FLOP/s.
    """
    model, training = ctx.model, ctx.training
    weights = model.num_layers * sum(matrix.parameters for matrix in model.matrices())
    weights += model.vocab * (model.embedding_width or model.hidden)
    attention = model.num_layers * training.seq_len * model.query_width
    tokens = training.global_batch_size * training.seq_len
    peaks = ctx.system.peak_flops
    peak = peaks.get(training.precision) or ctx.system.peak(ctx.recipe.format)
    return 6.0 * (weights + attention) * tokens / (ctx.cluster.devices * peak)


def weights_of(space_weights: Mapping[str, float]) -> Mapping[str, float]:
    """The wanted weights; the defaults when none is given, zero for one that is not named.

    Raises:
        InputError: When a name is unknown, a weight is negative, or all are zero.
    """
    if not space_weights:
        return DEFAULT_WEIGHTS
    legal = ", ".join(DEFAULT_WEIGHTS)
    for name, weight in space_weights.items():
        where = f"search.weights.{name}"
        if name not in DEFAULT_WEIGHTS:
            raise InputError(where, f"there is no such cost to weigh; write one of {legal}")
        if not 0 <= weight < float("inf"):
            raise InputError(where, f"{weight} must be zero or a positive number")
    if not any(space_weights.values()):
        raise InputError("search.weights", f"all weights are zero; give at least one of {legal}")
    return {name: float(space_weights.get(name, 0.0)) for name in DEFAULT_WEIGHTS}


def _by_step_time(seconds: Floats, memory_bytes: Ints, ctx: Any) -> Floats:
    del memory_bytes, ctx
    return seconds


def _by_memory(seconds: Floats, memory_bytes: Ints, ctx: Any) -> Floats:
    del seconds, ctx
    return memory_bytes.astype(float)


def _by_weights(seconds: Floats, memory_bytes: Ints, ctx: EvalContext[Any, Any]) -> Floats:
    weights = weights_of(ctx.space.weights)
    time = weights["step_time"] / ideal_seconds(ctx)
    memory = weights["memory"] / ctx.cluster.memory_limit
    return time * seconds + memory * memory_bytes


RANKERS = (
    Ranker("step_time", "Shortest step first.", _by_step_time),
    Ranker("memory_headroom", "Least memory per device first.", _by_memory),
    Ranker(
        "weighted",
        "Step time over the ideal time, and memory over the limit, weighted by search.weights.",
        _by_weights,
    ),
)
