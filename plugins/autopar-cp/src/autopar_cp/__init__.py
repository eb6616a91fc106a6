"""Context parallelism: the sequence divided among ranks that exchange keys and values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from autopar_core.api import (
    ATTENTION,
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
    Shard,
    StrategyBatch,
    TimeTerm,
    hookimpl,
    profile_terms,
)
from autopar_cp import exchange, rules
from autopar_cp.config import COMM_TYPES, CpConfig, CpProfile


Context = EvalContext[CpConfig, CpProfile]


@hookimpl
def autopar_plugin_info() -> PluginInfo:
    """Introduce the plugin."""
    return PluginInfo(
        api=(1, 0),
        summary="Context parallelism: ring, all-gather and all-to-all attention",
        dimension=Dimension(
            name="cp",
            degree=Field(
                name="cp_degree", short="cp", level=Level.DEGREE, neutral=1,
                doc="Ranks among which the tokens of a sequence are divided.",
            ),
            replicates=("parameters",),
        ),
        fields=(
            Field(
                name="cp_comm_type", short="cp_comm", level=Level.SHARDING, neutral="none",
                choices=("none", *COMM_TYPES), needs="cp_degree",
                doc="How keys and values travel between context-parallel ranks.",
            ),
        ),
        config=CpConfig,
        profile=CpProfile,
    )  # fmt: skip


@hookimpl
def autopar_field_values(ctx: Context) -> Mapping[str, Sequence[Any]]:
    """The one way asked for, or every way of the framework."""
    chosen = ctx.config.comm_type
    return {"cp_comm_type": (chosen,) if chosen else ctx.profile.comm_types}


@hookimpl
def autopar_filter(batch: StrategyBatch, level: Level, ctx: Context) -> list[Broken]:
    """Divisibility and habits; ways that the framework lacks."""
    found = rules.broken(batch, level, ctx)
    if level is Level.SHARDING:
        missing = [t for t in COMM_TYPES if t not in ctx.profile.comm_types]
        none = batch["cp_comm_type"] == batch.fields["cp_comm_type"].encode("none")
        rows = (batch["cp_degree"] > 1) & none
        for comm_type in missing:
            rows = rows | exchange.uses(batch, comm_type)
        found.append(
            Broken(
                code="cp-comm-type", rows=rows,
                sentence="{framework} has no {cp_comm_type} exchange; it has {known}",
                numbers={"framework": ctx.framework.name, "known": ", ".join(ctx.profile.comm_types)},
                source="framework profile: comm_types",
            )
        )  # fmt: skip
    return found


@hookimpl
def autopar_shard(batch: StrategyBatch, ctx: Context) -> list[Shard]:
    """Divide the tokens; replace the attention call."""
    cp = batch["cp_degree"]
    return [
        Divide(Extent.TOKENS, cp),
        Divide(Extent.RESIDUAL_TOKENS, cp),
        Divide(Extent.MESSAGE_TOKENS, cp),
        Divide(Extent.QUERY_TOKENS, cp),
        *exchange.attention_calls(batch, ctx.profile),
    ]


@hookimpl
def autopar_memory(batch: StrategyBatch, work: RankWork, ctx: Context) -> list[MemoryTerm]:
    """Saved copies, exchange buffers, gathered keys and values, communicator buffers."""
    profile, cp = ctx.profile, batch["cp_degree"]
    split = cp > 1
    terms = profile_terms(work, profile.memory, split)
    for comm_type, tensors in sorted(profile.memory_by_type.items()):
        terms += profile_terms(work, tensors, exchange.uses(batch, comm_type))
    gathered = profile.gathered_key_value_bytes * cp * work.elements("key_value")
    rows = exchange.uses(batch, "all_gather")
    terms.append(
        MemoryTerm(
            name="gathered keys and values", bytes=np.rint(gathered * rows).astype(np.int64),
            live=frozenset({ATTENTION}),
            formula=f"{profile.gathered_key_value_bytes:g} B x key_value x ranks",
            inputs={"key_value": work.elements("key_value"), "ranks": batch["cp_degree"]},
            source="measured on H200 (torch context parallel)",
        )
    )  # fmt: skip
    terms.append(
        MemoryTerm(
            name="communicator buffers", bytes=split * np.int64(profile.communicator_bytes),
            reserve=True, formula="constant where the degree is above one",
            source="NCCL issues 864 and 964: 0.5 GB per group",
        )
    )  # fmt: skip
    return terms


@hookimpl
def autopar_performance(batch: StrategyBatch, work: RankWork, ctx: Context) -> list[TimeTerm]:
    """Exchange by way of communication and the merging of ring steps."""
    group = ctx.group(batch, "cp")
    return [
        *exchange.ring_terms(batch, work, group, ctx),
        *exchange.gather_terms(batch, work, group, ctx),
        *exchange.all_to_all_terms(batch, work, group, ctx),
        *exchange.merge_terms(batch, work, ctx),
        *exchange.launch_terms(batch, ctx),
    ]
