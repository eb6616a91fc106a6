"""Points at which a sum with non-negative weights can be largest.

What a rank holds at a moment is such a sum over micro-batches in flight on its chunks. In an interleaved
warm-up they shift from chunk to chunk one by one: all moments between two turns lie on a line, and only
its ends can be a peak.
"""

from __future__ import annotations

import numpy as np

from autopar_core.domain.arrays import Bools, Floats, Ints


def corners(group: Ints, points: Floats) -> Ints:
    """Indices, ascending, of points that decide the maximum of every non-negative weighting.

    A point is left out if some mix of the points before and after it, in the order of their
    coordinates, is as large in every coordinate. What stays is enough, not always fewest.

    Args:
        group: (N,) points are compared within a group.
        points: (N, D) whole numbers: quotients of small ones compare exactly as floats.
    """
    order = np.lexsort((*points.T[::-1], group))
    while len(order) > 2:
        g, p = group[order], points[order]
        inner = np.zeros(len(order), bool)
        inner[1:-1] = (g[:-2] == g[2:]) & _between(p[:-2], p[1:-1], p[2:])
        # of neighbours every other one goes at a time, so that those it was compared with stay
        place = np.arange(len(order))
        start = np.maximum.accumulate(np.where(inner, 0, place + 1))
        gone = inner & ((place - start) % 2 == 0)
        if not gone.any():
            break
        order = order[~gone]
    return np.sort(order)


def _between(one: Floats, middle: Floats, other: Floats) -> Bools:
    """(N,) whether ``x one + (1 - x) other`` covers ``middle`` for some x from 0 to 1."""
    apart, more = one - other, middle - other
    with np.errstate(divide="ignore", invalid="ignore"):
        share = more / apart
    least = np.where(apart > 0, share, -np.inf).max(axis=1).clip(min=0)
    most = np.where(apart < 0, share, np.inf).min(axis=1).clip(max=1)
    return np.asarray((least <= most) & ~((apart == 0) & (more > 0)).any(axis=1))
