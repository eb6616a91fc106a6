"""Step times that no partition and no recompute of a row can beat, found without searching.

Two numbers stand for all layouts: what the slowest rank takes for a micro-batch at least, and what all
ranks take together at least. The composer turns them into a bound of the schedule; the tail of the rank
that ends last comes on top.
"""

from __future__ import annotations

import numpy as np
from attrs import frozen

from autopar_core.compose.layout import Layout
from autopar_core.compose.time_table import StepPart, TimeTable
from autopar_core.domain.arrays import Floats, Ints
from autopar_core.domain.space import Plan
from autopar_core.domain.terms import MODES
from autopar_core.hooks.schedule import Composer, ScheduleKey
from autopar_core.search.boxes import Box, Space
from autopar_core.search.clock import BOUND_SLACK, on_ranks
from autopar_core.search.problem import Problem, stage_costs
from autopar_core.search.room import FEW, packed


# Halvings of the range of the slowest rank's time: bounds within 1e-4 of what the relaxation allows.
HALVINGS = 14


@frozen(eq=False)
class Least:
    """What holds for every layout of K rows.

    Attributes:
        slowest: (K,) seconds of a micro-batch on the slowest rank.
        total: (K,) seconds of a micro-batch on all ranks together.
        longer: (K,) share of the longer of forward and backward in the slowest rank's seconds.
        unit: (K,) seconds of one layer.
        first: (K,) layers of rank 0 as long as the slowest rank takes no longer than ``slowest``.
        fewest: Layers of rank 0 in any layout.
    """

    slowest: Floats
    total: Floats
    longer: Floats
    unit: Floats
    first: Ints
    fewest: int

    def take(self, rows: Ints) -> Least:
        """The same of some rows."""
        return Least(
            self.slowest[rows], self.total[rows], self.longer[rows], self.unit[rows],
            self.first[rows], self.fewest,
        )  # fmt: skip

    def steps(self, composer: Composer, key: ScheduleKey, time: TimeTable) -> Floats:
        """(K,) seconds that no layout's step goes below."""
        floor = composer.floor(key, self.slowest, self.total, self.longer)
        if floor.last is None:
            return np.maximum(floor.flat, floor.steep) * (1 - BOUND_SLACK)
        least = _tail(time, key, floor.last, np.full(len(self.first), self.fewest))
        # A layer less on the last rank lengthens the slowest one by its share at least; where that
        # costs more than the tail saves, the layers that balance asks for are the fewest.
        shift = floor.rise * self.unit / max(1, key.ranks - 1)
        held = np.where(_tail_per_layer(time) <= shift, self.first, self.fewest)
        tail = _tail(time, key, floor.last, np.maximum(held, self.fewest))
        step = np.maximum(floor.flat + least, floor.steep + tail)
        return np.asarray(step * (1 - BOUND_SLACK))


def _tail_per_layer(time: TimeTable) -> Floats:
    """(K,) seconds by which one layer can lengthen a tail at the most."""
    total = np.zeros(len(time.forward))
    for part in time.steps:
        extra = part.window.contention if part.window is not None else 0.0
        total = total + part.layer * (1 + extra)
    return total


def _tail(time: TimeTable, key: ScheduleKey, rank: int, layers: Ints) -> Floats:
    """(K,) seconds that the tail of a rank with so many layers, or more, takes at least.

    Work that can hide grows with the layers as its cover does: where it grows faster the exposed part
    with the fewest layers counts, else what can never hide.
    """
    total = np.zeros(len(layers))
    for part in time.steps:
        window = part.window
        seconds = _of_rank(part, key, rank, layers)
        if window is None:
            total += seconds
            continue
        if window.name == "hidden":
            continue
        total += np.asarray(window.floor * seconds)
    return total


def _of_rank(part: StepPart, key: ScheduleKey, rank: int, layers: Ints) -> Floats:
    first, last = rank == 0, rank == key.last % key.ranks
    return np.asarray(part.fixed + part.layer * layers + part.first * first + part.last * last)


def least_times(problem: Problem, found: Space, plan: Plan) -> Least:
    """Bounds of all layouts of K rows whose partition is open."""
    key, layers = problem.key, problem.layers
    unit, extra = stage_costs(problem)
    if plan.kind in MODES:
        unit = unit + problem.time.backward[:, MODES.index(plan.kind)] - problem.time.backward[:, 0]
    box = Box(
        np.stack([b.low for b in found.boxes]).min(axis=0),
        np.stack([b.high for b in found.boxes]).max(axis=0),
    )
    high = np.broadcast_to(box.high, extra.shape)
    counts, _ = problem.composer.partition(key, layers, unit, extra, box.low, high)
    cost = on_ranks(counts * unit[:, None] + extra, key)
    slowest, ends = cost.max(axis=1), on_ranks(extra, key)
    if plan.kind == "auto" and problem.modes:
        prices = _Prices.of(problem, box, unit, ends)
        slowest, _ = prices.slowest(layers, slowest, prices.sure)
    held = np.floor((slowest[:, None] - ends) / unit[:, None] * (1 + BOUND_SLACK) + BOUND_SLACK)
    fewest = on_ranks(box.low[None], key)[0]
    first = np.maximum(layers - held[:, 1:].sum(axis=1), fewest[0]).astype(np.int64)
    return Least(
        slowest, cost.sum(axis=1), longer_share(problem, slowest), unit, first, int(fewest[0])
    )


def longer_share(problem: Problem, slowest: Floats) -> Floats:
    """(K,) least share of the longer of forward and backward in the slowest rank's seconds.

    Forwards take the share that they have of a layer's time, recompute left out, which only adds to
    backwards; and what the model's ends, and messages that occupy their ranks, have above that share.
    """
    time = problem.time
    share = time.forward / (time.forward + time.backward[:, 0])
    more = np.zeros(len(share))
    for forward, backward in time.ends.values():
        more += np.maximum(forward - share * (forward + backward), 0.0)
    if problem.key.blocking:
        more += np.maximum(*time.hop) * np.maximum(1 - 2 * share, 0.0)
    return np.clip(1 - share - more / slowest, 0.5, 1.0)


def _price(problem: Problem) -> Floats:
    """(K,) least seconds of recompute for a byte freed with one micro-batch in flight."""
    best = np.full(len(problem), np.inf)
    for mode in problem.modes:
        number = MODES.index(mode)
        seconds = problem.time.backward[:, number] - problem.time.backward[:, 0]
        freed = problem.memory.saved[:, 0] - problem.memory.saved[:, number]
        best = np.minimum(best, np.where(freed > 0, seconds / np.maximum(freed, 1.0), np.inf))
    return np.maximum(np.where(np.isfinite(best), best, 0.0), 0.0)


@frozen(eq=False)
class _Prices:
    """Seconds of a rank that no mix goes below: (K, ranks) lines in its layers.

    A rank over its memory pays the least price for every byte. Its bytes without recompute are convex
    in its layers, so they are no less than a line through two neighbouring numbers; with several chunks
    those of the leanest split.

    Attributes:
        unit: (K,) seconds of a layer that nothing has to be recomputed for.
        extra: (K, ranks) seconds without layers.
        base, rate: (K, ranks) the line with recompute.
        sure: Layers up to which the line says nothing.
    """

    unit: Floats
    extra: Floats
    base: Floats
    rate: Floats
    sure: int

    @classmethod
    def of(cls, problem: Problem, box: Box, unit: Floats, extra: Floats) -> _Prices:
        """Prices around an even number of layers."""
        key = problem.key
        low, high = on_ranks(box.low[None], key), on_ranks(box.high[None], key)
        totals = np.clip(np.full((len(problem), key.ranks), problem.layers // key.ranks), low, high)
        now = problem.peaks(Layout.plain(packed(problem, box, totals)))
        more = problem.peaks(Layout.plain(packed(problem, box, totals + 1)))
        flight = problem.situation.most_in_flight().max(axis=1).astype(np.float64)
        price = _price(problem)[:, None] / np.maximum(flight, 1.0)
        slope = price * np.maximum(more - now, 0.0)
        base = price * (now - problem.budget[:, None]) - slope * totals + extra
        return cls(unit, extra, base, unit[:, None] + slope, min(FEW * key.chunks, problem.layers))

    def held(self, slowest: Floats, sure: int) -> Ints:
        """(K, ranks) most layers that take no longer than (K,) seconds."""
        free = (slowest[:, None] - self.extra) / self.unit[:, None]
        paid = np.maximum((slowest[:, None] - self.base) / self.rate, sure)
        layers = np.floor(np.minimum(free, paid) * (1 + 1e-9) + 1e-9)
        return np.asarray(np.maximum(layers, 0.0), dtype=np.int64)

    def slowest(self, layers: int, low: Floats, sure: int) -> tuple[Floats, Floats]:
        """((K,) seconds that are too short unless they equal ``low``, (K,) that are long enough)."""
        most = np.maximum(self.base + self.rate * layers, self.extra).max(axis=1)
        most = np.maximum(
            np.maximum(most, (self.extra + self.unit[:, None] * layers).max(axis=1)), low
        )
        least = low.copy()
        enough = self.held(least, sure).sum(axis=1) >= layers
        most = np.where(enough, least, most)
        for _ in range(HALVINGS):
            middle = (least + most) / 2
            fits = self.held(middle, sure).sum(axis=1) >= layers
            least, most = np.where(fits, least, middle), np.where(fits, middle, most)
        return least, most


def balanced_with_recompute(
    problem: Problem, box: Box, unit: Floats, extra: Floats
) -> tuple[Ints, Floats]:
    """Layers that level the ranks, recompute included, and what the slowest takes at least.

    Args:
        problem: K rows that need recompute.
        box: Limits.
        unit: (K,) seconds of a layer.
        extra: (K, ranks) seconds without layers.

    Returns:
        (K, ranks) layers within the box's limits, (K,) seconds.
    """
    key, layers = problem.key, problem.layers
    prices = _Prices.of(problem, box, unit, extra)
    low, high = on_ranks(box.low[None], key), on_ranks(box.high[None], key)
    least, most = prices.slowest(layers, np.zeros(len(problem)), 0)
    counts = np.clip(prices.held(most, 0), low, high)
    cost = np.maximum(prices.extra + counts * unit[:, None], prices.base + prices.rate * counts)
    rows = np.arange(len(counts))
    while ((surplus := counts.sum(axis=1) - layers) != 0).any():
        # a layer too many leaves the slowest rank, one that is missing goes to the fastest
        give = np.where(counts > low, cost, -np.inf).argmax(axis=1)
        take = np.where(counts < high, cost, np.inf).argmin(axis=1)
        rank = np.where(surplus > 0, give, take)
        counts[rows, rank] -= np.sign(surplus)
        at = counts[rows, rank]
        cost[rows, rank] = np.maximum(
            prices.extra[rows, rank] + at * unit,
            prices.base[rows, rank] + prices.rate[rows, rank] * at,
        )
    return counts, least
