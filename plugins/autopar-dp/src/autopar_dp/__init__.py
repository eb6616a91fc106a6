"""Data parallelism: replicas of the model on different sequences, with states sharded or not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from attrs import evolve

from autopar_core.api import (
    Broken,
    Dimension,
    Field,
    Ints,
    Level,
    MemoryTerm,
    PluginInfo,
    RankWork,
    Shard,
    StrategyBatch,
    TimeTerm,
    TransientTensor,
    hookimpl,
    profile_terms,
)
from autopar_dp import performance
from autopar_dp.config import DpConfig, DpProfile
from autopar_dp.groups import Context, divides, sharing


@hookimpl
def autopar_plugin_info() -> PluginInfo:
    """Introduce the plugin."""
    return PluginInfo(
        api=(1, 0),
        summary="Data parallelism: DDP, ZeRO-1/2/3, FSDP and HSDP",
        dimension=Dimension(
            name="dp",
            degree=Field(
                name="dp_degree", short="dp", level=Level.DEGREE, neutral=1,
                doc="Replicas of the model that work on different sequences.",
            ),
            splits_batch=True,
            replicates=("parameters",),
        ),
        fields=(
            Field(
                name="zero_stage", short="zero", level=Level.SHARDING, neutral=0,
                needs="parameters",
                doc="States sharded over ranks with the same parameters: 0 none, 1 optimizer, "
                "2 also gradients, 3 also parameters (FSDP).",
            ),
            Field(
                name="shard_degree", short="shard", level=Level.SHARDING, neutral=1,
                needs="dp_degree, zero_stage>0",
                doc="Data-parallel ranks over which states are sharded; fewer than all is HSDP.",
            ),
            Field(
                name="replicate_degree", short="replicate", level=Level.SHARDING, neutral=1,
                doc="Shard groups: data-parallel degree over shard_degree.",
            ),
        ),
        config=DpConfig,
        profile=DpProfile,
    )  # fmt: skip


@hookimpl
def autopar_field_values(ctx: Context) -> Mapping[str, Sequence[Any]]:
    """Every stage of the framework; every divisor as shard group where it has HSDP, else all ranks."""
    devices = ctx.cluster.devices
    hybrid = bool(ctx.profile.hybrid_stages) and devices > 1
    shards = [d for d in range(2, devices + 1) if devices % d == 0] if hybrid else [0]
    return {"zero_stage": ctx.profile.zero_stages, "shard_degree": shards}


@hookimpl
def autopar_resolve(batch: StrategyBatch, level: Level, ctx: Context) -> Mapping[str, Ints]:
    """Spell out the shard group: all ranks when 0 was asked, one rank when nothing is sharded."""
    if level is not Level.SHARDING:
        return {}
    dp = batch["dp_degree"]
    asked = batch["shard_degree"]
    whole = np.where(asked == 0, dp, asked)
    shard = np.where(batch["zero_stage"] > 0, whole, 1)
    return {"shard_degree": shard, "replicate_degree": np.maximum(1, dp // np.maximum(shard, 1))}


@hookimpl
def autopar_filter(batch: StrategyBatch, level: Level, ctx: Context) -> list[Broken]:
    """Which sharding exists and divides."""
    if level is not Level.SHARDING:
        return []
    stage, shard, dp = batch["zero_stage"], batch["shard_degree"], batch["dp_degree"]
    profile = ctx.profile
    hybrid = (stage > 0) & (shard < dp)
    return [
        Broken(
            code="dp-zero-stage",
            rows=~np.isin(stage, profile.zero_stages) & (ctx.group(batch, "parameters").size > 1),
            sentence="{framework} has no ZeRO stage {zero_stage}; it has {known}",
            numbers={
                "framework": ctx.framework.name,
                "known": ", ".join(map(str, profile.zero_stages)),
            },
            source="framework profile: zero_stages",
        ),
        Broken(
            code="dp-shard-divides",
            rows=(stage > 0) & ((shard > dp) | (dp % np.maximum(shard, 1) != 0)),
            sentence="shard_degree {shard_degree} does not divide dp {dp_degree}",
            source="torchtitan ParallelDims: replicate x shard = dp",
        ),
        Broken(
            code="dp-shard-same",
            rows=(stage > 0) & (shard == 1) & (dp > 1),
            sentence="sharding over one rank of dp {dp_degree} is ZeRO stage 0",
            source="normalised: no two rows mean the same",
        ),
        Broken(
            code="dp-hybrid",
            rows=hybrid & (shard > 1) & ~np.isin(stage, profile.hybrid_stages),
            sentence="{framework} shards ZeRO stage {zero_stage} over all dp {dp_degree} ranks, "
            "not over {shard_degree}",
            numbers={"framework": ctx.framework.name},
            source="framework profile: hybrid_stages",
        ),
    ]


@hookimpl
def autopar_shard(batch: StrategyBatch, ctx: Context) -> list[Shard]:
    """Divide the copies of optimizer states, gradients and parameters by the shard group."""
    return list(divides(batch, ctx))


def gathered(tensors: Sequence[TransientTensor], ctx: Context) -> list[TransientTensor]:
    """The tensors with the bytes that a precision recipe gathers block weights in."""
    size = ctx.recipe.gathered_bytes
    if size is None:
        return list(tensors)
    share = size / ctx.profile.parameter_bytes
    return [
        evolve(t, bytes={n: each * share if n == "block_parameters" else each
                         for n, each in t.bytes.items()}) if t.gathered else t
        for t in tensors
    ]  # fmt: skip


@hookimpl
def autopar_memory(batch: StrategyBatch, work: RankWork, ctx: Context) -> list[MemoryTerm]:
    """Gathered parameters, reduction buffers, communicator buffers."""
    groups = sharing(batch, ctx)
    profile = ctx.profile
    pipelined = work.pipelined if profile.deferred_in_pipeline else np.zeros(len(batch), bool)
    single = groups.gathered & ~pipelined
    return [
        *profile_terms(work, profile.memory, batch["dp_degree"] > 1),
        *profile_terms(work, gathered(profile.memory_gathered, ctx), single),
        *profile_terms(
            work, gathered(profile.memory_gathered_pipelined, ctx), groups.gathered & pipelined
        ),
        *profile_terms(work, profile.memory_reduced, groups.stage == 2),
        *profile_terms(work, profile.memory_hybrid, single & groups.hybrid),
        MemoryTerm(
            name="communicator buffers",
            bytes=(batch["dp_degree"] > 1) * np.int64(profile.communicator_bytes), reserve=True,
            formula="constant where the degree is above one",
            source="NCCL issues 864 and 964: 0.5 GB per group",
        ),
    ]  # fmt: skip


@hookimpl
def autopar_performance(batch: StrategyBatch, work: RankWork, ctx: Context) -> list[TimeTerm]:
    """Reductions, gathers and their copies."""
    return performance.terms(batch, work, ctx)
