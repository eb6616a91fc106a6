"""Moments of a schedule as plain arrays, whoever made them."""

from __future__ import annotations

import numpy as np
from attrs import fields, frozen

from autopar_core.domain.arrays import Array, Bools, Ints
from autopar_core.hooks.schedule import Moments


@frozen(eq=False)
class MomentArrays:
    """The arrays of :class:`Moments`, with the shapes and meanings that are told there."""

    rank: Ints
    kind: Ints
    chunk: Ints
    in_flight: Ints
    pending: Ints
    first: Bools
    entered: Bools
    accumulated: Bools
    reduced: Bools
    sent: Bools

    @classmethod
    def of(cls, moments: Moments, rows: Array | slice = slice(None)) -> MomentArrays:
        """Copies of some moments, all by default."""
        return cls(*(np.array(getattr(moments, name)[rows]) for name in _NAMES))

    def joined(self, *others: MomentArrays) -> MomentArrays:
        """These moments, then the others."""
        every = (self, *others)
        return MomentArrays(
            *(np.concatenate([getattr(one, name) for one in every]) for name in _NAMES)
        )


_NAMES = tuple(field.name for field in fields(MomentArrays))
