"""How far predictions were from measurements: bands around step time and memory."""

from __future__ import annotations

import math

from attrs import field, frozen, validators


_NOT_NEGATIVE = validators.ge(0.0)


@frozen(kw_only=True)
class Band:
    """Residuals of one quantity, as sizes of ln(measured / predicted).

    Attributes:
        median, p90: Of the sizes; the band of a prediction is ``p90``.
        rows: Measured runs behind it; 0 where the class was never measured.
        remaining: Median size after the class's own scalar (its median ratio): what differs between
            two strategies of the class that the model cannot tell apart.
    """

    median: float = field(validator=_NOT_NEGATIVE)
    p90: float = field(validator=_NOT_NEGATIVE)
    rows: int = 0
    remaining: float = field(default=0.0, validator=_NOT_NEGATIVE)

    def around(self, value: float, share: float = 0.0) -> tuple[float, float]:
        """(low, high) around a prediction; ``share`` is a further uncertainty, multiplied on."""
        factor = math.exp(self.p90) * (1 + share)
        return value / factor, value * factor


@frozen(kw_only=True)
class Bands:
    """Bands of one (system, framework) class; ``reserved`` is memory that the allocator holds."""

    time: Band
    memory: Band
    reserved: Band
