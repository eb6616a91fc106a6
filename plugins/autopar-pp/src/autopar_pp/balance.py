"""Layers per pipeline stage: exact min-max split, even split, and its spelling as offsets.

Water filling: the costs ``counts * unit + extra`` are raised to a common level, whole layers at
a time. Any split whose largest cost is at most tau gives a stage no more layers than fit below
tau, so the smallest tau under which all layers fit is the optimum.
"""

from __future__ import annotations

import numpy as np

from autopar_pp.bounds import Floats
from autopar_pp.orders import Bools, Ints


# Cells (rows x stages) filled at once: a few arrays of 1 MiB stay in the cache.
CELLS = 2**17


def even(layers: int, stages: int) -> Ints:
    """[stages] layers split evenly, the remainder on the first stages."""
    base, rest = divmod(layers, stages)
    return base + (np.arange(stages) < rest)


def offset(counts: Ints) -> Ints:
    """Layers above the even share, as MindFormers spells ``offset``.

    Args:
        counts: [..., S] layers of each virtual stage.

    Returns:
        [..., S] ``counts - layers // S``; several chunks are rows of S = p * v in chunk order.
    """
    share: Ints = counts.sum(axis=-1, keepdims=True) // counts.shape[-1]
    return counts - share


def balance(layers: int, unit: Floats, extra: Floats, cap: Ints,
            floor: int = 1) -> tuple[Ints, Bools]:  # fmt: skip
    """Splits layers over stages so that the costliest stage costs least, exactly.

    Among optimal splits the other stages are levelled too, and of stages with equal cost the
    last one gets fewer layers first (it tends to carry the head), then the first (1F1B keeps
    most micro-batches alive there), then those with higher index.

    Args:
        layers: Layers to split.
        unit: [K] cost of one layer, any unit, above 0.
        extra: [K, S] cost a stage has without layers, same unit.
        cap: [K, S] most layers a stage can hold.
        floor: Fewest layers of every stage.

    Returns:
        counts [K, S] and ok [K]; rows that cannot hold the layers (or must hold more) are
        False, with counts 0.
    """
    stages = extra.shape[1]
    preference = np.array([*range(1, stages - 1), 0, stages - 1] if stages > 1 else [0])
    return _fill(np.full(len(unit), layers), unit, extra, cap, floor, preference)


def balance_chunks(layers: int, p: int, v: int, unit: Floats, extra: Floats, cap: Ints,
                   floor: int = 1) -> tuple[Ints, Bools]:  # fmt: skip
    """Splits layers over ranks, then each rank's layers over its chunks.

    The split over ranks is exact for the cost of whole ranks, since a rank runs its chunks in
    turn; the split over the chunks of a rank then levels their costs exactly. Without extra
    cost that is an even split with the remainder on the later chunks, which keep fewer
    micro-batches alive; extra cost takes layers away, so the head's chunk gets fewer.

    Args:
        layers: Layers to split.
        p: Ranks.
        v: Chunks per rank.
        unit: [K] cost of one layer, any unit, above 0.
        extra: [K, S] cost a virtual stage has without layers, same unit.
        cap: [K, S] most layers a virtual stage can hold.
        floor: Fewest layers of every virtual stage.

    Returns:
        counts [K, S] and ok [K], as `balance`.
    """
    rows = len(unit)
    limit = np.clip(cap, 0, layers).reshape(rows, v, p)
    fits = (limit >= floor).all(axis=(1, 2))
    by_chunk = extra.reshape(rows, v, p)
    # cumsum adds in a fixed order: a row must not depend on the memory layout of the batch.
    per_rank = by_chunk.cumsum(axis=1)[:, -1]
    ranks, ok = balance(layers, unit, per_rank, limit.sum(axis=1), v * floor)
    ok &= fits
    split, _ = _fill(
        ranks.ravel(),
        np.repeat(unit, p),
        by_chunk.transpose(0, 2, 1).reshape(rows * p, v),
        limit.transpose(0, 2, 1).reshape(rows * p, v),
        floor,
        np.arange(v)[::-1],
    )
    counts = split.reshape(rows, p, v).transpose(0, 2, 1).reshape(rows, p * v)
    return np.where(ok[:, None], counts, 0), ok


def _fill(layers: Ints, unit: Floats, extra: Floats, cap: Ints, floor: int,
          preference: Ints) -> tuple[Ints, Bools]:  # fmt: skip
    """`balance` with layers [K] per row; of equal stages the preferred ones get more."""
    if not (unit > 0).all():
        raise ValueError("the cost of one layer must be above 0")
    stages = extra.shape[1]
    counts = np.empty((len(unit), stages), np.int64)
    ok = np.empty(len(unit), np.bool_)
    size = max(1, CELLS // stages)
    back = np.argsort(preference)
    for rows in (slice(i, i + size) for i in range(0, len(unit), size)):
        limit = np.clip(cap[rows], 0, layers[rows, None])[:, preference]
        fits = (limit >= floor).all(axis=1) & (limit.sum(axis=1) >= layers[rows])
        ok[rows] = fits & (floor * stages <= layers[rows])
        # Impossible rows get limits that any arithmetic survives; they are blanked below.
        limit = np.maximum(limit, floor)
        filled = _fill_block(layers[rows], unit[rows], extra[rows][:, preference], limit, floor)
        counts[rows] = np.where(ok[rows, None], filled[:, back], 0)
    return counts, ok


def _fill_block(layers: Ints, unit: Floats, extra: Floats, limit: Ints, floor: int) -> Ints:
    """Water filling of a block of rows; equal stages are served from left to right.

    Whole levels come first: between level j and j + 1 (in layers) each stage takes at most one
    more. So the layers left after the last whole level go, one each, to the stages where one
    more costs least, which is the order in which the rising level would reach them.
    """
    height = extra / unit[:, None]
    base = height.min(axis=1, keepdims=True) + floor
    # Level 0 fills the floors only; at the upper level every stage has reached its limit.
    low = np.zeros((len(unit), 1), np.int64)
    high = np.ceil((height + limit).max(axis=1, keepdims=True) - base).astype(np.int64) + 1
    total = layers[:, None]
    while (high - low > 1).any():
        level = (low + high) // 2
        under = _at(base + level, height, limit, floor).sum(axis=1, keepdims=True) <= total
        low, high = np.where(under, level, low), np.where(under, high, level)
    counts = _at(base + low, height, limit, floor)
    # One pass serves all, unless rounding lets a stage take two layers between two levels.
    while ((left := total - counts.sum(axis=1, keepdims=True)) > 0).any():
        cost = np.where(counts < limit, (counts + 1) * unit[:, None] + extra, np.inf)
        rank = np.argsort(np.argsort(cost, axis=1, kind="stable"), axis=1)
        more = (rank < left) & (counts < limit)
        if not more.any():  # only rows without enough room are left
            break
        counts += more
    return counts


def _at(level: Floats, height: Floats, limit: Ints, floor: int) -> Ints:
    """[K, S] layers that fit below a level, between floor and limit."""
    return np.clip(np.floor(level - height), floor, limit).astype(np.int64)
