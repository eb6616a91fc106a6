"""Seconds of stages, ends of ranks and the step they make, for layouts that share a schedule key."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from attrs import frozen

from autopar_core.compose.layout import Layout
from autopar_core.compose.time_table import TimeTable, tail_seconds
from autopar_core.domain.arrays import Floats, Ints
from autopar_core.hooks.schedule import Composer, ScheduleKey


# Bounds are sums in another order than the replay: their rounding never exceeds this share.
BOUND_SLACK = 1e-12


@frozen(eq=False)
class StageTimes:
    """Per virtual stage and per rank, (K, S) or (K, ranks): what the schedule is made of.

    ``weight`` is the part of the backward that computes weight gradients alone.
    """

    forward: Floats
    backward: Floats
    weight: Floats
    hop: Floats
    ends: Floats
    tail: Floats

    @property
    def step(self) -> Floats:
        """(K,) the rank that ends last."""
        return np.asarray((self.ends + self.tail).max(axis=1))


def stage_seconds(key: ScheduleKey, time: TimeTable, layout: Layout) -> tuple[Floats, Floats]:
    """((K, S) forward, (K, S) backward) seconds of one micro-batch on every virtual stage."""
    plain = layout.layers - layout.selective - layout.full
    forward = layout.layers * time.forward[:, None]
    backward = plain * time.backward[:, 0, None]
    backward = backward + layout.selective * time.backward[:, 1, None]
    backward = backward + layout.full * time.backward[:, 2, None]
    for part, stage in (("embedding", 0), ("head", key.last)):
        forward[:, stage] += time.ends[part][0]
        backward[:, stage] += time.ends[part][1]
    return forward, backward


def clock(
    composer: Composer, key: ScheduleKey, time: TimeTable, layers: Ints, forward: Floats,
    backward: Floats, exact: bool,
) -> StageTimes:  # fmt: skip
    """Ends and tails of layouts, (K, S) layers and their seconds, bounded or replayed."""
    weight = weights(key, time, layers)
    ends = rank_ends(composer, key, time, forward, backward, weight, exact)
    tail = rank_tails(composer, key, time, layers, forward, backward)
    return StageTimes(forward, backward, weight, hops(key, time), ends, tail)


def weights(key: ScheduleKey, time: TimeTable, layers: Ints) -> Floats:
    """(K, S) seconds of a backward that compute weight gradients alone."""
    weight = layers * time.weight[:, None]
    weight[:, key.last] += time.head_weight
    return np.asarray(weight)


def hops(key: ScheduleKey, time: TimeTable) -> Floats:
    """(K,) seconds of a message."""
    hop = np.maximum(*time.hop)
    return hop if key.stages > 1 else np.zeros_like(hop)


def rank_ends(
    composer: Composer, key: ScheduleKey, time: TimeTable, forward: Floats, backward: Floats,
    weight: Floats, exact: bool,
) -> Floats:  # fmt: skip
    """(K, ranks) end of each rank's work, bounded or replayed."""
    run = composer.replay if exact else composer.bound
    ends = run(key, forward, backward, hops(key, time), weight)
    return ends if exact or key.stages == 1 else ends * (1 - BOUND_SLACK)


def rank_tails(
    composer: Composer, key: ScheduleKey, time: TimeTable, layers: Ints, forward: Floats,
    backward: Floats,
) -> Floats:  # fmt: skip
    """(K, ranks) seconds after a rank's work; they depend on the rank's own stages alone."""
    return tail_seconds(
        time.steps, on_ranks(layers, key), key, composer.first_forward(key, forward),
        composer.last_backward(key, backward),
    )  # fmt: skip


Numbers = TypeVar("Numbers", Ints, Floats)


def on_ranks(values: Numbers, key: ScheduleKey) -> Numbers:
    """(K, ranks) sums over the chunks of each rank, added in order: no row depends on the others."""
    return values.reshape(-1, key.chunks, key.ranks).cumsum(axis=1)[:, -1]
