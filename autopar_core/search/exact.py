"""Which rows need an exact step time, found by lower bounds and replayed.

The set is defined by values alone: the top-k, the Pareto front of step time and memory, and the best
row for each value of each degree. A row whose bound cannot reach a set is never replayed; rows that
were replayed on the way but belong to no set keep their bound in the output.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from attrs import define, field

from autopar_core.domain.arrays import Array, Bools, Floats, Ints


# Rows replayed in one call: enough for array speed, few enough not to replay much too much.
BATCH = 1024
# Rows replayed beyond the ones that are surely needed, per look at the best.
STEP = 8
Replay = Callable[[Ints], Floats]
Key = Callable[[Floats, Ints], Floats]


@define(eq=False)
class ExactTimes:
    """Bounds of the feasible rows, and exact times of those that were asked for.

    Attributes:
        bound: (F,) lower bound of step time.
        memory: (F,) bytes.
        replay: Rows -> exact step time.
        exact: (F,) exact step time, NaN where it is not known.
    """

    bound: Floats
    memory: Ints
    replay: Replay
    exact: Floats = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.exact = np.full(len(self.bound), np.nan)

    def know(self, rows: Ints) -> None:
        """Replay rows that are not known yet."""
        missing = np.unique(rows[np.isnan(self.exact[rows])])
        for start in range(0, len(missing), BATCH):
            part = missing[start : start + BATCH]
            self.exact[part] = self.replay(part)

    def seed(self, count: int, groups: Sequence[Array]) -> None:
        """Replay in one go what the bounds alone put into the sets: most of it stays there."""
        every = np.arange(len(self.bound))
        fastest = np.lexsort((every, self.memory, self.bound))
        rows = [fastest[:count], front(self.bound, self.memory, every)]
        for labels in groups:
            _, first = np.unique(labels[fastest], return_index=True)
            rows.append(fastest[first])
        self.know(np.concatenate(rows))

    def order(self, key: Floats) -> Ints:
        """Known rows by key, then time, memory and row."""
        rows = np.nonzero(~np.isnan(self.exact))[0]
        ranked = np.lexsort((rows, self.memory[rows], self.exact[rows], key[rows]))
        return np.asarray(rows[ranked])

    def best(self, key: Key, count: int) -> Ints:
        """The ``count`` best rows by a key that never falls when time or memory grows."""
        low = key(self.bound, self.memory)
        waiting = np.lexsort((np.arange(len(low)), low))
        position = 0
        while position < len(waiting):
            value = key(np.where(np.isnan(self.exact), self.bound, self.exact), self.memory)
            known = self.order(value)
            if len(known) >= count and value[known[count - 1]] < low[waiting[position]]:
                break
            take = waiting[position : position + (STEP if position else count)]
            self.know(take)
            position += len(take)
        value = key(np.where(np.isnan(self.exact), self.bound, self.exact), self.memory)
        return self.order(value)[:count]

    def pareto(self) -> Ints:
        """Front of exact step time and memory, fastest first; ties keep the first row."""
        while True:
            known = np.nonzero(~np.isnan(self.exact))[0]
            open_rows = np.nonzero(np.isnan(self.exact))[0]
            if len(known):
                lost = beaten(self.bound[open_rows], self.memory[open_rows],
                                 self.exact[known], self.memory[known])  # fmt: skip
                open_rows = open_rows[~lost]
            if not len(open_rows):
                return front(self.exact[known], self.memory[known], known)
            self.know(front(self.bound[open_rows], self.memory[open_rows], open_rows))

    def best_of_groups(self, groups: Sequence[Array]) -> Ints:
        """For each grouping (F,) the fastest row of each of its values.

        All values advance together: each round replays the next rows of every value whose lowest
        bound may still beat its best exact time.
        """
        races = [
            _Race(rows[np.lexsort((rows, self.memory[rows], self.bound[rows]))])
            for labels in groups
            for rows in (np.nonzero(labels == value)[0] for value in np.unique(labels).tolist())
        ]
        while True:
            wanted = [race.next(self.bound, self.exact) for race in races]
            rows = np.unique(np.concatenate(wanted)) if wanted else np.zeros(0, np.int64)
            if not len(rows):
                break
            self.know(rows)
        winners = [race.winner(self.exact, self.memory) for race in races]
        return np.unique(np.array(winners, dtype=np.int64))


@define(eq=False)
class _Race:
    """Rows of one degree value in the order of their bounds."""

    waiting: Ints

    def next(self, bound: Floats, exact: Floats) -> Ints:
        """Rows to replay now; none when no bound can beat the best exact time."""
        known = self.waiting[~np.isnan(exact[self.waiting])]
        best = exact[known].min() if len(known) else np.inf
        left = self.waiting[np.isnan(exact[self.waiting])]
        left = left[: int(np.searchsorted(bound[left], best, side="right"))]
        return np.asarray(left[: STEP if len(known) else 1])

    def winner(self, exact: Floats, memory: Ints) -> int:
        """The fastest known row; ties by memory and row."""
        known = self.waiting[~np.isnan(exact[self.waiting])]
        return int(known[np.lexsort((known, memory[known], exact[known]))[0]])


def front(seconds: Floats, memory: Ints, rows: Ints) -> Ints:
    """Rows that no other row beats in one cost without losing in the other, fastest first."""
    order = np.lexsort((rows, memory, seconds))
    least = np.minimum.accumulate(memory[order])
    keep = np.r_[True, memory[order][1:] < least[:-1]]
    return np.asarray(rows[order[keep]])


def beaten(bound: Floats, memory: Ints, seconds: Floats, known: Ints) -> Bools:
    """(F,) rows whose bound some known row already beats: no slower, no more memory."""
    order = np.lexsort((seconds, known))
    best = np.minimum.accumulate(seconds[order])
    place = np.searchsorted(known[order], memory, side="right") - 1
    return np.asarray((place >= 0) & (best[np.maximum(place, 0)] <= bound))
