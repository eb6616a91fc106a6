"""Local search on the true end of the step: single layers go where they shorten it most.

A move changes two ranks. Of all moves those are timed exactly whose bounds can beat the best known, the
most promising first. The search goes downhill on bounds to begin with, which cost little and are close.
"""

from __future__ import annotations

import numpy as np
from attrs import frozen

from autopar_core.domain.arrays import Bools, Floats, Ints
from autopar_core.search.book import Book, Moves, steps_along
from autopar_core.search.cases import Cases, Trial
from autopar_core.search.clock import BOUND_SLACK


# A step that is shorter by less than this share is not shorter: rounding of sums in another order.
EQUAL = 1e-10
# Moves of a case that are timed exactly at once.
AT_ONCE = 12
# Ranks up to which two layers are moved at once where no single one helps.
PAIRS = 8
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

    @classmethod
    def nowhere(cls, cases: Cases) -> State:
        """Fewest layers everywhere, which is no partition yet."""
        trial = cases.trial(np.arange(len(cases)), cases.low)
        at = np.zeros((len(cases), cases.problem.key.ranks), np.int64)
        return cls(trial, at, np.full(len(cases), np.inf))

    def take(self, rows: Ints) -> State:
        """The same of some cases."""
        return State(self.trial.take(rows), self.at[rows], self.seconds[rows])

    def put(self, rows: Ints, other: State) -> None:
        """Replace some cases in place."""
        self.trial.put(rows, other.trial)
        self.at[rows], self.seconds[rows] = other.at, other.seconds


def improve(cases: Cases, book: Book, state: State, exact: bool) -> State:
    """Downhill on a ladder until no move helps; a case changes by its own best move each time.

    Args:
        cases: C cases.
        book: Their ladder.
        state: Where to begin.
        exact: Time by replay, else by bounds.
    """
    state = state.take(np.arange(len(cases)))
    active = np.nonzero(np.isfinite(state.seconds))[0]
    at_once = 1
    while len(active):
        some = cases.take(active)
        pages = part_of(book, some, active)
        moves = steps_along(pages, state.at[active], at_once)
        found, best = _best(pages, moves, state.seconds[active], exact)
        rows = np.nonzero(best < state.seconds[active] * (1 - EQUAL))[0]
        if len(rows):
            turned = moves.take(found[rows])
            trial = pages.layouts(turned.case, turned.pages)
            state.put(active[rows], State(trial, turned.pages, best[rows]))
        active = active[rows]
        if at_once == 2:
            at_once = 1
        elif not len(active) and exact and state.at.shape[1] <= PAIRS:
            # where no layer helps alone, two together may
            at_once, active = 2, np.nonzero(np.isfinite(state.seconds))[0]
    return state


def part_of(book: Book, cases: Cases, rows: Ints) -> Book:
    """The pages of some cases."""
    if len(rows) == len(book.cases):
        return book
    index = (rows[:, None] * book.pages + np.arange(book.pages)).reshape(-1)
    return book.take(cases, index)


def _best(book: Book, moves: Moves, limit: Floats, exact: bool) -> tuple[Ints, Floats]:
    """((C,) best move of each case, (C,) its seconds); infinite where none beats the limit."""
    best, found = limit * (1 - EQUAL), np.zeros(len(limit), np.int64)
    keep = np.nonzero(_hopeful(book, moves, best))[0]
    bound = np.full(len(keep), np.inf)
    for start in range(0, len(keep), CHUNK):
        part = slice(start, start + CHUNK)
        bound[part] = time_of(book, moves.take(keep[part]), exact=False)
    good = bound < best[moves.case[keep]]
    keep, bound = keep[good], bound[good]
    value = np.full(len(limit), np.inf)
    if not exact:
        head = heads(moves.case[keep], bound, keep)
        value[moves.case[keep[head]]] = bound[head]
        found[moves.case[keep[head]]] = keep[head]
        return found, value
    while len(keep):
        now = _first_of_each(moves.case[keep], bound, keep)
        some = moves.take(keep[now])
        seconds = time_of(book, some, exact=True)
        head = heads(some.case, seconds, keep[now])
        which = head[seconds[head] < best[some.case[head]]]
        best[some.case[which]] = value[some.case[which]] = seconds[which]
        found[some.case[which]] = keep[now][which]
        left = np.ones(len(keep), bool)
        left[now] = False
        left &= bound < best[moves.case[keep]]
        keep, bound = keep[left], bound[left]
    return found, value


def time_of(book: Book, moves: Moves, *, exact: bool) -> Floats:
    """(M,) seconds of the partitions that moves lead to."""
    rows, key = book.rows(moves.case, moves.pages), book.cases.problem.key
    stages = np.tile(rows, (1, key.chunks)), np.arange(key.stages)
    trial = book.trial
    ends = book.cases.ends(
        moves.case, trial.solution.layout.layers[stages], trial.forward[stages],
        trial.backward[stages], exact,
    )  # fmt: skip
    return np.asarray((ends + book.tail[rows, np.arange(key.ranks)]).max(axis=1))


def _hopeful(book: Book, moves: Moves, limit: Floats) -> Bools:
    """(M,) moves after which everything fits, and whose ranks have not too much work for themselves."""
    problem = book.cases.problem
    here = book.rows(moves.case, moves.pages), np.arange(problem.key.ranks)
    busy = book.seconds[here]
    good = np.isfinite(busy).all(axis=1)
    ends = problem.composer.glance(problem.key, busy, book.first[here])
    step = (ends + book.tail[here]).max(axis=1) * (1 - BOUND_SLACK)
    return np.asarray(good & (step < limit[moves.case]))


def heads(case: Ints, value: Floats, tie: Ints) -> Ints:
    """Indices of the least value of each case."""
    order = np.lexsort((tie, value, case))
    ordered = case[order]
    return np.asarray(order[np.r_[True, ordered[1:] != ordered[:-1]]] if len(order) else order)


def _first_of_each(case: Ints, bound: Floats, tie: Ints) -> Ints:
    """Indices of the lowest bounds of each case, a few of each."""
    order = np.lexsort((tie, bound, case))
    sorted_case = case[order]
    start = np.r_[0, np.nonzero(np.diff(sorted_case))[0] + 1]
    turn = np.arange(len(order)) - np.repeat(start, np.diff(np.r_[start, len(order)]))
    return np.asarray(order[turn < AT_ONCE])
