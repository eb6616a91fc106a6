"""Ways of recompute that a plan and a framework leave open for the whole pipeline.

Where every stage may have its own mix there is one choice, the cheapest mix of every rank. A framework
that spells recompute once for the whole model leaves few: all layers in one mode, or one number of
fully recomputed layers that holds for every virtual stage.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from attrs import frozen

from autopar_core.compose.layout import Layout
from autopar_core.domain.arrays import Bools, Floats, Ints
from autopar_core.domain.space import Plan
from autopar_core.domain.terms import MODES
from autopar_core.hooks.schedule import ScheduleKey
from autopar_core.search.boxes import fits_stages
from autopar_core.search.clock import on_ranks, stage_seconds
from autopar_core.search.mixes import Care, cheapest
from autopar_core.search.problem import Problem, Solution


# A count that no stage reaches: every layer recomputes.
EVERY = 1 << 40


@frozen
class Free:
    """Every rank its cheapest mix."""

    plan: Plan

    def solve(self, problem: Problem, counts: Ints, *, care: Care = Care.EXACT) -> Solution:
        """Layers with their recompute."""
        return cheapest(problem, counts, self.plan, care=care)

    def least(self, stages: int) -> Ints:
        """(S,) layers that every stage needs for its recompute."""
        return np.zeros(stages, np.int64)


@frozen
class Uniform:
    """Up to so many layers of every virtual stage in each mode, fully recomputed ones first."""

    plan: Plan
    selective: int = 0
    full: int = 0

    def solve(self, problem: Problem, counts: Ints, *, care: Care = Care.EXACT) -> Solution:  # noqa: ARG002
        """Layers with their recompute."""
        full = np.minimum(self.full, counts)
        selective = np.minimum(self.selective, counts - full)
        layout = Layout(counts.copy(), selective, full)
        return Solution(layout, problem.peaks(layout), self.allowed(layout, problem.key))

    def allowed(self, layout: Layout, key: ScheduleKey) -> Bools:
        """(K,) rows whose ranks recompute as many layers as the plan allows."""
        recomputed = _recomputed(layout, key)
        allowed = np.ones(len(recomputed), bool)
        if self.plan.layers.min is not None:
            allowed &= (recomputed >= self.plan.layers.min).all(axis=1)
        if self.plan.layers.max is not None:
            allowed &= (recomputed <= self.plan.layers.max).all(axis=1)
        return allowed

    def least(self, stages: int) -> Ints:
        """(S,) layers that every stage needs for its recompute."""
        return np.zeros(stages, np.int64)


@frozen(eq=False)
class Given:
    """Layers of each stage in each mode, as the person says."""

    selective: Ints
    full: Ints

    def solve(self, problem: Problem, counts: Ints, *, care: Care = Care.EXACT) -> Solution:  # noqa: ARG002
        """Layers with their recompute; impossible where a stage has too few or none can spell it."""
        layout = Layout.plain(counts.copy())
        layout.selective[:], layout.full[:] = self.selective, self.full
        possible = (layout.selective + layout.full <= counts).all(axis=1)
        possible &= expressible(problem.granularity, layout)
        return Solution(layout, problem.peaks(layout), possible)

    def least(self, stages: int) -> Ints:
        """(S,) layers that every stage needs for its recompute."""
        return np.broadcast_to(self.selective + self.full, (stages,))


@frozen
class Alternating:
    """Every so-manieth layer of a rank recomputes fully, counted through its chunks."""

    every: int

    def solve(self, problem: Problem, counts: Ints, *, care: Care = Care.EXACT) -> Solution:  # noqa: ARG002
        """Layers with their recompute; impossible where the framework has no such pattern."""
        layout = Layout.alternating(counts.copy(), self.every, problem.key.ranks)
        possible = np.full(len(problem), problem.alternates)
        return Solution(layout, problem.peaks(layout), possible)

    def least(self, stages: int) -> Ints:
        """(S,) layers that every stage needs for its recompute."""
        return np.zeros(stages, np.int64)


Choice = Free | Uniform | Given | Alternating


def solve_each(
    problem: Problem, counts: Ints, options: Sequence[Choice], which: Ints, *, care: Care
) -> Solution:
    """Every row (K,) with the choice of its own: ``options[which]``."""
    used = np.unique(which)
    if len(used) == 1:
        return options[int(used[0])].solve(problem, counts, care=care)
    chosen = [options[number] for number in used.tolist()]
    if all(isinstance(one, Uniform) for one in chosen):
        place = np.searchsorted(used, which)
        uniform = [one for one in chosen if isinstance(one, Uniform)]
        full = np.minimum(np.array([one.full for one in uniform])[place, None], counts)
        some = np.array([one.selective for one in uniform])[place, None]
        layout = Layout(counts.copy(), np.minimum(some, counts - full), full)
        allowed = uniform[0].allowed(layout, problem.key)
        return Solution(layout, problem.peaks(layout), allowed)
    solution = Solution(
        Layout.plain(counts.copy()), np.zeros((len(counts), problem.key.ranks)),
        np.ones(len(counts), bool),
    )  # fmt: skip
    for number in used.tolist():
        rows = np.nonzero(which == number)[0]
        made = options[number].solve(problem.take(rows), counts[rows], care=care)
        solution.put(rows, made)
    return solution


def choices(problem: Problem, plan: Plan, most: int) -> list[Choice]:
    """Every choice that may be the fastest, the one without recompute first.

    Empty when the plan does not suit the stages at all.

    Args:
        problem: Rows of one key.
        plan: The wanted recompute.
        most: Most layers of any virtual stage; higher counts are all layers.
    """
    key = problem.key
    if plan.kind == "given":
        given = _given(plan.given or {}, key)
        return [] if given is None else [given]
    if plan.kind == "every":
        return [Alternating(int(plan.given))]
    if plan.kind != "auto":
        words = {"selective": Uniform(Plan(), selective=EVERY), "full": Uniform(Plan(), full=EVERY)}
        return [words.get(plan.kind, Uniform(Plan()))]
    if problem.granularity == "stage":
        return [Free(plan)]
    found: list[Choice] = [Uniform(plan)]
    if "selective" in problem.modes:
        found.append(Uniform(plan, selective=EVERY))
    if "full" in problem.modes and problem.granularity == "count":
        found += [Uniform(plan, full=count) for count in range(1, most)]
    if "full" in problem.modes:
        found.append(Uniform(plan, full=EVERY))
    return found


def _given(modes: Mapping[str, Any], key: ScheduleKey) -> Given | None:
    counts = []
    for mode in ("selective", "full"):
        wanted = modes.get(mode, 0)
        if not fits_stages(wanted, key):
            return None
        counts.append(np.asarray(wanted, dtype=np.int64).reshape(-1))
    return Given(counts[0], counts[1])


def expressible(granularity: str, layout: Layout) -> Bools:
    """(K,) rows whose given recompute the framework can spell.

    As a count: one number of fully recomputed layers for every stage that has them, selective all
    or none. As a model: all layers in one mode.
    """
    layers, full, selective = layout.layers, layout.full, layout.selective
    if granularity == "stage":
        return np.ones(len(layers), dtype=bool)
    whole = (selective == layers).all(axis=1) | (selective == 0).all(axis=1)
    if granularity == "model":
        return np.asarray(whole & ((full == layers).all(axis=1) | (full == 0).all(axis=1)))
    count = full.max(axis=1, keepdims=True)
    return np.asarray(whole & (full == np.minimum(count, layers)).all(axis=1))


def settle(problem: Problem, counts: Ints, plan: Plan, *, care: Care = Care.EXACT) -> Solution:
    """Recompute for layers that are given, without timing the schedule.

    Where one choice holds for the whole pipeline the one whose busiest rank is least busy is taken, of
    those that fit.
    """
    if plan.kind == "auto" and problem.granularity != "stage" and problem.modes:
        return _uniform(problem, counts, plan)
    options = choices(problem, plan, 0)
    if options:
        return options[0].solve(problem, counts, care=care)
    layout = Layout.plain(counts.copy())
    return Solution(layout, problem.peaks(layout), np.zeros(len(problem), bool))


def _uniform(problem: Problem, counts: Ints, plan: Plan) -> Solution:
    """Rows under one choice for all ranks: none where that fits, else a whole mode or a count."""
    key, budget = problem.key, problem.budget
    best = Uniform(plan).solve(problem, counts)
    busy = np.where(_fits(best, budget), 0.0, np.inf)
    miss = _miss(best, budget)
    rows = np.nonzero(np.isinf(busy))[0]
    if not len(rows):
        return best
    part, held = problem.take(rows), counts[rows]
    tried = [Uniform(plan, **{mode: EVERY}).solve(part, held) for mode in problem.modes]
    if problem.granularity == "count" and "full" in problem.modes:
        tried.append(_least_count(part, held, plan))
    for found in tried:
        forward, backward = stage_seconds(key, part.time, found.layout)
        slowest = on_ranks(forward + backward, key).max(axis=1)
        slowest = np.where(_fits(found, part.budget), slowest, np.inf)
        missed = _miss(found, part.budget)
        better = (slowest < busy[rows]) | (np.isinf(busy[rows]) & (missed < miss[rows]))
        at = np.nonzero(better)[0]
        best.put(rows[at], found.take(at))
        busy[rows[at]], miss[rows[at]] = slowest[at], missed[at]
    return best


def _least_count(problem: Problem, counts: Ints, plan: Plan) -> Solution:
    """The least number of fully recomputed layers of every virtual stage that fits, from below.

    The excess over the most bytes that one layer more on every virtual stage can free never asks for
    too much.
    """
    key = problem.key
    saved = problem.memory.saved
    freed = np.maximum(saved[:, 0] - saved[:, MODES.index("full")], 1.0)
    rate = freed[:, None] * problem.situation.most_in_flight().sum(axis=1)
    level = np.ones(len(problem), np.int64)
    rows = np.arange(len(problem))
    layout = Layout.plain(counts.copy())
    peaks = np.zeros((len(problem), key.ranks))
    highest = counts.max(axis=1)
    while len(rows):
        part = problem.take(rows)
        full = np.minimum(level[rows, None], counts[rows])
        one = Layout(counts[rows], np.zeros_like(full), full)
        layout.put(rows, one)
        peaks[rows] = part.peaks(one)
        excess = peaks[rows] - part.budget[:, None]
        few = _recomputed(one, key) < (plan.layers.min or 0)
        more = np.ceil(np.maximum(excess, 0.0) / rate[rows]).max(axis=1).astype(np.int64)
        more = np.maximum(more, few.any(axis=1))
        again = (more > 0) & (level[rows] < highest[rows])
        rows = rows[again]
        level[rows] = np.minimum(level[rows] + more[again], highest[rows])
    return Solution(layout, peaks, Uniform(plan).allowed(layout, key))


def _recomputed(layout: Layout, key: ScheduleKey) -> Ints:
    return on_ranks(layout.selective + layout.full, key)


def _fits(found: Solution, budget: Floats) -> Bools:
    return np.asarray(found.possible & (found.peaks <= budget[:, None]).all(axis=1))


def _miss(found: Solution, budget: Floats) -> Floats:
    """(K,) bytes over the budget; layouts that the plan forbids miss most."""
    over = (found.peaks - budget[:, None]).max(axis=1)
    return np.where(found.possible, over, np.inf)
