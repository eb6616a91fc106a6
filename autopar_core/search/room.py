"""Most layers that each rank can hold, whatever it recomputes and however its chunks share them.

Layers on the chunk that keeps the fewest micro-batches alive take the least memory, so the split that
puts all it can there says what a rank can hold. A peak is a maximum of sums that grow with the layers:
beyond a few layers it is convex, which rules most hopeless rows out with two evaluations; for the others
the largest number is bisected.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from autopar_core.domain.arrays import Bools, Floats, Ints
from autopar_core.domain.space import Plan
from autopar_core.search.boxes import Box
from autopar_core.search.choices import EVERY, Uniform, choices
from autopar_core.search.clock import on_ranks
from autopar_core.search.mixes import leanest
from autopar_core.search.problem import Problem


# Chunks of so few layers have blocks that are top and bottom at once: convexity is not sure.
FEW = 3
Peaks = Callable[[Problem, Ints], Floats]


def widest(problem: Problem, box: Box, plan: Plan, start: Ints) -> tuple[Ints, Ints]:
    """((R,) rows that some partition of the box may fit, (R, ranks) most layers of each rank)."""
    # none where the plan has no way of recompute for these stages
    rows, caps = [np.zeros(0, np.int64)], [np.zeros((0, problem.key.ranks), np.int64)]
    waiting = np.arange(len(problem))
    for peaks in _leanest_peaks(problem, plan):
        part = problem.take(waiting)
        at, room = _widest(part, box, peaks, on_ranks(start[waiting], problem.key))
        rows.append(waiting[at])
        caps.append(room)
        waiting = np.delete(waiting, at)
        if not len(waiting):
            break
    return np.concatenate(rows), np.concatenate(caps)


def _leanest_peaks(problem: Problem, plan: Plan) -> list[Peaks]:
    """Ways to hold least: one choice for all ranks where the framework wants that."""
    options = choices(problem, plan, 2)
    if plan.kind == "auto" and problem.granularity == "stage" and problem.modes:
        return [lambda part, counts: leanest(part, counts, plan)]
    if plan.kind == "auto" and problem.granularity == "count" and "full" in problem.modes:
        top = plan.layers.max if plan.layers.max is not None else EVERY
        options = [o for o in options if not isinstance(o, Uniform) or not o.full]
        options.append(Uniform(plan, full=max(1, top // problem.key.chunks)))
    return [lambda part, counts, o=one: o.solve(part, counts).peaks for one in options]  # type: ignore[misc]


def hopeless(problem: Problem) -> Bools:
    """(K,) rows whose ranks cannot even hold together what lives through the whole step."""
    key, total = problem.key, np.zeros(len(problem))
    for (scale, on, when), nbytes in problem.memory.static:
        if when != "always":
            total += np.minimum(nbytes, 0.0) * problem.layers * key.stages
            continue
        place = problem.situation.place[on].reshape(key.chunks, key.ranks)
        if scale == "one":
            total += nbytes * place.any(axis=0).sum()
        elif scale == "chunk":
            total += nbytes * place.sum()
        elif on == "any":
            total += nbytes * problem.layers
        else:
            total += np.minimum(nbytes, 0.0) * problem.layers
    return np.asarray(total > key.ranks * problem.budget)


def _widest(problem: Problem, box: Box, peaks: Peaks, totals: Ints) -> tuple[Ints, Ints]:
    key, budget = problem.key, problem.budget[:, None]
    low, high = on_ranks(box.low[None], key)[0], on_ranks(box.high[None], key)[0]
    high = np.minimum(high, problem.layers - low.sum() + low)
    totals = np.clip(totals, low, high)
    now = peaks(problem, packed(problem, box, totals))
    # where every rank is over, one has as many layers or more in any partition
    some = np.nonzero((now <= budget).any(axis=1) | (totals.sum(axis=1) != problem.layers))[0]
    if len(some) < len(totals):
        if not len(some):
            return some, totals[:0]
        at, room = _room(problem.take(some), box, peaks, totals[some], now[some])
        return some[at], room
    return _room(problem, box, peaks, totals, now)


def _room(problem: Problem, box: Box, peaks: Peaks, totals: Ints, now: Floats) -> tuple[Ints, Ints]:
    """`_widest` from (K, ranks) layers and their bytes."""
    key, budget = problem.key, problem.budget[:, None]
    low, high = on_ranks(box.low[None], key)[0], on_ranks(box.high[None], key)[0]
    high = np.minimum(high, problem.layers - low.sum() + low)
    more = peaks(problem, packed(problem, box, totals + 1))
    slope = np.maximum(more - now, 1.0)
    cap = totals + np.floor((budget - now) / slope).astype(np.int64)
    cap = np.where(np.minimum(cap, totals) <= FEW * key.chunks, np.maximum(cap + 1, totals), cap)
    cap = np.minimum(cap, high)
    hopeful = (cap >= low).all(axis=1) & (cap.sum(axis=1) >= problem.layers)
    rows = np.nonzero(hopeful)[0]
    if not len(rows):
        return rows, cap[:0]
    part, cap = problem.take(rows), cap[rows]
    # the largest number that fits lies in [sure, cap]; below `low` nothing does. The cap itself is
    # tried first: where bytes grow by the same amount with each layer it is the answer.
    sure = np.broadcast_to(low - 1, cap.shape).copy()
    middle = cap
    answer = np.full(cap.shape, -1)
    left = np.arange(len(rows))
    while len(left):
        fits = peaks(part, packed(part, box, np.maximum(middle, low))) <= part.budget[:, None]
        fits &= middle >= low
        sure, cap = np.where(fits, middle, sure), np.where(fits, cap, middle - 1)
        enough = (sure >= low).all(axis=1) & (sure.sum(axis=1) >= problem.layers)
        answer[left[enough]] = sure[enough]
        hopeful = (cap >= low).all(axis=1) & (cap.sum(axis=1) >= problem.layers)
        again = np.nonzero(hopeful & ~enough)[0]
        left, part, sure, cap = left[again], part.take(again), sure[again], cap[again]
        middle = (sure + cap + 1) // 2
    good = (answer >= low).all(axis=1)
    return rows[good], answer[good]


def packed(problem: Problem, box: Box, totals: Ints) -> Ints:
    """(K, S) layers of ranks with (K, ranks) in all, on the chunks that keep least alive."""
    key = problem.key
    if key.chunks == 1:
        return totals
    flight = problem.situation.most_in_flight()
    counts = np.tile(box.low, (len(totals), 1))
    left = totals - on_ranks(counts, key)
    order = np.argsort(flight, axis=1, kind="stable")
    for turn in range(key.chunks):
        stage = order[:, turn] * key.ranks + np.arange(key.ranks)
        # the last chunk in turn takes what is left: a total above the limits stays visible
        room = box.high[stage] - box.low[stage]
        more = np.minimum(left, room) if turn < key.chunks - 1 else left
        counts[:, stage] += more
        left = left - more
    return counts


def spread(
    problem: Problem, box: Box, room: Ints, start: Ints, unit: Floats, extra: Floats
) -> list[Ints]:
    """(K, S) partitions near a balanced one that no rank of (K, ranks) room overflows.

    The first keeps the chunks of a rank as even as its layers allow, the second packs them.
    """
    key = problem.key
    totals = np.minimum(on_ranks(start, key), room)
    fixed = on_ranks(extra, key)
    while ((left := problem.layers - totals.sum(axis=1)) > 0).any():
        cost = np.where(totals < room, (totals + 1) * unit[:, None] + fixed, np.inf)
        at = np.nonzero(left > 0)[0]
        totals[at, cost[at].argmin(axis=1)] += 1
    if key.chunks == 1:
        return [totals]
    return [even_chunks(problem, box, totals), packed(problem, box, totals)]


def even_chunks(problem: Problem, box: Box, totals: Ints) -> Ints:
    """(K, S) layers of ranks with (K, ranks) in all, level over their chunks, later ones first."""
    key = problem.key
    counts = np.tile(box.low, (len(totals), 1)).reshape(-1, key.chunks, key.ranks)
    high = box.high.reshape(key.chunks, key.ranks)
    left = totals - counts.sum(axis=1)
    while (left > 0).any():
        value = np.where(counts < high, counts, np.iinfo(np.int64).max)
        chunk = key.chunks - 1 - value[:, ::-1].argmin(axis=1)
        row, rank = np.nonzero(left > 0)
        counts[row, chunk[row, rank], rank] += 1
        left[row, rank] -= 1
    return np.asarray(counts.reshape(len(totals), -1))
