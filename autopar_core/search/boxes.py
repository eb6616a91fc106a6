"""Which layers of the virtual stages a partition plan and the framework leave open."""

from __future__ import annotations

from typing import Any

import numpy as np
from attrs import frozen

from autopar_core.domain.arrays import Bools, Ints
from autopar_core.domain.space import Plan
from autopar_core.hooks.schedule import Composer, ScheduleKey


@frozen(eq=False)
class Box:
    """(S,) fewest and most layers of every virtual stage."""

    low: Ints
    high: Ints

    def holds(self, counts: Ints) -> Bools:
        """(K,) layers (K, S) within the bounds."""
        return np.asarray(((counts >= self.low) & (counts <= self.high)).all(axis=1))


@frozen(eq=False)
class Space:
    """Partitions of one key.

    Attributes:
        boxes: Any layers inside one of them, where ``listed`` is None; may be empty.
        listed: (F, S) the only partitions there are; None where the boxes say all.
        fixed: (S,) the one partition that the plan names; None where it is open.
        possible: Whether there is any.
    """

    boxes: tuple[Box, ...]
    listed: Ints | None
    fixed: Ints | None
    possible: bool


def space(
    composer: Composer, key: ScheduleKey, layers: int, plan: Plan, recompute: Plan | None = None
) -> Space:
    """Partitions that a plan leaves open, with the layers that a recompute plan names."""
    box = limits(composer, key, layers, plan)
    if recompute is not None and recompute.kind == "given":
        box = Box(np.maximum(box.low, named_layers(recompute, key)), box.high)
    listed = composer.listed(key, layers)
    if key.stages == 1 or plan.kind != "auto":
        fixed = _fixed(composer, key, layers, plan)
        possible = fixed is not None and bool(box.holds(fixed[None])[0])
        if possible and listed is not None and key.stages > 1:
            possible = bool((listed == fixed).all(axis=1).any())
        return Space(
            (box,), listed, composer.even(key, layers) if fixed is None else fixed, possible
        )
    boxes = windows(box, layers, key.stages, plan.difference)
    if listed is not None:
        inside = np.zeros(len(listed), bool)
        for one in boxes:
            inside |= one.holds(listed)
        listed = listed[inside]
        return Space(boxes, listed, None, len(listed) > 0)
    return Space(boxes, None, None, len(boxes) > 0)


def limits(composer: Composer, key: ScheduleKey, layers: int, plan: Plan) -> Box:
    """Fewest and most layers of each stage: the framework's, and the plan's offset range."""
    low = composer.fewest(key)
    high = np.full(key.stages, layers, dtype=np.int64)
    base = layers // key.stages
    if plan.offset.min is not None:
        low = np.maximum(low, base + plan.offset.min)
    if plan.offset.max is not None:
        high = np.minimum(high, base + plan.offset.max)
    return Box(low, high)


def named_layers(recompute: Plan, key: ScheduleKey) -> Ints:
    """(S,) layers of each stage that a given recompute names; 0 where it is for other stages."""
    named = np.zeros(key.stages, np.int64)
    for counts in (recompute.given or {}).values():
        if not fits_stages(counts, key):
            return np.zeros(key.stages, np.int64)
        named += np.asarray(counts, dtype=np.int64).reshape(-1)
    return named


def fits_stages(counts: Any, key: ScheduleKey) -> bool:
    """Whether given layers are for these stages: a number of each, or one number for all."""
    return np.shape(counts) in ((), (1,), key.shape)


def windows(box: Box, layers: int, stages: int, difference: int | None) -> tuple[Box, ...]:
    """The box, or the parts of it in which no two stages differ by more than so many layers.

    The window around the even split comes first, the others by their distance from it.
    """
    if difference is None:
        found = [box]
    else:
        base = layers // stages
        bottoms = range(max(0, base - difference), base + 1)
        found = [
            Box(np.maximum(box.low, bottom), np.minimum(box.high, bottom + difference))
            for bottom in sorted(bottoms, key=lambda b: abs(2 * (base - b) - difference))
        ]
    return tuple(
        one for one in found
        if (one.low <= one.high).all() and one.low.sum() <= layers <= one.high.sum()
    )  # fmt: skip


def _fixed(composer: Composer, key: ScheduleKey, layers: int, plan: Plan) -> Ints | None:
    """(S,) the layers that the plan names; None when it does not suit the stages."""
    if plan.kind != "given":
        return composer.even(key, layers)
    given = np.asarray(plan.given, dtype=np.int64)
    if given.shape != key.shape or int(given.sum()) != layers:
        return None
    return given.reshape(-1)
