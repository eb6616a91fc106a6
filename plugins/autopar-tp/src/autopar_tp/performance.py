"""Collectives of tensor parallelism: per layer, at the embedding, at the head."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from autopar_core.api import (
    RING,
    EvalContext,
    Extent,
    Floats,
    Group,
    RankWork,
    StrategyBatch,
    TimeTerm,
    Window,
    all_reduce_seconds,
    host_terms,
    moved_seconds,
    ring_inputs,
    ring_seconds,
)
from autopar_tp.config import TpConfig, TpProfile


# Collectives of one layer: an all-gather and a reduce-scatter around attention and around the MLP with
# sequence parallelism; without it two all-reduces, which cost the same two passes each.
PER_PASS = 4
# With sequence parallelism the backward gathers the two saved inputs once more for the weight gradients.
REGATHERS = 2
_SOURCE = "Korthikanti et al. 2022, section 4; exposure measured on NeMo and Kwai runs"


def gather_seconds(
    work: RankWork, group: Group, ctx: EvalContext[TpConfig, TpProfile], per_element: float = 2.0
) -> Floats:
    """(N,) seconds of one all-gather or reduce-scatter of the hidden states of a micro-batch."""
    return ring_seconds(ctx.system.links, per_element * work.elements("hidden"), group)


def layer_terms(
    one: Floats, sequence_parallel: Floats, profile: TpProfile, gather: Floats | None = None
) -> list[tuple[str, str, Floats, Window | None]]:
    """(name, phase, seconds, window) of the collectives of one layer.

    Args:
        one: (N,) seconds of one collective in 16 bits.
        sequence_parallel: (N,) 1 where the backward re-gathers.
        profile: How the framework overlaps them.
        gather: (N,) seconds of one all-gather where a recipe gathers what it has cast already; the
            reduce-scatters stay in 16 bits. None is as long as the others.
    """
    # half of a pass with sequence parallelism gathers (inputs forward, gradients backward)
    fewer = 0.0 if gather is None else (one - gather) * sequence_parallel
    forward = PER_PASS * one - PER_PASS // 2 * fewer
    again = REGATHERS * (one - fewer) * sequence_parallel
    if profile.overlap == "fraction":
        shown, rest = profile.exposed * forward, (1 - profile.exposed) * forward
        hidden = Window(name="hidden")
        parts: list[tuple[str, str, Floats, Window | None]] = [
            ("collectives", "forward", shown, None),
            ("collectives under their GEMM", "forward", rest, hidden),
            ("collectives", "backward", shown, None),
            ("collectives under their GEMM", "backward", rest + again, hidden),
        ]
    elif profile.overlap == "bulk":
        # dgrad and wgrad hide the re-gathers and the two reduce-scatters of their own inputs
        parts = [
            ("collectives", "forward", forward, None),
            ("collectives", "backward", 2 * (one - fewer), None),
            (
                "collectives under GEMMs",
                "backward",
                again + 2 * one,
                Window(name="linear", share=0.5),
            ),
        ]
    else:
        parts = [
            ("collectives", "forward", forward, None),
            ("collectives", "backward", forward + again, None),
        ]
    repeats = [p for p in parts if p[1] == "forward"]
    parts += [(name, "recompute_full", s, w) for name, _, s, w in repeats]
    if profile.selective_gathers:
        share = profile.selective_gathers / PER_PASS
        parts += [(name, "recompute_selective", share * s, w) for name, _, s, w in repeats]
    return parts


def terms(
    batch: StrategyBatch, work: RankWork, ctx: EvalContext[TpConfig, TpProfile]
) -> list[TimeTerm]:
    """All time terms, zero where the degree is one."""
    group = ctx.group(batch, "tp")
    split = (batch["tp_degree"] > 1).astype(np.float64)
    sp = batch["sequence_parallel"].astype(np.float64)
    one = gather_seconds(work, group, ctx) * split
    cast = gather_seconds(work, group, ctx, ctx.recipe.exchanged_bytes) * split
    formula = f"passes x ({RING}); bytes = 2 B x hidden"
    inputs = partial(_inputs, work, group, ctx, one)
    made = [
        TimeTerm(name=name, seconds=seconds, resource="link", phase=phase, window=window,
                 formula=formula, source=_SOURCE, inputs=partial(inputs, seconds))
        for name, phase, seconds, window in layer_terms(one, sp, ctx.profile, cast)
    ]  # fmt: skip
    made += _ends(work, group, one, sp, split, ctx)
    if ctx.profile.scatter_gather_messages:
        arrival = one * (1 - sp) * work.pipelined
        made += [
            TimeTerm(name="message gather", seconds=arrival, resource="link", segment="hop",
                     phase=phase, formula=formula, source="Narayanan et al. 2021, section 4.1",
                     inputs=partial(inputs, arrival))
            for phase in ("forward", "backward")
        ]  # fmt: skip
    made += host_terms(ctx.profile.host, split)
    if ctx.cluster.devices > group.domain:
        made += host_terms(ctx.profile.host_pipelined, split * group.size * work.pipelined)
    copy = ctx.profile.sequence_copy_bytes
    if copy:
        seconds = PER_PASS * moved_seconds(ctx.system, copy * work.elements("hidden"), 2) * split
        for phase, share in (("forward", 1.0), ("backward", 1.0), ("recompute_full", 1.0),
                             ("recompute_selective", 0.5)):  # fmt: skip
            made.append(
                TimeTerm(name="sequence copies", seconds=share * seconds, phase=phase,
                         kind="elementwise", formula=f"4 x {copy:g} B x hidden / device memory",
                         source="torchtitan: chunk and concatenate around sequence collectives")
            )  # fmt: skip
    return made


def _inputs(
    work: RankWork, group: Group, ctx: EvalContext[TpConfig, TpProfile], one: Floats,
    seconds: Floats,
) -> dict[str, Any]:  # fmt: skip
    """Inputs of so many passes of one collective in 16 bits; fewer where casts are gathered."""
    passes = np.where(one > 0, seconds / np.where(one > 0, one, 1.0), 0.0)
    return {"passes": passes, **ring_inputs(ctx.system.links, 2.0 * work.elements("hidden"), group)}


def _ends(
    work: RankWork, group: Group, one: Floats, sequence_parallel: Floats, split: Floats,
    ctx: EvalContext[TpConfig, TpProfile],
) -> list[TimeTerm]:  # fmt: skip
    """Collectives of the embedding and of the head's input, scalars of the vocabulary-parallel loss.

    With sequence parallelism the embedding scatters its sums and gathers their gradient; the head
    gathers its input, and once more for its weight gradient, and scatters the input's gradient.
    Without it each of the two does one all-reduce.
    """
    scalars = (
        3 * all_reduce_seconds(ctx.system.links, 4 * work.extent(Extent.TOKENS), group) * split
    )
    gathered = one * sequence_parallel
    inputs = partial(_inputs, work, group, ctx, one)
    rows = [
        ("embedding reduce", "embedding", "forward", 2 * one - gathered,
         "reduce-scatter, or an all-reduce of two passes"),
        ("embedding gradient gather", "embedding", "backward", gathered, "one all-gather"),
        ("logits input gather", "head", "forward", gathered, "one all-gather"),
        ("logits input gradient", "head", "backward", 2 * one, "two passes"),
        ("loss scalars", "head", "forward", scalars, "3 all-reduces of 4 B x tokens"),
    ]  # fmt: skip
    return [
        TimeTerm(name=name, seconds=seconds, resource="link", segment=segment, phase=phase,
                 formula=f"passes x ({RING}); {formula}", inputs=partial(inputs, seconds),
                 source="Megatron-LM vocab-parallel embedding and cross entropy")
        for name, segment, phase, seconds, formula in rows
    ]  # fmt: skip
