"""Why no partition of a row's stages suits what was asked for the layers of each stage.

Source: a partition places every layer once, and holds no empty stage that its framework does not
have (`autopar_pp.partitions`).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from autopar_core.api import Broken, EvalContext, Ints, ScheduleKey, StrategyBatch, counted
from autopar_pp.composer import chunks_of
from autopar_pp.config import PpConfig, PpProfile
from autopar_pp.partitions import Speller, speller
from autopar_pp.zero_bubble import V_SHAPED


EMPTY = {
    "none": "needs a layer on every stage",
    "ends": "leaves only the first and the last stage without layers",
}


def broken(batch: StrategyBatch, ctx: EvalContext[PpConfig, PpProfile]) -> Broken:
    """Rows whose stages suit no partition of their plan."""
    plans = ctx.space.partitions
    asked = [index for index, plan in enumerate(plans) if _asks(plan)]
    rows = np.nonzero(np.isin(batch["partition_plan"], asked))[0]
    some = batch.take(rows)
    names = batch.fields["schedule"].choices
    chunks = np.where(some["pp_degree"] > 1, chunks_of(some), 1)
    columns = np.stack([some["pp_degree"], chunks, some["schedule"], some["partition_plan"]])
    kinds, index = np.unique(columns, axis=1, return_inverse=True)
    spells, layers = speller(ctx.profile), ctx.model.num_layers
    found = [
        fault(
            plans[plan],
            ScheduleKey(names[schedule], ranks, many, 1,
                        mirrored=ranks > 1 and names[schedule] in V_SHAPED),
            layers, spells, ctx.framework.name,
        )
        for ranks, many, schedule, plan in kinds.T.tolist()
    ]  # fmt: skip
    why = np.full(len(batch), "", dtype=object)
    why[rows] = np.array([*found, ""], dtype=object)[index.reshape(-1)]
    return Broken(
        code="pp-partition",
        rows=np.asarray(why != ""),
        sentence="{why}",
        numbers={"why": why},
        source="every layer has one place; framework profile: empty_stages, empty_ends",
    )


def _asks(plan: Any) -> bool:
    """Whether a plan asks for anything that stages may not suit."""
    limits = (plan.offset.min, plan.offset.max, plan.difference)
    return bool(plan.kind == "given" or any(limit is not None for limit in limits))


def fault(plan: Any, key: ScheduleKey, layers: int, spells: Speller, framework: str) -> str:
    """Why no partition of these stages is one of the plan; empty when there is one.

    Args:
        plan: Of the search space: a partition that is given, or limits of an open one.
        key: Stages and their placement.
        layers: Layers of the model.
        spells: What the framework can spell; its list of partitions is not looked at.
        framework: Its name.
    """
    low = spells.fewest(key)
    if plan.kind == "given":
        return _given(np.asarray(plan.given, np.int64), key, low, spells, framework)
    if plan.kind != "auto" or key.stages == 1:
        return ""
    high = np.full(key.stages, layers, np.int64)
    base = layers // key.stages
    if plan.offset.min is not None:
        low = np.maximum(low, base + plan.offset.min)
    if plan.offset.max is not None:
        high = np.minimum(high, base + plan.offset.max)
    if not _places(low, high, layers):
        return (
            f"no partition of {counted(layers, 'layer')} on {key.stages} stages gives every stage "
            f"{_span(plan.offset.min, plan.offset.max, base)}, as layer_offset wants"
        )
    most = plan.difference
    if most is None or any(
        _places(np.maximum(low, bottom), np.minimum(high, bottom + most), layers)
        for bottom in range(base + 1)
    ):
        return ""
    return (
        f"no partition of {counted(layers, 'layer')} on {key.stages} stages has stages that "
        f"differ by at most {most}, as max_layer_diff wants"
    )


def _given(counts: Ints, key: ScheduleKey, low: Ints, spells: Speller, framework: str) -> str:
    if counts.shape != key.shape:
        return f"the partition lists {_sizes(counts.shape)}, and here are {_sizes(key.shape)}"
    short = np.nonzero(counts.reshape(-1) < low)[0]
    if not len(short):
        return ""
    chunk, rank = divmod(int(short[0]), key.ranks)
    where = f"stage {rank}" if key.chunks == 1 else f"stage {rank} of chunk {chunk}"
    return f"{framework} {EMPTY[spells.empty]}, and {where} of the partition has none"


def _places(low: Ints, high: Ints, layers: int) -> bool:
    return bool((low <= high).all() and low.sum() <= layers <= high.sum())


def _span(least: int | None, most: int | None, base: int) -> str:
    if least is None:
        return f"at most {counted(base + (most or 0), 'layer')}"
    if most is None:
        return f"at least {counted(base + least, 'layer')}"
    return f"{base + least} to {counted(base + most, 'layer')}"


def _sizes(shape: tuple[int, ...]) -> str:
    stages = counted(shape[-1], "stage")
    return stages if len(shape) == 1 else f"{counted(shape[0], 'chunk')} of {stages}"
