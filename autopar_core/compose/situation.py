"""Moments of a schedule with what follows from them alone: computed once per schedule key."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from attrs import field, frozen

from autopar_core.compose.corners import corners
from autopar_core.compose.moments import MomentArrays
from autopar_core.domain.arrays import Array, Bools, Floats, Ints
from autopar_core.hooks.schedule import Moments, ScheduleKey


FORWARD, BACKWARD, END, INPUT, WEIGHT = range(5)
# Moments compared in pairs without sorting out equal ones first.
PAIRWISE = 128
_STATES = ("entered", "accumulated", "reduced")


@frozen(eq=False)
class Situation:
    """Moments that can be a rank's peak, M of them, sorted by rank, kind, first and chunk.

    Attributes:
        key: The schedule key.
        rank, kind, chunk, first, sent: (M,) as in :class:`Moments`.
        in_flight, pending: (M, chunks) as in :class:`Moments`.
        states: entered, accumulated, reduced -> (M, chunks).
        stage: (M,) virtual stage at work.
        others: (M, chunks) micro-batches in flight without the one at work.
        starts: Index of the first moment of each rank.
        segments: Index of the first moment of each run of equal rank, kind, first and chunk.
        place: Place -> (stages,) virtual stages that it names.
    """

    key: ScheduleKey
    rank: Ints
    kind: Ints
    chunk: Ints
    first: Bools
    sent: Bools
    in_flight: Ints
    pending: Ints
    states: Mapping[str, Bools]
    stage: Ints
    others: Floats
    starts: Ints
    segments: Ints
    place: Mapping[str, Bools]
    _shown: dict[tuple[str, str], Floats] = field(factory=dict, init=False, repr=False)
    _grid: list[tuple[Ints, Ints, Ints]] = field(factory=list, init=False, repr=False)
    _works: list[tuple[int, list[int], list[Ints]]] = field(factory=list, init=False, repr=False)

    @classmethod
    def of(
        cls, key: ScheduleKey, moments: Moments, whens: frozenset[str], forward_end: bool
    ) -> Situation:
        """Keep the moments that matter for terms with these ``when`` values.

        A moment is dropped when another one of the same rank, kind and chunk, or a mix of two, holds
        at least as much in every respect that some term depends on; terms are non-negative sums over
        what is held.
        Ends of a forward count only with ``forward_end``: else the backward that follows holds as
        much.
        """
        ended = with_end(moments, whens)
        return cls.at(key, ended, _survivors(ended, whens, forward_end))

    @classmethod
    def at(cls, key: ScheduleKey, moments: Moments, keep: Ints) -> Situation:
        """The moments ``keep``, which stand in the order of rank, kind, first and chunk."""
        rank, chunk, kind = moments.rank[keep], moments.chunk[keep], moments.kind[keep]
        in_flight = np.asarray(moments.in_flight)[keep]
        others = in_flight.astype(np.float64)
        # A micro-batch whose weight gradients run counts as pending, not as in flight.
        running = np.nonzero((kind != END) & (kind != WEIGHT))[0]
        others[running, chunk[running]] -= 1
        numbers = np.arange(key.stages)
        first, last = numbers == 0, numbers == key.last
        place = {
            "any": np.ones(key.stages, bool), "first": first, "last": last,
            "not_first": ~first, "not_last": ~last,
        }  # fmt: skip
        marks = np.stack([rank, kind, moments.first[keep], chunk], axis=1)
        starts = np.nonzero(np.r_[True, rank[1:] != rank[:-1]])[0]
        segments = np.nonzero(np.r_[True, (marks[1:] != marks[:-1]).any(axis=1)])[0]
        states = {name: np.asarray(getattr(moments, name))[keep] for name in _STATES}
        return cls(
            key, rank, kind, chunk, moments.first[keep], moments.sent[keep], in_flight,
            np.asarray(moments.pending)[keep], states, chunk * key.ranks + rank, others, starts,
            segments, place,
        )  # fmt: skip

    def shows(self, when: str, on: str) -> Floats:
        """(M, chunks) 0 or 1: chunks of the rank whose static terms count at each moment."""
        if (when, on) not in self._shown:
            self._shown[when, on] = self._chunks_that_show(when, on)
        return self._shown[when, on]

    def _chunks_that_show(self, when: str, on: str) -> Floats:
        if when in self.states:
            flags = self.states[when]
        else:
            running = self.kind != END
            one = {
                "always": np.ones(len(self.rank), bool),
                "sent": self.sent & (self.rank != 0),
                "first": self.first & running,
                "later": ~self.first & running,
                "step": ~running,
            }[when]
            flags = np.repeat(one[:, None], self.key.chunks, axis=1)
        where = np.arange(self.key.chunks)[None, :] * self.key.ranks + self.rank[:, None]
        return np.asarray((flags & self.place[on][where]).astype(np.float64))

    def grid(self) -> tuple[Ints, Ints, Ints]:
        """Moments as a table, for all ranks at once.

        Returns:
            (ranks, W) moments of each rank, its last one repeated; (segments,) place in the table,
            row by row, at which each segment starts; (ranks,) first segment of each rank.
        """
        if not self._grid:
            size = np.diff(np.append(self.starts, len(self.rank)))
            place = np.minimum(np.arange(size.max()), size[:, None] - 1)
            rank = np.searchsorted(self.starts, self.segments, side="right") - 1
            runs = rank * place.shape[1] + self.segments - self.starts[rank]
            firsts = np.searchsorted(self.segments, self.starts)
            self._grid.append((self.starts[:, None] + place, runs, np.asarray(firsts)))
        return self._grid[0]

    def works(self) -> list[tuple[int, list[int], list[Ints]]]:
        """(kind of work, values of ``first`` that occur with it, segments of each)."""
        if not self._works:
            kind, first = self.kind[self.segments], self.first[self.segments]
            for which in (FORWARD, BACKWARD, END, INPUT):
                found = [np.nonzero((kind == which) & (first == flag))[0] for flag in (0, 1)]
                flags = [flag for flag in (0, 1) if len(found[flag])]
                if which == END and flags:
                    flags, found = [0], [np.nonzero(kind == which)[0], found[1]]
                if flags:
                    self._works.append((which, flags, [found[flag] for flag in flags]))
        return self._works

    def stage_of(self, chunk: int) -> Ints:
        """(M,) virtual stage of the rank's given chunk."""
        return np.asarray(chunk * self.key.ranks + self.rank)

    def most_in_flight(self) -> Ints:
        """(ranks, chunks) largest number of micro-batches in flight per chunk.

        Those whose weight gradients wait hold what recompute cannot free and do not count.
        """
        return np.asarray(np.maximum.reduceat(self.in_flight, self.starts, axis=0))


def with_end(moments: Moments, whens: frozenset[str]) -> Moments:
    """One moment more per rank where terms ask for it: the optimizer runs, with nothing in flight.

    Schedules that know the end of a step say it themselves.
    """
    if "step" not in whens or (np.asarray(moments.kind) == END).any():
        return moments
    ranks = np.unique(np.asarray(moments.rank))
    chunks = np.asarray(moments.in_flight).shape[1]
    zero, no = np.zeros(len(ranks), np.int64), np.zeros((len(ranks), chunks), bool)
    none = np.zeros_like(no, np.int64)
    end = MomentArrays(
        rank=ranks, kind=zero + END, chunk=zero, in_flight=none, pending=none, first=no[:, 0],
        entered=no, accumulated=no, reduced=no, sent=no[:, 0],
    )  # fmt: skip
    return MomentArrays.of(moments).joined(end)


def _survivors(moments: Moments, whens: frozenset[str], forward_end: bool) -> Ints:
    """Indices of moments that no other one exceeds, by rank, kind, first and chunk."""
    m = moments
    timed = bool(whens & {"first", "later"})
    same = [m.rank, m.kind, m.chunk, np.asarray(m.first & timed, dtype=np.int64)]
    more: list[Array] = [np.asarray(m.in_flight), np.asarray(m.pending)]
    held_states = [name for name in ("entered", "accumulated") if name in whens]
    more += [np.asarray(getattr(m, name)).astype(np.int64) for name in held_states]
    if "sent" in whens:
        more.append(m.sent.astype(np.int64)[:, None])
    if "reduced" in whens or "accumulated" in whens:
        same += list(np.asarray(m.reduced).astype(np.int64).T)
    if "accumulated" in whens:
        chunk = np.arange(len(m.rank)), m.chunk
        same.append(np.asarray(m.accumulated)[chunk].astype(np.int64))
    usable = np.ones(len(m.rank), bool) if forward_end else m.kind != FORWARD
    groups = np.stack(same, axis=1)
    held = np.concatenate(more, axis=1)
    rows = np.nonzero(usable)[0]
    _, index = np.unique(groups[rows], axis=0, return_inverse=True)
    index = index.reshape(-1)
    order = np.argsort(index, kind="stable")
    bounds = np.nonzero(np.diff(index[order]))[0] + 1
    starts, ends = np.r_[0, bounds], np.r_[bounds, len(rows)]
    alone = ends - starts == 1
    keep = rows[order[starts[alone]]].tolist()
    for start, end in zip(starts[~alone].tolist(), ends[~alone].tolist(), strict=True):
        members = rows[order[start:end]]
        if len(members) > PAIRWISE:
            members = members[np.unique(held[members], axis=0, return_index=True)[1]]
        values = held[members]
        covers = (values[None, :, :] >= values[:, None, :]).all(axis=2)
        # of equal ones the first stays
        beaten = covers & (~covers.T | np.tri(len(members), k=-1, dtype=bool))
        keep += members[~beaten.any(axis=1)].tolist()
    kept = np.asarray(sorted(keep), dtype=np.int64)
    place = np.zeros(len(m.rank), np.int64)
    place[rows] = index
    return in_order(m, kept[corners(place[kept], held[kept].astype(np.float64))])


def in_order(moments: Moments, rows: Ints) -> Ints:
    """Rows by rank, kind, first and chunk, else as they stand."""
    m = moments
    by = (rows, m.chunk[rows], m.first[rows], m.kind[rows], m.rank[rows])
    return np.asarray(rows[np.lexsort(by)])
