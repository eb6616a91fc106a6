"""Layouts tried once and used in many partitions: what each rank does with some layers.

A partition is an index into the book for every rank. With one chunk per rank the book holds every
number of layers in a window. With several it holds what one layer more, less or elsewhere makes of each
rank, and is written anew after each step.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
from attrs import frozen

from autopar_core.domain.arrays import Bools, Floats, Ints
from autopar_core.search.cases import Cases, Trial
from autopar_core.search.clock import Numbers


@frozen(eq=False)
class Moves:
    """Partitions near those of some cases: (M,) case and (M, ranks) pages."""

    case: Ints
    pages: Ints

    @staticmethod
    def concat(parts: Sequence[Moves]) -> Moves:
        """Moves one after another."""
        return Moves(
            np.concatenate([part.case for part in parts]),
            np.concatenate([part.pages for part in parts]),
        )

    def take(self, rows: Ints | Bools) -> Moves:
        """Some of them."""
        return Moves(self.case[rows], self.pages[rows])


@frozen(eq=False)
class Book:
    """(C x pages) layouts, page by page of each case.

    Attributes:
        cases: C cases.
        trial: The layouts.
        pages: Pages of each case.
        seconds: (C x pages, ranks) seconds of a micro-batch, infinite where nothing fits.
        first: (C x pages, ranks) seconds of a micro-batch on chunk 0.
        tail: (C x pages, ranks) seconds after the rank's work.
    """

    cases: Cases
    trial: Trial
    pages: int
    seconds: Floats
    first: Floats
    tail: Floats

    @classmethod
    def of(cls, cases: Cases, counts: Ints, legal: Bools | None = None) -> Book:
        """Pages (C, pages, S) of layers, each ``legal`` (C, pages, ranks) or not."""
        size, pages, _ = counts.shape
        case = np.repeat(np.arange(size), pages)
        trial = cases.trial(case, counts.reshape(size * pages, -1))
        fits = trial.fits if legal is None else trial.fits & legal.reshape(trial.fits.shape)
        busy = cases.busy(trial.forward, trial.backward)
        ranks = busy.shape[1]
        first = trial.forward[:, :ranks] + trial.backward[:, :ranks]
        tail = cases.tails(case, trial.solution.layout.layers, trial.forward, trial.backward)
        return cls(cases, trial, pages, np.where(fits, busy, np.inf), first, tail)

    def take(self, cases: Cases, rows: Ints) -> Book:
        """The same pages of other cases: ``rows`` (C' x pages) of the layouts."""
        return Book(
            cases, self.trial.take(rows), self.pages, self.seconds[rows], self.first[rows],
            self.tail[rows],
        )  # fmt: skip

    def rows(self, case: Ints, at: Ints) -> Ints:
        """(Q, ranks) layouts of the pages (Q, ranks) of some cases."""
        return np.asarray(case[:, None] * self.pages + at)

    def by_page(self) -> Floats:
        """(C, ranks, pages) seconds."""
        shape = (len(self.cases), self.pages, -1)
        return np.asarray(self.seconds.reshape(shape).transpose(0, 2, 1))

    def layouts(self, case: Ints, at: Ints) -> Trial:
        """The partitions that pages make."""
        return self.trial.mixed(self.rows(case, at), self.cases.problem.key.ranks)


def ladder(keys: Floats, low: Ints) -> Ints:
    """(C, ranks, W, chunks) layers of a rank's chunks as its total grows by one layer at a time.

    Args:
        keys: (C, ranks, chunks, H) in which order chunks get their further layers: ascending, never
            falling along H; infinite beyond the limits.
        low: (C, ranks, chunks) layers at first.
    """
    cases, ranks, chunks, high = keys.shape
    order = np.argsort(keys.reshape(cases, ranks, -1), axis=2, kind="stable")
    given = (order // high)[..., None] == np.arange(chunks)
    steps = np.concatenate([np.zeros((cases, ranks, 1, chunks), bool), given], axis=2)
    return np.asarray(low[:, :, None, :] + steps.cumsum(axis=2))


def by_chunks(values: Numbers, ranks: int) -> Numbers:
    """(C, ranks, chunks) of (C, S)."""
    return values.reshape(len(values), -1, ranks).transpose(0, 2, 1)


def by_stages(values: Ints) -> Ints:
    """(..., S) of (..., ranks, chunks)."""
    return np.asarray(np.swapaxes(values, -1, -2).reshape(*values.shape[:-2], -1))


def ladders(cases: Cases, pages: int) -> list[Book]:
    """Books whose page ``w`` is a rank with ``w`` layers more than its fewest.

    Of several chunks the first book keeps the seconds of a rank's chunks level, later ones first; the
    second fills the chunks that keep the fewest micro-batches alive.
    """
    key = cases.problem.key
    low, high = by_chunks(cases.low, key.ranks), by_chunks(cases.high, key.ranks)
    room = np.maximum(high - low, 0)
    legal = np.arange(pages) <= room.sum(axis=2)[..., None]
    legal = legal.transpose(0, 2, 1)
    if key.chunks == 1:
        counts = cases.low[:, None] + np.minimum(
            np.arange(pages)[None, :, None], room[:, None, :, 0]
        )
        return [Book.of(cases, counts, legal)]
    unit, extra = cases.costs()
    more = np.arange(1, pages)
    inside = more <= room[..., None]
    cost = (low[..., None] + more) * unit[:, None, None, None]
    cost = cost + by_chunks(extra, key.ranks)[..., None]
    flight = cases.problem.situation.most_in_flight()
    turn = np.argsort(np.argsort(flight, axis=1, kind="stable"), axis=1)
    alive = np.broadcast_to(turn[None, :, :, None] * float(pages) + more, cost.shape)
    back = slice(None, None, -1)
    found = []
    for keys in (cost, alive):
        keys = np.where(inside, keys, np.inf)
        made = ladder(keys[:, :, back], low[:, :, back])[..., back]
        counts = by_stages(made[:, :, :pages].transpose(0, 2, 1, 3))
        found.append(Book.of(cases, np.minimum(counts, cases.high[:, None]), legal))
    return found


def joined(books: list[Book], which: Ints) -> Book:
    """Of several books of the same cases and pages the one (C,) of each case."""
    if len(books) == 1:
        return books[0]
    pages, cases = books[0].pages, books[0].cases
    size = len(cases) * pages
    rows = np.repeat(which, pages) * size + np.arange(size)
    every = Book(
        cases, Trial.concat([book.trial for book in books]), pages,
        *(np.concatenate([getattr(b, name) for b in books]) for name in ("seconds", "first", "tail")),
    )  # fmt: skip
    return every.take(cases, rows)


@cache
def _changes(ranks: int, layers: int) -> Ints:
    """(D, ranks) what moving so many layers, one or two, from rank to rank changes."""
    one = np.eye(ranks, dtype=np.int64)
    single = np.array([one[b] - one[a] for a in range(ranks) for b in range(ranks) if a != b])
    if layers == 1:
        return single
    double = (single[:, None] + single[None]).reshape(-1, ranks)
    size = np.abs(double).sum(axis=1)
    return np.asarray(np.unique(double[size > 2], axis=0))


def steps_along(book: Book, at: Ints, layers: int) -> Moves:
    """Every way to move so many layers between ranks, as pages of a ladder."""
    changes = _changes(at.shape[1], layers)
    pages = at[:, None] + changes
    legal = ((pages >= 0) & (pages < book.pages)).all(axis=2)
    case, which = np.nonzero(legal)
    return Moves(case, pages[case, which])
