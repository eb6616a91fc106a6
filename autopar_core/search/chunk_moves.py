"""Local search where ranks have several chunks: single layers go from one virtual stage to another.

What one layer less and one layer more does to the end of the step is timed for every virtual stage. A
move from i to j can only help if one more on i delays the end by more than one less on j saves: both are
slopes of one convex function, which the longest path through a schedule is. Of the others those are timed
that promise most.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from autopar_core.domain.arrays import Bools, Floats, Ints
from autopar_core.search.book import Book, Moves
from autopar_core.search.cases import Cases
from autopar_core.search.moves import EQUAL, State, heads, time_of


# Moves of a case that are timed at once, and looks at so many in which none is shorter before it is left
# as it is. A wave of the replay takes about as long for 32 columns as for one.
AT_ONCE, LOOKS = 32, 2


def improve_chunks(cases: Cases, state: State) -> State:
    """Downhill until no move that was tried helps; a case changes by its own best move each time."""
    state = state.take(np.arange(len(cases)))
    active = np.nonzero(np.isfinite(state.seconds))[0]
    while len(active):
        rows, better = _best(cases.take(active), state.take(active))
        active = active[rows]
        state.put(active, better)
    return state


def shifted(cases: Cases, layers: Ints, ranks: Bools, number: int) -> Ints:
    """(C, S) layers after ranks (C, ranks) have moved some from one chunk to another, as far as they can.

    From the chunk that keeps the most micro-batches alive to the one that keeps the fewest: where ranks
    recompute that frees memory on all of them at once, which moves of single layers do not find.
    """
    key = cases.problem.key
    flight = cases.problem.situation.most_in_flight()
    source = flight.argmax(axis=1) * key.ranks + np.arange(key.ranks)
    target = flight.argmin(axis=1) * key.ranks + np.arange(key.ranks)
    room = np.minimum(layers - cases.low, number)[:, source]
    move = np.where(ranks, np.minimum(room, (cases.high - layers)[:, target]), 0)
    made = layers.copy()
    made[:, source] -= move
    made[:, target] += move
    return made


def _best(cases: Cases, state: State) -> tuple[Ints, State]:
    """(Cases that some move helps, what the best one makes of them)."""
    layers = state.trial.solution.layout.layers
    book = neighbours(cases, layers)
    case, turn, moves = _promising(book, layers, state.seconds)
    best, found = state.seconds * (1 - EQUAL), np.full(len(cases), -1)
    for look in range(LOOKS):
        now = np.nonzero((turn // AT_ONCE == look) & (found[case] < 0))[0]
        if not len(now):
            break
        seconds = time_of(book, moves.take(now), exact=True)
        head = heads(case[now], seconds, now)
        head = head[seconds[head] < best[case[now[head]]]]
        found[case[now[head]]], best[case[now[head]]] = now[head], seconds[head]
    rows = np.nonzero(found >= 0)[0]
    trial = book.layouts(rows, moves.pages[found[rows]])
    return rows, State(trial, state.at[rows], best[rows])


def _promising(book: Book, layers: Ints, seconds: Floats) -> tuple[Ints, Ints, Moves]:
    """(M,) case, (M,) turn in which it is tried, and moves: few of every case."""
    cases, (size, stages) = book.cases, layers.shape
    now = seconds[:, None]
    fewer, more = _with_one(book, layers, -1), _with_one(book, layers, 1)
    after = time_of(book, Moves.concat([fewer[0], more[0]]), exact=True)
    # a stage that has none to give saves nothing
    saved, added = np.zeros(layers.shape), np.full(layers.shape, np.inf)
    saved[fewer[1]] = np.maximum(now[fewer[1][0], 0] - after[: len(fewer[0].case)], 0.0)
    added[more[1]] = after[len(fewer[0].case) :] - now[more[1][0], 0]
    rank = np.arange(stages) % cases.problem.key.ranks
    within = rank[:, None] == rank
    # from i (axis 1) to j (axis 2); a rank that has no room for one more may still shift its layers
    legal = (layers > cases.low)[:, :, None] & (layers < cases.high)[:, None, :]
    legal &= ~np.eye(stages, dtype=bool) & (saved > EQUAL * now)[:, :, None]
    legal &= within | (added[:, :, None] > saved[:, None, :])
    cost = np.where(within & np.isinf(added)[:, None, :], saved[:, None, :], added[:, None, :])
    promise = np.where(legal, cost - saved[:, :, None], np.inf).reshape(size, -1)
    order = np.argsort(promise, axis=1, kind="stable")[:, : AT_ONCE * LOOKS]
    case, turn = np.nonzero(np.isfinite(np.take_along_axis(promise, order, axis=1)))
    source, target = np.divmod(order[case, turn], stages)
    moves = _moves(book, case, source, target)
    fits = _fits(book, moves)
    return case[fits], turn[fits], moves.take(fits)


def _with_one(book: Book, layers: Ints, more: int) -> tuple[Moves, tuple[Ints, Ints]]:
    """(A layer more or less on a virtual stage, where it can be and fits; their cases and stages)."""
    cases, key = book.cases, book.cases.problem.key
    _, less_page, more_page, _ = _variants(key.chunks)
    case, stage = np.nonzero(layers < cases.high if more > 0 else layers > cases.low)
    pages = np.zeros((len(stage), key.ranks), np.int64)
    page = more_page if more > 0 else less_page
    pages[np.arange(len(stage)), stage % key.ranks] = page[stage // key.ranks]
    moves = Moves(case, pages)
    fits = _fits(book, moves)
    return moves.take(fits), (case[fits], stage[fits])


def _fits(book: Book, moves: Moves) -> Bools:
    """(M,) moves after which every rank fits."""
    rank = np.arange(book.cases.problem.key.ranks)
    seconds = book.seconds[book.rows(moves.case, moves.pages), rank]
    return np.asarray(np.isfinite(seconds).all(axis=1))


def _moves(book: Book, case: Ints, source: Ints, target: Ints) -> Moves:
    """A layer from one virtual stage to another, as pages of `neighbours`."""
    key = book.cases.problem.key
    _, less, more, shift = _variants(key.chunks)
    one, two = source % key.ranks, target % key.ranks
    a, b = source // key.ranks, target // key.ranks
    within, rows = one == two, np.arange(len(case))
    pages = np.zeros((len(case), key.ranks), np.int64)
    pages[rows, one] = np.where(within, shift[a, b], less[a])
    pages[rows, two] = np.where(within, shift[a, b], more[b])
    return Moves(case, pages)


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
