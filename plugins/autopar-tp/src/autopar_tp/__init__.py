"""Tensor parallelism: heads, FFN width and vocabulary divided among the ranks of a fast link."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

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
    profile_terms,
)
from autopar_tp import performance, rules
from autopar_tp.config import TpConfig, TpProfile


Context = EvalContext[TpConfig, TpProfile]


@hookimpl
def autopar_plugin_info() -> PluginInfo:
    """Introduce the plugin."""
    return PluginInfo(
        api=(1, 0),
        summary="Tensor parallelism with and without sequence parallelism",
        dimension=Dimension(
            name="tp",
            degree=Field(
                name="tp_degree", short="tp", level=Level.DEGREE, neutral=1,
                doc="Ranks among which heads, FFN width and vocabulary are divided.",
            ),
        ),
        fields=(
            Field(
                name="sequence_parallel", short="sp", level=Level.SHARDING, neutral=False,
                boolean=True, needs="tp_degree",
                doc="Whether the residual stream is split along the sequence among the ranks.",
            ),
        ),
        config=TpConfig,
        profile=TpProfile,
    )  # fmt: skip


@hookimpl
def autopar_field_values(ctx: Context) -> Mapping[str, Sequence[Any]]:
    """Sequence parallelism as the framework has it."""
    values = {"always": (True,), "never": (False,)}.get(
        ctx.profile.sequence_parallel, (True, False)
    )
    return {"sequence_parallel": values}


@hookimpl
def autopar_filter(batch: StrategyBatch, level: Level, ctx: Context) -> list[Broken]:
    """Divisibility and habits."""
    return rules.broken(batch, level, ctx)


@hookimpl
def autopar_shard(batch: StrategyBatch, ctx: Context) -> list[Shard]:
    """Divide heads, FFN width, vocabulary, and with sequence parallelism the residual stream."""
    tp = batch["tp_degree"]
    # without padding each rank takes the rounded-up share, which is padding to a multiple of 1
    multiple = max(1, ctx.profile.vocabulary_multiple)
    sequence = batch["sequence_parallel"] == 1
    parts = sequence | ctx.profile.scatter_gather_messages
    return [
        Divide(Extent.ATTENTION_HEADS, tp),
        Divide(Extent.KV_HEADS, tp, Rounding.REPLICATED),
        Divide(Extent.FFN_WIDTH, tp),
        Divide(Extent.VOCABULARY_ROWS, tp, Rounding.PADDED, multiple),
        Divide(Extent.RESIDUAL_TOKENS, np.where(sequence, tp, 1)),
        Divide(Extent.MESSAGE_TOKENS, np.where(parts, tp, 1)),
    ]


@hookimpl
def autopar_memory(batch: StrategyBatch, work: RankWork, ctx: Context) -> list[MemoryTerm]:
    """Gathered tensors, rows of the embedding gradient, communicator buffers."""
    split = batch["tp_degree"] > 1
    sequence = batch["sequence_parallel"] == 1
    buffers = MemoryTerm(
        name="communicator buffers", bytes=split * np.int64(ctx.profile.communicator_bytes),
        reserve=True, formula="constant where the degree is above one",
        source="NCCL issues 864 and 964: 0.5 GB per group",
    )  # fmt: skip
    return [
        *profile_terms(work, ctx.profile.memory, split),
        *profile_terms(work, ctx.profile.memory_sequence_parallel, sequence),
        buffers,
    ]


@hookimpl
def autopar_performance(batch: StrategyBatch, work: RankWork, ctx: Context) -> list[TimeTerm]:
    """Collectives of every layer, of the embedding and of the head."""
    return performance.terms(batch, work, ctx)
