"""Which rows are searched for their fastest layout, and the sets that come out of it.

Bounds and replays of balanced layouts say which rows the sets are made of (``exact``). A search may
shorten a step a little, so rows that miss a set by less than that are contenders too. All contenders are
searched; the sets are those among them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from attrs import define, field, frozen

from autopar_core.domain.arrays import Array, Bools, Floats, Ints
from autopar_core.domain.space import SearchSpace
from autopar_core.domain.strategy import StrategyBatch
from autopar_core.search.evaluate import Effort, Estimates, Estimator, first_alike
from autopar_core.search.exact import ExactTimes, beaten, front


# Share by which a search may shorten the step of a balanced layout before a row that just misses a set
# could enter it. In the comparisons of docs/pipeline.md all but one in ten gain less.
REACH = 0.01
RESULTS = ("memory", "allocated", "worst", "seconds", "layout")
Key = Callable[[Floats, Ints], Floats]


@frozen(eq=False)
class Winners:
    """Rows of the whole batch.

    Attributes:
        exact: Rows of the sets, ascending.
        ranking: The best, best first.
        front: The Pareto front, fastest first.
        repeated: Rows to which another plan gives the same layers.
    """

    exact: Ints
    ranking: Ints
    front: Ints
    repeated: Ints


@define(eq=False)
class Contest:
    """Feasible rows of a batch.

    Attributes:
        batch: All rows.
        estimates: Their estimates; rows of the sets get what the search found.
        rows: (F,) feasible rows, ascending.
        estimator: For replays and searches.
        key: (time, memory) -> key of the ranker.
        monotone: The key never falls when time or memory grows.
        degrees: (F,) values of each degree.
        space: Plans and how many answers are wanted.
    """

    batch: StrategyBatch
    estimates: Estimates
    rows: Ints
    estimator: Estimator
    key: Key
    monotone: bool
    degrees: Sequence[Array]
    space: SearchSpace
    searched: Estimates = field(init=False)

    def __attrs_post_init__(self) -> None:
        e = self.estimates
        self.searched = Estimates(
            e.memory.copy(), e.allocated.copy(), e.reserved.copy(), e.worst.copy(),
            e.seconds.copy(), e.layout.copy(), e.possible,
        )  # fmt: skip

    def winners(self) -> Winners:
        """Search the contenders and pick the sets."""
        several = len(self.space.partitions) * len(self.space.recomputes) > 1
        heads = np.arange(len(self.rows))
        if several:
            first = first_alike(self.batch, self.estimates.layout, self.rows)
            heads = np.searchsorted(self.rows, first)
        balanced = self.estimates.seconds[self.rows].copy()
        likely = self._contenders(np.unique(heads), balanced)
        if several:
            likely = np.nonzero(np.isin(heads, likely))[0]
        self._search(likely, Effort.SEARCH)
        polished = np.zeros(len(self.rows), bool)
        while True:
            alone = self._alone(likely) if several else likely
            best, edge, chosen = self._sets(alone)
            left = chosen[~polished[chosen] & self._cells(chosen)]
            if len(left):
                self._search(left, Effort.CELLS)
                polished[left] = True
                continue
            # what a search found may need more memory: rows that were beaten may not be any more
            others = np.setdiff1d(np.unique(heads), likely)
            missed = others[self._beats(others, balanced, best, edge, chosen)]
            if not len(missed):
                break
            missed = np.nonzero(np.isin(heads, missed))[0] if several else missed
            self._search(missed, Effort.SEARCH)
            likely = np.union1d(likely, missed)
        self._show(self.rows[chosen])
        repeated = np.setdiff1d(np.nonzero(heads != np.arange(len(heads)))[0], likely)
        repeated = np.union1d(repeated, np.setdiff1d(likely, alone))
        return Winners(
            self.rows[chosen], self.rows[best], self.rows[edge], self.rows[repeated]
        )

    def _beats(
        self, some: Ints, balanced: Floats, best: Ints, edge: Ints, chosen: Ints
    ) -> Bools:
        """(R,) rows that, as far as their balanced layout is known, belong to a set."""
        time, memory = balanced[some], self.estimates.memory[self.rows[some]]
        if not self.monotone or not len(some):
            return np.zeros(len(some), bool)
        found = self.searched
        last, front_rows = self.rows[best[-1:]], self.rows[edge]
        wins = self.key(time, memory) < self.key(found.seconds[last], found.memory[last])
        wins |= ~beaten(time, memory, found.seconds[front_rows], found.memory[front_rows])
        for values in self.degrees:
            names, number = np.unique(values, return_inverse=True)
            least = np.full(len(names), np.inf)
            np.minimum.at(least, number.reshape(-1)[chosen], found.seconds[self.rows[chosen]])
            wins |= time < least[number.reshape(-1)[some]]
        return np.asarray(wins)

    def _contenders(self, some: Ints, balanced: Floats) -> Ints:
        """Of some rows those that are in a set with their balanced layout, or miss it by little.

        ``balanced`` (F,) bounds of balanced layouts are made exact where they were replayed.
        """
        bound, memory = self.estimates.seconds[self.rows[some]], self.estimates.memory[self.rows[some]]
        if not self.monotone:
            return some

        def replay(at: Ints) -> Floats:
            part = self.batch.take(self.rows[some[at]])
            return self.estimator.rows(part, Effort.REPLAY).seconds

        groups = [values[some] for values in self.degrees]
        times = ExactTimes(bound, memory, replay)
        count = min(self.space.top_k, len(some))
        times.seed(count, groups)
        best = times.best(self.key, count)
        edge, fastest = times.pareto(), times.best_of_groups(groups)
        members = np.unique(np.concatenate([best, edge, fastest]))
        near = np.nonzero(self._open(some))[0]
        for _ in range(2):
            # first by bounds, then by the exact steps of those that are left
            known = np.where(np.isnan(times.exact), times.bound, times.exact)
            near = near[self._near(times, known, near, best, edge, groups)]
            times.know(near)
        known = ~np.isnan(times.exact)
        balanced[some[known]] = times.exact[known]
        return np.asarray(some[np.union1d(members, near)])

    def _near(
        self, times: ExactTimes, known: Floats, near: Ints, best: Ints, edge: Ints,
        groups: Sequence[Array],
    ) -> Bools:  # fmt: skip
        """(R,) rows that would be in a set if a search shortened them as far as it may reach."""
        hoped, memory = known[near] * (1 - REACH), times.memory[near]
        last = self.key(times.exact[best[-1:]], times.memory[best[-1:]])
        close = self.key(hoped, memory) <= last
        close |= ~beaten(hoped, memory, times.exact[edge], times.memory[edge])
        for labels in groups:
            values, number = np.unique(labels, return_inverse=True)
            least = np.full(len(values), np.inf)
            exact = np.where(np.isnan(times.exact), np.inf, times.exact)
            np.minimum.at(least, number.reshape(-1), exact)
            close |= hoped <= least[number.reshape(-1)[near]]
        return np.asarray(close)

    def _open(self, some: Ints) -> Bools:
        """(R,) rows whose layout a search can change."""
        part = self.batch.take(self.rows[some])
        _, keys = self.estimator.contexts.composer.keys(part)
        index, _ = self.estimator.contexts.composer.keys(part)
        stages = np.array([key.stages for key in keys])[index]
        partition = np.array([plan.kind == "auto" for plan in self.space.partitions])
        recompute = np.array([plan.kind == "auto" for plan in self.space.recomputes])
        several = self.estimator.contexts.job.framework.core.recompute_granularity != "stage"
        return np.asarray(
            (partition[part["partition_plan"]] & (stages > 1))
            | (recompute[part["recompute_plan"]] & several)
        )

    def _cells(self, some: Ints) -> Bools:
        """(R,) rows with several chunks per rank whose partition is open."""
        part = self.batch.take(self.rows[some])
        index, keys = self.estimator.contexts.composer.keys(part)
        chunks = np.array([key.chunks for key in keys])[index] if len(keys) else np.zeros(0, int)
        partition = np.array([plan.kind == "auto" for plan in self.space.partitions])
        return np.asarray((chunks > 1) & partition[part["partition_plan"]])

    def _search(self, some: Ints, effort: Effort) -> None:
        """What a search finds for some rows."""
        rows = self.rows[some]
        found = self.estimator.rows(self.batch.take(rows), effort)
        for name in RESULTS:
            getattr(self.searched, name)[rows] = getattr(found, name)

    def _show(self, rows: Ints) -> None:
        """Put what was found into the estimates."""
        for name in RESULTS:
            getattr(self.estimates, name)[rows] = getattr(self.searched, name)[rows]

    def _alone(self, some: Ints) -> Ints:
        """Some rows without those to which another plan gives the same layers."""
        rows = self.rows[some]
        return np.asarray(some[first_alike(self.batch, self.searched.layout, rows) == rows])

    def _sets(self, some: Ints) -> tuple[Ints, Ints, Ints]:
        """(Best rows, front, all rows of the sets) among searched rows."""
        rows = self.rows[some]
        time, memory = self.searched.seconds[rows], self.searched.memory[rows]
        key = self.key(time, memory)
        order = np.lexsort((some, memory, time, key))
        best = some[order[: self.space.top_k]]
        edge = front(time, memory, some)
        if not self.monotone:
            return best, edge, some
        fast = some[np.lexsort((some, memory, time))]
        heads = [
            fast[np.unique(values[fast], return_index=True)[1]] for values in self.degrees
        ]  # fmt: skip
        return best, edge, np.unique(np.concatenate([best, edge, *heads]))
