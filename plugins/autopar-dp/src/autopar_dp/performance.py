"""Reductions and gathers of data parallelism: per layer with FSDP, per step otherwise."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from autopar_core.api import (
    RING,
    Array,
    Floats,
    Group,
    RankWork,
    StrategyBatch,
    TimeTerm,
    Window,
    all_reduce_seconds,
    bucket_seconds,
    fixed_seconds,
    host_terms,
    moved_inputs,
    moved_seconds,
    ring_inputs,
    ring_seconds,
)
from autopar_dp.groups import Context, Sharing, sharing


_STEP_SOURCE = "Megatron-LM distributed optimizer; overlap measured on Kwai and NeMo runs"
_LAYER_SOURCE = "FSDP2: one communicator serialises gathers and reductions; 126 llm-foundry runs"
# unit -> (scale, stages that hold it) of a step term
UNITS = {"block": ("layer", "any"), "embedding": ("one", "first"), "head": ("one", "last")}


def _step(
    name: str, group: Group, work: RankWork, per_element: Floats, passes: Floats,
    window: Window | None, ctx: Context, per_block: float | None = None,
) -> Iterator[TimeTerm]:  # fmt: skip
    """A collective over all parameters of the rank, once per step: fixed part plus one per unit.

    Args:
        name: Name of the terms.
        group: Ranks of the collective.
        work: Work of the rows.
        per_element: (N,) bytes per parameter.
        passes: (N,) 1 for a gather or reduce-scatter, 2 for an all-reduce, 0 for none.
        window: What hides it.
        ctx: The job.
        per_block: Bytes per parameter of a block where they are others.
    """
    links = ctx.system.links
    formula = "passes x bytes x (ranks-1)/ranks / bandwidth"
    per_byte = np.zeros(len(passes))
    if ctx.profile.bucket_bytes:
        formula += f" + a hop to every rank per {ctx.profile.bucket_bytes:g} B"
        per_byte = bucket_seconds(links, group) / ctx.profile.bucket_bytes
    yield TimeTerm(name=name, seconds=passes * fixed_seconds(links, group), resource="link",
                   segment="step", window=window, source=_STEP_SOURCE,
                   formula="passes x (latency + half / bandwidth), once for all parameters",
                   inputs=partial(_inputs, ctx, np.zeros(len(passes)), group, passes))  # fmt: skip
    for unit, (scale, on) in UNITS.items():
        each = per_block if per_block is not None and unit == "block" else per_element
        nbytes = each * work.parameters(unit)
        seconds = ring_seconds(links, nbytes, group, with_latency=False) + nbytes * per_byte
        seconds = passes * seconds
        yield TimeTerm(name=name, seconds=seconds, resource="link", segment="step", scale=scale,
                       on=on, window=window, formula=formula, source=_STEP_SOURCE,
                       inputs=partial(_inputs, ctx, nbytes, group, passes))  # fmt: skip


def _inputs(ctx: Context, nbytes: Array, group: Group, passes: Array) -> dict[str, Any]:
    """What a collective over the parameters evaluates, by name."""
    return {"passes": passes, **ring_inputs(ctx.system.links, nbytes, group)}


def step_terms(work: RankWork, groups: Sharing, once: Floats, ctx: Context) -> list[TimeTerm]:
    """Reductions and gathers once per step: DDP, ZeRO-1, and deferred FSDP in a pipeline.

    DDP all-reduces (two passes); sharded optimizers reduce-scatter and gather the new parameters;
    HSDP reduces what is left over the replicas. ZeRO-2 holds no whole gradients between micro-batches,
    so it reduces with every backward (see ``layer_terms``).
    """
    profile = ctx.profile
    stage = groups.stage
    share, floor = profile.hidden_share, 1.0 / profile.buckets
    # what is deferred is reduced after the schedule, with no backward left to hide it
    late = np.isin(stage, profile.exposed_stages)
    behind = np.where((groups.gathered & (once > 0)) | late, 0.0, share)
    last = Window(name="last_backward", share=behind, floor=floor)
    first = Window(name="first_forward", share=np.where(late, 0.0, share), floor=floor)
    reduce_window = last if profile.overlap_gradients else None
    gather_window = first if profile.overlap_parameters else None
    bytes_reduce = np.full(len(once), profile.gradient_reduce_bytes)
    bytes_gather = np.full(len(once), profile.parameter_bytes)
    passes = np.where(stage > 0, 1.0, 2.0) * once * (stage != 2)
    terms = list(_step("gradient reduction", groups.shard, work, bytes_reduce, passes,
                       reduce_window, ctx))  # fmt: skip
    gathers = np.where(stage > 0, 1.0, 0.0) * once
    terms += _step("parameter gather", groups.shard, work, bytes_gather, gathers, gather_window,
                   ctx, ctx.recipe.gathered_bytes)  # fmt: skip
    left = bytes_reduce / np.maximum(groups.shard.size, 1)
    # where every micro-batch reduces, it reduces over the replicas too (``layer_terms``)
    over = np.where(groups.hybrid & (stage != 2), 2.0, 0.0) * once
    terms += _step("gradient all-reduce over replicas", groups.replicas, work, left, over,
                   reduce_window, ctx)  # fmt: skip
    return terms


def layer_terms(
    work: RankWork, groups: Sharing, each: Floats, reduced: Floats, ctx: Context
) -> list[TimeTerm]:
    """Per micro-batch: gather before forward and backward, reduce after backward, under compute.

    The head is gathered once: it is not released between its forward and its backward, and neither is
    the embedding, which has nothing to gather before its backward.

    Args:
        work: Work of the rows.
        groups: Who shares with whom.
        each: (N,) 1 where parameters are gathered with every micro-batch (FSDP).
        reduced: (N,) 1 where gradients are reduced with every micro-batch (FSDP and ZeRO-2).
        ctx: The job.
    """
    profile, links = ctx.profile, ctx.system.links
    window = Window(name="block", contention=profile.contention)
    slower = np.where(groups.shard.inside, 1.0, 1.0 / profile.gather_efficiency)
    terms = []

    def link(
        name: str, segment: str, phase: str, seconds: Floats, nbytes: Array, group: Group,
        passes: int = 1,
    ) -> None:  # fmt: skip
        ring = partial(_inputs, ctx, nbytes, group, np.full(len(seconds), passes))
        terms.append(
            TimeTerm(name=name, seconds=seconds, resource="link", segment=segment, phase=phase,
                     window=window, formula=f"passes x ({RING})", inputs=ring,
                     source=_LAYER_SOURCE)
        )  # fmt: skip

    for unit in UNITS:
        elements = work.parameters(unit)
        recipe = ctx.recipe.gathered_bytes if unit == "block" else None
        held = (recipe or profile.parameter_bytes) * elements
        gather = ring_seconds(links, slower * held, groups.shard) * each
        moved = profile.gradient_reduce_bytes * elements
        reduce = ring_seconds(links, slower * moved, groups.shard) * reduced
        left = moved / np.maximum(groups.shard.size, 1)
        over = all_reduce_seconds(links, left, groups.replicas) * groups.hybrid * reduced
        before = "" if unit == "block" else f"{unit} "
        link(f"{before}parameter gather", unit, "forward", gather, slower * held, groups.shard)
        if unit == "block":
            link("parameter gather", unit, "backward", gather, slower * held, groups.shard)
            terms.append(
                TimeTerm(name="last reduction", seconds=reduce, resource="link", segment="step",
                         formula=f"{RING}; of the first block, after the last backward",
                         inputs=partial(ring_inputs, links, slower * moved, groups.shard),
                         source=_LAYER_SOURCE)
            )  # fmt: skip
        link(f"{before}gradient reduction", unit, "backward", reduce, slower * moved, groups.shard)
        link(f"{before}gradient all-reduce over replicas", unit, "backward", over, left,
             groups.replicas, 2)  # fmt: skip
    return terms


def copy_terms(work: RankWork, each: Floats, once: Floats, ctx: Context) -> list[TimeTerm]:
    """Copies into and out of gather and reduction buffers on the device."""
    profile = ctx.profile
    gather, reduce = profile.gather_copy_bytes, profile.reduce_copy_bytes
    if not gather and not reduce:
        return []
    source = "measured on H200: HBM traffic of FSDP2 copies"
    parameters = work.parameters("block")
    terms = []
    for phase, nbytes in (("forward", gather), ("backward", gather + reduce)):
        seconds = moved_seconds(ctx.system, nbytes * parameters, 0) * each
        terms.append(TimeTerm(name="FSDP copies", seconds=seconds, phase=phase, kind="elementwise",
                              formula="bytes / (efficiency x bandwidth); "
                              f"bytes = {nbytes:g} B x block parameters",
                              inputs=partial(moved_inputs, ctx.system, nbytes * parameters, 0),
                              source=source))  # fmt: skip
    for unit, (scale, on) in UNITS.items():
        moved = (gather + reduce) * work.parameters(unit)
        seconds = moved_seconds(ctx.system, moved, 0) * once
        terms.append(TimeTerm(name="FSDP copies", seconds=seconds, segment="step", scale=scale,
                              on=on, formula="bytes / (efficiency x bandwidth), once per step",
                              inputs=partial(moved_inputs, ctx.system, moved, 0),
                              source=source))  # fmt: skip
    added = moved_seconds(ctx.system, profile.accumulate_bytes * parameters, 0)
    added = added * once * (work.micro_batches - 1) / np.maximum(work.micro_batches, 1)
    terms.append(TimeTerm(name="gradient accumulation", seconds=added, phase="backward",
                          kind="elementwise", source=source,
                          formula="bytes / (efficiency x bandwidth), all but one micro-batch",
                          inputs=partial(moved_inputs, ctx.system,
                                         profile.accumulate_bytes * parameters, 0)))  # fmt: skip
    return terms


def terms(batch: StrategyBatch, work: RankWork, ctx: Context) -> list[TimeTerm]:
    """All time terms; zero where nobody shares parameters."""
    groups = sharing(batch, ctx)
    shared = (groups.everyone.size > 1).astype(np.float64)
    deferred = work.pipelined if ctx.profile.deferred_in_pipeline else np.zeros(len(batch), bool)
    each = shared * (groups.gathered & ~deferred)
    once = shared * ~(groups.gathered & ~deferred)
    fsdp_once = shared * (groups.gathered & deferred)
    return [
        *step_terms(work, groups, once, ctx),
        *layer_terms(work, groups, each, np.maximum(each, shared * (groups.stage == 2)), ctx),
        *copy_terms(work, each, fsdp_once, ctx),
        # a pass per step is spread over the micro-batches whose launches it delays
        *host_terms(ctx.profile.host_sharded, each + fsdp_once / np.maximum(work.micro_batches, 1)),
        *_norm(groups, shared, ctx),
    ]


def _norm(groups: Sharing, shared: Floats, ctx: Context) -> list[TimeTerm]:
    """The gradient norm is one scalar all-reduce before the optimizer may step."""
    scalar = all_reduce_seconds(ctx.system.links, np.full(len(shared), 4.0), groups.everyone)
    return [
        TimeTerm(name="gradient norm", seconds=scalar * shared, resource="link", segment="step",
                 formula=f"2 x ({RING}), one scalar", source="gradient clipping",
                 inputs=partial(ring_inputs, ctx.system.links, np.full(len(shared), 4.0),
                                groups.everyone))
    ]  # fmt: skip
