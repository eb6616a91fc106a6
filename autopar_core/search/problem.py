"""What the solver of layers and recompute is asked and answers: rows that share their moments."""

from __future__ import annotations

import numpy as np
from attrs import evolve, frozen

from autopar_core.compose.layout import Layout
from autopar_core.compose.memory_peak import rank_peaks
from autopar_core.compose.memory_table import MemoryTable
from autopar_core.compose.situation import Situation
from autopar_core.compose.time_table import TimeTable
from autopar_core.domain.arrays import Bools, Floats, Ints
from autopar_core.hooks.schedule import Composer, ScheduleKey


@frozen(eq=False)
class Problem:
    """Rows of one key and one pair of plans.

    Attributes:
        composer: Who lays out and times the schedule.
        key: The schedule. All rows share its moments; where the solver times layouts they share
            the key itself.
        situation: Moments of the key.
        memory, time: Tables of the K rows.
        budget: (K,) bytes that the allocator may use on a device.
        layers: Layers of the model.
        granularity: ``stage``, ``count`` or ``model``: how recompute can be spelled.
        modes: Recompute modes that the framework has.
        alternates: Whether it can recompute every k-th layer.
    """

    composer: Composer
    key: ScheduleKey
    situation: Situation
    memory: MemoryTable
    time: TimeTable
    budget: Floats
    layers: int
    granularity: str
    modes: tuple[str, ...]
    alternates: bool = False

    def __len__(self) -> int:
        return len(self.budget)

    def take(self, rows: Bools | Ints) -> Problem:
        """The same for some rows."""
        return evolve(
            self, memory=self.memory.take(rows), time=self.time.take(rows), budget=self.budget[rows]
        )

    def peaks(self, layout: Layout) -> Floats:
        """(K, ranks) allocated bytes."""
        return rank_peaks(self.memory, self.situation, layout)


@frozen(eq=False)
class Solution:
    """Layout, (K, ranks) peaks and (K,) rows for which the plan makes sense at all."""

    layout: Layout
    peaks: Floats
    possible: Bools

    def take(self, rows: Ints) -> Solution:
        """The same of some rows."""
        return Solution(self.layout.take(rows), self.peaks[rows], self.possible[rows])

    def put(self, rows: Ints, other: Solution) -> None:
        """Replace some rows in place."""
        self.layout.put(rows, other.layout)
        self.peaks[rows] = other.peaks
        self.possible[rows] = other.possible


def stage_costs(problem: Problem) -> tuple[Floats, Floats]:
    """((K,) seconds of one layer, (K, S) seconds that a stage takes without layers).

    Without recompute; the model's ends and coupled sends are what is there without layers.
    """
    time, key = problem.time, problem.key
    extra = np.zeros((len(problem), key.stages))
    for part, stage in (("embedding", 0), ("head", key.last)):
        extra[:, stage] += time.ends[part][0] + time.ends[part][1]
    if key.blocking and key.stages > 1:
        # the sender pays for its message: forwards but at the end of the model, backwards but at
        # its start
        hop = np.maximum(*time.hop)[:, None]
        extra += 2 * hop
        extra[:, [0, key.last]] -= hop
    return time.forward + time.backward[:, 0], extra
