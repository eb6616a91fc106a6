"""Bounds of a step that hold for every partition of the layers.

All that is known of a partition is that its slowest rank takes ``t`` or more for one micro-batch, and all
ranks together ``w`` or more. Messages are left out: they only lengthen.

1F1B. Let rank s be the slowest, f and b its forward and backward (f + b = t), ``later`` the time of one
micro-batch on all ranks behind it, k = p - 1 - s their number. The rank waits for the first micro-batch,
runs all m, and what is ahead of it runs backwards at the end; between its first forward and its first
backward it can fill the time ``later`` with k forwards only, and likewise at the end with k backwards:

    T >= w - t - later + m t + max(0, later - k f) + max(0, later - k b)

As a function of ``later`` this is least between k min(f, b) and k max(f, b), so T >= w + (m - 1) t
- k min(f, b) with min(f, b) <= (1 - x) t, where x is the share of the longer of f and b; and no rank
takes longer than t, so later >= w - (s + 1) t and the last line also gives
T >= w + (m - 1) t + (w - p t).

With m <= p micro-batches both waits may be one and the same. For any m, the last micro-batch's forward on
rank s follows m - 1 others, then it goes on to the last rank and back; and the first one's backward on
rank s is followed by m - 1 others. So T >= w + (m - 1) max(f, b) >= w + (m - 1) x t.

Interleaved, groups of p micro-batches. Before rank r starts chunk c, the first micro-batch has
passed all virtual stages before it, and the rank has run p micro-batches of each earlier chunk: it
has idled for what is left. Summed over ranks the p micro-batches cancel what the earlier chunks
take on all ranks, and what remains, averaged over ranks and chunks, is sum_j (p - 1 - j) f_j / (p v);
the same with backwards at the end. So T >= sum_j (m / p + (p - 1 - j) / (p v)) t_j, which for equal
ranks is (m + F) w / p with F = (p - 1) / (2 v). Where the slowest rank takes d more than w / p, that
sum is least with all ranks but the first so slow, d F lower at the most; and T >= m (w / p + d). The
larger of both is least where they meet: T >= (m + F m / (m + F)) w / p.

Any schedule: a rank does all its work, T >= m t.
"""

from __future__ import annotations

import numpy as np

from autopar_core.api import Floats, Floor


def floor(
    schedule: str, p: int, v: int, m: int, group: int, slowest: Floats, total: Floats,
    longer: Floats,
) -> Floor:  # fmt: skip
    """Bounds of every partition.

    Args:
        schedule: One of `autopar_pp.orders.SCHEDULES`, or "none".
        p: Ranks.
        v: Chunks per rank.
        m: Micro-batches.
        group: Micro-batches that interleaving runs on one chunk in a row.
        slowest: (K,) least seconds of a micro-batch on the slowest rank.
        total: (K,) least seconds of a micro-batch on all ranks.
        longer: (K,) least share of the longer of forward and backward in the slowest rank's seconds.

    Returns:
        Bounds of the end of the last rank; rank 0 ends last where backwards leave through it.
    """
    alone = m * slowest
    if p == 1:
        return Floor(alone, alone, float(m), 0)
    mean = m * total / p
    if schedule == "gpipe":
        # forwards and backwards are flow shops: the sum of the ranks and m - 1 times the slowest
        steep = np.maximum(alone, total + (m - 1) * slowest)
        # forward and backward may be slowest on different ranks, which only lengthens
        return Floor(np.maximum(total, mean), steep, float(m - 1), 0)
    if schedule == "1f1b":
        passed = np.maximum(alone, total + (m - 1) * longer * slowest)
        if m <= p:
            return Floor(np.maximum(total, mean), passed, (m - 1) / 2, 0)
        spread = np.maximum(-(p - 1) * (1 - longer) * slowest, total - p * slowest)
        steep = np.maximum(passed, total + (m - 1) * slowest + spread)
        # where m = p + 1 the bound does not grow with the slowest rank
        return Floor(np.maximum(total, mean), steep, float(max(0, m - 1 - p)), 0)
    if schedule == "interleaved" and group == p and m % p == 0:
        fill = (p - 1) / (2 * v)
        mean = (m + fill * m / (m + fill)) * total / p
    if schedule == "interleaved":
        return Floor(np.maximum(total, mean), alone, float(m), 0)
    return Floor(mean, alone, float(m), None)


def glance(schedule: str, m: int, busy: Floats, first: Floats) -> Floats:
    """A bound of the end of every rank in a few operations.

    A rank does all its work. Before it starts, the first micro-batch has passed chunk 0 of the ranks
    ahead of it; after its last backward, which is that of the last micro-batch on chunk 0 where
    backwards are not split, the gradient passes them again, and rank 0 ends last.

    Args:
        schedule: One of `autopar_pp.orders.SCHEDULES`.
        m: Micro-batches.
        busy: (K, p) seconds of a micro-batch on each rank.
        first: (K, p) seconds of a micro-batch on chunk 0 of each rank.
    """
    ends = m * busy
    if schedule in ("1f1b", "gpipe", "interleaved"):
        ahead = np.cumsum(first, axis=1) - first
        ends[:, 0] = (ends + ahead).max(axis=1)
    return np.asarray(ends)
