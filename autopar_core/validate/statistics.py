"""Errors and rank correlation of predicted against measured numbers."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from attrs import frozen

from autopar_core.domain.arrays import Floats
from autopar_core.validate.predict import Row


# Key of the summary -> column of a row without "predicted_" and "measured_".
QUANTITIES = {
    "time": "step_time_s", "memory": "peak_mem_gib", "reserved": "reserved_mem_gib",
}  # fmt: skip
_LEAST_RANKED = 3


@frozen(eq=False)
class Pairs:
    """Predicted and measured numbers of the rows that have both."""

    predicted: Floats
    measured: Floats

    @classmethod
    def of(cls, rows: Iterable[Row], quantity: str) -> Pairs:
        """Pairs of one quantity."""
        column = QUANTITIES[quantity]
        both = [
            (getattr(row, f"predicted_{column}"), getattr(row, f"measured_{column}"))
            for row in rows
        ]
        kept = [(p, m) for p, m in both if p is not None and m]
        table = np.array(kept, dtype=np.float64).reshape(-1, 2)
        return cls(table[:, 0], table[:, 1])

    def __len__(self) -> int:
        return len(self.measured)

    @property
    def errors(self) -> Floats:
        """Percent of the measured number, positive when the prediction is too large."""
        return np.asarray(100 * (self.predicted / self.measured - 1))

    def statistics(self) -> dict[str, float | None]:
        """Errors in percent of the measured number, and the rank correlation."""
        names = ("median_abs_pct", "p90_abs_pct", "p95_abs_pct", "max_abs_pct", "mean_pct")
        if not len(self):
            return dict.fromkeys((*names, "spearman"))
        size = np.abs(self.errors)
        values = (
            np.median(size), np.percentile(size, 90), np.percentile(size, 95), size.max(),
            self.errors.mean(),
        )  # fmt: skip
        found: dict[str, float | None] = dict(zip(names, map(float, values), strict=True))
        return {**found, "spearman": spearman(self.predicted, self.measured)}


def spearman(first: Floats, second: Floats) -> float | None:
    """Rank correlation, ties sharing their mean rank; None for few or equal values."""
    if len(first) < _LEAST_RANKED:
        return None
    ranks = [_ranks(first), _ranks(second)]
    if any(np.ptp(each) == 0 for each in ranks):
        return None
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])


def _ranks(values: Floats) -> Floats:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return np.asarray((last - (counts - 1) / 2)[inverse.reshape(-1)], dtype=np.float64)
