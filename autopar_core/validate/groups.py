"""Rows judged apart because they answer different questions, and the choice among strategies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np
import tomli
from attrs import frozen

from autopar_core.domain.arrays import Floats
from autopar_core.validate.mapping import fits
from autopar_core.validate.predict import Answer, Fact, Row
from autopar_core.validate.rows import Run
from autopar_core.validate.statistics import spearman


@cache
def judging() -> Mapping[str, Any]:
    """The table ``judging.toml``."""
    text = files("autopar_core").joinpath("validate", "judging.toml").read_text("utf-8")
    return tomli.loads(text)


def group_of(run: Run, row: Row) -> str:
    """Name of the first group that a predicted row belongs to."""
    for entry in judging()["group"]:
        bounds = entry.get("bound_by")
        if fits(run, entry["when"]) and (bounds is None or row.bound_by in bounds):
            return str(entry["name"])
    return ""


def titles() -> dict[str, str]:
    """Group -> what its rows are, in the order of the table."""
    return {entry["name"]: entry["title"] for entry in judging()["group"]}


@frozen(kw_only=True)
class Choice:
    """How well the predicted best strategies of a source's problems do.

    Attributes:
        rows: Rows that take part.
        problems: Problems with enough of them.
        spearman: Rank correlation of predicted and measured step time over all these rows.
        inside: Median rank correlation inside a problem.
        regrets: (problems,) measured time of the predicted best over the measured best, 1 or more.
    """

    rows: int
    problems: int
    spearman: float | None
    inside: float | None
    regrets: Floats

    def regret(self, percentile: float) -> float:
        """Percentile of the regrets, in percent above the best."""
        return 100 * (float(np.percentile(self.regrets, percentile)) - 1)


def choices(answer: Answer) -> dict[str, Choice]:
    """Source -> its choice, for sources with a problem of enough strategies."""
    found: dict[str, dict[tuple[str, ...], list[Row]]] = {}
    rules = judging()["choice"]
    for run, row, fact in zip(answer.runs, answer.rows, answer.facts, strict=True):
        if fact is not None and _takes_part(run, row, fact, rules):
            problem = tuple(run.text(column) for column in rules["problem"])
            found.setdefault(row.source, {}).setdefault(problem, []).append(row)
    made = {}
    for source, problems in sorted(found.items()):
        large = [rows for rows in problems.values() if len(rows) >= rules["least_rows"]]
        if large:
            made[source] = _choice(list(problems.values()), large)
    return made


def _takes_part(run: Run, row: Row, fact: Fact, rules: Mapping[str, Any]) -> bool:
    return (
        row.measured_step_time_s is not None
        and row.predicted_step_time_s is not None
        and fits(run, rules["when"])
        and fact.flops_at_peak_s / row.measured_step_time_s >= rules["least_peak_share"]
    )


def _times(rows: Iterable[Row]) -> tuple[Floats, Floats]:
    pairs = np.array([(row.predicted_step_time_s, row.measured_step_time_s) for row in rows])
    return pairs[:, 0], pairs[:, 1]


def _choice(every: Sequence[list[Row]], large: Sequence[list[Row]]) -> Choice:
    rows = [row for problem in every for row in problem]
    regrets, inside = [], []
    for problem in large:
        predicted, measured = _times(problem)
        regrets.append(measured[predicted.argmin()] / measured.min())
        rank = spearman(predicted, measured)
        inside += [] if rank is None else [rank]
    return Choice(
        rows=len(rows), problems=len(large), spearman=spearman(*_times(rows)),
        inside=float(np.median(inside)) if inside else None, regrets=np.array(regrets),
    )  # fmt: skip
