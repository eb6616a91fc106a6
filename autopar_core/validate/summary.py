"""Errors by source: what the JSON file holds and what the terminal shows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from attrs import frozen

from autopar_core.domain.arrays import Floats
from autopar_core.validate.predict import Answer, Row, as_json


# Key of the summary -> column of a row without "predicted_" and "measured_".
QUANTITIES = {
    "time": "step_time_s", "memory": "peak_mem_gib", "reserved": "reserved_mem_gib",
}  # fmt: skip
TITLES = {
    "time": "Step time", "memory": "Peak memory, allocated", "reserved": "Peak memory, reserved",
}  # fmt: skip
TIERS = (("A", "tier A"), ("BC", "tiers B, C and unstated"))
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

    def statistics(self) -> dict[str, float | None]:
        """Errors in percent of the measured number, and the rank correlation."""
        names = ("median_abs_pct", "p90_abs_pct", "p95_abs_pct", "max_abs_pct", "mean_pct")
        if not len(self):
            return dict.fromkeys((*names, "spearman"))
        error = 100 * (self.predicted / self.measured - 1)
        size = np.abs(error)
        values = (
            np.median(size), np.percentile(size, 90), np.percentile(size, 95), size.max(),
            error.mean(),
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


def by_source(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """Rows of each source, sources in alphabetical order."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row.source, []).append(row)
    return dict(sorted(found.items()))


def document(answer: Answer) -> dict[str, Any]:
    """The content of the JSON file."""
    summary = {
        source: {
            "rows": len(rows),
            "skipped": _skipped(rows),
            **{name: Pairs.of(rows, name).statistics() for name in QUANTITIES},
        }
        for source, rows in by_source(answer.rows).items()
    }
    return {"rows": [as_json(row) for row in answer.rows], "summary": summary}


def _skipped(rows: Iterable[Row]) -> int:
    return sum(row.skipped is not None for row in rows)


def tables(rows: Sequence[Row]) -> list[tuple[str, list[dict[str, str]]]]:
    """(title, lines) for the terminal: quantity by quantity, tier A apart from B and C."""
    made = []
    for tiers, words in TIERS:
        chosen = by_source(row for row in rows if (row.tier.upper() == "A") == (tiers == "A"))
        for quantity, title in TITLES.items():
            lines = [
                line for source, group in chosen.items() if (line := _line(source, group, quantity))
            ]
            if lines:
                made.append((f"{title}, {words}", lines))
    return made


def _line(source: str, rows: Sequence[Row], quantity: str) -> dict[str, str]:
    """A line of the error table; empty where the source measured no such thing."""
    if not any(getattr(row, f"measured_{QUANTITIES[quantity]}") for row in rows):
        return {}
    pairs = Pairs.of(rows, quantity)
    found = pairs.statistics()
    return {
        "source": source, "rows": str(len(rows)), "skipped": str(_skipped(rows)),
        "compared": str(len(pairs)), "median %": _number(found["median_abs_pct"]),
        "p90 %": _number(found["p90_abs_pct"]), "p95 %": _number(found["p95_abs_pct"]),
        "worst %": _number(found["max_abs_pct"]), "bias %": _number(found["mean_pct"], sign="+"),
        "rank": "" if found["spearman"] is None else f"{found['spearman']:.3f}",
    }  # fmt: skip


RIGHT = (
    "rows", "skipped", "compared", "median %", "p90 %", "p95 %", "worst %", "bias %", "rank",
)  # fmt: skip


def _number(value: float | None, sign: str = "") -> str:
    if value is None:
        return ""
    digits = 3 if abs(value) < 1 else 1
    return f"{value:{sign}.{digits}f}"


def reasons(rows: Iterable[Row]) -> list[dict[str, str]]:
    """Skipped rows by the fact that is missing, the most frequent first."""
    found: dict[str, dict[str, int]] = {}
    for row in rows:
        if row.skipped is not None:
            one = found.setdefault(row.skipped, {})
            one[row.source] = one.get(row.source, 0) + 1
    ordered = sorted(found.items(), key=lambda item: (-sum(item[1].values()), item[0]))
    return [_counted(reason, counts) for reason, counts in ordered]


def _counted(reason: str, counts: Mapping[str, int]) -> dict[str, str]:
    sources = ", ".join(f"{source} {count}" for source, count in sorted(counts.items()))
    return {"skipped": str(sum(counts.values())), "missing": reason, "sources": sources}
