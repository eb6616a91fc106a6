"""Memory of every rank over the time of a step: the same sums that find the peak, at every operation."""

from __future__ import annotations

import numpy as np

from autopar_core.compose.layout import Layout
from autopar_core.compose.memory_peak import moment_bytes
from autopar_core.compose.memory_table import MemoryTable
from autopar_core.compose.moments import MomentArrays
from autopar_core.compose.situation import (
    END,
    FORWARD,
    INPUT,
    WEIGHT,
    Situation,
    in_order,
    with_end,
)
from autopar_core.domain.arrays import Array, Floats, Ints
from autopar_core.domain.timeline import MemoryTrace
from autopar_core.hooks.schedule import Moments, ScheduleKey, Timeline


def memory_trace(
    table: MemoryTable, key: ScheduleKey, found: Timeline, layout: Layout, closing: Moments,
    ends: Floats,
) -> tuple[MemoryTrace, Ints]:  # fmt: skip
    """(bytes of each rank from a time on, (ranks,) its peak), with the reserves.

    The bytes are the largest while an operation runs, what stays after it, and what the end of the
    step holds.

    Args:
        table, layout: Terms and layers of the only row.
        key: Schedule key.
        found: The composer's operations.
        closing: Memory situations of the schedule; those at the end of the step are taken.
        ends: (ranks,) end of each rank with its tail.
    """
    during = MomentArrays.of(found.moments)
    after, before = _after(during, found), _before(during)
    ended = with_end(closing, table.whens)
    last = MomentArrays.of(ended, np.asarray(ended.kind) == END)
    value = _bytes(table, key, layout, during.joined(after, before, last))
    n = len(during.rank)
    busy, held, start = value[:n], value[n : 2 * n], value[2 * n : 2 * n + key.ranks]
    released = found.released[np.r_[np.diff(found.rank) != 0, True]]
    final = held[np.r_[np.diff(found.rank) != 0, True]]
    ranks = np.arange(key.ranks)
    pieces = [
        (ranks, np.zeros(key.ranks), start),
        (found.rank, found.start, busy),
        (found.rank, found.end, held),
        (ranks, ends, final),
    ]
    if len(last.rank):
        pieces.insert(3, (last.rank, released[last.rank], value[2 * n + key.ranks :]))
    peaks = np.zeros(key.ranks)
    for rank, _, nbytes in pieces:
        np.maximum.at(peaks, rank, nbytes)
    return _in_time(pieces), np.rint(peaks).astype(np.int64)


def _in_time(pieces: list[tuple[Array, Array, Array]]) -> MemoryTrace:
    """Pieces by rank and time; of several at one time the last piece rules, equal ones are merged."""
    rank, start, nbytes = (np.concatenate([p[i] for p in pieces]) for i in range(3))
    # An operation that starts when the one before it ends stands after that end.
    piece = np.concatenate([np.full(len(p[0]), i) for i, p in enumerate(pieces)])
    turn = np.array([0, 2, 1, 3, 4])[piece]
    order = np.lexsort((turn, start, rank))
    rank, start, nbytes = rank[order], start[order], nbytes[order]
    stays = np.r_[(rank[1:] != rank[:-1]) | (start[1:] > start[:-1]), True]
    rank, start, nbytes = rank[stays], start[stays], nbytes[stays]
    moves = np.r_[True, (rank[1:] != rank[:-1]) | (nbytes[1:] != nbytes[:-1])]
    return MemoryTrace(
        rank=rank[moves].astype(np.int64), start=start[moves],
        bytes=np.rint(nbytes[moves]).astype(np.int64),
    )  # fmt: skip


def _bytes(table: MemoryTable, key: ScheduleKey, layout: Layout, rows: MomentArrays) -> Floats:
    order = in_order(rows, np.arange(len(rows.rank)))
    value = np.empty(len(rows.rank))
    value[order] = moment_bytes(table, Situation.at(key, rows, order), layout)
    return np.asarray(value + table.reserve[0])


def _after(during: MomentArrays, found: Timeline) -> MomentArrays:
    """What each operation leaves: nothing at work, the next one's accumulated gradients."""
    rows = np.arange(len(during.rank))
    last = np.r_[np.diff(during.rank) != 0, True]
    follower = np.where(last, rows, rows + 1)
    left = MomentArrays.of(during)
    kind, chunk = during.kind, during.chunk
    backward = (kind != FORWARD) & (kind != WEIGHT)
    left.in_flight[rows, chunk] -= backward
    left.pending[rows, chunk] += (kind == INPUT).astype(np.int64) - (kind == WEIGHT)
    accumulated, reduced = during.accumulated[follower], during.reduced[follower]
    entered, chunks = during.entered & ~reduced, during.accumulated.shape[1]
    pipelined = found.rank.max() > 0
    if pipelined:
        # After its last operation a rank of one chunk has accumulated, others have reduced.
        accumulated[last], reduced[last] = chunks == 1, chunks > 1
        entered[last] = chunks == 1
    return MomentArrays(
        during.rank, np.full_like(kind, WEIGHT), chunk, left.in_flight, left.pending,
        during.first & ~backward, entered, accumulated, reduced, during.sent | (backward & pipelined),
    )  # fmt: skip


def _before(during: MomentArrays) -> MomentArrays:
    """Each rank before its first operation."""
    rows = np.nonzero(np.r_[True, np.diff(during.rank) != 0])[0]
    start = MomentArrays.of(during, rows)
    return MomentArrays(
        start.rank, np.full_like(start.kind, WEIGHT), start.chunk, 0 * start.in_flight,
        0 * start.pending, start.first, start.entered & False, start.accumulated, start.reduced,
        start.sent,
    )  # fmt: skip
