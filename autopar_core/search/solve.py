"""The fastest layers and recompute of rows that share a schedule key.

For every rank and number of layers the cheapest recompute that fits is tabulated; layers are balanced
over ranks exactly (the slowest rank takes least) under several limits, and single layers are moved
downhill on the true end of the step until none helps. See docs/pipeline.md.
"""

from __future__ import annotations

import numpy as np
from attrs import frozen

from autopar_core.domain.arrays import Bools, Floats, Ints
from autopar_core.domain.space import Plan
from autopar_core.search.book import Book, by_chunks, joined, ladders
from autopar_core.search.boxes import Box, Space, space
from autopar_core.search.cases import Cases, Trial
from autopar_core.search.choices import choices
from autopar_core.search.chunk_moves import improve_chunks, shifted
from autopar_core.search.clock import BOUND_SLACK, on_ranks, stage_seconds
from autopar_core.search.least import longer_share
from autopar_core.search.mixes import Care
from autopar_core.search.moves import State, improve, part_of
from autopar_core.search.problem import Problem, Solution
from autopar_core.search.starts import levels, slowest_least, sum_least, tilted
from autopar_core.search.survey import survey


# Layers of a rank that are tabulated: so many times the even share, or so many; every number where the
# balance asks for more.
WINDOW, LEAST = 1.75, 16
# Of the choices of recompute of a row so many are searched whose starts are no more than this share
# slower than its best start.
RIVALS, BEHIND = 4, 0.1
# Slopes of starts that are not level: seconds of the last rank by those of the first.
TILTS = (0.2, 0.4, 0.7, 1.5, 2.5, 5.0)
# Most layers that go from every rank's fullest chunk to its leanest one at once.
SHIFTS = 3
# Of these so many are searched cell by cell.
FINALISTS = 4
# Cells (cases x pages x stages) that are tabulated at once.
CELLS = 2**19


def solve(problem: Problem, partition: Plan, recompute: Plan, *, thorough: bool = True) -> Solution:
    """The layout of every row: the fastest that fits, else what the survey says of the miss.

    Args:
        problem: Rows that share their schedule key.
        partition, recompute: The plans.
        thorough: With several chunks per rank, try every layer on every chunk; else keep to chunks
            that are level or packed.
    """
    solution = survey(problem, partition, recompute)
    found = space(problem.composer, problem.key, problem.layers, partition, recompute)
    fits = (solution.peaks <= problem.budget[:, None]).all(axis=1) & solution.possible
    rows = np.nonzero(fits)[0]
    several = recompute.kind == "auto" and problem.granularity != "stage"
    if not len(rows) or (found.fixed is not None and not several):
        return solution
    step = max(1, CELLS // (problem.key.stages * _pages(problem, found)))
    for start in range(0, len(rows), step):
        some = rows[start : start + step]
        best = _fastest(problem.take(some), found, recompute, solution.take(some), thorough)
        solution.put(some, best)
    return solution


def _pages(problem: Problem, found: Space) -> int:
    if found.fixed is not None:
        return 1
    return min(problem.layers, max(LEAST, int(WINDOW * problem.layers / problem.key.ranks))) + 1


def _fastest(
    problem: Problem, found: Space, plan: Plan, known: Solution, thorough: bool
) -> Solution:
    """The fastest layout of rows that have a layout that fits."""
    most = problem.layers // problem.key.stages * 2 + 2
    options = choices(
        problem, plan, most if found.fixed is None else int(known.layout.layers.max())
    )
    boxes = found.boxes
    if found.fixed is not None:
        boxes = (Box(found.fixed, found.fixed),)
    cases = Cases.of(problem, options, boxes)
    per_row = len(cases) // len(problem)
    if found.fixed is not None:
        state = _of_counts(cases, np.tile(found.fixed, (len(cases), 1)))
    elif found.listed is not None:
        state = _listed(cases, found.listed)
    else:
        state = _searched(cases, per_row, np.repeat(known.layout.layers, per_row, axis=0), thorough)
    rows = np.arange(len(problem))
    given = Cases.of(problem, options[:1], boxes[:1])
    first = cases_of(known, given)
    best = _best_of_rows(state.seconds, per_row)
    polished = _polished(cases.take(best), state.take(best))
    worse = first.seconds <= polished.seconds
    every = Trial.concat([first.trial, polished.trial])
    return every.take(np.where(worse, rows, len(rows) + rows)).solution


def _polished(cases: Cases, state: State) -> State:
    """The same partitions with the cheapest recompute of all that fit."""
    rows = np.arange(len(cases))
    again = _timed(cases, cases.trial(rows, state.trial.solution.layout.layers, Care.EXACT), None)
    order = np.where(again.seconds < state.seconds, len(cases) + rows, rows)
    trial = Trial.concat([state.trial, again.trial]).take(order)
    return State(trial, state.at, np.minimum(state.seconds, again.seconds))


def cases_of(known: Solution, cases: Cases) -> State:
    """Layouts that are known to fit, timed."""
    problem = cases.problem
    forward, backward = stage_seconds(problem.key, problem.time, known.layout)
    trial = Trial(known, forward, backward, known.peaks <= problem.budget[:, None])
    rows = np.arange(len(cases))
    seconds = cases.steps(rows, known.layout.layers, forward, backward, True)
    return State(trial, np.zeros((len(rows), problem.key.ranks), np.int64), seconds)


def _of_counts(cases: Cases, counts: Ints) -> State:
    """Partitions (C, S) as they are."""
    return _timed(cases, cases.trial(np.arange(len(cases)), counts), None)


def _timed(cases: Cases, trial: Trial, at: Ints | None) -> State:
    """Layouts, one per case, with their exact step; infinite where something does not fit."""
    ranks = cases.problem.key.ranks
    seconds = np.full(len(cases), np.inf)
    rows = np.nonzero(trial.fits.all(axis=1))[0]
    if len(rows):
        layers = trial.solution.layout.layers[rows]
        seconds[rows] = cases.steps(rows, layers, trial.forward[rows], trial.backward[rows], True)
    return State(trial, np.zeros((len(cases), ranks), np.int64) if at is None else at, seconds)


def _listed(cases: Cases, listed: Ints) -> State:
    """The fastest of some partitions, in the order of their bounds."""
    size, number = len(cases), len(listed)
    case = np.repeat(np.arange(size), number)
    trial = cases.trial(case, np.tile(listed, (size, 1)))
    bound = cases.steps(case, trial.solution.layout.layers, trial.forward, trial.backward, False)
    inside = (trial.solution.layout.layers >= cases.low[case]).all(axis=1)
    bound = np.where(trial.fits.all(axis=1) & inside, bound, np.inf).reshape(size, number)
    best, chosen = np.full(size, np.inf), np.zeros(size, np.int64)
    order = np.argsort(bound, axis=1, kind="stable")
    for turn in range(number):
        at = order[:, turn]
        rows = np.nonzero(bound[np.arange(size), at] < best)[0]
        if not len(rows):
            break
        flat = rows * number + at[rows]
        seconds = cases.steps(
            rows,
            trial.solution.layout.layers[flat],
            trial.forward[flat],
            trial.backward[flat],
            True,
        )
        better = seconds < best[rows]
        best[rows[better]], chosen[rows[better]] = seconds[better], at[rows[better]]
    return State(
        trial.take(np.arange(size) * number + chosen),
        np.zeros((size, cases.problem.key.ranks), np.int64), best,
    )  # fmt: skip


def _searched(cases: Cases, per_row: int, known: Ints, thorough: bool) -> State:
    """Balance and local search of open partitions.

    Args:
        cases: C cases.
        per_row: Cases of a row, which follow each other.
        known: (C, S) layers that the survey gave the row.
        thorough: Try every layer on every chunk.
    """
    key = cases.problem.key
    starts = _level(cases)
    kept = _promising(_bounds(cases, starts).min(axis=1), per_row, RIVALS)
    state = State.nowhere(cases)
    if not len(kept):
        return state
    some = cases.take(kept)
    more = [_more_starts(some, one.take(some, kept)) for one in starts]
    found, book = _best_start(some, more)
    if key.chunks == 1:
        # a case whose slowest rank alone makes it slower than another one of its row stays as it is
        state.put(kept, found)
        best = state.seconds.reshape(-1, per_row).min(axis=1)
        hopeful = np.nonzero(_floor(some, more[0]) < best[kept // per_row])[0]
        part = some.take(hopeful)
        found = _downhill(part, part_of(book, part, hopeful), found.take(hopeful))
        state.put(kept[hopeful], found)
        return state
    found = _downhill(some, book, found)
    state.put(kept, found)
    # what the survey found may be better than all that keeps chunks level or packed, and so may be
    # what lies between the two
    _keep_better(cases, state, np.arange(len(cases)), known)
    layout = found.trial.solution.layout
    recomputes = on_ranks(layout.selective + layout.full, key) > 0
    placed = np.isfinite(found.seconds)
    for number in range(1, SHIFTS + 1):
        other = shifted(some, layout.layers, recomputes, number)
        _keep_better(cases, state, kept[placed], other[placed])
    if thorough:
        kept = _promising(state.seconds, per_row, FINALISTS)
        state.put(kept, improve_chunks(cases.take(kept), state.take(kept)))
    return state


def _floor(cases: Cases, starts: Starts) -> Floats:
    """(C,) seconds that no partition of a case goes below, from its slowest rank when level."""
    problem = cases.problem
    unit, extra = cases.costs()
    busy = np.take_along_axis(starts.book.by_page(), starts.at[:, 0, :, None], axis=2)
    slowest = np.where(starts.placed[:, 0], busy.max(axis=(1, 2)), 0.0)
    total = unit * problem.layers + extra.sum(axis=1)
    longer = longer_share(problem, np.maximum(slowest, unit))
    floor = problem.composer.floor(problem.key, slowest, total, longer)
    return np.asarray(np.maximum(floor.flat, floor.steep) * (1 - BOUND_SLACK))


def _keep_better(cases: Cases, state: State, rows: Ints, other: Ints) -> None:
    """Other partitions (R, S) of some cases where they are faster, in place."""
    inside = ((other >= cases.low[rows]) & (other <= cases.high[rows])).all(axis=1)
    rows, other = rows[inside], other[inside]
    if len(rows):
        some = cases.take(rows)
        tried = _timed(some, some.trial(np.arange(len(rows)), other), None)
        better = np.nonzero(tried.seconds < state.seconds[rows])[0]
        state.put(rows[better], tried.take(better))


def _best_of_rows(seconds: Floats, per_row: int) -> Ints:
    """The fastest case of every row."""
    table = seconds.reshape(-1, per_row)
    return np.asarray(np.arange(len(table)) * per_row + table.argmin(axis=1))


def _promising(seconds: Floats, per_row: int, most: int) -> Ints:
    """Cases from which their row's fastest layout may come: its best ones, ``most`` at most."""
    table = seconds.reshape(-1, per_row)
    best = table.min(axis=1, keepdims=True)
    rank = np.argsort(np.argsort(table, axis=1, kind="stable"), axis=1)
    keep = (rank < most) & (table <= best * (1 + BEHIND))
    return np.nonzero((keep & np.isfinite(table)).reshape(-1))[0]


def _downhill(cases: Cases, book: Book, state: State) -> State:
    """Local search on a book: on bounds, which are close, then on the true end."""
    rows = np.arange(len(cases))
    layout = state.trial.solution.layout
    bound = np.full(len(cases), np.inf)
    ok = np.nonzero(np.isfinite(state.seconds))[0]
    bound[ok] = cases.steps(
        rows[ok], layout.layers[ok], state.trial.forward[ok], state.trial.backward[ok], False
    )
    quick = improve(cases, book, State(state.trial, state.at, bound), exact=False)
    again = _timed(cases, quick.trial, quick.at)
    better = np.nonzero((again.seconds < state.seconds) & np.isfinite(state.seconds))[0]
    state.put(better, again.take(better))
    return improve(cases, book, state, exact=True) if cases.problem.key.chunks == 1 else state


@frozen(eq=False)
class Starts:
    """Partitions on one book: (C, N, ranks) pages, and (C, N) whether everything found a place."""

    book: Book
    at: Ints
    placed: Bools

    def take(self, cases: Cases, rows: Ints) -> Starts:
        """The same of some cases."""
        return Starts(part_of(self.book, cases, rows), self.at[rows], self.placed[rows])


def _level(cases: Cases) -> list[Starts]:
    """Ladders, and on each the partition whose slowest rank takes least; every page if need be."""
    layers, ranks = cases.problem.layers, cases.problem.key.ranks
    low = by_chunks(cases.low, ranks).sum(axis=2)
    pages = min(layers, max(LEAST, int(WINDOW * layers / ranks))) + 1
    while True:
        books = ladders(cases, pages)
        starts, edges = [], []
        for book in books:
            seconds = book.by_page()
            counts, placed = slowest_least(seconds, low, layers)
            at = counts - low
            # more pages may help where the last one is close, or fits and something found no place
            more = np.isfinite(seconds[:, :, -1]).any(axis=1)
            edges.append(np.where(placed, (at >= pages - 2).any(axis=1), more))
            starts.append(Starts(book, at[:, None], placed[:, None]))
        if pages > layers or not np.all(edges, axis=0).any():
            return starts
        pages = layers + 1


def _more_starts(cases: Cases, level: Starts) -> Starts:
    """With the level partition those whose sum is least below limits of the slowest rank.

    Where a step is mostly filling and draining, also some that rise or fall from rank to rank.
    """
    ranks, layers = cases.problem.key.ranks, cases.problem.layers
    low, seconds = by_chunks(cases.low, ranks).sum(axis=2), level.book.by_page()
    at, placed = level.at[:, 0], level.placed[:, 0]
    limit = levels(seconds, np.where(placed[:, None], at, 0))
    limit = np.where(placed[:, None], limit, np.inf)
    number = limit.shape[1]
    more, fine = sum_least(
        np.repeat(seconds, number, axis=0), np.repeat(low, number, axis=0), layers,
        limit.reshape(-1),
    )  # fmt: skip
    more = more.reshape(-1, number, ranks) - low[:, None]
    found = [(level.at, level.placed), (more, fine.reshape(-1, number))]
    if cases.problem.key.micro_batches < 2 * ranks:
        for tilt in TILTS:
            counts, ok = tilted(seconds, low, layers, tilt)
            found.append(((counts - low)[:, None], ok[:, None]))
    at, placed = (np.concatenate(parts, axis=1) for parts in zip(*found, strict=True))
    return Starts(level.book, at, placed)


def _bounds(cases: Cases, starts: list[Starts]) -> Floats:
    """(C, books x N) bounds of the step from each start; infinite where something does not fit."""
    bounds = []
    for one in starts:
        value = np.full(one.placed.shape, np.inf)
        case, start = np.nonzero(one.placed)
        if len(case):
            trial = one.book.layouts(case, one.at[case, start])
            step = cases.steps(
                case, trial.solution.layout.layers, trial.forward, trial.backward, False
            )
            value[case, start] = np.where(trial.fits.all(axis=1), step, np.inf)
        bounds.append(value)
    return np.concatenate(bounds, axis=1)


def _best_start(cases: Cases, starts: list[Starts]) -> tuple[State, Book]:
    """The start of each case that bounds say is fastest, timed, and one book of the ladders."""
    rows, number = np.arange(len(cases)), starts[0].at.shape[1]
    bound = _bounds(cases, starts)
    best = bound.argmin(axis=1)
    found = np.isfinite(bound[rows, best])
    at = np.concatenate([one.at for one in starts], axis=1)[rows, best]
    at = np.where(found[:, None], at, 0)
    chosen = joined([one.book for one in starts], best // number)
    state = _timed(cases, chosen.layouts(rows, at), at)
    return State(state.trial, at, np.where(found, state.seconds, np.inf)), chosen
