"""Start and end of every operation of one candidate, from the same recurrence as the replay."""

from __future__ import annotations

import numpy as np

from autopar_core.api import Timeline
from autopar_pp.bounds import Floats
from autopar_pp.moments import one_stage, walk
from autopar_pp.orders import Bools, Ints, group_size
from autopar_pp.program import Program, program
from autopar_pp.replay import in_ticks
from autopar_pp.zero_bubble import NOTHING, SPLIT


def timeline(
    schedule: str, p: int, v: int, m: int, forward: Floats, backward: Floats, hop: float,
    weight: Floats, *, group: int = 0, synchronous: bool = False,
) -> Timeline:  # fmt: skip
    """All m micro-batches of one candidate.

    Args:
        schedule: One of `autopar_pp.orders.SCHEDULES`.
        p: Ranks.
        v: Chunks per rank.
        m: Micro-batches.
        forward, backward, weight: [S] seconds of one micro-batch on each virtual stage.
        hop: Seconds per message between ranks.
        group: Megatron's group size for interleaving; 0 for the default.
        synchronous: Messages of "1f1b" and "gpipe" occupy both ranks.

    Returns:
        Every rank's work ends at the very time that `autopar_pp.replay.replay` gives.

    Raises:
        ValueError: As `autopar_pp.orders.group_size`.
    """
    group = group_size(schedule, p, v, m, group)
    if p == 1:
        return Timeline.of_one_stage(m, float(forward[0]), float(backward[0]), one_stage(m))
    table, hops = in_ticks(m, forward[None], backward[None], weight[None], np.array([hop]))
    plan = program(schedule, p, v, m, group, synchronous and v == 1 and schedule not in SPLIT)
    end = plan.ends(table, hops)[plan.row, 0]
    return _operations(plan, end, table[:, 0], float(hops[0]))


def _operations(plan: Program, end: Floats, seconds: Floats, hop: float) -> Timeline:
    """[p, nodes] end times as operations."""
    run, (p, width) = plan.run, plan.row.shape
    there = run.kind != NOTHING
    rank = np.broadcast_to(np.arange(p)[:, None], run.kind.shape)
    node = rank * width + plan.place
    number = np.cumsum(there).reshape(there.shape) - 1
    owner = _owners(node[there], number[there], p * width)
    ends, done = end.ravel(), node[there]
    start = ends[done] - seconds[run.kind[there] * (p * run.chunks) + run.stage[there]]
    cause, alone = _causes(plan, ends, hop)
    before = np.where(done % width > 0, ends[done - 1], 0.0)
    crosses = plan.crosses.ravel()
    late = hop if plan.synchronous else np.minimum(hop, start - before)
    message = np.where(crosses[done] & (plan.synchronous | ~alone[done]), late, 0.0)
    after, sends = done + 1, np.zeros(len(done), np.bool_)
    inside = (after % width > 0) & (after < p * width)
    sends[inside] = owner[after[inside]] == number[there][inside]
    sends &= inside
    released = np.where(sends, ends[np.where(sends, after, done)], ends[done])
    sending = np.where(sends & crosses[np.where(sends, after, done)], hop, 0.0)
    return Timeline(
        rank=rank[there], chunk=run.chunk[there], micro_batch=run.micro_batch[there],
        kind=run.kind[there], start=start, end=ends[done], message=message, released=released,
        sending=sending, cause=np.where(cause[done] >= 0, owner[cause[done]], -1),
        moments=walk(run, p),
    )  # fmt: skip


def _owners(node: Ints, number: Ints, size: int) -> Ints:
    """[nodes] operation of each node; what a rank sends after an operation belongs to that one."""
    owner = np.full(size, -1, np.int64)
    owner[node] = number
    return np.maximum.accumulate(owner)


def _causes(plan: Program, ends: Floats, hop: float) -> tuple[Ints, Bools]:
    """([nodes] node whose end decided the start of each, -1 for none; [nodes] whether it is the
    previous one of the rank)."""
    p, width = plan.row.shape
    node = np.arange(p * width)
    previous = np.where(node % width > 0, node - 1, -1)
    best, value = previous.copy(), np.where(previous >= 0, ends[previous], 0.0)
    lag = 0.0 if plan.synchronous else hop * plan.crosses.ravel()
    for needs in plan.needs.reshape(len(plan.needs), -1):
        arrives = np.where(needs >= 0, ends[needs] + lag, -1.0)
        best = np.where(arrives > value, needs, best)
        value = np.maximum(value, arrives)
    return best, best == previous
