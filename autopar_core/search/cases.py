"""Partitions under trial: layers, their cheapest recompute, and seconds, case by case.

A case is a row with one choice of recompute and one box of partitions. What a rank can hold and how
long it takes depends on its own layers alone, so layers are tried on all ranks at once and the answers
are put together rank by rank.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from attrs import define, frozen

from autopar_core.compose.layout import Layout
from autopar_core.domain.arrays import Bools, Floats, Ints
from autopar_core.search.boxes import Box
from autopar_core.search.choices import Choice, solve_each
from autopar_core.search.clock import on_ranks, rank_ends, rank_tails, stage_seconds, weights
from autopar_core.search.mixes import Care
from autopar_core.search.problem import Problem, Solution, stage_costs


@frozen(eq=False)
class Trial:
    """Q layouts: layers with recompute, (Q, S) seconds, (Q, ranks) ranks that fit, peaks."""

    solution: Solution
    forward: Floats
    backward: Floats
    fits: Bools

    def take(self, rows: Ints) -> Trial:
        """The same of some layouts."""
        return Trial(
            self.solution.take(rows), self.forward[rows], self.backward[rows], self.fits[rows]
        )

    def put(self, rows: Ints, other: Trial) -> None:
        """Replace some layouts in place."""
        self.solution.put(rows, other.solution)
        self.forward[rows], self.backward[rows] = other.forward, other.backward
        self.fits[rows] = other.fits

    def mixed(self, at: Ints, ranks: int) -> Trial:
        """New layouts whose rank r is that of layout ``at[:, r]`` (Q', ranks)."""
        chunks = self.forward.shape[1] // ranks
        stage = np.tile(at, (1, chunks)), np.arange(self.forward.shape[1])
        rank = at, np.arange(ranks)
        layout = self.solution.layout
        made = layout.each(lambda values: np.asarray(values[stage]))
        possible = np.asarray(self.solution.possible[at].all(axis=1))
        solution = Solution(made, self.solution.peaks[rank], possible)
        return Trial(solution, self.forward[stage], self.backward[stage], self.fits[rank])

    @staticmethod
    def concat(parts: Sequence[Trial]) -> Trial:
        """Layouts one after another."""
        layout = Layout.concat([p.solution.layout for p in parts])
        solution = Solution(
            layout, np.concatenate([p.solution.peaks for p in parts]),
            np.concatenate([p.solution.possible for p in parts]),
        )  # fmt: skip
        return Trial(
            solution, np.concatenate([p.forward for p in parts]),
            np.concatenate([p.backward for p in parts]), np.concatenate([p.fits for p in parts]),
        )  # fmt: skip


@define(eq=False)
class Cases:
    """C cases of a problem whose rows share their schedule key.

    Attributes:
        problem: C rows, one per case.
        option: (C,) index of the choice of recompute.
        options: The choices.
        low, high: (C, S) bounds of the layers.
    """

    problem: Problem
    option: Ints
    options: Sequence[Choice]
    low: Ints
    high: Ints

    @classmethod
    def of(cls, problem: Problem, options: Sequence[Choice], boxes: Sequence[Box]) -> Cases:
        """Every row with every choice and every box: case = (row x options + option) x boxes + box."""
        rows, number = len(problem), len(options) * len(boxes)
        which = np.arange(rows * number)
        box = which % len(boxes)
        option = which // len(boxes) % len(options)
        low = np.stack([b.low for b in boxes])[box]
        least = np.stack([o.least(problem.key.stages) for o in options])[option]
        return cls(
            problem.take(which // number), option, options, np.maximum(low, least),
            np.stack([b.high for b in boxes])[box],
        )  # fmt: skip

    def __len__(self) -> int:
        return len(self.option)

    def take(self, rows: Ints) -> Cases:
        """Some cases."""
        return Cases(
            self.problem.take(rows), self.option[rows], self.options, self.low[rows],
            self.high[rows],
        )  # fmt: skip

    def costs(self) -> tuple[Floats, Floats]:
        """((C,) seconds of a layer, (C, S) seconds of a stage without layers), memory aside."""
        return stage_costs(self.problem)

    def trial(self, case: Ints, counts: Ints, care: Care = Care.TRIMMED) -> Trial:
        """Layers (Q, S) of some cases (Q,) with the cheapest recompute that fits."""
        part = self.problem.take(case)
        solution = solve_each(part, counts, self.options, self.option[case], care=care)
        forward, backward = stage_seconds(part.key, part.time, solution.layout)
        fits = (solution.peaks <= part.budget[:, None]) & solution.possible[:, None]
        return Trial(solution, forward, backward, fits)

    def steps(
        self, case: Ints, layers: Ints, forward: Floats, backward: Floats, exact: bool
    ) -> Floats:
        """(Q,) seconds of the step, bounded or replayed."""
        ends = self.ends(case, layers, forward, backward, exact)
        return np.asarray((ends + self.tails(case, layers, forward, backward)).max(axis=1))

    def ends(
        self, case: Ints, layers: Ints, forward: Floats, backward: Floats, exact: bool
    ) -> Floats:
        """(Q, ranks) end of each rank's work, bounded or replayed."""
        problem = self.problem
        time = problem.time.take(case)
        weight = weights(problem.key, time, layers)
        return rank_ends(problem.composer, problem.key, time, forward, backward, weight, exact)

    def tails(self, case: Ints, layers: Ints, forward: Floats, backward: Floats) -> Floats:
        """(Q, ranks) seconds after each rank's work."""
        problem = self.problem
        time = problem.time.take(case)
        return rank_tails(problem.composer, problem.key, time, layers, forward, backward)

    def busy(self, forward: Floats, backward: Floats) -> Floats:
        """(Q, ranks) seconds of a micro-batch on every rank."""
        return np.asarray(on_ranks(forward + backward, self.problem.key))
