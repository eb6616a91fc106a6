"""Degrees and batch sizes of a run while it is read."""

from __future__ import annotations

from attrs import frozen


@frozen
class Degrees:
    """Parallel degrees; ``data`` is 0 where the number of devices is unknown."""

    tensor: int
    pipeline: int
    context: int
    data: int


@frozen
class Batch:
    """Batch sizes; 0 where unknown."""

    micro: int
    total: int
    count: int
    place: str
