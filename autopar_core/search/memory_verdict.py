"""Whether memory fits: recompute modes of rows, what the allocator reserves, and the words for it."""

from __future__ import annotations

import numpy as np

from autopar_core.compose.layout import Layout
from autopar_core.domain.arrays import Array, Floats, Ints
from autopar_core.domain.bands import Band
from autopar_core.domain.framework import CoreProfile
from autopar_core.domain.terms import MODES


# From the best to the worst; "tight" fits as predicted, but may not as reserved by the allocator, or
# where the prediction is as far off as it was for measured runs.
WORDS = ("fits", "tight", "over")
NOT_JUDGED = -1


def recompute_modes(layout: Layout) -> Ints:
    """(K,) index in ``MODES`` of the strongest recompute that any layer of a row has."""
    selective, full = layout.selective.any(axis=1), layout.full.any(axis=1)
    codes = [MODES.index(mode) for mode in ("full", "selective", "none")]
    return np.select([full, selective], codes[:2], codes[2]).astype(np.int64)


def reserved_ratios(core: CoreProfile, modes: Ints) -> Floats:
    """(K,) reserved over allocated memory of the framework in each row's recompute mode."""
    table = core.reserved_over_allocated
    return np.array([table.get(mode, 1.0) for mode in MODES])[modes]


def reserved_bytes(core: CoreProfile, layout: Layout, allocated: Array) -> Ints:
    """(K,) whole bytes that the allocator holds for so many allocated ones, reserves apart."""
    ratios = reserved_ratios(core, recompute_modes(layout))
    return np.rint(np.asarray(allocated) * ratios).astype(np.int64)


def verdict_codes(total: Ints, allocated: Ints, reserved: Ints, band: Band, limit: int) -> Ints:
    """(N,) index in ``WORDS`` of each row, ``NOT_JUDGED`` where memory was not estimated.

    Args:
        total: (N,) bytes: allocated plus reserves outside the allocator; -1 where not estimated.
        allocated: (N,) bytes.
        reserved: (N,) bytes that the allocator holds, plus the same reserves.
        band: Of allocated memory.
        limit: Bytes of a device.
    """
    high = band.around(1.0)[1] * allocated + (total - allocated)
    tight = (reserved > limit) | (high > limit)
    codes = np.where(total > limit, 2, np.where(tight, 1, 0))
    return np.where(total < 0, NOT_JUDGED, codes).astype(np.int64)
