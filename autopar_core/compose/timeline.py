"""The step of one candidate laid out in time, from the composer's operations and the rank's tails."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from attrs import frozen

from autopar_core.compose.time_explain import RankShare, step_shares
from autopar_core.domain import timeline as kinds
from autopar_core.domain.arrays import Floats, Ints
from autopar_core.domain.terms import TimeTerm
from autopar_core.domain.timeline import (
    SEGMENT_KINDS,
    WAITING,
    Bottleneck,
    RankTime,
    Segments,
    index_of,
)
from autopar_core.hooks.schedule import OPERATIONS, ScheduleKey, Timeline
from autopar_core.units import counted


# What an operation is called, by its index in OPERATIONS.
_OF_OPERATION = (kinds.FORWARD, kinds.BACKWARD, kinds.BACKWARD, kinds.WEIGHT)
# A rank that holds this share of the longest path bounds the step, also where ranks wait for others.
MOST = 0.5
_TAIL = {"link": kinds.EXPOSED, "host": kinds.HOST}


@frozen(eq=False)
class TailPart:
    """What a rank does after its last micro-batch."""

    kind: str
    owner: str
    name: str
    seconds: float


def tail_parts(terms: Sequence[TimeTerm], share: RankShare) -> list[TailPart]:
    """Exposed communication, host work and optimizer of a rank, in that order."""
    found: dict[tuple[str, str, str], float] = {}
    for term, _, shown, _ in step_shares(terms, share):
        if shown > 0:
            mark = (_TAIL.get(term.resource, kinds.OPTIMIZER), term.owner, term.name)
            found[mark] = found.get(mark, 0.0) + shown
    parts = [TailPart(*mark, seconds) for mark, seconds in found.items()]
    return sorted(parts, key=lambda part: SEGMENT_KINDS.index(part.kind))


class _Rows:
    """Segments gathered piece by piece."""

    def __init__(self) -> None:
        self._pieces: list[tuple[Ints, ...] | tuple[Ints | Floats, ...]] = []
        self.parts: list[tuple[str, str]] = []

    def add(
        self, kind: Ints, rank: Ints, start: Floats, end: Floats, chunk: Ints | int = -1,
        micro_batch: Ints | int = -1, part: int = -1,
    ) -> None:  # fmt: skip
        there = np.nonzero(end > start)[0]
        columns = np.broadcast_arrays(kind, rank, start, end, chunk, micro_batch, part)
        self._pieces.append(tuple(column[there] for column in columns))

    def part(self, owner: str, name: str) -> int:
        if (owner, name) not in self.parts:
            self.parts.append((owner, name))
        return self.parts.index((owner, name))

    def segments(self) -> Segments:
        kind, rank, start, end, chunk, micro_batch, part = (
            np.concatenate([piece[i] for piece in self._pieces]) for i in range(7)
        )
        order = np.lexsort((end, start, rank))
        return Segments(
            rank=rank[order].astype(np.int64), kind=kind[order].astype(np.int64),
            start=start[order], end=end[order], chunk=chunk[order].astype(np.int64),
            micro_batch=micro_batch[order].astype(np.int64), part=part[order].astype(np.int64),
            parts=tuple(self.parts),
        )  # fmt: skip


def segments(
    found: Timeline, recompute: Floats, ends: Floats, tails: Sequence[Sequence[TailPart]],
    key: ScheduleKey,
) -> Segments:  # fmt: skip
    """What every rank does from 0 to the end of the step.

    Args:
        found: The composer's operations.
        recompute: (S,) seconds of recompute in a backward of each virtual stage.
        ends: (ranks,) end of each rank with its tail.
        tails: Parts of each rank's tail; rounding goes to the last one.
        key: Schedule key.
    """
    rows = _Rows()
    rank, start, end = found.rank, found.start, found.end
    before = np.where(_first(rank), 0.0, np.roll(found.released, 1))
    arrives = np.maximum(before, start - found.message)
    idle = np.full(len(rank), index_of(kinds.IDLE))
    message = np.full(len(rank), index_of(kinds.MESSAGE))
    rows.add(idle, rank, before, arrives)
    rows.add(message, rank, arrives, start, found.chunk, found.micro_batch)
    backward = (found.kind != OPERATIONS.index("forward")) & (
        found.kind != OPERATIONS.index("weight gradient")
    )
    again = np.where(backward, recompute[found.chunk * key.ranks + rank], 0.0)
    middle = np.minimum(start + again, end)
    repeated = np.full(len(rank), index_of(kinds.RECOMPUTE))
    rows.add(repeated, rank, start, middle, found.chunk, found.micro_batch)
    names = np.array([index_of(name) for name in _OF_OPERATION])
    rows.add(names[found.kind], rank, middle, end, found.chunk, found.micro_batch)
    leaves = np.maximum(end, found.released - found.sending)
    rows.add(idle, rank, end, leaves)
    rows.add(message, rank, leaves, found.released, found.chunk, found.micro_batch)
    step = float(ends.max())
    for number, parts in enumerate(tails):
        mine = np.nonzero(rank == number)[0]
        _add_tail(rows, number, float(found.released[mine[-1]]), float(ends[number]), parts)
        _add_one(rows, kinds.IDLE, number, float(ends[number]), step, -1)
    return rows.segments()


def _add_tail(rows: _Rows, rank: int, start: float, end: float, parts: Sequence[TailPart]) -> None:
    at = start
    for place, part in enumerate(parts):
        stop = end if place == len(parts) - 1 else min(end, at + part.seconds)
        _add_one(rows, part.kind, rank, at, stop, rows.part(part.owner, part.name))
        at = stop
    _add_one(rows, kinds.IDLE, rank, at, end, -1)


def _add_one(rows: _Rows, kind: str, rank: int, start: float, end: float, part: int) -> None:
    rows.add(np.array([index_of(kind)]), np.array([rank]), np.array([start]), np.array([end]),
             part=part)  # fmt: skip


def _first(rank: Ints) -> Ints:
    """Whether each operation is the first of its rank."""
    return np.asarray(np.r_[True, rank[1:] != rank[:-1]])


def rank_times(found: Segments, ends: Floats, peaks: Ints) -> tuple[RankTime, ...]:
    """Sums of each rank."""
    seconds = np.zeros((len(ends), len(SEGMENT_KINDS)))
    np.add.at(seconds, (found.rank, found.kind), found.end - found.start)
    rows = []
    for rank, sums in enumerate(seconds):
        by_kind = {kind: float(value) for kind, value in zip(SEGMENT_KINDS, sums, strict=True)}
        rows.append(
            RankTime(
                rank=rank, end_seconds=float(ends[rank]), seconds=by_kind,
                bubble_seconds=sum(by_kind[kind] for kind in WAITING),
                peak_bytes=int(peaks[rank]),
            )
        )  # fmt: skip
    return tuple(rows)


def bottleneck(
    found: Timeline, recompute: Floats, ends: Floats, tails: Sequence[Sequence[TailPart]],
    key: ScheduleKey,
) -> Bottleneck:  # fmt: skip
    """The longest path back from the rank that ends last, and the rank that most of it runs on."""
    last = int(ends.argmax())
    step = float(ends[last])
    path = dict.fromkeys(SEGMENT_KINDS, 0.0)
    by_rank = [0.0] * key.ranks
    for part in tails[last]:
        path[part.kind] += part.seconds
        by_rank[last] += part.seconds
    mine = np.nonzero(found.rank == last)[0]
    at = int(mine[-1])
    path[kinds.MESSAGE] += float(found.released[at] - found.end[at])
    while at >= 0:
        rank, cause = int(found.rank[at]), int(found.cause[at])
        took = float(found.end[at] - found.start[at])
        by_rank[rank] += took
        kind = _OF_OPERATION[int(found.kind[at])]
        if kind == kinds.BACKWARD:
            again = min(took, float(recompute[int(found.chunk[at]) * key.ranks + rank]))
            path[kinds.RECOMPUTE] += again
            took -= again
        path[kind] += took
        before = float(found.end[cause]) if cause >= 0 else 0.0
        path[kinds.MESSAGE] += max(0.0, float(found.start[at]) - before)
        at = cause
    worst = int(np.argmax(by_rank))
    share = by_rank[worst] / step if step else 0.0
    return Bottleneck(
        rank=worst, share=share, path_seconds=path, rank_seconds=tuple(by_rank),
        sentence=_sentence(found, key, worst, share, path, step, _least_wait(found, tails, step)),
    )  # fmt: skip


def _least_wait(found: Timeline, tails: Sequence[Sequence[TailPart]], step: float) -> float:
    """The share of the step in which the busiest rank waits."""
    busy = np.bincount(found.rank, found.end - found.start, len(tails))
    busy = busy + np.array([sum(part.seconds for part in parts) for parts in tails])
    return max(0.0, 1 - float(busy.max()) / step) if step else 0.0


def _sentence(
    found: Timeline, key: ScheduleKey, worst: int, share: float, path: dict[str, float],
    step: float, waits: float,
) -> str:  # fmt: skip
    largest = max((kind for kind in SEGMENT_KINDS if kind not in WAITING), key=lambda k: path[k])
    part = f"{largest} {path[largest] / step:.0%}" if step else largest
    if key.ranks == 1:
        return f"one stage, no bubble; most of the step is {part}"
    rest = path[kinds.MESSAGE] / step if step else 0.0
    by_kind = f"by kind most of the path is {part}, messages are {rest:.1%}"
    work = np.bincount(found.rank, found.end - found.start, key.ranks) / key.micro_batches
    others = np.delete(work, worst).mean()
    heavy = work[worst] / others - 1
    pace = (
        f"{heavy:.1%} more work per micro-batch than the others"
        if heavy >= 5e-4 else "no more work per micro-batch than the others"
    )  # fmt: skip
    holds = f"rank {worst} holds {share:.0%} of the longest path and has {pace}"
    if key.micro_batches >= key.ranks or share >= MOST:
        return f"{holds}; {by_kind}"
    most = f"none holds more than {share:.0%} of the longest path" if heavy < 5e-4 else holds
    return (
        f"filling and draining bound the step: with {counted(key.micro_batches, 'micro-batch')} for "
        f"{key.ranks} ranks every rank waits for {waits:.0%} of it or more, and {most}; {by_kind}"
    )
