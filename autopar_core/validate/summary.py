"""Errors by source: what the JSON file holds and what the terminal shows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from autopar_core.validate.groups import Choice, choices, group_of, titles
from autopar_core.validate.predict import Answer, Row, as_json
from autopar_core.validate.statistics import QUANTITIES, Pairs


TITLES = {
    "time": "Step time", "memory": "Peak memory, allocated", "reserved": "Peak memory, reserved",
}  # fmt: skip
TIERS = (("A", "tier A"), ("BC", "tiers B, C and unstated"))


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
        "rank": _rank(found["spearman"]),
    }  # fmt: skip


RIGHT = (
    "rows", "skipped", "compared", "median %", "p90 %", "p95 %", "worst %", "bias %", "rank",
    "problems", "rank inside", "median regret %", "p90 regret %",
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


def group_tables(answer: Answer) -> list[tuple[str, list[dict[str, str]]]]:
    """(title, lines): step times of sources whose rows answer different questions, group by group."""
    found: dict[str, dict[str, list[Row]]] = {name: {} for name in titles()}
    several: dict[str, set[str]] = {}
    for run, row in zip(answer.runs, answer.rows, strict=True):
        if row.skipped is None and (name := group_of(run, row)):
            found[name].setdefault(row.source, []).append(row)
            several.setdefault(row.source, set()).add(name)
    made = []
    for name, words in titles().items():
        lines = [
            line
            for source, rows in sorted(found[name].items())
            if len(several[source]) > 1 and (line := _line(source, rows, "time"))
        ]
        if lines:
            made.append((f"Step time, {words}", lines))
    return made


CHOICE_TITLE = "Best of a problem (same model, devices, batch, sequence): all tiers"


def choice_lines(answer: Answer) -> list[dict[str, str]]:
    """How well the predicted best does, source by source."""
    return [_choice_line(source, choice) for source, choice in choices(answer).items()]


def _choice_line(source: str, choice: Choice) -> dict[str, str]:
    return {
        "source": source, "rows": str(choice.rows), "problems": str(choice.problems),
        "rank": _rank(choice.spearman), "rank inside": _rank(choice.inside),
        "median regret %": _number(choice.regret(50)), "p90 regret %": _number(choice.regret(90)),
    }  # fmt: skip


def _rank(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"
