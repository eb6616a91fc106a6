"""The cheapest recompute of every rank that fits, for layers that are given.

Recompute slows the rank that does it and frees memory on that rank alone, and no schedule ends earlier
when a stage takes longer. So of all mixes of modes that fit, the one with the fewest seconds is best
whatever the other ranks do, and ranks are solved one by one.

Found from below: ``need`` is what a rank must free at least. The cheapest mix that frees so much is
tried; what it is still over the budget is added to the need of mixes with as many fully recomputed
layers. A layer more frees its saved bytes once for each micro-batch in flight at the most, so a need
never asks for too much, and the first mix that fits is the cheapest one.
"""

from __future__ import annotations

from enum import Enum

import numpy as np
from attrs import frozen

from autopar_core.compose.layout import Layout
from autopar_core.domain.arrays import Bools, Floats, Ints
from autopar_core.domain.space import Plan
from autopar_core.domain.terms import MODES
from autopar_core.search.clock import on_ranks
from autopar_core.search.problem import Problem, Solution


@frozen(eq=False)
class Mode:
    """What a layer in a mode costs and frees: (C,) seconds and bytes per micro-batch in flight."""

    seconds: Floats
    bytes: Floats

    @classmethod
    def of(cls, problem: Problem, mode: str, rows: Ints) -> Mode:
        """A mode that the framework lacks, or that frees nothing, frees 0 bytes for ever."""
        number = MODES.index(mode)
        seconds = problem.time.backward[rows, number] - problem.time.backward[rows, 0]
        freed = problem.memory.saved[rows, 0] - problem.memory.saved[rows, number]
        if mode not in problem.modes:
            freed = np.zeros_like(freed)
        return cls(np.maximum(seconds, 0.0), np.maximum(freed, 0.0))


@frozen(eq=False)
class Cells:
    """C ranks of some rows, each with its chunks in the order in which they recompute.

    Attributes:
        layers: (C, chunks) layers.
        flight: (C, chunks) most micro-batches in flight.
    """

    layers: Ints
    flight: Floats

    def held(self, count: Ints) -> Floats:
        """(C, X) micro-batches that the first ``count`` (C, X) layers hold in flight together."""
        total, left = np.zeros(count.shape), count
        for chunk in range(self.layers.shape[1]):
            here = np.minimum(left, self.layers[:, chunk, None])
            total += here * self.flight[:, chunk, None]
            left = left - here
        return total

    def fewest(self, nbytes: Floats, each: Floats) -> Ints:
        """(C, X) fewest layers that free so many bytes, (C,) each; above all layers if none do."""
        count, left = np.zeros(nbytes.shape, np.int64), nbytes
        for chunk in range(self.layers.shape[1]):
            layers = self.layers[:, chunk, None]
            rate = np.maximum(each * self.flight[:, chunk], 1.0)[:, None]
            wanted = np.ceil(np.maximum(left, 0.0) / rate)
            count += np.minimum(wanted, layers).astype(np.int64)
            left = left - layers * rate
        useless = (each <= 0)[:, None] & (nbytes > 0)
        return np.where(useless, self.layers.sum(axis=1)[:, None] + 1, count + (left > 0))


class Care(Enum):
    """How near to the cheapest mix an answer must be.

    ``QUICK`` tries numbers of fully recomputed layers at which one mode alone, or as little as possible
    of the dearer one, does; ``TRIMMED`` then exchanges layers for cheaper ones while all fits; ``EXACT``
    tries every number, and exactly the least.
    """

    QUICK = 0
    TRIMMED = 1
    EXACT = 2


# Exchanges of (selectively, fully) recomputed layers that may be cheaper and still free enough, in the
# order in which they are tried; EVERY makes all others selective.
EVERY = 1 << 30
EXCHANGES = (
    (EVERY, -1), (EVERY, -1), (-8, 0), (-4, 0), (-2, 0), (-1, 0), (-2, 1), (-3, 2), (1, -1), (2, -1),
    (3, -2), (-1, 0),
)  # fmt: skip


def cheapest(problem: Problem, counts: Ints, plan: Plan, *, care: Care = Care.EXACT) -> Solution:
    """Cheapest mix that fits of every rank of (K, S) layers; ranks are free of each other.

    A rank that no mix fits gets the leanest one, so that the miss is told truly.

    Args:
        problem: K rows.
        counts: (K, S) layers.
        plan: Bounds of the layers that a rank recomputes.
        care: How near to the cheapest.
    """
    key = problem.key
    layout = Layout.plain(counts.copy())
    peaks = problem.peaks(layout)
    layers = on_ranks(counts, key)
    least = np.minimum(layers, plan.layers.min or 0)
    possible = np.asarray((layers >= (plan.layers.min or 0)).all(axis=1))
    if not problem.modes:
        return Solution(layout, peaks, possible & (not plan.layers.min))
    most = layers if plan.layers.max is None else np.minimum(layers, plan.layers.max)
    flight = problem.situation.most_in_flight().astype(np.float64)
    # what must be freed, for each number of fully recomputed layers
    thorough = care is Care.EXACT
    lines = int(most.max(initial=0)) + 1 if thorough and "full" in problem.modes else 1
    need = np.repeat(np.maximum(peaks - problem.budget[:, None], 0.0)[..., None], lines, axis=2)
    waiting = (need[..., 0] > 0) | (least > 0)
    stuck, plain = np.zeros_like(waiting), peaks.copy()
    if not thorough and "full" in problem.modes:
        _give_up(problem, layout, peaks, waiting, stuck, most, care is Care.QUICK)
    while waiting.any():
        row, rank = np.nonzero(waiting)
        cells = Cells(by_rank(counts, problem)[row, rank], flight[rank])
        modes = [Mode.of(problem, mode, row) for mode in ("selective", "full")]
        some, full = _least_seconds(
            cells, need[row, rank], least[row, rank], most[row, rank], modes, thorough
        )
        none = some < 0
        stuck[row[none], rank[none]] = True
        waiting[row[none], rank[none]] = False
        row, rank, some, full = (x[~none] for x in (row, rank, some, full))
        cells = Cells(cells.layers[~none], cells.flight[~none])
        _put(layout, key.ranks, row, rank, cells, some, full)
        changed = np.unique(row)
        peaks[changed] = problem.take(changed).peaks(layout.take(changed))
        over = peaks - problem.budget[:, None]
        waiting &= over > 0
        freed = _freed(cells, some, full, [m.bytes[~none] for m in modes])
        line = full if lines > 1 else np.zeros_like(full)
        more = np.maximum(over[row, rank], 1.0)
        if not thorough:
            # what is freed falls short of the most by much the same share in the next mix
            truly = np.maximum(plain[row, rank] - peaks[row, rank], 1.0)
            more = more * np.clip(freed / truly, 1.0, 2.0)
        freed = np.maximum(freed, need[row, rank, line])
        need[row, rank, line] = freed + more
    if stuck.any():
        _leanest_of(problem, layout, peaks, stuck, most)
    if care is Care.TRIMMED:
        _trim(problem, layout, peaks, np.maximum(plain - problem.budget[:, None], 0.0), least, most)
    return Solution(layout, peaks, possible)


def _trim(
    problem: Problem, layout: Layout, peaks: Floats, need: Floats, least: Ints, most: Ints
) -> None:
    """Exchange recomputed layers of ranks that fit for cheaper ones as long as they still do.

    Args:
        problem: K rows.
        layout, peaks: Their mixes, changed in place.
        need: (K, ranks) bytes that must be freed.
        least, most: (K, ranks) bounds of recomputed layers.
    """
    key = problem.key
    flight = problem.situation.most_in_flight().astype(np.float64)
    some, full = on_ranks(layout.selective, key), on_ranks(layout.full, key)
    fits = (peaks <= problem.budget[:, None]) & (some + full > 0)
    row, rank = np.nonzero(fits)
    if not len(row):
        return
    cells = Cells(by_rank(layout.layers, problem)[row, rank], flight[rank])
    modes = [Mode.of(problem, mode, row) for mode in ("selective", "full")]
    some, full, need = some[row, rank], full[row, rank], need[row, rank]
    least, most = least[row, rank], most[row, rank]
    for more_some, more_full in EXCHANGES:
        f = full + more_full
        s = np.minimum(some + more_some, most - f) if more_some == EVERY else some + more_some
        cheaper = (s - some) * modes[0].seconds + (f - full) * modes[1].seconds < 0
        legal = (s >= 0) & (f >= 0) & (s + f <= most) & (s + f >= least) & cheaper
        at = np.nonzero(legal & (_freed(cells, s, f, [m.bytes for m in modes]) >= need))[0]
        if not len(at):
            continue
        changed = np.unique(row[at])
        tried = layout.take(changed)
        place = np.searchsorted(changed, row[at])
        part = Cells(cells.layers[at], cells.flight[at])
        _put(tried, key.ranks, place, rank[at], part, s[at], f[at])
        found = problem.take(changed).peaks(tried)
        good = found[place, rank[at]] <= problem.budget[row[at]]
        at, place = at[good], place[good]
        part = Cells(cells.layers[at], cells.flight[at])
        _put(layout, key.ranks, row[at], rank[at], part, s[at], f[at])
        peaks[row[at], rank[at]] = found[place, rank[at]]
        some[at], full[at] = s[at], f[at]


def by_rank(counts: Ints, problem: Problem) -> Ints:
    """(K, ranks, chunks) of (K, S)."""
    key = problem.key
    return np.asarray(counts.reshape(-1, key.chunks, key.ranks).transpose(0, 2, 1))


def _least_seconds(
    cells: Cells, need: Floats, least: Ints, most: Ints, modes: list[Mode], thorough: bool
) -> tuple[Ints, Ints]:
    """((C,) selective, (C,) full) layers of the cheapest mix that frees the need; -1 if none does."""
    some, whole = modes
    total = cells.layers.sum(axis=1)
    if not whole.bytes.any():
        full = np.zeros((len(need), 1), np.int64)
    elif thorough:
        full = np.broadcast_to(np.arange(need.shape[1]), need.shape)
    else:
        rest = need[:, 0] - some.bytes * cells.held(total[:, None])[:, 0]
        low = cells.fewest(rest[:, None], whole.bytes - some.bytes)
        high = cells.fewest(need, whole.bytes)
        full = np.concatenate([low, low + 1, low + 2, high - 1, high], axis=1)
        full = np.clip(full, 0, most[:, None])
    # `together` layers recompute in some mode, the first `full` of them fully
    left = need - (whole.bytes - some.bytes)[:, None] * cells.held(full)
    together = cells.fewest(left, some.bytes)
    together = np.maximum(np.maximum(together, full), least[:, None])
    seconds = (together - full) * some.seconds[:, None] + full * whole.seconds[:, None]
    legal = (together <= most[:, None]) & (full <= most[:, None])
    legal &= (whole.bytes[:, None] > 0) | (full == 0)
    seconds = np.where(legal, seconds, np.inf)
    at = seconds.argmin(axis=1)[:, None]
    found = np.isfinite(np.take_along_axis(seconds, at, axis=1))[:, 0]
    chosen = np.take_along_axis(np.asarray(full), at, axis=1)[:, 0]
    others = np.take_along_axis(together, at, axis=1)[:, 0] - chosen
    return np.where(found, others, -1), np.where(found, chosen, -1)


def _freed(cells: Cells, some: Ints, full: Ints, nbytes: list[Floats]) -> Floats:
    """(C,) bytes that a mix frees at the most."""
    whole = cells.held(full[:, None])[:, 0]
    return np.asarray(
        nbytes[0] * (cells.held((some + full)[:, None])[:, 0] - whole) + nbytes[1] * whole
    )


def _put(
    layout: Layout, ranks: int, row: Ints, rank: Ints, cells: Cells, some: Ints, full: Ints
) -> None:
    """Write mixes into a layout: chunk 0 keeps the most micro-batches alive and recomputes first."""
    left_full, left = full, some + full
    for chunk in range(cells.layers.shape[1]):
        layers = cells.layers[:, chunk]
        whole, any_mode = np.minimum(left_full, layers), np.minimum(left, layers)
        layout.full[row, chunk * ranks + rank] = whole
        layout.selective[row, chunk * ranks + rank] = any_mode - whole
        left_full, left = left_full - whole, left - any_mode


def leanest(problem: Problem, counts: Ints, plan: Plan) -> Floats:
    """(K, ranks) least bytes that (K, S) layers can be held in, every rank in its leanest way."""
    layers = on_ranks(counts, problem.key)
    most = layers if plan.layers.max is None else np.minimum(layers, plan.layers.max)
    layout = Layout.plain(counts.copy())
    peaks = np.zeros(layers.shape)
    if "full" not in problem.modes:
        _leanest_of(problem, layout, peaks, np.ones(layers.shape, bool), most)
        return peaks
    row, rank = np.nonzero(np.ones(layers.shape, bool))
    cells = Cells(by_rank(counts, problem)[row, rank], np.zeros((len(row), 0)))
    top = most[row, rank]
    _put(layout, problem.key.ranks, row, rank, cells, np.zeros_like(top), top)
    peaks = problem.peaks(layout)
    unsure = ~_surely_leaner(problem, most)
    rows = np.nonzero(unsure.any(axis=1))[0]
    if len(rows):
        part, one = problem.take(rows), layout.take(rows)
        found = peaks[rows]
        _leanest_of(part, one, found, unsure[rows], most[rows])
        peaks[rows] = found
    return peaks


def _give_up(
    problem: Problem, layout: Layout, peaks: Floats, waiting: Bools, stuck: Bools, most: Ints,
    whole_rows: bool,
) -> None:  # fmt: skip
    """Ranks that stay over with all that is allowed fully recomputed, most that are over: told at once.

    They get that recompute where nothing holds less. With ``whole_rows`` other ranks of their rows,
    which fit or not in vain, are given up with them: those that are over get it too, or are ``stuck``.
    """
    over = peaks > problem.budget[:, None]
    rows = np.nonzero(over.any(axis=1))[0]
    if not len(rows):
        return
    part, one = problem.take(rows), Layout.plain(layout.layers[rows])
    row, rank = np.nonzero(np.ones(most[rows].shape, bool))
    cells = Cells(by_rank(one.layers, problem)[row, rank], np.zeros((len(row), 0)))
    _put(one, problem.key.ranks, row, rank, cells, np.zeros_like(row), most[rows][row, rank])
    leanest, sure = part.peaks(one), _surely_leaner(part, most[rows])
    lost: Bools = np.asarray((leanest > part.budget[:, None]) & sure)
    if whole_rows:
        lost = np.broadcast_to(lost.any(axis=1, keepdims=True), over[rows].shape)
    waiting[rows] &= ~lost
    told = over[rows] & sure & lost
    stuck[rows] |= over[rows] & ~sure & lost
    peaks[rows] = np.where(told, leanest, peaks[rows])
    stages = np.tile(told, (1, problem.key.chunks))
    layout.full[rows] = np.where(stages, one.full, layout.full[rows])


def _surely_leaner(problem: Problem, most: Ints) -> Bools:
    """(K, ranks) whether so many fully recomputed layers hold less than any other mix.

    All but the block at work free their bytes at least once, and the block at work needs no more for
    its recompute than the situations of its backward differ.
    """
    saved, block = problem.memory.saved, problem.memory.block[problem.memory.at]
    full = MODES.index("full")
    by_mode = block.reshape(len(block), -1, len(MODES))
    extra = by_mode[..., full].max(axis=1) - by_mode[..., :full].min(axis=(1, 2))
    freed = np.minimum.reduce([saved[:, i] - saved[:, full] for i in range(full)])
    # a rank's layers but the one at work, once each: more micro-batches in flight free more
    count = np.maximum(most - problem.key.chunks, 0)
    return np.asarray(count * freed[:, None] > np.maximum(extra, 0.0)[:, None])


def _leanest_of(problem: Problem, layout: Layout, peaks: Floats, stuck: Bools, most: Ints) -> None:
    """Give stuck ranks whichever of no mode and as much as allowed of one mode holds least."""
    rows = np.nonzero(stuck.any(axis=1))[0]
    part, counts = problem.take(rows), layout.layers[rows]
    row, rank = np.nonzero(stuck[rows])
    cells = Cells(by_rank(counts, problem)[row, rank], np.zeros((len(row), 0)))
    zero, top = np.zeros(len(row), np.int64), most[rows][row, rank]
    mixes = [(zero, zero)]
    mixes += [(top, zero)] if "selective" in problem.modes else []
    mixes += [(zero, top)] if "full" in problem.modes else []
    made = []
    for some, full in mixes:
        one = layout.take(rows)
        _put(one, problem.key.ranks, row, rank, cells, some, full)
        made.append((part.peaks(one), one))
    # others of a row keep their recompute, so only the peaks of stuck ranks are compared
    values = np.stack([found[row, rank] for found, _ in made])
    best = np.zeros(stuck[rows].shape, np.int64)
    best[row, rank] = values.argmin(axis=0)
    stages = np.tile(best, (1, problem.key.chunks))
    for name in ("selective", "full"):
        every = np.stack([getattr(one, name) for _, one in made])
        getattr(layout, name)[rows] = np.take_along_axis(every, stages[None], axis=0)[0]
    peaks[rows] = np.take_along_axis(np.stack([x for x, _ in made]), best[None], axis=0)[0]
