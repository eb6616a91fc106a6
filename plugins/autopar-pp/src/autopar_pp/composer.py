"""The schedule composer: pipeline orders, moments, partitions, bounds and replay behind one object."""

from __future__ import annotations

import numpy as np
from attrs import frozen

from autopar_core.api import Bools, Floats, Ints, Moments, ScheduleKey, StrategyBatch
from autopar_pp import balance, bounds, moments, replay


SINGLE = "none"


@frozen
class PipelineComposer:
    """Composes 1F1B, interleaved 1F1B and GPipe.

    Attributes:
        owner: Owner of idle time and hops.
        blocking: Messages of the plain schedules occupy their sender.
        empty_stages: A stage may hold no layer.
    """

    blocking: bool = False
    empty_stages: bool = False
    owner: str = "pp"

    def keys(self, batch: StrategyBatch) -> tuple[Ints, tuple[ScheduleKey, ...]]:
        """((N,) index of each row's key, the keys), keys in the order of their values."""
        ranks = batch["pp_degree"]
        several = ranks > 1
        schedule = np.where(several, batch["schedule"], 0)
        chunks = np.where(several, batch["vpp_degree"], 1)
        m = batch["micro_batch_num"]
        sizes = (int(ranks.max(initial=1)) + 1, int(chunks.max(initial=1)) + 1,
                 int(m.max(initial=1)) + 1)  # fmt: skip
        code = ((schedule * sizes[0] + ranks) * sizes[1] + chunks) * sizes[2] + m
        _, first, index = np.unique(code, return_index=True, return_inverse=True)
        names = batch.fields["schedule"].choices
        keys = tuple(
            ScheduleKey(names[schedule[i]], int(ranks[i]), int(chunks[i]), int(m[i])) for i in first
        )
        return index.reshape(-1).astype(np.int64), keys

    def moment_key(self, key: ScheduleKey) -> ScheduleKey:
        """Fewest micro-batches with the same situations.

        Plain 1F1B is full with as many micro-batches as ranks, and one more shows a backward after
        another with the pipeline full. Interleaved orders repeat every group of ranks (``moments``
        caps them likewise). GPipe holds all micro-batches.
        """
        m, ranks = key.micro_batches, key.ranks
        if key.ranks == 1:
            m = min(m, 2)
        elif key.schedule == "1f1b":
            m = min(m, ranks + 2)
        elif key.schedule == "interleaved" and m % ranks == 0:
            m = min(m, 4 * ranks)
        return ScheduleKey(key.schedule, ranks, key.chunks, m)

    def moments(self, key: ScheduleKey) -> Moments:
        """Memory situations of every rank."""
        return moments.moments(_name(key), key.ranks, key.chunks, key.micro_batches)

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

    def bound(self, key: ScheduleKey, forward: Floats, backward: Floats, hop: Floats) -> Floats:
        """(K, ranks) proven lower bound of each rank's end."""
        return bounds.lower_bound(
            _name(key), key.ranks, key.chunks, key.micro_batches, forward, backward, hop
        )

    def replay(self, key: ScheduleKey, forward: Floats, backward: Floats, hop: Floats) -> Floats:
        """(K, ranks) exact end of each rank."""
        return replay.replay(
            _name(key), key.ranks, key.chunks, key.micro_batches, forward, backward, hop
        )

    def last_backward(self, key: ScheduleKey, backward: Floats) -> Floats:
        """(K, ranks) backward time during which gradients can be reduced.

        One micro-batch's backward; with chunks, the gradients of a chunk are ready while the others
        still run, on average for half of a round of micro-batches.
        """
        return _per_rank(key, backward) * _rounds(key)

    def first_forward(self, key: ScheduleKey, forward: Floats) -> Floats:
        """(K, ranks) forward time during which parameters can be gathered."""
        return _per_rank(key, forward)


def _name(key: ScheduleKey) -> str:
    return "1f1b" if key.schedule == SINGLE else key.schedule


def _per_rank(key: ScheduleKey, stages: Floats) -> Floats:
    """(K, ranks) sum over the chunks of each rank, chunk by chunk so that no order matters."""
    return np.asarray(stages.reshape(-1, key.chunks, key.ranks).sum(axis=1))


def _rounds(key: ScheduleKey) -> float:
    if key.chunks == 1:
        return 1.0
    return max(1.0, 0.5 * min(key.micro_batches, key.ranks))
