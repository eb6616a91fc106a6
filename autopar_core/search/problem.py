"""What the solver of layers and recompute is asked and answers: rows that share a schedule key."""

from __future__ import annotations

import numpy as np
from attrs import frozen

from autopar_core.compose.memory_peak import Layout, rank_peaks
from autopar_core.compose.memory_table import MemoryTable
from autopar_core.compose.situation import Situation
from autopar_core.compose.time_table import TimeTable
from autopar_core.domain.arrays import Bools, Floats, Ints


@frozen(eq=False)
class Problem:
    """Rows of one key and one pair of plans.

    Attributes:
        situation: Moments of the key.
        memory, time: Tables of the K rows.
        budget: (K,) bytes that the allocator may use on a device.
        layers: Layers of the model.
        granularity: ``stage``, ``count`` or ``model``: how the framework spells recompute.
        modes: Recompute modes that the framework has.
        alternates: Whether it can recompute every k-th layer.
    """

    situation: Situation
    memory: MemoryTable
    time: TimeTable
    budget: Floats
    layers: int
    granularity: str
    modes: tuple[str, ...]
    alternates: bool = False

    def take(self, rows: Bools | Ints) -> Problem:
        """The same for some rows."""
        return Problem(
            self.situation, self.memory.take(rows), self.time.take(rows), self.budget[rows],
            self.layers, self.granularity, self.modes, self.alternates,
        )  # fmt: skip

    def peaks(self, layout: Layout) -> Floats:
        """(K, ranks) allocated bytes."""
        return rank_peaks(self.memory, self.situation, layout)


@frozen(eq=False)
class Solution:
    """Layout, (K, ranks) peaks and (K,) rows for which the plan makes sense at all."""

    layout: Layout
    peaks: Floats
    possible: Bools


def stage_costs(problem: Problem) -> tuple[Floats, Floats]:
    """((K,) seconds of one layer, (K, S) seconds of the model's ends on their stages)."""
    time = problem.time
    extra = np.zeros((len(problem.budget), problem.situation.key.stages))
    extra[:, 0] += time.ends["embedding"][0] + time.ends["embedding"][1]
    extra[:, -1] += time.ends["head"][0] + time.ends["head"][1]
    return time.forward + time.backward[:, 0], extra
