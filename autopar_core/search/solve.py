"""Layers per stage and recompute per stage for rows that share a schedule key.

Partition: the exact min-max of stage times. Recompute ``auto``: as little as fits, see
``recompute``. Rows that do not fit are balanced once more under the layers that each stage can hold.
"""

from __future__ import annotations

import numpy as np

from autopar_core.compose.memory_peak import Layout
from autopar_core.domain.arrays import Bools, Ints
from autopar_core.domain.space import Plan
from autopar_core.hooks.schedule import Composer
from autopar_core.search.problem import Problem, Solution, stage_costs
from autopar_core.search.recompute import expressible, fewest_layers, leanest


def solve(problem: Problem, composer: Composer, partition: Plan, recompute: Plan) -> Solution:
    """Choose the layout of every row."""
    key = problem.situation.key
    low, high = _limits(problem, composer, partition)
    counts, possible = _partition(problem, composer, partition, low, high)
    solution = _with_recompute(problem, counts, recompute, possible)
    if partition.kind != "auto" or key.stages == 1:
        return solution
    over = solution.peaks > problem.budget[:, None]
    # where every rank is over nothing can move; layers only go from full ranks to others
    rows = np.nonzero(over.any(axis=1) & ~over.all(axis=1) & possible)[0]
    if not len(rows):
        return solution
    over_rows = Solution(solution.layout.take(rows), solution.peaks[rows], possible[rows])
    again = _rebalance(problem.take(rows), composer, recompute, over_rows, low, high)
    if again is not None:
        moved, better = again
        kept = rows[moved]
        solution.layout.put(kept, better.layout)
        solution.peaks[kept] = better.peaks
    return solution


def _limits(problem: Problem, composer: Composer, plan: Plan) -> tuple[Ints, Ints]:
    """(S,) fewest and most layers of each stage under the plan's offset range."""
    key, layers = problem.situation.key, problem.layers
    floor = 0 if composer.empty_stages and key.stages > 1 else 1
    low = np.full(key.stages, floor, dtype=np.int64)
    high = np.full(key.stages, layers, dtype=np.int64)
    base = layers // key.stages
    if plan.offset.min is not None:
        low = np.maximum(low, base + plan.offset.min)
    if plan.offset.max is not None:
        high = np.minimum(high, base + plan.offset.max)
    return low, high


def _partition(
    problem: Problem, composer: Composer, plan: Plan, low: Ints, high: Ints
) -> tuple[Ints, Bools]:
    """((K, S) layers, (K,) possible)."""
    key, size = problem.situation.key, len(problem.budget)
    if plan.kind == "auto" and key.stages > 1:
        room = np.broadcast_to(high, (size, key.stages))
        unit, extra = stage_costs(problem)
        if low.sum() > problem.layers:
            return np.zeros((size, key.stages), np.int64), np.zeros(size, bool)
        return composer.partition(key, problem.layers, unit, extra, low, room)
    if plan.kind == "given":
        given = np.asarray(plan.given, dtype=np.int64)
        shape = (key.stages,) if key.chunks == 1 else (key.chunks, key.ranks)
        fits = given.shape in (shape, (key.stages,)) and int(given.sum()) == problem.layers
        given = given.reshape(-1)
        fits = fits and bool((given >= low).all() and (given <= high).all())
        counts = given if fits else np.zeros(key.stages, np.int64)
        return np.tile(counts, (size, 1)), np.full(size, fits)
    return np.tile(composer.even(key, problem.layers), (size, 1)), np.ones(size, bool)


def _with_recompute(problem: Problem, counts: Ints, plan: Plan, possible: Bools) -> Solution:
    """Fill in recompute as the plan says."""
    layout = Layout.plain(counts)
    if plan.kind == "every":
        layout = Layout.alternating(counts, plan.given, problem.situation.key.ranks)
        possible = possible & problem.alternates
    elif plan.kind in ("selective", "full"):
        getattr(layout, plan.kind)[:] = counts
        possible = possible & (plan.kind in problem.modes)
    elif plan.kind == "given":
        for mode in ("selective", "full"):
            wanted = np.asarray((plan.given or {}).get(mode, 0), dtype=np.int64).reshape(-1)
            if wanted.size not in (1, counts.shape[1]):
                possible = np.zeros_like(possible)
                wanted = np.zeros(1, np.int64)
            getattr(layout, mode)[:] = wanted
        possible = possible & (layout.selective + layout.full <= counts).all(axis=1)
        possible = possible & expressible(problem, layout)
    peaks = problem.peaks(layout)
    if plan.kind != "auto" or not problem.modes:
        return Solution(layout, peaks, possible)
    if plan.layers.min:
        held = counts.reshape(-1, problem.situation.key.chunks, problem.situation.key.ranks)
        possible = possible & (held.sum(axis=1) >= plan.layers.min).all(axis=1)
    over = (peaks > problem.budget[:, None]).any(axis=1)
    rows = np.nonzero((over | bool(plan.layers.min)) & possible)[0]
    if len(rows):
        start = Solution(layout.take(rows), peaks[rows], possible[rows])
        chosen = fewest_layers(problem.take(rows), start, plan)
        layout.put(rows, chosen.layout)
        peaks[rows] = chosen.peaks
    return Solution(layout, peaks, possible)


def _rebalance(
    problem: Problem, composer: Composer, recompute: Plan, full: Solution, low: Ints, high: Ints
) -> tuple[Ints, Solution] | None:
    """Balance once more under the layers that each stage can hold; rows for which that can help.

    The peak of a stage grows by the same bytes with each layer as long as the same instant rules, so
    one more evaluation, with a layer more everywhere, gives the number of layers that fit. Rows that
    do not fit carry the most recompute already.
    """
    layers, chunks = full.layout.layers, problem.situation.key.chunks
    more = problem.peaks(leanest(problem, recompute, layers + 1))
    peaks = np.tile(full.peaks, (1, chunks))
    slope = np.tile(more, (1, chunks)) - peaks
    room = (problem.budget[:, None] - peaks) / np.maximum(slope / chunks, 1.0)
    room = np.floor(room / chunks).astype(np.int64)
    cap = np.clip(layers + room, 0, high).astype(np.int64)
    able = (cap.sum(axis=1) >= problem.layers) & (cap >= low).all(axis=1)
    rows = np.nonzero(able)[0]
    if not len(rows):
        return None
    part = problem.take(rows)
    unit, extra = stage_costs(part)
    key = part.situation.key
    counts, possible = composer.partition(key, part.layers, unit, extra, low, cap[rows])
    rows, part = rows[possible], part.take(possible)
    if not len(rows):
        return None
    found = _with_recompute(part, counts[possible], recompute, np.ones(len(rows), bool))
    fits = np.asarray((found.peaks <= part.budget[:, None]).all(axis=1))
    if not fits.any():
        return None
    better = Solution(found.layout.take(fits), found.peaks[fits], found.possible[fits])
    return rows[fits], better
