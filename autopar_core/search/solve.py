"""The fastest layers and recompute of rows that share a schedule key.

For every rank and number of layers the cheapest recompute that fits is tabulated; layers are balanced
over ranks exactly (the slowest rank takes least) under several limits, and single layers are moved
downhill on the true end of the step until none helps. See docs/pipeline.md.
"""

from __future__ import annotations

import numpy as np

from autopar_core.domain.arrays import Bools, Floats, Ints
from autopar_core.domain.space import Plan
from autopar_core.search.book import Book, by_chunks, joined, ladders
from autopar_core.search.boxes import Box, Space, space
from autopar_core.search.cases import Cases, Trial
from autopar_core.search.choices import choices
from autopar_core.search.moves import State, improve, part_of
from autopar_core.search.problem import Problem, Solution
from autopar_core.search.starts import levels, slowest_least, sum_least
from autopar_core.search.survey import survey


# Layers of a rank that are tabulated: so many times the even share, or so many; every number where the
# balance asks for more.
WINDOW, LEAST = 1.75, 16
# Of the choices of recompute of a row so many are searched whose starts are no more than this share
# slower than its best start.
RIVALS, BEHIND = 4, 0.1
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
    found = space(problem.composer, problem.key, problem.layers, partition)
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
        state = _searched(cases, per_row, thorough)
    rows = np.arange(len(problem))
    given = Cases.of(problem, options[:1], boxes[:1])
    first = cases_of(known, given)
    seconds = np.concatenate([first.seconds[:, None], state.seconds.reshape(-1, per_row)], axis=1)
    every = Trial.concat([first.trial, state.trial])
    winner = seconds.argmin(axis=1)
    at = np.where(winner == 0, rows, len(rows) + rows * per_row + winner - 1)
    return every.take(at).solution


def cases_of(known: Solution, cases: Cases) -> State:
    """Layouts that are known to fit, timed."""
    from autopar_core.search.clock import stage_seconds

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


def _searched(cases: Cases, per_row: int, thorough: bool) -> State:
    """Balance and local search of open partitions; ``per_row`` cases of a row follow each other."""
    key, layers = cases.problem.key, cases.problem.layers
    pages = min(layers, max(LEAST, int(WINDOW * layers / key.ranks))) + 1
    books, starts = _starts(cases, pages)
    edge = np.asarray([(at >= pages - 2).any(axis=1) | ~ok for _, at, ok in starts]).all(axis=0)
    if edge.any() and pages <= layers:
        books, starts = _starts(cases, layers + 1)
    state, book = _best_start(cases, books, starts)
    kept = _promising(state.seconds, per_row)
    if len(kept) == len(cases):
        return _downhill(cases, book, state, thorough)
    found = _downhill(
        cases.take(kept), part_of(book, cases.take(kept), kept),
        State(state.trial.take(kept), state.at[kept], state.seconds[kept]), thorough,
    )  # fmt: skip
    order = np.arange(len(cases))
    order[kept] = len(cases) + np.arange(len(kept))
    seconds = state.seconds.copy()
    seconds[kept] = found.seconds
    return State(Trial.concat([state.trial, found.trial]).take(order), state.at, seconds)


def _promising(seconds: Floats, per_row: int) -> Ints:
    """Cases from which their row's fastest layout may come: the best starts of each row."""
    table = seconds.reshape(-1, per_row)
    best = table.min(axis=1, keepdims=True)
    rank = np.argsort(np.argsort(table, axis=1, kind="stable"), axis=1)
    keep = (rank < RIVALS) & (table <= best * (1 + BEHIND))
    return np.nonzero((keep & np.isfinite(table)).reshape(-1))[0]


def _downhill(cases: Cases, book: Book, state: State, thorough: bool) -> State:
    """Local search from one start of each case."""
    key = cases.problem.key
    # downhill on bounds, which are close, then on the true end from the better of both
    rows = np.arange(len(cases))
    layout = state.trial.solution.layout
    bound = np.full(len(cases), np.inf)
    ok = np.nonzero(np.isfinite(state.seconds))[0]
    bound[ok] = cases.steps(
        rows[ok], layout.layers[ok], state.trial.forward[ok], state.trial.backward[ok], False
    )
    quick = improve(cases, book, State(state.trial, state.at, bound), exact=False)
    again = _timed(cases, quick.trial, quick.at)
    better = (again.seconds < state.seconds) & np.isfinite(state.seconds)
    order = np.where(better, len(cases) + rows, rows)
    trial = Trial.concat([state.trial, again.trial]).take(order)
    at = np.where(better[:, None], again.at, state.at)
    seconds = np.where(better, again.seconds, state.seconds)
    state = State(trial, at, seconds)
    if key.chunks > 1 and not thorough:
        return state
    return improve(cases, book if key.chunks == 1 else None, state, exact=True)


Start = tuple[Book, Ints, Bools]


def _starts(cases: Cases, pages: int) -> tuple[list[Book], list[Start]]:
    """Ladders, and partitions on them: pages of every rank, and whether everything found a place."""
    books = ladders(cases, pages)
    ranks, layers = cases.problem.key.ranks, cases.problem.layers
    low = by_chunks(cases.low, ranks).sum(axis=2)
    made: list[Start] = []
    for book in books:
        seconds = book.by_page()
        counts, ok = slowest_least(seconds, low, layers)
        made.append((book, counts - low, ok))
        safe = np.where(ok[:, None], counts, low)
        for limit in levels(seconds, safe, low):
            more, fine = sum_least(seconds, low, layers, np.where(ok, limit, np.inf))
            made.append((book, more - low, fine))
    return books, made


def _best_start(cases: Cases, books: list[Book], starts: list[Start]) -> tuple[State, Book]:
    """The start of each case that bounds say is fastest, timed, and one book of the ladders."""
    rows = np.arange(len(cases))
    bounds = []
    for book, at, ok in starts:
        value = np.full(len(cases), np.inf)
        good = np.nonzero(ok)[0]
        if len(good):
            trial = book.layouts(good, at[good])
            fits = trial.fits.all(axis=1)
            step = cases.steps(
                good, trial.solution.layout.layers, trial.forward, trial.backward, False
            )
            value[good] = np.where(fits, step, np.inf)
        bounds.append(value)
    best = np.stack(bounds).argmin(axis=0)
    at = np.stack([one for _, one, _ in starts])[best, rows]
    at = np.where(np.isfinite(np.stack(bounds)[best, rows])[:, None], at, 0)
    chosen = joined(books, best // (len(starts) // len(books)))
    state = _timed(cases, chosen.layouts(rows, at), at)
    value = np.stack(bounds)[best, rows]
    return State(state.trial, at, np.where(np.isfinite(value), state.seconds, np.inf)), chosen
