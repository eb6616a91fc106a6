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


def stage_seconds(
    key: ScheduleKey, time: TimeTable, layout: Layout
) -> tuple[Floats, Floats]:
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
    hop = np.maximum(*time.hop) if key.stages > 1 else np.zeros(len(forward))
    run = composer.replay if exact else composer.bound
    weight = layers * time.weight[:, None]
    weight[:, key.last] += time.head_weight
    ends = run(key, forward, backward, hop, weight)
    if not exact and key.stages > 1:
        ends = ends * (1 - BOUND_SLACK)
    tail = tail_seconds(
        time.steps, on_ranks(layers, key), key, composer.first_forward(key, forward),
        composer.last_backward(key, backward),
    )  # fmt: skip
    return StageTimes(forward, backward, weight, hop, ends, tail)


Numbers = TypeVar("Numbers", Ints, Floats)


def on_ranks(values: Numbers, key: ScheduleKey) -> Numbers:
    """(K, ranks) sums over the chunks of each rank, added in order: no row depends on the others."""
    return values.reshape(-1, key.chunks, key.ranks).cumsum(axis=1)[:, -1]
