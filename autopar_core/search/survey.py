"""First look at all rows: whether anything fits, and a layout that does.

A row whose partition is open gets the partition that balances its ranks and, if that does not fit, one
that does; the layout that is fastest is searched later and for few rows (``solve``). What is said here
for good is the verdict: a row is over the limit only if no partition with any recompute fits.
"""

from __future__ import annotations

import numpy as np
from attrs import evolve

from autopar_core.compose.layout import Layout
from autopar_core.domain.arrays import Floats, Ints
from autopar_core.domain.space import Plan
from autopar_core.domain.terms import MODES
from autopar_core.search.boxes import Box, Space, space
from autopar_core.search.choices import EVERY, Uniform, settle
from autopar_core.search.clock import clock, on_ranks, stage_seconds
from autopar_core.search.least import balanced_with_recompute
from autopar_core.search.mixes import Care
from autopar_core.search.problem import Problem, Solution, stage_costs
from autopar_core.search.room import even_chunks, hopeless, packed, spread, widest


# A share of the slowest rank's seconds that is worth another layout.
WORTH = 0.02


def survey(problem: Problem, partition: Plan, recompute: Plan) -> Solution:
    """A layout that fits wherever one does, of rows that share their moments and plans."""
    found = space(problem.composer, problem.key, problem.layers, partition, recompute)
    size = len(problem)
    if found.fixed is not None or not found.possible:
        even = problem.composer.even(problem.key, problem.layers)
        counts = np.tile(even if found.fixed is None else found.fixed, (size, 1))
        solution = _settled(problem, counts, recompute, care=Care.EXACT)
        solution.possible[:] &= found.possible
        return solution
    unit, extra = stage_costs(problem)
    unit = unit + _every(problem, recompute)
    counts = _balanced(problem, found, unit, extra)
    solution = _settled(problem, counts, recompute, care=Care.QUICK)
    _look_further(problem, found, recompute, solution, unit, extra)
    _level(problem, found, recompute, solution, unit, extra)
    return solution


def _level(
    problem: Problem, found: Space, plan: Plan, solution: Solution, unit: Floats, extra: Floats
) -> None:
    """Where ranks recompute: layers balanced with what recompute costs each rank, if that is better."""
    if plan.kind != "auto" or found.listed is not None or len(found.boxes) > 1:
        return
    layout, key = solution.layout, problem.key
    fits = (solution.peaks <= problem.budget[:, None]).all(axis=1) & solution.possible
    rows = np.nonzero(fits & (layout.selective + layout.full).any(axis=1))[0]
    if len(rows):
        forward, backward = stage_seconds(key, problem.time.take(rows), layout.take(rows))
        busy = on_ranks(forward + backward, key)
        plain = on_ranks(layout.layers[rows] * unit[rows, None] + extra[rows], key)
        slowest = busy.max(axis=1)
        uneven = slowest > (1 + WORTH) * busy.mean(axis=1)
        slowed = (key.chunks > 1) & (slowest > (1 + WORTH) * plain.max(axis=1))
        rows, slowest = rows[uneven | slowed], slowest[uneven | slowed]
    if not len(rows):
        return
    part, box = problem.take(rows), found.boxes[0]
    totals, least = balanced_with_recompute(part, box, unit[rows], on_ranks(extra[rows], key))
    worth = np.nonzero(least < (1 - WORTH) * slowest)[0]
    if not len(worth):
        return
    rows, part, totals = rows[worth], part.take(worth), totals[worth]
    tried = [totals if key.chunks == 1 else even_chunks(part, box, totals)]
    if key.chunks > 1:
        tried.append(_packed_where_full(part, box, layout.layers[rows]))
    best = _bound(part, solution.take(rows))
    for counts in tried:
        moved = np.nonzero((counts != layout.layers[rows]).any(axis=1))[0]
        if not len(moved):
            continue
        some = part.take(moved)
        made = settle(some, counts[moved], plan, care=Care.QUICK)
        fits = (made.peaks <= some.budget[:, None]).all(axis=1) & made.possible
        bound = np.where(fits, _bound(some, made), np.inf)
        at = np.nonzero(bound < best[moved])[0]
        solution.put(rows[moved[at]], made.take(at))
        best[moved[at]] = bound[at]


def _packed_where_full(problem: Problem, box: Box, counts: Ints) -> Ints:
    """The same layers of every rank; on chunks that keep less alive where a rank would recompute."""
    key = problem.key
    other = packed(problem, box, on_ranks(counts, key))
    full = problem.peaks(Layout.plain(counts)) > problem.budget[:, None]
    return np.where(np.tile(full, (1, key.chunks)), other, counts)


def _bound(problem: Problem, solution: Solution) -> Floats:
    """(K,) bound of the step with as few micro-batches as show all moments.

    Rows that share their moments may differ in their micro-batches: a row's layout must not depend
    on which rows are beside it.
    """
    key = evolve(problem.key, micro_batches=problem.situation.key.micro_batches)
    layout, time = solution.layout, problem.time
    seconds = stage_seconds(key, time, layout)
    return clock(problem.composer, key, time, layout.layers, *seconds, exact=False).step


def _settled(problem: Problem, counts: Ints, plan: Plan, *, care: Care) -> Solution:
    """`settle`, with as much recompute as there is on rows that nothing can save."""
    lost = hopeless(problem)
    if plan.kind != "auto" or not problem.modes or not lost.any():
        return settle(problem, counts, plan, care=care)
    mode = "full" if "full" in problem.modes else problem.modes[0]
    most = EVERY if plan.layers.max is None else plan.layers.max // problem.key.chunks
    rows, others = np.nonzero(lost)[0], np.nonzero(~lost)[0]
    part = problem.take(rows)
    miss = Uniform(Plan(), **{mode: most}).solve(part, counts[rows])
    solution = Solution(
        Layout.plain(counts.copy()), np.zeros((len(problem), problem.key.ranks)),
        np.ones(len(problem), bool),
    )  # fmt: skip
    solution.put(rows, miss)
    if len(others):
        made = settle(problem.take(others), counts[others], plan, care=care)
        solution.put(others, made)
    return solution


def _every(problem: Problem, plan: Plan) -> Floats:
    """(K,) seconds that recompute adds to every layer whatever the layout."""
    if plan.kind not in MODES:
        return np.zeros(len(problem))
    backward = problem.time.backward
    return np.asarray(backward[:, MODES.index(plan.kind)] - backward[:, 0])


def _balanced(problem: Problem, found: Space, unit: Floats, extra: Floats) -> Ints:
    """(K, S) layers whose slowest rank takes least, memory aside."""
    key, size = problem.key, len(problem)
    best, least = np.zeros((size, key.stages), np.int64), np.full(size, np.inf)
    for counts in _candidates(problem, found, unit, extra):
        slowest = on_ranks(counts * unit[:, None] + extra, key).max(axis=1)
        better = slowest < least
        best = np.where(better[:, None], counts, best)
        least = np.where(better, slowest, least)
    return best


def _candidates(problem: Problem, found: Space, unit: Floats, extra: Floats) -> list[Ints]:
    """The balanced partition of every box, or everything that is listed."""
    size, stages = len(problem), problem.key.stages
    if found.listed is not None:
        return [np.broadcast_to(one, (size, stages)) for one in found.listed]
    made = []
    for box in found.boxes:
        high = np.broadcast_to(box.high, (size, stages))
        counts, _ = problem.composer.partition(
            problem.key, problem.layers, unit, extra, box.low, high
        )
        made.append(counts)
    return made


def _look_further(
    problem: Problem, found: Space, plan: Plan, solution: Solution, unit: Floats, extra: Floats
) -> None:
    """Another partition for rows whose balanced one does not fit, in place."""
    for box in found.boxes if found.listed is None else (None,):
        over = (solution.peaks > problem.budget[:, None]).any(axis=1) | ~solution.possible
        rows = np.nonzero(over & ~hopeless(problem))[0]
        if problem.key.chunks == 1 and found.listed is None and len(found.boxes) == 1:
            # where every rank is over in its leanest way, one has as many layers in any partition
            full = (solution.peaks[rows] > problem.budget[rows, None]).all(axis=1)
            rows = rows[~full]
        if not len(rows):
            return
        part = problem.take(rows)
        if box is None:
            assert found.listed is not None
            for one in found.listed:
                _keep(part, solution, rows, np.tile(one, (len(rows), 1)), plan)
        else:
            start = solution.layout.layers[rows]
            at, room = widest(part, box, plan, start)
            if len(at):
                rows, part = rows[at], part.take(at)
                counts = spread(part, box, room, start[at], unit[rows], extra[rows])
                for each in counts:
                    _keep(part, solution, rows, each, plan)


def _keep(part: Problem, solution: Solution, rows: Ints, counts: Ints, plan: Plan) -> None:
    """Take a partition for the rows that it suits and that have none yet."""
    made = settle(part, counts, plan, care=Care.QUICK)
    fits = (made.peaks <= part.budget[:, None]).all(axis=1) & made.possible
    had = (solution.peaks[rows] <= part.budget[:, None]).all(axis=1) & solution.possible[rows]
    at = np.nonzero(fits & ~had)[0]
    solution.put(rows[at], made.take(at))
