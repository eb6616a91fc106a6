"""Pipeline parallelism: layers divided into stages that work on micro-batches in turn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from autopar_core.api import (
    BLOCK_INSTANTS,
    EMBEDDING_BACKWARD,
    FORWARD_END,
    HEAD_BACKWARD,
    HEAD_REDUCE,
    LOSS,
    RING,
    SEND,
    Broken,
    Composer,
    Dimension,
    Field,
    Group,
    Ints,
    Level,
    MemoryTerm,
    PluginInfo,
    RankWork,
    StrategyBatch,
    TimeTerm,
    all_reduce_seconds,
    hookimpl,
    profile_terms,
    ring_inputs,
    send_inputs,
    send_seconds,
)
from autopar_pp import rules
from autopar_pp.composer import PipelineComposer
from autopar_pp.config import PpConfig, PpProfile
from autopar_pp.orders import SCHEDULES
from autopar_pp.partitions import speller
from autopar_pp.rules import Context
from autopar_pp.zero_bubble import V_SHAPED


@hookimpl
def autopar_plugin_info() -> PluginInfo:
    """Introduce the plugin."""
    return PluginInfo(
        api=(1, 0),
        summary="Pipeline parallelism: 1F1B, interleaved, GPipe, zero bubble, uneven stages",
        dimension=Dimension(
            name="pp",
            degree=Field(
                name="pp_degree", short="pp", level=Level.DEGREE, neutral=1,
                doc="Ranks among which the layers are divided.",
            ),
            splits_layers=True,
        ),
        fields=(
            Field(
                name="schedule", short="schedule", level=Level.SCHEDULE, neutral="none",
                choices=("none", *SCHEDULES), needs="pp_degree",
                doc="Pipeline schedule; none when there is one stage.",
            ),
            Field(
                name="vpp_degree", short="vpp", level=Level.CHUNKS, neutral=1,
                needs="pp_degree, schedule=interleaved",
                doc="Virtual stages (model chunks) per pipeline rank.",
            ),
        ),
        config=PpConfig,
        profile=PpProfile,
    )  # fmt: skip


@hookimpl
def autopar_field_values(ctx: Context) -> Mapping[str, Sequence[Any]]:
    """Schedules of the framework; chunk counts up to the configured maximum."""
    most = min(ctx.config.max_chunks, max(2, ctx.model.num_layers // 2))
    profile = ctx.profile
    tried = profile.tried_schedules or profile.schedules
    schedules = tuple(name for name in profile.schedules if name in tried)
    return {"schedule": schedules, "vpp_degree": tuple(range(2, most + 1))}


@hookimpl
def autopar_filter(batch: StrategyBatch, level: Level, ctx: Context) -> list[Broken]:
    """Stages, chunks, rounds."""
    return rules.broken(batch, level, ctx)


@hookimpl
def autopar_shard(batch: StrategyBatch, ctx: Context) -> list[Any]:
    """Nothing is divided: stages hold different layers, which the composer lays out."""
    return []


@hookimpl
def autopar_memory(batch: StrategyBatch, work: RankWork, ctx: Context) -> list[MemoryTerm]:
    """Receive buffers, stage outputs, the gradient sent last, communicator buffers."""
    profile = ctx.profile
    several = work.pipelined
    edge = work.tensor_bytes({"residual_hidden": 2})
    terms = profile_terms(work, profile.memory, several)
    if profile.receive_buffers:
        buffers = edge * work.micro_batches * several
        edges = (("activations", "not_first"), ("gradients", "not_last"))
        terms += [
            MemoryTerm(name=f"receive buffers ({what})", bytes=buffers, scale="chunk", on=on,
                       formula="2 B x residual_hidden x micro-batches, per edge",
                       inputs={"residual_hidden": work.elements("residual_hidden"),
                               "micro-batches": work.micro_batches},
                       source="torch.distributed.pipelining; exact in 33 H200 runs")
            for what, on in edges
        ]  # fmt: skip
    if profile.keeps_outputs:
        terms += _kept_outputs(edge * several)
    if profile.keeps_sent_gradient:
        plain = several & (batch["schedule"] == batch.fields["schedule"].encode("1f1b"))
        terms.append(
            MemoryTerm(name="gradient sent last", bytes=edge * plain, when="sent",
                       formula="2 B x residual_hidden", source="measured on H200")
        )  # fmt: skip
    terms.append(
        MemoryTerm(
            name="communicator buffers", bytes=several * np.int64(profile.communicator_bytes),
            reserve=True, formula="constant where the degree is above one",
            source="NCCL issues 864 and 964: 0.5 GB per group",
        )
    )  # fmt: skip
    return terms


def _kept_outputs(edge: Ints) -> list[MemoryTerm]:
    """The output of a stage lives until its backward; the first block's input is the receive buffer."""
    blocks = frozenset(BLOCK_INSTANTS)
    source = "measured on H200, 33 pipeline runs"
    return [
        MemoryTerm(name="stage outputs in flight", bytes=edge, scale="micro_batch", on="not_last",
                   live=blocks | {EMBEDDING_BACKWARD}, formula="2 B x residual_hidden",
                   source=source),
        MemoryTerm(name="inputs that are receive buffers", bytes=-edge, scale="micro_batch",
                   on="not_first", live=blocks | {FORWARD_END, LOSS, HEAD_BACKWARD, HEAD_REDUCE},
                   formula="- 2 B x residual_hidden", source=source),
    ]  # fmt: skip


@hookimpl
def autopar_performance(batch: StrategyBatch, work: RankWork, ctx: Context) -> list[TimeTerm]:
    """Messages between stages; all-reduce of a tied embedding's two copies."""
    group = ctx.group(batch, "pp")
    message = work.tensor_bytes({"message_hidden": 2})
    seconds = send_seconds(ctx.system.links, message, group)
    terms = [
        TimeTerm(name="stage message", seconds=seconds, resource="link", segment="hop", phase=phase,
                 formula=f"{SEND}; bytes = 2 B x message_hidden", source="point to point",
                 inputs=partial(send_inputs, ctx.system.links, message, group))
        for phase in ("forward", "backward")
    ]  # fmt: skip
    if ctx.model.tied_embeddings:
        pair = Group(np.minimum(group.size, 2), np.where(group.inside, 2, 1), group.domain)
        nbytes = 4 * work.parameters("embedding")
        both = all_reduce_seconds(ctx.system.links, nbytes, pair) * work.pipelined
        # A V-shaped placement has both ends of the model on one rank.
        both = both * ~np.isin(
            batch["schedule"], [batch.fields["schedule"].encode(n) for n in V_SHAPED]
        )
        terms += [
            TimeTerm(name="tied embedding gradients", seconds=both, resource="link",
                     segment="step", on=on, inputs=partial(ring_inputs, ctx.system.links, nbytes, pair),
                     formula=f"2 x ({RING}); bytes = 4 B x embedding parameters",
                     source="Megatron-LM: first and last stage share the embedding")
            for on in ("first", "last")
        ]  # fmt: skip
    return terms


@hookimpl
def autopar_schedule(ctx: Context) -> Composer:
    """The composer of all schedules."""
    return PipelineComposer(
        blocking=ctx.profile.blocking, speller=speller(ctx.profile),
        group=ctx.config.group_size,
    )  # fmt: skip
