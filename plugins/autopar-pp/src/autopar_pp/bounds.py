"""Lower bounds of the end times of pipeline schedules, in O(S) per candidate.

Every bound is the length of one path through the schedule's graph, or the work one rank must
fit between two of its operations; the longest path (`autopar_pp.replay`) cannot be shorter.
Bounds are proven for real numbers; in floating point they may exceed an equal replay by
rounding (some 1e-14 of it).

Source: the path formula of the 1F1B makespan, extended to chunks and to every rank.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from autopar_pp.orders import Ints, group_size, grouped_order


Floats = NDArray[np.float64]


def gpipe_ends(m: int, forward: Floats, backward: Floats, hop: Floats) -> Floats:
    """Exact end time of every rank under GPipe.

    Identical micro-batches through stages in a row are a flow shop: the last leaves stage r
    after ``sum_{j<=r} f_j + (m - 1) max_{j<=r} f_j``, since a longest path steps from one
    micro-batch to the next m - 1 times, all of them on the slowest stage so far, and every
    path crosses the same r hops. The last stage ends its forwards last of all and turns round
    at once, so no other stage delays a backward with its forwards, and backwards are the
    mirrored flow shop.

    Args:
        m: Micro-batches.
        forward: [K, p] seconds.
        backward: [K, p] seconds.
        hop: [K] seconds per message.

    Returns:
        [K, p] seconds.
    """
    p = forward.shape[1]
    turn = forward.cumsum(axis=1)[:, -1] + (m - 1) * forward.max(axis=1) + (p - 1) * hop
    up = backward[:, ::-1]
    down = up.cumsum(axis=1) + (m - 1) * np.maximum.accumulate(up, axis=1)
    ends: Floats = turn[:, None] + down + np.arange(p) * hop[:, None]
    return ends[:, ::-1]


def _edge_counts(schedule: str, p: int, v: int, m: int) -> tuple[Ints, NDArray[np.bool_]]:
    """Operations around the steady part of every rank.

    Returns:
        [p, v] forwards of each chunk before the first backward, which are also its backwards
        after the last forward (the order is its own mirror image), and [p] whether the first
        backward runs only after the last forward.
    """
    run = grouped_order(schedule, p, v, m, group_size(schedule, p, v, m))
    edge = np.minimum(run.warm_up + 1, m * v)
    of_chunk = (np.arange(m * v) // run.group % v)[:, None] == np.arange(v)
    return of_chunk.cumsum(axis=0)[edge - 1], edge == m * v


def lower_bound(schedule: str, p: int, v: int, m: int, forward: Floats, backward: Floats,
                hop: Floats) -> Floats:  # fmt: skip
    """A proven lower bound of the end time of every rank; exact for GPipe and one rank.

    Proof for 1F1B and interleaved:

    * Work. Rank r starts no earlier than the first micro-batch arrives (fill: forwards of chunk 0
      on earlier ranks and r hops) and then runs all its m * v forwards and backwards.
    * Idle at the start. Between the end of its first forward and the start of its first
      backward the first micro-batch must travel through all later virtual stages and back to
      the last chunk; the rank can fill that time only with the forwards that precede the
      backward in its order. What they do not fill is idle.
    * Idle at the end. Likewise the last micro-batch travels on from the last chunk, through all
      virtual stages' backwards back to chunk 0, while the rank has only its last backwards to
      run. Both intervals are disjoint if the last forward comes after the first backward: then
      both idle times count, otherwise the larger one.
    * Path. The first micro-batch passes all virtual stages forwards and returns to rank r.
    * Neighbours. The last backward of rank r follows the last one of rank r + 1 by a hop. The
      last forward of rank r + 1 follows that of rank r by a hop, and the last micro-batch then
      still has all its backwards before it. So bounds of other ranks carry over.

    Args:
        schedule: "1f1b", "interleaved" or "gpipe".
        p: Ranks.
        v: Chunks per rank.
        m: Micro-batches.
        forward: [K, S] seconds of one micro-batch's forward on each virtual stage.
        backward: [K, S] seconds of its backward.
        hop: [K] seconds per message between ranks.

    Returns:
        [K, p] seconds.

    Raises:
        ValueError: As `autopar_pp.orders.group_size`.
    """
    edge, shared = _edge_counts(schedule, p, v, m)
    if p == 1:
        return m * np.cumsum(forward + backward, axis=1)[:, -1:]
    if schedule == "gpipe":
        return gpipe_ends(m, forward, backward, hop)
    f, b = (x.reshape(-1, v, p) for x in (forward, backward))
    message, rank = hop[:, None], np.arange(p)
    fill = f[:, 0].cumsum(axis=1) - f[:, 0] + rank * message
    work_f, work_b = m * _total(f), m * _total(b)
    before, after = _total(f * edge.T), _total(b * edge.T)
    # From rank r's first chunk to the turn and back to its last chunk, and mirrored.
    hops = (p * v - 1 - rank + p - 1 - rank) * message
    trip_start = _later(forward)[:, :p] + _later(backward)[:, -p:] + hops
    trip_end = _later(forward)[:, -p:] + _later(backward)[:, :p] + hops
    idle_start = np.maximum(0.0, trip_start - (before - f[:, 0]))
    idle_end = np.maximum(0.0, trip_end - (after - b[:, 0]))
    idle = np.where(shared, np.maximum(idle_start, idle_end), idle_start + idle_end)
    path = _total(forward)[:, None] + _later(backward)[:, :p] + b[:, 0]
    path += (2 * (p * v - 1) - rank) * message
    end: Floats = np.maximum(fill + work_f + work_b + idle, path)
    last_forward = fill + work_f + (work_b - after) + np.where(shared, 0.0, idle_start)
    for r in range(1, p):
        behind = last_forward[:, r - 1] + hop + f[:, -1, r]
        last_forward[:, r] = np.maximum(last_forward[:, r], behind)
    descent = _total(backward[:, p - 1 :]) + (p * v - p) * hop
    end[:, -1] = np.maximum(end[:, -1], last_forward[:, -1] + descent)
    for r in range(p - 2, -1, -1):
        end[:, r] = np.maximum(end[:, r], end[:, r + 1] + hop + b[:, 0, r])
    return end


def _total(times: Floats) -> Floats:
    """Sum over axis 1, added in order: `np.sum` rounds by memory layout, rows must not."""
    running: Floats = times.cumsum(axis=1)
    return running[:, -1]


def _later(times: Floats) -> Floats:
    """[K, S] sum over the virtual stages after each one."""
    return times[:, ::-1].cumsum(axis=1)[:, ::-1] - times
