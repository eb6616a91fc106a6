"""What pipelines cannot do, and what they had better not."""

from __future__ import annotations

import numpy as np

from autopar_core.api import HABIT, Bools, Broken, EvalContext, Ints, Level, StrategyBatch
from autopar_pp import plans
from autopar_pp.composer import chunks_of
from autopar_pp.config import PpConfig, PpProfile
from autopar_pp.zero_bubble import V_SHAPED


Context = EvalContext[PpConfig, PpProfile]
# Micro-batches per stage below which the bubble exceeds a fifth of the step (Megatron-Bridge guide).
FULL_PIPELINE = 4


def broken(batch: StrategyBatch, level: Level, ctx: Context) -> list[Broken]:
    """Every rule that rows break at a level."""
    if level is Level.DEGREE:
        return _degrees(batch, ctx)
    if level is Level.SCHEDULE:
        return _schedules(batch, ctx)
    if level is Level.CHUNKS:
        return _chunks(batch, ctx)
    if level is Level.RECOMPUTE:
        return [plans.broken(batch, ctx)]
    return []


def _degrees(batch: StrategyBatch, ctx: Context) -> list[Broken]:
    layers = ctx.model.num_layers
    stages = _room(ctx)
    return [
        Broken(
            code="pp-layers",
            rows=batch["pp_degree"] > stages,
            sentence="pp {pp_degree} is more stages than the {layers:1 layer} can fill",
            numbers={"layers": layers},
            source="Megatron-LM, Galvatron, torchtitan: stages <= layers",
        )
    ]


def _room(ctx: Context) -> int:
    """Most stages: each needs a layer, or is an end of the model where ends may stand alone."""
    ends = ctx.profile.empty_stages or ctx.profile.empty_ends
    return ctx.model.num_layers + (2 if ends else 0)


def _schedules(batch: StrategyBatch, ctx: Context) -> list[Broken]:
    several = batch["pp_degree"] > 1
    m, pp = batch["micro_batch_num"], batch["pp_degree"]
    names = batch.fields["schedule"].choices
    known = [names.index(s) for s in ctx.profile.schedules if s in names]
    rules = [
        Broken(
            code="pp-schedule",
            rows=several & ~np.isin(batch["schedule"], known),
            sentence="{framework} has no {schedule} schedule; it has {known}",
            numbers={"framework": ctx.framework.name, "known": ", ".join(ctx.profile.schedules)},
            source="framework profile: schedules",
        ),
        Broken(
            code="pp-bubble",
            rows=several & (m < FULL_PIPELINE * pp),
            sentence="{micro_batch_num:1 micro-batch} for {pp_degree} stages: a large bubble",
            kind=HABIT,
            source="Megatron-Bridge performance guide: micro-batches >= 4 stages",
        ),
    ]
    if ctx.profile.fill_pipeline:
        plain = batch["schedule"] == names.index("1f1b")
        rules.append(
            Broken(
                code="pp-micro-batches",
                rows=several & plain & (m < pp),
                sentence="1F1B cannot fill pp {pp_degree} stages with "
                "{micro_batch_num:1 micro-batch}",
                source="torch.distributed.pipelining: Schedule1F1B raises below one micro-batch "
                "per stage; GPipe and Interleaved1F1B run",
            )
        )
    wanted = ["dualpipev", *(["zbv"] if ctx.profile.fill_v_shape else [])]
    shaped = np.isin(batch["schedule"], [names.index(name) for name in wanted])
    rules.append(
        Broken(
            code="pp-v-micro-batches",
            rows=several & shaped & (m < 2 * pp),
            sentence="{schedule} on pp {pp_degree} needs two micro-batches per rank, not "
            "{micro_batch_num} in all",
            source="torch ScheduleDualPipeV: micro-batches >= stages; MindFormers zero_bubble_v",
        )
    )
    return rules


def _chunks(batch: StrategyBatch, ctx: Context) -> list[Broken]:
    several = batch["pp_degree"] > 1
    names = batch.fields["schedule"].choices
    interleaved = several & (batch["schedule"] == names.index("interleaved"))
    m, pp, chunks = batch["micro_batch_num"], batch["pp_degree"], chunks_of(batch)
    shaped = several & np.isin(batch["schedule"], [names.index(name) for name in V_SHAPED])
    layers = ctx.model.num_layers
    room = _room(ctx)
    rules = [
        Broken(
            code="pp-chunks",
            rows=interleaved & (chunks < 2),
            sentence="the interleaved schedule needs vpp of at least 2, not {vpp_degree}",
            source="Megatron-LM: virtual stages",
        ),
        Broken(
            code="pp-v-layers",
            rows=shaped & (2 * pp > room),
            sentence="{schedule} needs two stages on each of pp {pp_degree} ranks, more than "
            "{layers} layers fill",
            numbers={"layers": layers},
            source="torch ScheduleZBVZeroBubble, ScheduleDualPipeV: two stages per rank",
        ),
        Broken(
            code="pp-chunk-layers",
            rows=several & ~shaped & (pp * chunks > room),
            sentence="pp {pp_degree} x vpp {vpp_degree} is more stages than {layers} layers fill",
            numbers={"layers": layers},
            source="Megatron-LM, torchtitan: stages <= layers",
        ),
        _rounds(interleaved, m, pp, ctx),
    ]
    if ctx.profile.partitions == "even":
        rules.append(
            Broken(
                code="pp-even",
                rows=several & (layers % (pp * chunks) != 0),
                sentence="{layers:1 layer} cannot be divided into {pp_degree} x {vpp_degree} even stages",
                numbers={"layers": layers},
                source="framework profile: partitions",
            )
        )
    return rules


def _rounds(interleaved: Bools, m: Ints, pp: Ints, ctx: Context) -> Broken:
    """Micro-batches that interleaving cannot group."""
    group = ctx.config.group_size
    if not group:
        return Broken(
            code="pp-rounds",
            rows=interleaved & _partial_rounds(m, pp, ctx.profile.interleaved_whole_rounds),
            sentence="interleaving needs whole rounds of pp {pp_degree} micro-batches, not "
            "{micro_batch_num}",
            source="Megatron-LM schedules (group size pp), torch Interleaved1F1B (m % rounds == 0)",
        )
    if not ctx.profile.group_sizes:
        return Broken(
            code="pp-group-size",
            rows=interleaved,
            sentence="{framework} has no group size for interleaving; leave plugins.pp.group_size "
            "at 0",
            numbers={"framework": ctx.framework.name},
            source="framework profile: group_sizes",
        )
    rest = m % group
    return Broken(
        code="pp-group-size",
        rows=interleaved & ((group < pp) | (group > m) | ((rest > 0) & (rest < pp))),
        sentence="groups of {group} do not suit {micro_batch_num:1 micro-batch} on pp {pp_degree}: "
        "at least pp, at most all, and no last group below pp",
        numbers={"group": group},
        source="Megatron-LM schedules: microbatch_group_size_per_vp_stage",
    )


def _partial_rounds(m: Ints, pp: Ints, whole: bool) -> Bools:
    if whole:
        return np.asarray((m % pp != 0) | (m < pp))
    return np.asarray(m % np.maximum(1, m // pp) != 0)
