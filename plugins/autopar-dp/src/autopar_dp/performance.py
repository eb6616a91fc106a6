"""Reductions and gathers of data parallelism: per layer with FSDP, per step otherwise."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from autopar_core.api import (
    Floats,
    Group,
    RankWork,
    StrategyBatch,
    TimeTerm,
    Window,
    all_reduce_seconds,
    fixed_seconds,
    moved_seconds,
    ring_seconds,
)
from autopar_dp.groups import Context, Sharing, sharing


_STEP_SOURCE = "Megatron-LM distributed optimizer; overlap measured on Kwai and NeMo runs"
_LAYER_SOURCE = "FSDP2: one communicator serialises gathers and reductions; 126 llm-foundry runs"
# unit -> (scale, stages that hold it) of a step term
UNITS = {"block": ("layer", "any"), "embedding": ("one", "first"), "head": ("one", "last")}


def _step(
    name: str, group: Group, work: RankWork, per_element: Floats, passes: Floats,
    window: Window | None, ctx: Context,
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
    """
    links = ctx.system.links
    formula = "passes x (latency + (bytes x parameters x (z-1)/z + half) / bandwidth)"
    yield TimeTerm(name=name, seconds=passes * fixed_seconds(links, group), resource="link",
                   segment="step", window=window, formula=formula, source=_STEP_SOURCE)  # fmt: skip
    for unit, (scale, on) in UNITS.items():
        nbytes = per_element * work.parameters(unit)
        seconds = passes * ring_seconds(links, nbytes, group, with_latency=False)
        yield TimeTerm(name=name, seconds=seconds, resource="link", segment="step", scale=scale,
                       on=on, window=window, formula=formula, source=_STEP_SOURCE)  # fmt: skip


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
    behind = np.where(groups.gathered & (once > 0), 0.0, share)
    last = Window(name="last_backward", share=behind, floor=floor)
    first = Window(name="first_forward", share=share, floor=floor)
    reduce_window = last if profile.overlap_gradients else None
    gather_window = first if profile.overlap_parameters else None
    bytes_reduce = np.full(len(once), profile.gradient_reduce_bytes)
    bytes_gather = np.full(len(once), profile.parameter_bytes)
    passes = np.where(stage > 0, 1.0, 2.0) * once * (stage != 2)
    terms = list(_step("gradient reduction", groups.shard, work, bytes_reduce, passes,
                       reduce_window, ctx))  # fmt: skip
    gathers = np.where(stage > 0, 1.0, 0.0) * once
    terms += _step(
        "parameter gather", groups.shard, work, bytes_gather, gathers, gather_window, ctx
    )
    left = bytes_reduce / np.maximum(groups.shard.size, 1)
    over = np.where(groups.hybrid, 2.0, 0.0)
    terms += _step("gradient all-reduce over replicas", groups.replicas, work, left, over,
                   reduce_window, ctx)  # fmt: skip
    return terms


def layer_terms(
    work: RankWork, groups: Sharing, each: Floats, reduced: Floats, ctx: Context
) -> list[TimeTerm]:
    """Per layer: gather before forward and backward, reduce after backward, under its compute.

    ``each`` (N,) is 1 where parameters are gathered with every micro-batch (FSDP), ``reduced`` where
    gradients are reduced with every micro-batch (FSDP and ZeRO-2).
    """
    profile, links = ctx.profile, ctx.system.links
    parameters = work.parameters("block")
    gather = ring_seconds(links, profile.parameter_bytes * parameters, groups.shard) * each
    reduce = ring_seconds(links, profile.gradient_reduce_bytes * parameters, groups.shard) * reduced
    window = Window(name="block", contention=profile.contention)
    rows = [("parameter gather", "forward", gather), ("parameter gather", "backward", gather),
            ("gradient reduction", "backward", reduce)]  # fmt: skip
    terms = [
        TimeTerm(name=name, seconds=seconds, resource="link", phase=phase, window=window,
                 formula="latency + (bytes x block parameters x (z-1)/z + half) / bandwidth",
                 source=_LAYER_SOURCE)
        for name, phase, seconds in rows
    ]  # fmt: skip
    for unit, on in (("embedding", "first"), ("head", "last")):
        nbytes = work.parameters(unit)
        ends = 2 * ring_seconds(links, profile.parameter_bytes * nbytes, groups.shard) * each
        terms.append(
            TimeTerm(name=f"{unit} gather and reduction", seconds=ends, resource="link",
                     segment="step", on=on, formula="two collectives of the unit, exposed",
                     source=_LAYER_SOURCE)
        )  # fmt: skip
        # what is gathered is reduced above; ZeRO-2 reduces these gradients with every micro-batch
        more = ring_seconds(links, profile.gradient_reduce_bytes * nbytes, groups.shard)
        terms.append(
            TimeTerm(name=f"{unit} gradient reduction", seconds=more * (reduced - each),
                     resource="link", segment=unit, phase="backward", window=window,
                     formula="latency + (bytes x parameters x (z-1)/z + half) / bandwidth",
                     source=_STEP_SOURCE)
        )  # fmt: skip
    terms.append(
        TimeTerm(name="last reduction", seconds=reduce, resource="link", segment="step",
                 formula="reduction of the first block, after the last backward",
                 source=_LAYER_SOURCE)
    )  # fmt: skip
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
                              formula=f"{nbytes:g} B x block parameters / device memory",
                              source=source))  # fmt: skip
    for unit, (scale, on) in UNITS.items():
        moved = (gather + reduce) * work.parameters(unit)
        seconds = moved_seconds(ctx.system, moved, 0) * once
        terms.append(TimeTerm(name="FSDP copies", seconds=seconds, segment="step", scale=scale,
                              on=on, formula="gather and reduction copies once per step",
                              source=source))  # fmt: skip
    added = moved_seconds(ctx.system, profile.accumulate_bytes * parameters, 0)
    added = added * once * (work.micro_batches - 1) / np.maximum(work.micro_batches, 1)
    terms.append(TimeTerm(name="gradient accumulation", seconds=added, phase="backward",
                          kind="elementwise", source=source,
                          formula="bytes x block parameters, all but one micro-batch"))  # fmt: skip
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
        *_norm(groups, shared, ctx),
    ]


def _norm(groups: Sharing, shared: Floats, ctx: Context) -> list[TimeTerm]:
    """The gradient norm is one scalar all-reduce before the optimizer may step."""
    scalar = all_reduce_seconds(ctx.system.links, np.full(len(shared), 4.0), groups.everyone)
    return [
        TimeTerm(name="gradient norm", seconds=scalar * shared, resource="link", segment="step",
                 formula="all-reduce of one scalar", source="gradient clipping")
    ]  # fmt: skip
