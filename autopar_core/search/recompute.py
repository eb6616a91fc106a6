"""How many layers of each stage recompute: as few as fit, found from below.

An excess divided by the most that one more layer can free never asks for too much, so the first level
that fits is the least one.
"""

from __future__ import annotations

import numpy as np

from autopar_core.compose.memory_peak import Layout
from autopar_core.domain.arrays import Bools, Floats, Ints
from autopar_core.domain.space import Plan
from autopar_core.domain.terms import MODES
from autopar_core.search.problem import Problem, Solution, stage_costs


def expressible(problem: Problem, layout: Layout) -> Bools:
    """(K,) rows whose given recompute the framework can spell.

    As a count: one number of fully recomputed layers for every stage that has them, selective all
    or none. As a model: all layers in one mode.
    """
    layers, full, selective = layout.layers, layout.full, layout.selective
    if problem.granularity == "stage":
        return np.ones(len(layers), dtype=bool)
    whole = (selective == layers).all(axis=1) | (selective == 0).all(axis=1)
    if problem.granularity == "model":
        return np.asarray(whole & ((full == layers).all(axis=1) | (full == 0).all(axis=1)))
    count = full.max(axis=1, keepdims=True)
    return np.asarray(whole & (full == np.minimum(count, layers)).all(axis=1))


def fewest_layers(problem: Problem, plain: Solution, plan: Plan) -> Solution:
    """Least recompute that fits: one mode per rank where ranks are free, else one for the row.

    Rows that do not even fit with the most recompute get just that: the miss is told truly, and
    nothing else is tried.
    """
    most = leanest(problem, plan, plain.layout.layers)
    answer = Solution(most, problem.peaks(most), plain.possible)
    rows = np.nonzero((answer.peaks <= problem.budget[:, None]).all(axis=1))[0]
    if not len(rows):
        return answer
    part, counts, peaks = problem.take(rows), plain.layout.layers[rows], plain.peaks[rows]
    layout, found = _by_preference(part, counts, plan, peaks)
    answer.layout.put(rows, layout)
    answer.peaks[rows] = found
    return answer


def _by_preference(
    problem: Problem, counts: Ints, plan: Plan, plain: Floats
) -> tuple[Layout, Floats]:
    """The mode that frees a byte most cheaply first; others where it does not fit everywhere.

    A framework that counts one mode and switches another as a whole gets both tried on every row.
    """
    layout, peaks = Layout.plain(counts.copy()), plain.copy()
    prices = np.stack([_price(problem, mode) for mode in problem.modes], axis=1)
    order = np.argsort(prices, axis=1, kind="stable")
    everywhere = problem.granularity == "count"
    for turn in range(len(problem.modes)):
        over = (peaks > problem.budget[:, None]).any(axis=1)
        for number, mode in enumerate(problem.modes):
            rows = np.nonzero((order[:, turn] == number) & (over | (turn == 0) | everywhere))[0]
            if not len(rows):
                continue
            part = problem.take(rows)
            found = _least(part, counts[rows], mode, plan, plain[rows])
            if turn:
                best = layout.take(rows), peaks[rows]
                _keep_cheaper(part, best, found)
                found = best
            layout.put(rows, found[0])
            peaks[rows] = found[1]
    return layout, peaks


def _price(problem: Problem, mode: str) -> Floats:
    """(K,) seconds of recompute per byte freed; per layer where only all layers can recompute."""
    number = MODES.index(mode)
    seconds = problem.time.backward[:, number] - problem.time.backward[:, 0]
    if problem.granularity == "model":
        return seconds
    freed = problem.memory.saved[:, 0] - problem.memory.saved[:, number]
    return np.where(freed > 0, seconds / np.maximum(freed, 1.0), np.inf)


def _cost(problem: Problem, layout: Layout) -> Floats:
    """(K, ranks) seconds of backward that the recompute adds."""
    key, backward = problem.situation.key, problem.time.backward
    added = layout.selective * (backward[:, 1] - backward[:, 0])[:, None]
    added = added + layout.full * (backward[:, 2] - backward[:, 0])[:, None]
    return np.asarray(added.reshape(-1, key.chunks, key.ranks).sum(axis=1))


def _busy(problem: Problem, layers: Ints) -> Floats:
    """(K, ranks) seconds of a micro-batch on each rank without recompute."""
    key = problem.situation.key
    unit, extra = stage_costs(problem)
    stages = layers * unit[:, None] + extra
    return np.asarray(stages.reshape(-1, key.chunks, key.ranks).sum(axis=1))


def _keep_cheaper(
    problem: Problem, best: tuple[Layout, Floats], other: tuple[Layout, Floats]
) -> None:
    """Take the other answer where it fits and the best does not, or where it is cheaper, in place.

    Where neither fits the one with the lower peak stays, so that the miss is told truly.
    """
    budget = problem.budget[:, None]
    fits, fits_other = best[1] <= budget, other[1] <= budget
    cheaper = _cost(problem, other[0]) < _cost(problem, best[0])
    lower = other[1] < best[1]
    if problem.granularity != "stage":
        fits = np.asarray(fits.all(axis=1, keepdims=True))
        fits_other = np.asarray(fits_other.all(axis=1, keepdims=True))
        busy = _busy(problem, best[0].layers)
        cost, cost_other = busy + _cost(problem, best[0]), busy + _cost(problem, other[0])
        cheaper = cost_other.max(1, keepdims=True) < cost.max(1, keepdims=True)
        lower = other[1].max(1, keepdims=True) < best[1].max(1, keepdims=True)
    take = (fits_other & (~fits | cheaper)) | (~fits & ~fits_other & lower)
    take = np.broadcast_to(take, best[1].shape)
    best[1][take] = other[1][take]
    chunks = problem.situation.key.chunks
    stages = np.tile(take, (1, chunks))
    for name in ("selective", "full"):
        getattr(best[0], name)[stages] = getattr(other[0], name)[stages]


def _least(
    problem: Problem, counts: Ints, mode: str, plan: Plan, plain: Floats
) -> tuple[Layout, Floats]:
    """Fewest layers in a mode, rank by rank, that bring every rank under the budget.

    ``plain`` (K, ranks) are the peaks without recompute.

    A level per rank counts recomputed layers; it starts at the plan's minimum and grows by the excess
    over the most bytes that one layer more can free, so it never passes the least level that fits.
    """
    freed = problem.memory.saved[:, 0] - problem.memory.saved[:, MODES.index(mode)]
    flight = problem.situation.most_in_flight().astype(np.float64)
    whole = _whole(problem, mode)
    most = _most(problem, counts, mode, plan)
    level = most if whole else np.minimum(most, plan.layers.min or 0)
    layout = _at_level(problem, counts, mode, level)
    peaks = problem.peaks(layout) if level.any() else plain.copy()
    while not whole:
        excess = peaks - problem.budget[:, None]
        grow = (excess > 0) & (level < most)
        rows = np.nonzero(grow.any(axis=1) & (freed > 0))[0]
        if not len(rows):
            break
        over = np.where(grow[rows], excess[rows], 0.0)
        more = _more(problem, counts[rows], level[rows], over, freed[rows], flight)
        level[rows] = np.minimum(most[rows], level[rows] + more)
        part = problem.take(rows)
        new = _at_level(part, counts[rows], mode, level[rows])
        layout.put(rows, new)
        peaks[rows] = part.peaks(new)
    return layout, peaks


def _most(problem: Problem, counts: Ints, mode: str, plan: Plan) -> Ints:
    """(K, ranks) the highest level that the plan allows.

    Where a mode is switched as a whole, all layers of every rank or none: a maximum below the
    layers of one rank leaves none on any.
    """
    key, whole = problem.situation.key, _whole(problem, mode)
    every: Ints = counts.reshape(-1, key.chunks, key.ranks).sum(axis=1)
    if problem.granularity == "count" and not whole:
        every = np.broadcast_to(counts.max(axis=1, keepdims=True), every.shape)
    most = every if plan.layers.max is None else np.minimum(every, plan.layers.max)
    if whole:
        most = np.where((most == every).all(axis=1, keepdims=True), most, 0)
    return np.asarray(most, dtype=np.int64)


def _more(
    problem: Problem, counts: Ints, level: Ints, excess: Floats, freed: Floats, flight: Floats
) -> Ints:
    """(K, ranks) layers that must recompute in addition, at least: what each can free at most.

    A layer of a chunk frees its saved bytes once per micro-batch of that chunk in flight; ``flight``
    (ranks, chunks) is the most there ever are.
    """
    key = problem.situation.key
    if problem.granularity == "count":
        rate = np.maximum(freed[:, None] * flight.sum(axis=1), 1.0)
        needed = np.ceil(excess / rate).astype(np.int64).max(axis=1, keepdims=True)
        return np.broadcast_to(np.maximum(needed, 1), level.shape)
    more, left, used = np.zeros_like(level), excess.copy(), level.copy()
    for chunk in range(key.chunks):
        layers = counts[:, chunk * key.ranks : (chunk + 1) * key.ranks]
        taken = np.minimum(layers, used)
        used = used - taken
        rate = np.maximum(freed[:, None] * flight[:, chunk], 1.0)
        wanted = np.ceil(np.maximum(left, 0.0) / rate)
        chosen = np.minimum(layers - taken, wanted).astype(np.int64)
        more += chosen
        left = left - chosen * rate
    return more + (left > 0)


def _whole(problem: Problem, mode: str) -> bool:
    """Whether the framework can only recompute every layer or none in this mode."""
    return problem.granularity == "model" or (
        problem.granularity == "count" and mode == "selective"
    )


def _at_level(problem: Problem, counts: Ints, mode: str, level: Ints) -> Layout:
    """Layout with ``level`` (K, ranks) recomputed layers.

    Per stage: the chunk that holds the most micro-batches first, that is chunk 0, then the next. As a
    count: the same number of layers on every virtual stage.
    """
    key = problem.situation.key
    chosen = np.zeros_like(counts)
    if problem.granularity == "count" and not _whole(problem, mode):
        chosen = np.minimum(counts, level.max(axis=1, keepdims=True))
    else:
        left = level.copy()
        for chunk in range(key.chunks):
            stages = slice(chunk * key.ranks, (chunk + 1) * key.ranks)
            chosen[:, stages] = np.minimum(counts[:, stages], left)
            left = left - chosen[:, stages]
    layout = Layout.plain(counts.copy())
    getattr(layout, mode)[:] = chosen
    return layout


def leanest(problem: Problem, plan: Plan, counts: Ints) -> Layout:
    """Every layer in the mode that saves least, as far as the plan allows."""
    if plan.kind == "auto" and problem.modes:
        mode = "full" if "full" in problem.modes else problem.modes[0]
        return _at_level(problem, counts, mode, _most(problem, counts, mode, plan))
    if plan.kind == "every":
        return Layout.alternating(counts, plan.given, problem.situation.key.ranks)
    layout = Layout.plain(counts)
    if plan.kind in ("selective", "full"):
        getattr(layout, plan.kind)[:] = counts
    return layout
