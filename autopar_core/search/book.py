"""Layouts tried once and used in many partitions: what each rank does with some layers.

A partition is an index into the book for every rank. With one chunk per rank the book holds every
number of layers in a window. With several it holds what one layer more, less or elsewhere makes of each
rank, and is written anew after each step.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from attrs import frozen

from autopar_core.domain.arrays import Bools, Floats, Ints
from autopar_core.search.cases import Cases, Trial


@frozen(eq=False)
class Moves:
    """Partitions one step away: ranks ``one`` and ``two`` turn to other pages of their case."""

    case: Ints
    one: Ints
    one_page: Ints
    two: Ints
    two_page: Ints

    def take(self, rows: Ints) -> Moves:
        """Some of them."""
        return Moves(
            self.case[rows], self.one[rows], self.one_page[rows], self.two[rows],
            self.two_page[rows],
        )  # fmt: skip

    def pages(self, at: Ints) -> Ints:
        """(M, ranks) pages after each move, from (C, ranks)."""
        made = at[self.case]
        rows = np.arange(len(made))
        made[rows, self.one] = self.one_page
        made[rows, self.two] = self.two_page
        return made


@frozen(eq=False)
class Book:
    """(C x pages) layouts, page by page of each case.

    Attributes:
        cases: C cases.
        trial: The layouts.
        pages: Pages of each case.
        seconds: (C x pages, ranks) seconds of a micro-batch, infinite where nothing fits.
    """

    cases: Cases
    trial: Trial
    pages: int
    seconds: Floats

    @classmethod
    def of(cls, cases: Cases, counts: Ints, legal: Bools | None = None) -> Book:
        """Pages (C, pages, S) of layers, each ``legal`` (C, pages, ranks) or not."""
        size, pages, _ = counts.shape
        case = np.repeat(np.arange(size), pages)
        trial = cases.trial(case, counts.reshape(size * pages, -1))
        fits = trial.fits if legal is None else trial.fits & legal.reshape(trial.fits.shape)
        busy = cases.busy(trial.forward, trial.backward)
        return cls(cases, trial, pages, np.where(fits, busy, np.inf))

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


def by_chunks(values: Ints, ranks: int) -> Ints:
    """(C, ranks, chunks) of (C, S)."""
    return np.asarray(values.reshape(len(values), -1, ranks).transpose(0, 2, 1))


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
        counts = cases.low[:, None] + np.minimum(np.arange(pages)[None, :, None], room[:, None, :, 0])
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
    trial = Trial.concat([book.trial for book in books]).take(rows)
    seconds = np.concatenate([book.seconds for book in books])[rows]
    return Book(cases, trial, pages, seconds)


@cache
def _variants(chunks: int) -> tuple[Ints, Ints, Ints, Ints]:
    """What a layer more, less, or on another chunk makes of a rank.

    Returns:
        (V, chunks) differences; page of "one less" and "one more" by chunk; (chunks, chunks) page of
        "from chunk a to chunk b".
    """
    one = np.eye(chunks, dtype=np.int64)
    rows: list[Ints] = [np.zeros(chunks, np.int64)]
    less, more = np.zeros(chunks, np.int64), np.zeros(chunks, np.int64)
    shift = np.zeros((chunks, chunks), np.int64)
    for a in range(chunks):
        less[a] = len(rows)
        rows.append(-one[a])
        more[a] = len(rows)
        rows.append(one[a])
    for a in range(chunks):
        for b in range(chunks):
            if a != b:
                shift[a, b] = len(rows)
                rows.append(one[b] - one[a])
    return np.stack(rows), less, more, shift


def neighbours(cases: Cases, counts: Ints) -> Book:
    """The book of what one layer changes on each rank of (C, S) layers; page 0 is as it is."""
    chunks, ranks = cases.problem.key.chunks, cases.problem.key.ranks
    changes, *_ = _variants(chunks)
    made = np.repeat(counts[:, None], len(changes), axis=1)
    made += np.repeat(changes, ranks, axis=1)[None]
    # what is outside the limits is never moved to
    made = np.clip(made, cases.low[:, None], cases.high[:, None])
    return Book.of(cases, made)


def steps_between(cases: Cases, counts: Ints) -> Moves:
    """Every layer that can go from one virtual stage to another, as pages of `neighbours`."""
    key = cases.problem.key
    _, less, more, shift = _variants(key.chunks)
    give, take = counts > cases.low, counts < cases.high
    case, source, target = np.nonzero(give[:, :, None] & take[:, None, :])
    keep = source != target
    case, source, target = case[keep], source[keep], target[keep]
    one, two = source % key.ranks, target % key.ranks
    a, b = source // key.ranks, target // key.ranks
    within = one == two
    one_page = np.where(within, shift[a, b], less[a])
    two_page = np.where(within, shift[a, b], more[b])
    return Moves(case, one, one_page, two, two_page)


def steps_along(book: Book, at: Ints) -> Moves:
    """Every layer that can go from one rank to another, as pages of a ladder."""
    case = np.arange(len(at))[:, None]
    rank = np.arange(at.shape[1])
    pages = book.by_page()
    last = np.minimum(at + 1, book.pages - 1)
    take = (at < book.pages - 1) & np.isfinite(pages[case, rank, last])
    case, one, two = np.nonzero((at > 0)[:, :, None] & take[:, None, :])
    keep = one != two
    case, one, two = case[keep], one[keep], two[keep]
    return Moves(case, one, at[case, one] - 1, two, at[case, two] + 1)
