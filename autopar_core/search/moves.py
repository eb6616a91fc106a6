"""Local search on the true end of the step: single layers go where they shorten it most.

A move changes two ranks. Of all moves those are timed exactly whose bounds can beat the best known, the
most promising first. The search goes downhill on bounds to begin with, which cost little and are close.
"""

from __future__ import annotations

import numpy as np
from attrs import frozen

from autopar_core.domain.arrays import Bools, Floats, Ints
from autopar_core.search.book import Book, Moves, neighbours, steps_along, steps_between
from autopar_core.search.cases import Cases, Trial


# A step that is shorter by less than this share is not shorter: rounding of sums in another order.
EQUAL = 1e-10
# Moves of a case that are timed exactly at once.
AT_ONCE = 12
# Looks at the most promising moves of a case in which none is shorter, before it is left as it is; with
# one chunk per rank bounds are close and the search goes on until no bound is better.
LOOKS = 8
# Moves of all cases whose layouts are put together at once: arrays of some MB.
CHUNK = 20_000


@frozen(eq=False)
class State:
    """The best partition so far of every case.

    Attributes:
        trial: (C) layouts.
        at: (C, ranks) pages of a ladder; None when partitions are not on one.
        seconds: (C,) step, exact or bounded.
    """

    trial: Trial
    at: Ints
    seconds: Floats


def improve(cases: Cases, book: Book | None, state: State, exact: bool) -> State:
    """Downhill until no single layer helps; a case changes by its own best move each time.

    Args:
        cases: C cases.
        book: A ladder for ranks of one chunk; None for several chunks.
        state: Where to begin.
        exact: Time by replay, else by bounds.
    """
    trial, at, seconds = state.trial, state.at.copy(), state.seconds.copy()
    active = np.nonzero(np.isfinite(seconds))[0]
    while len(active):
        some = cases.take(active)
        if book is None:
            pages = neighbours(some, trial.solution.layout.layers[active])
            here, moves = np.zeros_like(at[active]), steps_between(some, trial.solution.layout.layers[active])
        else:
            pages, here = _part(book, some, active), at[active]
            moves = steps_along(pages, here)
        found, best = _best(pages, here, moves, seconds[active], exact)
        better = best < seconds[active] * (1 - EQUAL)
        rows = np.nonzero(better)[0]
        if not len(rows):
            break
        turned = moves.take(found[rows])
        new_at = turned.pages(here)
        new = pages.layouts(turned.case, new_at)
        changed = active[rows]
        trial = _put(trial, changed, new)
        if book is not None:
            at[changed] = new_at
        seconds[changed] = best[rows]
        active = changed
    return State(trial, at, seconds)


def _part(book: Book, cases: Cases, rows: Ints) -> Book:
    if len(rows) == len(book.cases):
        return book
    index = (rows[:, None] * book.pages + np.arange(book.pages)).reshape(-1)
    return Book(cases, book.trial.take(index), book.pages, book.seconds[index])


def _put(trial: Trial, rows: Ints, new: Trial) -> Trial:
    """A copy with some layouts replaced."""
    size = len(trial.forward)
    order = np.arange(size)
    order[rows] = size + np.arange(len(rows))
    return Trial.concat([trial, new]).take(order)


def _best(
    book: Book, at: Ints, moves: Moves, limit: Floats, exact: bool
) -> tuple[Ints, Floats]:
    """((C,) best move of each case, (C,) its seconds); infinite where none beats the limit."""
    cases = book.cases
    best, found = limit * (1 - EQUAL), np.zeros(len(at), np.int64)
    keep = np.nonzero(_hopeful(book, at, moves, best))[0]
    bound = np.full(len(keep), np.inf)
    for start in range(0, len(keep), CHUNK):
        part = slice(start, start + CHUNK)
        some = moves.take(keep[part])
        bound[part] = _time(cases, book, some, at, exact=False)
    good = bound < best[moves.case[keep]]
    keep, bound = keep[good], bound[good]
    if not exact:
        order = np.lexsort((keep, bound, moves.case[keep]))
        case = moves.case[keep[order]]
        first = np.nonzero(np.r_[True, case[1:] != case[:-1]])[0] if len(order) else order
        value = np.full(len(at), np.inf)
        value[case[first]] = bound[order[first]]
        found[case[first]] = keep[order[first]]
        return found, value
    value = np.full(len(at), np.inf)
    several, looks = cases.problem.key.chunks > 1, 0
    while len(keep) and (looks < LOOKS or not several):
        looks += 1
        now = _first_of_each(moves.case[keep], bound, keep)
        some = moves.take(keep[now])
        seconds = _time(cases, book, some, at, exact=True)
        order = np.lexsort((keep[now], seconds, some.case))
        case = some.case[order]
        head = order[np.r_[True, case[1:] != case[:-1]]]
        won = seconds[head] < best[some.case[head]]
        which = head[won]
        best[some.case[which]] = value[some.case[which]] = seconds[which]
        found[some.case[which]] = keep[now][which]
        left = np.ones(len(keep), bool)
        left[now] = False
        left &= bound < best[moves.case[keep]]
        left &= ~(several & np.isfinite(value[moves.case[keep]]))
        keep, bound = keep[left], bound[left]
    return found, value


def _time(cases: Cases, book: Book, moves: Moves, at: Ints, *, exact: bool) -> Floats:
    """(M,) seconds of the partitions that moves lead to."""
    rows, key = book.rows(moves.case, moves.pages(at)), cases.problem.key
    stages = np.tile(rows, (1, key.chunks))
    columns = np.arange(key.stages)
    trial = book.trial
    return cases.steps(
        moves.case, trial.solution.layout.layers[stages, columns], trial.forward[stages, columns],
        trial.backward[stages, columns], exact,
    )  # fmt: skip


def _hopeful(book: Book, at: Ints, moves: Moves, limit: Floats) -> Bools:
    """(M,) moves after which everything fits and no rank alone has too much work."""
    size, ranks = at.shape
    case = np.arange(size)
    now = book.seconds[book.rows(case, at), np.arange(ranks)]
    rows = moves.case * book.pages
    one = book.seconds[rows + moves.one_page, moves.one]
    two = book.seconds[rows + moves.two_page, moves.two]
    # the slowest of the other ranks is among the three slowest
    order = np.argsort(-now, axis=1, kind="stable")[:, : min(3, ranks)]
    others = np.zeros(len(moves.case))
    for turn in range(order.shape[1] - 1, -1, -1):
        rank = order[moves.case, turn]
        other = (rank != moves.one) & (rank != moves.two)
        others = np.where(other, now[moves.case, rank], others)
    slowest = np.maximum(others, np.maximum(one, two))
    m = book.cases.problem.key.micro_batches
    return np.asarray(m * slowest < limit[moves.case])


def _first_of_each(case: Ints, bound: Floats, tie: Ints) -> Ints:
    """Indices of the lowest bounds of each case, a few of each."""
    order = np.lexsort((tie, bound, case))
    sorted_case = case[order]
    start = np.r_[0, np.nonzero(np.diff(sorted_case))[0] + 1]
    turn = np.arange(len(order)) - np.repeat(start, np.diff(np.r_[start, len(order)]))
    return np.asarray(order[turn < AT_ONCE])
