"""Cases that people reported, read as measured runs: half-free text, doubtful and missing cells."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import tomli
from attrs import frozen

from autopar_core.errors import InputError
from autopar_core.validate.mapping import MissingFactError, fits
from autopar_core.validate.rows import Run, dictionary, read_table


@cache
def words() -> Mapping[str, Any]:
    """The table ``field.toml``."""
    text = files("autopar_core").joinpath("validate", "field.toml").read_text("utf-8")
    return tomli.loads(text)


@frozen(kw_only=True)
class Case:
    """One reported configuration.

    Attributes:
        line: Its cells as reported.
        kind: What was reported: one letter.
        confidence: How complete the configuration is, 0 to 1.
        out_of_memory: Whether it ran out; None where the outcome does not say.
    """

    line: Run
    kind: str
    confidence: float
    out_of_memory: bool | None

    @property
    def id(self) -> str:
        """Name of the case."""
        return self.line.id


def read_cases(path: Path) -> dict[str, Case]:
    """Cases by name.

    Raises:
        InputError: When the file is no table of cases.
    """
    _, lines = read_table(path, words()["required"])
    return {line.id: _case(line) for line in lines}


def _case(line: Run) -> Case:
    said = words()["outcome"]
    outcome: bool | None = None
    for name, verdict in (("over", True), ("fits", False)):
        if re.search(said[name], line.text("outcome"), re.IGNORECASE):
            outcome = verdict
    return Case(
        line=line, kind=line.text("kind"), confidence=line.number("confidence") or 0.0,
        out_of_memory=outcome,
    )  # fmt: skip


def as_run(case: Case, *, least: bool = False) -> tuple[Run, tuple[str, ...]]:
    """A case in the columns of a measured run, and the facts that were put at their least.

    Args:
        case: The case.
        least: Put a missing fact at the least that training can have instead of refusing.

    Raises:
        MissingFactError: When a cell is no number where one is needed.
    """
    rename = words()["columns"]
    cells = {rename.get(name, name): _plain(text) for name, text in case.line.cells.items()}
    read = Run(cells, case.line.where)
    decided: dict[str, str] = {}
    for entry in words()["word"]:
        if entry["column"] not in decided and fits(read, entry["when"]):
            decided[entry["column"]] = entry["value"]
    cells |= decided
    for column in (*dictionary()["degrees"], *dictionary()["facts"], "vpp", "kv_heads"):
        if column not in ("framework", "gpu") and not _whole(cells.get(column, "")):
            raise MissingFactError(f"{column} {cells[column]!r} is no number")
    assumed = _fill(cells, least)
    return Run(cells, case.line.where), assumed


def _plain(text: str) -> str:
    """Without the mark of doubt at the end of a value: ``8192?``, ``full?``."""
    return text.strip().removesuffix("?").strip()


def _whole(text: str) -> bool:
    return not text or bool(re.fullmatch(r"\d+", text))


def _fill(cells: dict[str, str], least: bool) -> tuple[str, ...]:
    """Put missing facts at their least; the names of those that memory depends on."""
    assumed = []
    for column, value in words()["least"].items():
        if least and not cells.get(column):
            cells[column] = value
            assumed.append(column)
    for column, factors in words()["fill"].items():
        if least and not cells.get(column):
            cells[column] = str(math.prod(int(cells.get(name) or 1) for name in factors))
    return tuple(assumed)


@frozen(kw_only=True)
class Pair:
    """Two configurations, the better one first; ``ratio`` is by how much it was better."""

    id: str
    better: str
    worse: str
    metric: str
    ratio: float


def read_pairs(path: Path) -> list[Pair]:
    """Pairs of a file.

    Raises:
        InputError: When the file is no table of pairs, or a ratio is missing.
    """
    made = []
    for line in read_table(path, words()["pairs"])[1]:
        ratio = line.number("ratio")
        if ratio is None or ratio < 1:
            raise InputError(f"{line.where}, ratio", "expected a number of 1 or more")
        made.append(
            Pair(
                id=line.text("pair_id"), better=line.text("better_id"), worse=line.text("worse_id"),
                metric=line.text("metric"), ratio=ratio,
            )
        )  # fmt: skip
    return made
