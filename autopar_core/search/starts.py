"""Partitions from which the search sets out, in order of exactness for the slowest rank.

``seconds[rank][layers]`` never falls with the layers, so giving layers out one by one to the rank that
is cheapest with one more minimises the slowest rank exactly. When the slowest rank may take longer,
fewer layers recompute; for some higher limits layers go where they add least, which minimises the sum.
"""

from __future__ import annotations

import numpy as np

from autopar_core.domain.arrays import Bools, Floats, Ints


# Limits of the slowest rank above its minimum at which the least sum is tried.
LEVELS = 6


def slowest_least(seconds: Floats, low: Ints, layers: int) -> tuple[Ints, Bools]:
    """Least maximum over ranks.

    Args:
        seconds: (C, ranks, W) seconds with ``low + w`` layers, infinite where nothing fits.
        low: (C, ranks) fewest layers.
        layers: Layers to place.

    Returns:
        (C, ranks) layers and (C,) whether they all found a place.
    """
    seconds = np.maximum.accumulate(seconds, axis=2)
    more = layers - low.sum(axis=1)
    entries = _by_preference(seconds)
    order = np.argsort(entries, axis=1, kind="stable")
    place = np.empty_like(order)
    np.put_along_axis(place, order, np.broadcast_to(np.arange(order.shape[1]), order.shape), axis=1)
    taken = (place < more[:, None]) & np.isfinite(entries)
    ranks = seconds.shape[1]
    counts = taken.reshape(len(low), ranks, -1).sum(axis=2)[:, np.argsort(_preference(ranks))]
    ok = (counts.sum(axis=1) == more) & (seconds[:, :, 0] < np.inf).all(axis=1)
    return low + counts, ok


def sum_least(seconds: Floats, low: Ints, layers: int, limit: Floats) -> tuple[Ints, Bools]:
    """Least sum over ranks with no rank above a limit (C,); exact where costs are convex."""
    capped = np.where(seconds <= limit[:, None, None], seconds, np.inf)
    with np.errstate(invalid="ignore"):
        steps = np.diff(capped, axis=2)
    steps = np.where(np.isnan(steps), np.inf, steps)
    here = np.where(np.isfinite(capped[:, :, :1]), -np.inf, np.inf)
    marginal = np.concatenate([here, np.maximum.accumulate(steps, axis=2)], axis=2)
    return slowest_least(marginal, low, layers)


def tilted(seconds: Floats, low: Ints, layers: int, tilt: float) -> tuple[Ints, Bools]:
    """Level but for a slope: seconds that the last rank takes over those of the first."""
    weight = np.geomspace(1.0, tilt, seconds.shape[1])
    return slowest_least(seconds / weight[:, None], low, layers)


def levels(seconds: Floats, at: Ints) -> Floats:
    """(C, LEVELS + 1) limits: seconds of the slowest rank at (C, ranks), and the next higher ones."""
    now = np.take_along_axis(seconds, at[:, :, None], axis=2).max(axis=(1, 2))
    flat = seconds.reshape(len(seconds), -1)
    found = [now]
    for _ in range(LEVELS):
        above = np.where(flat > found[-1][:, None] * (1 + 1e-9), flat, np.inf).min(axis=1)
        found.append(np.where(np.isfinite(above), above, found[-1]))
    return np.stack(found, axis=1)


def _preference(ranks: int) -> Ints:
    """Of equal ranks the last one is spared first (it tends to carry the head), then the first."""
    order = [*range(1, ranks - 1), 0, ranks - 1] if ranks > 1 else [0]
    return np.array(order, dtype=np.int64)


def _by_preference(seconds: Floats) -> Floats:
    """(C, ranks x (W - 1)) what each further layer leads to, preferred ranks first."""
    ranks = seconds.shape[1]
    return np.asarray(seconds[:, _preference(ranks), 1:].reshape(len(seconds), -1))
