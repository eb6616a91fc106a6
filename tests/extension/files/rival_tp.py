"""A rival estimator of tensor parallelism from a textbook: no sequence parallelism, no overlap.

Load it with ``--disable tp --plugin rival_tp.py``.
"""

from __future__ import annotations

import numpy as np
from attrs import frozen

from autopar_core.api import (
    Broken,
    Dimension,
    Divide,
    EvalContext,
    Extent,
    Field,
    Level,
    MemoryTerm,
    PluginInfo,
    RankWork,
    Rounding,
    Shard,
    StrategyBatch,
    TimeTerm,
    hookimpl,
)


@frozen(kw_only=True)
class RivalConfig:
    """``[plugins.rival_tp]``: what one all-reduce reaches."""

    bytes_per_second: float = 100e9


@hookimpl
def autopar_plugin_info() -> PluginInfo:
    """Claim the dimension that the shipped plugin has, with the same degree field."""
    return PluginInfo(
        api=(1, 0),
        summary="Tensor parallelism from a textbook",
        dimension=Dimension(
            name="tp",
            degree=Field(
                name="tp_degree", short="tp", level=Level.DEGREE, neutral=1,
                doc="Ranks among which heads, FFN width and vocabulary are divided.",
            ),
        ),
        config=RivalConfig,
    )  # fmt: skip


@hookimpl
def autopar_filter(
    batch: StrategyBatch, level: Level, ctx: EvalContext[RivalConfig, None]
) -> list[Broken]:
    """Heads must divide."""
    if level is not Level.DEGREE:
        return []
    return [
        Broken(
            code="rival-heads",
            rows=ctx.model.heads % batch["tp_degree"] != 0,
            sentence="{heads} heads are not divisible by tp {tp_degree}",
            numbers={"heads": ctx.model.heads},
        )
    ]


@hookimpl
def autopar_shard(batch: StrategyBatch) -> list[Shard]:
    """Divide heads, FFN width and vocabulary."""
    tp = batch["tp_degree"]
    return [
        Divide(Extent.ATTENTION_HEADS, tp),
        Divide(Extent.KV_HEADS, tp, Rounding.REPLICATED),
        Divide(Extent.FFN_WIDTH, tp),
        Divide(Extent.VOCABULARY_ROWS, tp, Rounding.PADDED),
    ]


@hookimpl
def autopar_memory() -> list[MemoryTerm]:
    """Nothing beside what the shards divide."""
    return []


@hookimpl
def autopar_performance(
    batch: StrategyBatch, work: RankWork, ctx: EvalContext[RivalConfig, None]
) -> list[TimeTerm]:
    """Two all-reduces of the hidden states per layer and direction, at one bandwidth."""
    tp = batch["tp_degree"]
    moved = 2 * 2 * work.elements("hidden") * (tp - 1) / tp
    seconds = np.asarray(2 * moved / ctx.config.bytes_per_second)
    return [
        TimeTerm(
            name="textbook all-reduces", seconds=seconds, resource="link", phase=phase,
            formula="2 x 2 x 2 B x hidden x (t-1)/t / bandwidth", source="textbook",
        )
        for phase in ("forward", "backward", "recompute_full")
    ]  # fmt: skip
