"""Lower bounds of the end times of pipeline schedules, in O(S) per candidate.

Every bound is the length of one path through the schedule's graph, or the work one rank must
fit between two of its operations; the longest path (`autopar_pp.replay`) cannot be shorter.
Bounds are proven for real numbers; in floating point they may exceed an equal replay by
rounding (some 1e-14 of it).

Source: the path formula of the 1F1B makespan, extended to chunks and to every rank.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from autopar_pp.orders import Ints, Order, group_size, grouped_order, model_order
from autopar_pp.zero_bubble import FORWARD, INPUT, NOTHING, SPLIT


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


@lru_cache(maxsize=128)
def _edge_counts(run: Order) -> tuple[Ints, Ints, NDArray[np.bool_]]:
    """Operations around the steady part of every rank.

    Returns:
        [p, v] forwards of each chunk before the first backward, [p, v] backwards of each chunk
        after the last forward, and [p] whether the first backward runs only after the last forward.
    """
    p, v, n = len(run.kind), run.chunks, run.chunks * run.micro_batches
    edge = np.minimum(run.warm_up + 1, n)
    rank = np.arange(p)[:, None]
    forward = run.chunk[rank, np.nonzero(run.kind == FORWARD)[1].reshape(p, n)]
    backward = run.chunk[rank, np.nonzero(run.kind != FORWARD)[1].reshape(p, n)]
    before = (forward[:, :, None] == np.arange(v)) & (np.arange(n) < edge[:, None])[:, :, None]
    after = (backward[:, :, None] == np.arange(v)) & (np.arange(n) >= n - edge[:, None])[:, :, None]
    return before.sum(axis=1), after.sum(axis=1), edge == n


def lower_bound(
    schedule: str, p: int, v: int, m: int, forward: Floats, backward: Floats, hop: Floats,
    weight: Floats | None = None, *, group: int = 0, synchronous: bool = False,
) -> Floats:  # fmt: skip
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
    * Synchronous messages. After a forward or backward that sends, both ranks of a message wait
      for its ``hop`` seconds at least, each message in an exchange of its sender's own. So the
      times cannot be shorter than if each message cost its sender ``hop`` and then travelled in
      no time.

    Schedules that split the backward: see `split_bound`.

    Args:
        schedule: One of `autopar_pp.orders.SCHEDULES`.
        p: Ranks.
        v: Chunks per rank.
        m: Micro-batches.
        forward: [K, S] seconds of one micro-batch's forward on each virtual stage.
        backward: [K, S] seconds of its backward.
        hop: [K] seconds per message between ranks.
        weight: [K, S] seconds of the backward that compute weight gradients; none by default.
        group: Megatron's group size for interleaving; 0 for the default.
        synchronous: Messages of "1f1b" and "gpipe" occupy both ranks.

    Returns:
        [K, p] seconds.

    Raises:
        ValueError: As `autopar_pp.orders.group_size`.
    """
    group = group_size(schedule, p, v, m, group)
    if p == 1:
        return m * np.cumsum(forward + backward, axis=1)[:, -1:]
    if schedule in SPLIT:
        apart = np.zeros_like(backward) if weight is None else np.minimum(weight, backward)
        return split_bound(grouped_order(schedule, p, v, m, group), forward, backward, apart, hop)
    if synchronous and v == 1:
        forward, backward, hop = sent_by(forward, backward, hop)
    if schedule == "gpipe":
        return gpipe_ends(m, forward, backward, hop)
    edge, drain, shared = _edge_counts(grouped_order(schedule, p, v, m, group))
    f, b = (x.reshape(-1, v, p) for x in (forward, backward))
    message, rank = hop[:, None], np.arange(p)
    fill = f[:, 0].cumsum(axis=1) - f[:, 0] + rank * message
    work_f, work_b = m * _total(f), m * _total(b)
    before, after = _total(f * edge.T), _total(b * drain.T)
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


def sent_by(forward: Floats, backward: Floats, hop: Floats) -> tuple[Floats, Floats, Floats]:
    """Times that charge every message to its sender: forwards but the last stage's, backwards but
    the first's, and no hops."""
    forward, backward = forward.copy(), backward.copy()
    forward[:, :-1] += hop[:, None]
    backward[:, 1:] += hop[:, None]
    return forward, backward, np.zeros_like(hop)


def split_bound(
    run: Order, forward: Floats, backward: Floats, weight: Floats, hop: Floats
) -> Floats:
    """Lower bound of the end of every rank of a schedule that splits the backward.

    Proof. Let A be the first operation of a rank that takes a gradient in, and Z the last.

    * A starts no earlier than the rank can have run what stands before it (from the first
      micro-batch's arrival on), and than that micro-batch has passed all virtual stages forwards
      and returned to A's. From A on the rank has the rest of its list to run.
    * Between A and Z it has what stands between them. Z of rank r follows Z of rank r + 1 by a
      message (both are the last micro-batch on chunk 0, on neighbouring virtual stages), and what
      stands after Z in its list is still to come.

    Args:
        run: The order.
        forward, backward, weight: [K, S] seconds; ``weight`` is a part of the backward.
        hop: [K] seconds per message between ranks.

    Returns:
        [K, p] seconds.
    """
    p, v = len(run.kind), run.chunks
    order = model_order(p, v, run.mirrored)
    crosses = np.append(order[1:] % p != order[:-1] % p, False)
    first, last, counts = _spans(run)
    # Everything of a rank's list before A, from A to Z with A and Z, and after Z.
    seconds = np.stack([forward, backward, backward - weight, weight])
    work = [
        np.stack([_total(_rank_rows(seconds, r, p) * counts[r, span]) for r in range(p)], axis=1)
        for span in range(3)
    ]
    f, back = forward[:, order], seconds[INPUT][:, order]
    # A gradient travels on after the whole backward where the schedule does not split it.
    ahead = np.cumsum(f, axis=1) - f + (np.cumsum(crosses) - crosses) * hop[:, None]
    down = _later(back) + (crosses[::-1].cumsum()[::-1]) * hop[:, None]
    place = np.empty(p * v, np.int64)
    place[order] = np.arange(p * v)
    arrives = ahead[:, place[:p]]
    turn = (ahead + f)[:, -1:]
    start = np.maximum(arrives + work[0], turn + down[:, place[first]])
    gone = start + work[1]
    for r in range(p - 2, -1, -1):
        behind = gone[:, r + 1] + hop + seconds[INPUT][:, last[r]]
        gone[:, r] = np.maximum(gone[:, r], behind)
    return np.asarray(gone + work[2])


def _rank_rows(seconds: Floats, rank: int, p: int) -> Floats:
    """[K, 4 v] seconds of every kind on the chunks of a rank."""
    mine = seconds[:, :, rank::p]
    return np.asarray(mine.transpose(1, 0, 2).reshape(mine.shape[1], -1))


@lru_cache(maxsize=128)
def _spans(run: Order) -> tuple[Ints, Ints, Ints]:
    """([p] virtual stage of A, [p] that of Z, [p, 3, 4 v] operations by kind and chunk)."""
    p, v = len(run.kind), run.chunks
    first, last = np.zeros(p, np.int64), np.zeros(p, np.int64)
    counts = np.zeros((p, 3, NOTHING * v), np.int64)
    for r in range(p):
        gradients = np.nonzero(run.backward[r])[0]
        a, z = int(gradients[0]), int(gradients[-1])
        first[r], last[r] = run.stage[r, a], run.stage[r, z]
        there = run.kind[r] != NOTHING
        column = run.kind[r] * v + run.chunk[r]
        for span, part in enumerate((slice(0, a), slice(a, z + 1), slice(z + 1, None))):
            counts[r, span] = np.bincount(column[part][there[part]], minlength=NOTHING * v)
    return first, last, counts
