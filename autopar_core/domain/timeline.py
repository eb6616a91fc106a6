"""One step of one candidate over time: what every rank does when, and what memory it holds."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from attrs import field, frozen

from autopar_core.domain.arrays import Floats, Ints


FORWARD, BACKWARD, WEIGHT, RECOMPUTE, MESSAGE, EXPOSED, OPTIMIZER, HOST, IDLE = (
    "forward",
    "backward",
    "weight gradient",
    "recompute",
    "p2p",
    "exposed communication",
    "optimizer",
    "host",
    "idle",
)
SEGMENT_KINDS = (
    FORWARD, BACKWARD, WEIGHT, RECOMPUTE, MESSAGE, EXPOSED, OPTIMIZER, HOST, IDLE,
)  # fmt: skip
"""What a rank's time consists of. ``p2p`` is a message that the rank waits for or takes part in."""
WAITING = (MESSAGE, IDLE)
"""Kinds that make the bubble."""


@frozen(eq=False, kw_only=True)
class Segments:
    """Spans of time, rank by rank without gaps from 0 to the end of the step; arrays are (n,).

    Attributes:
        rank: Who.
        kind: Index into ``SEGMENT_KINDS``.
        start, end: Seconds from the start of the step.
        chunk, micro_batch: What it works on, -1 where it works on none.
        part: Index into ``parts``, -1 for none.
        parts: (owner, name) of what comes after a rank's last micro-batch.
    """

    rank: Ints
    kind: Ints
    start: Floats
    end: Floats
    chunk: Ints
    micro_batch: Ints
    part: Ints
    parts: tuple[tuple[str, str], ...] = ()

    def __len__(self) -> int:
        """Number of segments."""
        return len(self.rank)


@frozen(eq=False, kw_only=True)
class MemoryTrace:
    """Bytes that a rank holds from a time on, rank by rank in time; arrays are (n,)."""

    rank: Ints
    start: Floats
    bytes: Ints


@frozen(kw_only=True)
class RankTime:
    """One rank's step: seconds of each kind sum to the step; the bubble is what it waits."""

    rank: int
    end_seconds: float
    seconds: Mapping[str, float]
    bubble_seconds: float
    peak_bytes: int


@frozen(kw_only=True)
class Bottleneck:
    """The longest path of the step: nothing on it can be late without the step being late.

    Attributes:
        rank: The rank with the largest share of it.
        share: That share of the step.
        path_seconds: Seconds of each kind on the path.
        rank_seconds: Seconds of each rank on it (without messages).
        sentence: What makes the step as long as it is.
    """

    rank: int
    share: float
    path_seconds: Mapping[str, float]
    rank_seconds: tuple[float, ...]
    sentence: str


@frozen(eq=False, kw_only=True)
class StepTimeline:
    """A step as its replay sees it.

    Attributes:
        seconds: Step time, where the rank that ends last ends.
        schedule: Name of the schedule.
        ranks, chunks, micro_batches: Its sizes.
        segments: What every rank does.
        memory: What every rank holds, with the reserves outside the allocator.
        limit_bytes: Memory limit of a device.
        by_rank: Sums of each rank.
        bottleneck: Why it takes that long.
    """

    seconds: float
    schedule: str
    ranks: int
    chunks: int
    micro_batches: int
    segments: Segments = field(repr=False)
    memory: MemoryTrace = field(repr=False)
    limit_bytes: int
    by_rank: tuple[RankTime, ...]
    bottleneck: Bottleneck

    @property
    def bubble_share(self) -> float:
        """Part of all ranks' time that is bubble."""
        whole = self.seconds * self.ranks
        return sum(rank.bubble_seconds for rank in self.by_rank) / whole if whole else 0.0


def index_of(kind: str) -> int:
    """Index of a kind."""
    return SEGMENT_KINDS.index(kind)


def kinds_of(segments: Segments) -> list[str]:
    """Kinds that occur, in their order."""
    present = np.unique(segments.kind).tolist()
    return [SEGMENT_KINDS[number] for number in present]
