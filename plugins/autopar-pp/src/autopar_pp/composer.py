"""The schedule composer: pipeline orders, moments, partitions, bounds and replay behind one object."""

from __future__ import annotations

import numpy as np
from attrs import evolve, field, frozen

from autopar_core.api import (
    Bools,
    Floats,
    Floor,
    Ints,
    Moments,
    ScheduleKey,
    StrategyBatch,
    Timeline,
)
from autopar_pp import balance, bounds, floors, moments, replay, timeline
from autopar_pp.orders import group_size
from autopar_pp.partitions import Speller
from autopar_pp.zero_bubble import SPLIT, V_SHAPED


SINGLE = "none"


@frozen
class PipelineComposer:
    """Composes all schedules of `autopar_pp.orders.SCHEDULES`.

    Attributes:
        owner: Owner of idle time and hops.
        blocking: Messages of the plain schedules occupy both of their ranks.
        speller: Partitions that the framework can spell.
        group: Micro-batches that interleaving runs on one chunk in a row; 0 for the default.
    """

    blocking: bool = False
    speller: Speller = field(factory=Speller)
    owner: str = "pp"
    group: int = 0

    def keys(self, batch: StrategyBatch) -> tuple[Ints, tuple[ScheduleKey, ...]]:
        """((N,) index of each row's key, the keys), keys in the order of their values."""
        ranks = batch["pp_degree"]
        several = ranks > 1
        schedule = np.where(several, batch["schedule"], 0)
        chunks = np.where(several, chunks_of(batch), 1)
        m = batch["micro_batch_num"]
        sizes = (int(ranks.max(initial=1)) + 1, int(chunks.max(initial=1)) + 1,
                 int(m.max(initial=1)) + 1)  # fmt: skip
        code = ((schedule * sizes[0] + ranks) * sizes[1] + chunks) * sizes[2] + m
        _, first, index = np.unique(code, return_index=True, return_inverse=True)
        names = batch.fields["schedule"].choices
        keys = tuple(
            ScheduleKey(
                names[schedule[i]], int(ranks[i]), int(chunks[i]), int(m[i]),
                mirrored=bool(several[i]) and names[schedule[i]] in V_SHAPED,
                blocking=self.blocking and bool(several[i]) and chunks[i] == 1
                and names[schedule[i]] not in SPLIT,
            )
            for i in first
        )  # fmt: skip
        return index.reshape(-1).astype(np.int64), keys

    def moment_key(self, key: ScheduleKey) -> ScheduleKey:
        """Fewest micro-batches with the same situations.

        Plain 1F1B is full with as many micro-batches as ranks, and one more shows a backward after
        another with the pipeline full. Interleaved orders repeat every group of ranks (``moments``
        caps them likewise). GPipe holds all micro-batches.
        """
        m, ranks = key.micro_batches, key.ranks
        group = self._group(key) or ranks
        if key.ranks == 1:
            m = min(m, 2)
        elif key.schedule == "1f1b":
            m = min(m, ranks + 2)
        elif key.schedule in SPLIT:
            m = min(m, 4 * ranks)
        elif key.schedule == "interleaved" and (self._group(key) or m % ranks == 0):
            m = min(m, 4 * group + m % group)
        return evolve(key, micro_batches=m, blocking=False)

    def moments(self, key: ScheduleKey) -> Moments:
        """Memory situations of every rank."""
        return moments.moments(
            _name(key), key.ranks, key.chunks, key.micro_batches, self._group(key)
        )

    def _group(self, key: ScheduleKey) -> int:
        return self.group if key.schedule == "interleaved" and key.chunks > 1 else 0

    def partition(
        self, key: ScheduleKey, layers: int, unit: Floats, extra: Floats, low: Ints, high: Ints
    ) -> tuple[Ints, Bools]:
        """((K, S) layers per virtual stage, (K,) possible): exact min-max, see ``balance``.

        ``low`` (S,) is the same for all rows: it is given out first and the rest is balanced.
        """
        rest = layers - int(low.sum())
        shifted = extra + low * unit[:, None]
        room = high - low
        if key.chunks > 1:
            counts, possible = balance.balance_chunks(
                rest, key.ranks, key.chunks, unit, shifted, room, 0
            )
        else:
            counts, possible = balance.balance(rest, unit, shifted, room, 0)
        return counts + low, possible

    def even(self, key: ScheduleKey, layers: int) -> Ints:
        """(S,) even split, the remainder on the first stages."""
        return balance.even(layers, key.stages)

    @property
    def rule(self) -> str:
        """What partitions the framework can spell, for people."""
        return self.speller.rule

    def fewest(self, key: ScheduleKey) -> Ints:
        """(S,) fewest layers of each virtual stage."""
        return self.speller.fewest(key)

    def listed(self, key: ScheduleKey, layers: int) -> Ints | None:
        """(F, S) the only partitions that the framework can spell; None when it can spell any."""
        return self.speller.listed(key.ranks, key.chunks, layers)

    def glance(self, key: ScheduleKey, busy: Floats, first: Floats) -> Floats:
        """(K, ranks) a cheap bound of each rank's end, see ``floors``."""
        return floors.glance(_name(key), key.micro_batches, busy, first)

    def floor(self, key: ScheduleKey, slowest: Floats, total: Floats, longer: Floats) -> Floor:
        """Bounds of every partition, see ``floors``."""
        group = group_size(_name(key), key.ranks, key.chunks, key.micro_batches, self._group(key))
        return floors.floor(
            _name(key), key.ranks, key.chunks, key.micro_batches, group, slowest, total, longer
        )

    def bound(
        self, key: ScheduleKey, forward: Floats, backward: Floats, hop: Floats,
        weight: Floats | None = None,
    ) -> Floats:  # fmt: skip
        """(K, ranks) proven lower bound of each rank's end."""
        return bounds.lower_bound(
            _name(key), key.ranks, key.chunks, key.micro_batches, forward, backward, hop, weight,
            group=self._group(key), synchronous=key.blocking,
        )  # fmt: skip

    def replay(
        self, key: ScheduleKey, forward: Floats, backward: Floats, hop: Floats,
        weight: Floats | None = None,
    ) -> Floats:  # fmt: skip
        """(K, ranks) exact end of each rank."""
        return replay.replay(
            _name(key), key.ranks, key.chunks, key.micro_batches, forward, backward, hop, weight,
            group=self._group(key), synchronous=key.blocking,
        )  # fmt: skip

    def timeline(
        self, key: ScheduleKey, forward: Floats, backward: Floats, hop: Floats, weight: Floats
    ) -> Timeline:
        """Every operation of the only row."""
        return timeline.timeline(
            _name(key), key.ranks, key.chunks, key.micro_batches, forward[0], backward[0],
            float(hop[0]), weight[0], group=self._group(key), synchronous=key.blocking,
        )  # fmt: skip

    def last_backward(self, key: ScheduleKey, backward: Floats) -> Floats:
        """(K, ranks) backward time during which gradients can be reduced.

        One micro-batch's backward; with interleaved chunks, the gradients of a chunk are ready
        while the others still run, on average for half of a round of micro-batches.
        """
        return _per_rank(key, backward) * _rounds(key)

    def first_forward(self, key: ScheduleKey, forward: Floats) -> Floats:
        """(K, ranks) forward time during which parameters can be gathered."""
        return _per_rank(key, forward)


def chunks_of(batch: StrategyBatch) -> Ints:
    """(N,) chunks of each rank: V-shaped schedules have two."""
    names = batch.fields["schedule"].choices
    shaped = np.array([name in V_SHAPED for name in names])[batch["schedule"]]
    return np.where(shaped, 2, batch["vpp_degree"])


def _name(key: ScheduleKey) -> str:
    return "1f1b" if key.schedule == SINGLE else key.schedule


def _per_rank(key: ScheduleKey, stages: Floats) -> Floats:
    """(K, ranks) sum over the chunks of each rank, chunk by chunk so that no order matters."""
    return np.asarray(stages.reshape(-1, key.chunks, key.ranks).sum(axis=1))


def _rounds(key: ScheduleKey) -> float:
    if key.chunks == 1 or key.mirrored:
        return 1.0
    return max(1.0, 0.5 * min(key.micro_batches, key.ranks))
