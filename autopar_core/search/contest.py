"""Which rows are searched for their fastest layout, and the sets that come out of it.

Bounds and replays of balanced layouts say which rows the sets are made of (``exact``). A search may
shorten a step a little, so rows that miss a set by less than that are contenders too. All contenders are
searched and shown with what was found; the sets are those among them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from attrs import define, frozen

from autopar_core.domain.arrays import Array, Bools, Floats, Ints
from autopar_core.domain.space import SearchSpace
from autopar_core.domain.strategy import StrategyBatch
from autopar_core.search.evaluate import (
    Effort,
    Estimates,
    Estimator,
    evaluate,
    first_alike,
)
from autopar_core.search.exact import ExactTimes, beaten, front


# Shares by which a search may shorten the step of a balanced layout: the first ones are always
# allowed for, larger ones as long as no more than so many rows are searched.
REACHES = (0.0, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 1.0)
ALWAYS, SEARCHES = 0.01, 150
# Most rows that are searched because others gave up their place in a set, and about so many at once.
MISSED, TOGETHER = 150, 50
# Rows from which several processes pay for their start.
FEW_REPLAYS, FEW_SEARCHES = 128, 12
# Rows with several chunks are searched cell by cell: all if they are no more than so many, else those
# that belong to a set or miss it by the largest of these shares that leaves no more than MOST_CELLS.
ALL_CELLS, MOST_CELLS, CELL_REACHES = 100, 200, (0.01, 0.005, 0.002, 0.001, 1e-9)
# Most virtual stages of a row that is searched cell by cell: pairs of cells grow with the square, and
# what one layer of a small stage can still save shrinks.
CELL_STAGES = 64
Key = Callable[[Floats, Ints], Floats]
# Best rows, front, fastest row of each degree value.
Sets = tuple[Ints, Ints, Ints]


@frozen(eq=False)
class Winners:
    """Rows of the whole batch.

    Attributes:
        exact: Searched rows, ascending.
        ranking: The best, best first.
        front: The Pareto front, fastest first.
        repeated: Rows to which another plan gives the same layers.
        missed: Number of rows that may belong to a set, as far as their balanced layout is known, and
            were not searched because so many others were.
        reach: Share by which a search would have to shorten the step of any other row before it
            could enter a set; 1 where bounds say that no layout of any other row can.
    """

    exact: Ints
    ranking: Ints
    front: Ints
    repeated: Ints
    reach: float
    missed: int


@define(eq=False)
class Contest:
    """Feasible rows of a batch.

    Attributes:
        batch: All rows.
        estimates: Their estimates; searched rows get what the search found.
        rows: (F,) feasible rows, ascending.
        estimator: For replays and searches.
        key: (time, memory) -> key of the ranker.
        monotone: The key never falls when time or memory grows.
        degrees: (F,) values of each degree.
        space: Plans and how many answers are wanted.
        workers: Processes for searches.
    """

    batch: StrategyBatch
    estimates: Estimates
    rows: Ints
    estimator: Estimator
    key: Key
    monotone: bool
    degrees: Sequence[Array]
    space: SearchSpace
    workers: int = 1

    def winners(self) -> Winners:
        """Search the contenders and pick the sets."""
        several = len(self.space.partitions) * len(self.space.recomputes) > 1
        heads = np.arange(len(self.rows))
        if several:
            first = first_alike(self.batch, self.estimates.layout, self.rows)
            heads = np.searchsorted(self.rows, first)
        balanced = self.estimates.seconds[self.rows].copy()
        likely, reach = self._contenders(np.unique(heads), balanced)
        if several:
            likely = np.nonzero(np.isin(heads, likely))[0]
        seconds, left, polished = balanced, MISSED, self._search_all(likely)
        while True:
            alone = self._alone(likely) if several else likely
            seconds[likely] = self.estimates.seconds[self.rows[likely]]
            sets = self._sets(alone, seconds)
            rough = self._rough(alone, seconds, sets)
            rough = rough[~polished[rough]]
            if len(rough):
                self._search(rough, Effort.CELLS)
                polished[rough] = True
                continue
            # what a search found may need more memory: rows that were beaten may not be any more
            others = np.setdiff1d(np.unique(heads), likely)
            missed = others[self._beats(others, seconds[others], seconds, sets)]
            if not len(missed) or left <= 0:
                break
            missed = self._foremost(missed, seconds, left)
            left -= len(missed)
            missed = np.nonzero(np.isin(heads, missed))[0] if several else missed
            self._search(missed)
            likely = np.union1d(likely, missed)
        best, edge, _ = sets
        repeated = np.setdiff1d(np.nonzero(heads != np.arange(len(heads)))[0], likely)
        repeated = np.union1d(repeated, np.setdiff1d(likely, alone))
        return Winners(
            self.rows[alone], self.rows[best], self.rows[edge], self.rows[repeated], reach,
            len(missed),
        )  # fmt: skip

    def _search_all(self, likely: Ints) -> Bools:
        """Search the contenders; (F,) rows that were searched cell by cell at once, as they are few."""
        polished = np.zeros(len(self.rows), bool)
        chunked = likely[self._chunked(likely)]
        if len(chunked) <= ALL_CELLS:
            self._search(chunked, Effort.CELLS)
            polished[chunked] = True
        self._search(likely[~polished[likely]])
        return polished

    def _rough(self, alone: Ints, seconds: Floats, sets: Sets) -> Ints:
        """Of searched rows those that are to be searched cell by cell."""
        rough = alone[self._chunked(alone)]
        if len(rough) <= ALL_CELLS or not self.monotone:
            return rough
        for reach in CELL_REACHES:
            near = rough[self._beats(rough, (1 - reach) * seconds[rough], seconds, sets)]
            if len(near) <= MOST_CELLS:
                break
        return np.asarray(near)

    def _foremost(self, some: Ints, seconds: Floats, most: int) -> Ints:
        """Of some rows the sets, the sets of the others, and so on: enough to search them together."""
        chosen, left = some[:0], some
        while len(left) and len(chosen) < TOGETHER:
            chosen = np.union1d(chosen, np.concatenate(self._sets(left, seconds)))
            left = np.setdiff1d(left, chosen)
        return chosen[np.argsort(seconds[chosen], kind="stable")][:most]

    def _beats(self, some: Ints, hoped: Floats, seconds: Floats, sets: Sets) -> Bools:
        """(R,) rows that would belong to a set if they took no longer than hoped."""
        if not self.monotone or not len(some):
            return np.zeros(len(some), bool)
        best, edge, fastest = sets
        every = self.estimates.memory[self.rows]
        memory = every[some]
        wins = self.key(hoped, memory) < self.key(seconds[best[-1:]], every[best[-1:]])
        wins |= ~beaten(hoped, memory, seconds[edge], every[edge])
        for values in self.degrees:
            least = np.full(values.max() + 1, np.inf)
            np.minimum.at(least, values[fastest], seconds[fastest])
            wins |= hoped < least[values[some]]
        return np.asarray(wins)

    def _contenders(self, some: Ints, balanced: Floats) -> tuple[Ints, float]:
        """Of some rows those that are in a set with their balanced layout, or miss it by little; reach.

        ``balanced`` (F,) bounds of balanced layouts are made exact where they were replayed.
        """
        bound, memory = (
            self.estimates.seconds[self.rows[some]],
            self.estimates.memory[self.rows[some]],
        )
        if not self.monotone:
            return some, 1.0

        def replay(at: Ints) -> Floats:
            return self._evaluated(some[at], Effort.REPLAY).seconds

        groups = [values[some] for values in self.degrees]
        times = ExactTimes(bound, memory, replay)
        count = min(self.space.top_k, len(some))
        times.seed(count, groups)
        best = times.best(self.key, count)
        edge, fastest = times.pareto(), times.best_of_groups(groups)
        members = np.unique(np.concatenate([best, edge, fastest]))
        near = np.nonzero(self._open(some))[0]
        chosen, reached = members, 0.0
        for reach in REACHES:
            hopeful = near[self._near(times, near, reach, best, edge, groups)]
            unknown = hopeful[np.isnan(times.exact[hopeful])]
            if reach > ALWAYS and len(unknown) > 4 * SEARCHES:
                break
            # by bounds first, then by the exact steps of those that are left
            times.know(unknown)
            hopeful = hopeful[self._near(times, hopeful, reach, best, edge, groups)]
            hopeful = hopeful[self._possible(times, some, hopeful, best, edge, groups)]
            found = np.union1d(members, hopeful)
            if reach > ALWAYS and len(found) > SEARCHES:
                break
            chosen, reached = found, reach
        known = ~np.isnan(times.exact)
        balanced[some[known]] = times.exact[known]
        return np.asarray(some[chosen]), reached

    def _possible(
        self, times: ExactTimes, some: Ints, near: Ints, best: Ints, edge: Ints,
        groups: Sequence[Array],
    ) -> Bools:  # fmt: skip
        """(R,) rows of which no bound says that no layout at all can enter a set."""
        least = self.estimator.least(self.batch.take(self.rows[some[near]]))
        return self._enters(times, near, least, np.zeros_like(near), best, edge, groups)

    def _near(
        self, times: ExactTimes, near: Ints, reach: float, best: Ints, edge: Ints,
        groups: Sequence[Array],
    ) -> Bools:  # fmt: skip
        """(R,) rows that would be in a set if a search shortened them as far as it may reach."""
        known = np.where(np.isnan(times.exact), times.bound, times.exact)[near]
        return self._enters(
            times, near, known * (1 - reach), times.memory[near], best, edge, groups
        )

    def _enters(
        self, times: ExactTimes, near: Ints, hoped: Floats, memory: Ints, best: Ints,
        edge: Ints, groups: Sequence[Array],
    ) -> Bools:  # fmt: skip
        """(R,) rows that would be in a set at these costs."""
        last = self.key(times.exact[best[-1:]], times.memory[best[-1:]])
        close = self.key(hoped, memory) <= last
        close |= ~beaten(hoped, memory, times.exact[edge], times.memory[edge])
        exact = np.where(np.isnan(times.exact), np.inf, times.exact)
        for values in groups:
            least = np.full(values.max() + 1, np.inf)
            np.minimum.at(least, values, exact)
            close |= hoped <= least[values[near]]
        return np.asarray(close)

    def _open(self, some: Ints) -> Bools:
        """(R,) rows whose layout a search can change."""
        part = self.batch.take(self.rows[some])
        index, keys = self.estimator.contexts.composer.keys(part)
        stages = np.array([key.stages for key in keys])[index]
        partition = np.array([plan.kind == "auto" for plan in self.space.partitions])
        recompute = np.array([plan.kind == "auto" for plan in self.space.recomputes])
        several = self.estimator.granularity != "stage"
        return np.asarray(
            (partition[part["partition_plan"]] & (stages > 1))
            | (recompute[part["recompute_plan"]] & several)
        )

    def _chunked(self, some: Ints) -> Bools:
        """(R,) rows with several chunks per rank, not too many, whose partition is open."""
        part = self.batch.take(self.rows[some])
        index, keys = self.estimator.contexts.composer.keys(part)
        several = np.array([key.chunks > 1 and key.stages <= CELL_STAGES for key in keys], bool)
        partition = np.array([plan.kind == "auto" for plan in self.space.partitions])
        return np.asarray(several[index] & partition[part["partition_plan"]])

    def _search(self, some: Ints, effort: Effort = Effort.SEARCH) -> None:
        """Replace the estimates of some rows by what a search finds."""
        if not len(some):
            return
        rows, found = self.rows[some], self._evaluated(some, effort)
        for name in ("memory", "allocated", "reserved", "worst", "seconds", "layout"):
            getattr(self.estimates, name)[rows] = getattr(found, name)

    def _evaluated(self, some: Ints, effort: Effort) -> Estimates:
        few = FEW_REPLAYS if effort is Effort.REPLAY else FEW_SEARCHES
        workers = self.workers if len(some) > few else 1
        part = self.batch.take(self.rows[some])
        return evaluate(part, self.estimator, workers=workers, effort=effort)

    def _alone(self, some: Ints) -> Ints:
        """Some rows without those to which another plan gives the same layers."""
        rows = self.rows[some]
        return np.asarray(some[first_alike(self.batch, self.estimates.layout, rows) == rows])

    def _sets(self, some: Ints, seconds: Floats) -> Sets:
        """(Best rows, front, fastest row of each degree value) of some rows with (F,) seconds."""
        time, memory = seconds[some], self.estimates.memory[self.rows[some]]
        key = self.key(time, memory)
        order = np.lexsort((some, memory, time, key))
        best = some[order[: self.space.top_k]]
        edge = front(time, memory, some)
        fast = some[np.lexsort((some, memory, time))]
        heads = [
            fast[np.unique(values[fast], return_index=True)[1]] for values in self.degrees
        ]  # fmt: skip
        return best, edge, np.unique(np.concatenate(heads))
