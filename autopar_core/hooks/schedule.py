"""What a schedule composer answers: layout, moments, bounds and exact replay of a pipeline."""

from __future__ import annotations

from typing import Protocol

from attrs import frozen

from autopar_core.domain.arrays import Bools, Floats, Ints
from autopar_core.domain.strategy import StrategyBatch


@frozen
class ScheduleKey:
    """Rows with the same key share moments, bounds and replay.

    Virtual stage ``chunk * ranks + rank`` is the chunk of that rank; there are ranks x chunks of them.
    """

    schedule: str
    ranks: int
    chunks: int
    micro_batches: int

    @property
    def stages(self) -> int:
        """Virtual stages."""
        return self.ranks * self.chunks


class Moments(Protocol):
    """Distinct memory situations of every rank during a step, M of them.

    ``kind`` is 0 at the end of a forward, 1 in a backward, 2 at the end of the step; ``chunk`` is
    the one at work; ``in_flight`` (M, chunks) counts micro-batches whose activations are alive, the
    current one included; ``first`` says that the chunk has not accumulated gradients before;
    ``entered``, ``accumulated``, ``reduced`` (M, chunks) are states of each chunk; ``sent`` says
    that the rank has sent a gradient.
    """

    @property
    def rank(self) -> Ints:
        """(M,) pipeline rank."""

    @property
    def kind(self) -> Ints:
        """(M,) 0 forward end, 1 backward, 2 end of the step."""

    @property
    def chunk(self) -> Ints:
        """(M,) chunk at work."""

    @property
    def in_flight(self) -> Ints:
        """(M, chunks) micro-batches in flight."""

    @property
    def first(self) -> Bools:
        """(M,) first backward of the chunk."""

    @property
    def entered(self) -> Bools:
        """(M, chunks) the chunk has run a forward."""

    @property
    def accumulated(self) -> Bools:
        """(M, chunks) gradients are accumulated."""

    @property
    def reduced(self) -> Bools:
        """(M, chunks) gradients are reduced."""

    @property
    def sent(self) -> Bools:
        """(M,) a gradient was sent."""


class Composer(Protocol):
    """Turns per-stage costs into a step. All arrays have K rows that share one key.

    Attributes:
        owner: Plugin that owns idle time and hops.
        blocking: A message occupies its sender (Megatron's coupled sends) instead of travelling
            beside the compute.
        empty_stages: A virtual stage may hold no layer.
    """

    @property
    def owner(self) -> str:
        """Plugin that owns idle time and hops."""

    @property
    def blocking(self) -> bool:
        """Whether messages occupy their sender."""

    @property
    def empty_stages(self) -> bool:
        """Whether a virtual stage may hold no layer."""

    def keys(self, batch: StrategyBatch) -> tuple[Ints, tuple[ScheduleKey, ...]]:
        """((N,) index of each row's key, the keys)."""

    def moment_key(self, key: ScheduleKey) -> ScheduleKey:
        """The key with the fewest micro-batches that has the same memory situations."""

    def moments(self, key: ScheduleKey) -> Moments:
        """Memory situations; at least the ones at which some rank may peak."""

    def partition(
        self, key: ScheduleKey, layers: int, unit: Floats, extra: Floats, low: Ints, high: Ints
    ) -> tuple[Ints, Bools]:
        """((K, S) layers of each virtual stage, (K,) possible).

        Minimises the largest ``counts * unit + extra`` over ranks with ``low <= counts <= high``;
        ``unit`` is (K,), the others (K, S).
        """

    def even(self, key: ScheduleKey, layers: int) -> Ints:
        """(S,) the split that MindFormers' offsets refer to."""

    def bound(self, key: ScheduleKey, forward: Floats, backward: Floats, hop: Floats) -> Floats:
        """(K, ranks) seconds: never later than the true end of each rank's work."""

    def replay(self, key: ScheduleKey, forward: Floats, backward: Floats, hop: Floats) -> Floats:
        """(K, ranks) seconds: exact end of each rank's work; forward and backward are (K, S)."""

    def last_backward(self, key: ScheduleKey, backward: Floats) -> Floats:
        """(K, ranks) seconds of backward during which a rank's gradients can be reduced."""

    def first_forward(self, key: ScheduleKey, forward: Floats) -> Floats:
        """(K, ranks) seconds of forward during which a rank's parameters can be gathered."""
