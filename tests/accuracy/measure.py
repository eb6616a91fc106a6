"""Everything that the accuracy page shows, computed from the data beside the tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from attrs import frozen

from autopar_core.config.catalogue import Profiles, system_profile
from autopar_core.plugins import PluginManager
from autopar_core.validate.field import Order, Verdict, judge_cases, judge_pairs
from autopar_core.validate.field_reader import read_cases, read_pairs
from autopar_core.validate.groups import Choice, choices, group_of, titles
from autopar_core.validate.operations import Judged, judge_operations, read_operations
from autopar_core.validate.predict import Answer, Row, validate
from autopar_core.validate.rows import read_runs
from autopar_core.validate.statistics import QUANTITIES, Pairs
from autopar_core.validate.summary import by_source


DATA = Path(__file__).parents[1] / "data"
OPERATIONS_SYSTEM = "h200-sxm-141gb"


@frozen(kw_only=True)
class Measured:
    """Predictions of everything that was measured."""

    answer: Answer
    choices: dict[str, Choice]
    operations: list[Judged]
    verdicts: list[Verdict]
    orders: list[Order]


def predict_all(plugins: PluginManager) -> Answer:
    """All measured runs."""
    return validate(read_runs(sorted((DATA / "measured").glob("*.tsv"))), plugins)


def measure(plugins: PluginManager, answer: Answer) -> Measured:
    """The rest: operations, cases, pairs."""
    table = Profiles("system", plugins).table(OPERATIONS_SYSTEM, "")
    cases = read_cases(DATA / "field" / "field_cases.tsv")
    return Measured(
        answer=answer, choices=choices(answer),
        operations=judge_operations(
            read_operations(DATA / "h200_ops"), system_profile(table, lambda _: OPERATIONS_SYSTEM)
        ),
        verdicts=judge_cases(cases.values(), plugins),
        orders=judge_pairs(read_pairs(DATA / "field" / "field_pairs.tsv"), cases, plugins),
    )  # fmt: skip


@frozen(kw_only=True)
class Line:
    """One line of an error table."""

    section: str
    source: str
    rows: int
    skipped: int
    pairs: Pairs

    @property
    def key(self) -> str:
        """Name of the line among the ceilings."""
        return f"{self.section} / {self.source}"


def lines(answer: Answer) -> list[Line]:
    """Error tables: quantity and tier by source, and step time by group where there are several."""
    made = []
    for tier in ("A", "BC"):
        rows = [row for row in answer.rows if (row.tier.upper() == "A") == (tier == "A")]
        for quantity in QUANTITIES:
            made += _of(f"{quantity} {tier}", by_source(rows), quantity)
    grouped: dict[str, list[Row]] = {name: [] for name in titles()}
    for run, row in zip(answer.runs, answer.rows, strict=True):
        if row.skipped is None:
            grouped[group_of(run, row)].append(row)
    several = {
        source
        for source in by_source(answer.rows)
        if sum(source in by_source(rows) for rows in grouped.values()) > 1
    }
    for name, rows in grouped.items():
        chosen = [row for row in rows if row.source in several]
        made += _of(f"group {name}", by_source(chosen), "time")
    return made


def _of(section: str, sources: dict[str, list[Row]], quantity: str) -> list[Line]:
    column = f"measured_{QUANTITIES[quantity]}"
    return [
        Line(
            section=section, source=source, rows=len(rows),
            skipped=sum(row.skipped is not None for row in rows),
            pairs=Pairs.of(rows, quantity),
        )
        for source, rows in sources.items()
        if any(getattr(row, column) for row in rows)
    ]  # fmt: skip


def numbers(found: Measured) -> dict[str, dict[str, float]]:
    """Line -> errors that must not grow, percent (or share wrong)."""
    made: dict[str, dict[str, float]] = {}
    for line in lines(found.answer):
        if len(line.pairs):
            stated = line.pairs.statistics()
            made[line.key] = {
                name: _not_none(stated[f"{name}_abs_pct"]) for name in ("median", "p90")
            } | {"bias": abs(_not_none(stated["mean_pct"]))}
    for source, choice in found.choices.items():
        made[f"choice / {source}"] = {
            "median regret": choice.regret(50), "p90 regret": choice.regret(90),
            "rank": 100 * (1 - (choice.spearman or 0.0)),
        }  # fmt: skip
    for each in found.operations:
        size = np.abs(each.errors)
        made[f"operation / {each.name}"] = {
            "median": float(np.median(size)), "p90": float(np.percentile(size, 90)),
        }  # fmt: skip
    judged: dict[str, list[Any]] = {"cases": found.verdicts, "pairs": found.orders}
    for name, many in judged.items():
        right = [each.right for each in many if each.right is not None]
        made[f"field / {name}"] = {"wrong": 100 * (1 - sum(right) / max(1, len(right)))}
    return made


def _not_none(value: float | None) -> float:
    assert value is not None
    return value
