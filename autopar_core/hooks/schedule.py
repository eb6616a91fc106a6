"""What a schedule composer answers: layout, moments, bounds and exact replay of a pipeline."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from attrs import frozen

from autopar_core.domain.arrays import Bools, Floats, Ints
from autopar_core.domain.strategy import StrategyBatch


OPERATIONS = ("forward", "backward", "input gradient", "weight gradient")
"""Kinds of a :class:`Timeline`'s operations: forward, backward, and a backward in its two parts."""


@frozen
class ScheduleKey:
    """Rows with the same key share moments, bounds and replay.

    Virtual stage ``chunk * ranks + rank`` is the chunk of that rank; there are ranks x chunks of
    them.

    Attributes:
        mirrored: The layers run through every second chunk from the last rank to the first
            (V-shaped placement), so the model's end may be on rank 0.
        blocking: A message occupies both of its ranks instead of travelling beside the compute
            (Megatron's coupled sends).
    """

    schedule: str
    ranks: int
    chunks: int
    micro_batches: int
    mirrored: bool = False
    blocking: bool = False

    @property
    def stages(self) -> int:
        """Virtual stages."""
        return self.ranks * self.chunks

    @property
    def shape(self) -> tuple[int, ...]:
        """Of layers that are listed for these stages: ``[stage]``, ``[chunk][stage]`` with chunks."""
        return (self.ranks,) if self.chunks == 1 else (self.chunks, self.ranks)

    @property
    def last(self) -> int:
        """The virtual stage that holds the end of the model; the first one is always 0."""
        # An even number of mirrored chunks ends where the first one starts, on rank 0.
        back = self.mirrored and self.chunks % 2 == 0
        return self.stages - (self.ranks if back else 1)

    @property
    def order(self) -> Ints:
        """(S,) virtual stages in the order of the model's layers."""
        stages = np.arange(self.stages).reshape(self.chunks, self.ranks)
        if self.mirrored:
            stages[1::2] = stages[1::2, ::-1].copy()
        return stages.reshape(-1)


class Moments(Protocol):
    """Distinct memory situations of every rank during a step, M of them.

    ``kind`` is 0 at the end of a forward, 1 in a backward, 2 at the end of the step, 3 in a backward
    of the inputs alone, 4 in that of the weights; ``chunk`` is the one at work; ``in_flight``
    (M, chunks) counts micro-batches whose activations are alive, the current one included;
    ``pending`` (M, chunks) those whose weight gradients alone are still to be computed, the current
    one included; ``first`` says that the chunk has not accumulated gradients before;
    ``entered``, ``accumulated``, ``reduced`` (M, chunks) are states of each chunk; ``sent`` says
    that the rank has sent a gradient.
    """

    @property
    def rank(self) -> Ints:
        """(M,) pipeline rank."""

    @property
    def kind(self) -> Ints:
        """(M,) 0 forward end, 1 backward, 2 end of the step, 3 input and 4 weight gradients."""

    @property
    def chunk(self) -> Ints:
        """(M,) chunk at work."""

    @property
    def in_flight(self) -> Ints:
        """(M, chunks) micro-batches in flight."""

    @property
    def pending(self) -> Ints:
        """(M, chunks) micro-batches whose weight gradients are still to be computed."""

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


@frozen(eq=False, kw_only=True)
class Timeline:
    """Every operation of one candidate, rank by rank in the order it runs; arrays are (n,).

    Attributes:
        rank, chunk, micro_batch: What runs.
        kind: Index into ``OPERATIONS``.
        start, end: Seconds from the start of the step.
        message: Seconds right before the start during which the message that the operation waits
            for is under way, or the rank takes part in an exchange.
        released: Seconds; the end, or the end of what the rank sends after it before it can go on.
        sending: Seconds of that exchange, right before ``released``.
        cause: Index of the operation whose end decided the start, -1 for none.
        moments: Memory situation during each operation.
    """

    rank: Ints
    chunk: Ints
    micro_batch: Ints
    kind: Ints
    start: Floats
    end: Floats
    message: Floats
    released: Floats
    sending: Floats
    cause: Ints
    moments: Moments

    @classmethod
    def of_one_stage(
        cls, micro_batches: int, forward: float, backward: float, moments: Moments
    ) -> Timeline:
        """Micro-batches one after another; ``moments`` has two rows for each."""
        size = 2 * micro_batches
        number, kind = np.arange(size) // 2, np.arange(size) % 2
        whole = forward + backward
        # The last end is a product, as the composers of one stage compute it.
        end = np.where(kind == 1, (number + 1) * whole, number * whole + forward)
        start = np.where(kind == 1, number * whole + forward, number * whole)
        zero = np.zeros(size)
        return cls(
            rank=np.zeros(size, np.int64), chunk=np.zeros(size, np.int64), micro_batch=number,
            kind=kind, start=start, end=end, message=zero, released=end, sending=zero,
            cause=np.arange(size) - 1, moments=moments,
        )  # fmt: skip


@frozen(eq=False)
class Floor:
    """Seconds that the end of the work goes below in no layout, (K,) each.

    Attributes:
        flat: A bound.
        steep: Another one, which grows by ``rise`` seconds at least when the slowest rank takes a
            second longer.
        rise: See there; 0 is always true.
        last: The rank that ends last in any layout; None when that depends on the layout.
    """

    flat: Floats
    steep: Floats
    rise: float
    last: int | None


class Composer(Protocol):
    """Turns per-stage costs into a step. All arrays have K rows that share one key.

    ``weight`` (K, S) is the part of the backward that computes weight gradients alone, which a
    schedule that splits the backward may run later; without it nothing is split off.

    Attributes:
        owner: Plugin that owns idle time and hops.
        rule: Sentence about partitions that the framework cannot spell; empty when it can spell any.
    """

    @property
    def owner(self) -> str:
        """Plugin that owns idle time and hops."""

    @property
    def rule(self) -> str:
        """What partitions the framework can spell, for people."""

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

    def fewest(self, key: ScheduleKey) -> Ints:
        """(S,) fewest layers of each virtual stage."""

    def listed(self, key: ScheduleKey, layers: int) -> Ints | None:
        """(F, S) the only partitions that the framework can spell; None when it can spell any."""

    def floor(self, key: ScheduleKey, slowest: Floats, total: Floats, longer: Floats) -> Floor:
        """Bounds of all layouts whose slowest rank takes ``slowest`` (K,) seconds at least.

        For one micro-batch; all ranks together take ``total`` (K,) at least, and the longer of forward
        and backward is at least the share ``longer`` (K,) of the slowest rank's time, 0.5 or more.
        """

    def bound(
        self, key: ScheduleKey, forward: Floats, backward: Floats, hop: Floats,
        weight: Floats | None = None,
    ) -> Floats:  # fmt: skip
        """(K, ranks) seconds: never later than the true end of each rank's work."""

    def glance(self, key: ScheduleKey, busy: Floats, first: Floats) -> Floats:
        """(K, ranks) seconds: a bound of each rank's end that costs next to nothing.

        From the seconds of a micro-batch on every rank ``busy`` and on its chunk 0 ``first``, (K, ranks)
        each.
        """

    def replay(
        self, key: ScheduleKey, forward: Floats, backward: Floats, hop: Floats,
        weight: Floats | None = None,
    ) -> Floats:  # fmt: skip
        """(K, ranks) seconds: exact end of each rank's work; forward and backward are (K, S)."""

    def timeline(
        self, key: ScheduleKey, forward: Floats, backward: Floats, hop: Floats, weight: Floats
    ) -> Timeline:
        """The operations of the only row; each rank ends at the very time that ``replay`` gives."""

    def last_backward(self, key: ScheduleKey, backward: Floats) -> Floats:
        """(K, ranks) seconds of backward during which a rank's gradients can be reduced.

        Of the rank's own stages, as is ``first_forward``.
        """

    def first_forward(self, key: ScheduleKey, forward: Floats) -> Floats:
        """(K, ranks) seconds of forward during which a rank's parameters can be gathered."""
