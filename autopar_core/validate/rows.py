"""Files of measured runs: read, checked for their columns, and read cell by cell."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import tomli
from attrs import frozen

from autopar_core.errors import InputError


Row = Mapping[str, str]


@cache
def dictionary() -> Mapping[str, Any]:
    """The table ``runs.toml``: what columns and spellings mean."""
    text = files("autopar_core").joinpath("validate", "runs.toml").read_text("utf-8")
    return tomli.loads(text)


@frozen
class Run:
    """One line of a file. ``cells`` lacks no key: a column that the file has not reads as empty."""

    cells: Row
    where: str

    def text(self, column: str) -> str:
        """A cell; empty when unknown."""
        return (self.cells.get(column) or "").strip()

    def number(self, column: str) -> float | None:
        """A number; None when unknown.

        Raises:
            InputError: When something else stands there.
        """
        text = self.text(column)
        if not text:
            return None
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise InputError(f"{self.where}, {column}", f"expected a number, got {text!r}")
        return value

    def whole(self, column: str, default: int = 0) -> int:
        """A whole number, or the default where the cell is empty.

        Raises:
            InputError: When something else stands there.
        """
        value = self.number(column)
        if value is None:
            return default
        if value != int(value) or value < 0:
            raise InputError(
                f"{self.where}, {column}", f"expected a whole number, got {self.text(column)!r}"
            )
        return int(value)

    def flag(self, column: str) -> bool:
        """Whether a yes stands there."""
        return self.text(column).lower() in ("1", "true", "yes")

    @property
    def id(self) -> str:
        """Name of the run."""
        return self.text("id")

    @property
    def source(self) -> str:
        """Part of the name before the first hyphen."""
        return self.id.partition("-")[0]


def read_runs(paths: Sequence[Path]) -> list[Run]:
    """The runs of several files, in order.

    Raises:
        InputError: When a file is not there, is no table, or lacks a column.
    """
    return [run for path in paths for run in read_table(path, dictionary()["required"])[1]]


def read_table(path: Path, required: Sequence[str] = ()) -> tuple[tuple[str, ...], list[Run]]:
    """(columns, lines) of a tab-separated table.

    Args:
        path: The file.
        required: Columns that it must have.

    Raises:
        InputError: When the file is not there, is no table, or lacks a column.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise InputError(str(path), "there is no such file; name a tab-separated table") from None
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise InputError(str(path), f"cannot be read: {why}") from None
    reader = csv.DictReader(io.StringIO(text, newline=""), delimiter="\t")
    columns = tuple(reader.fieldnames or ())
    missing = [name for name in required if name not in columns]
    if missing:
        word = "column" if len(missing) == 1 else "columns"
        raise InputError(
            str(path),
            f"lacks the {word} {', '.join(missing)}; the table is tab-separated with these names "
            "in its first line",
        )
    runs = []
    for number, cells in enumerate(reader, start=2):
        if None in cells:
            raise InputError(f"{path}, line {number}", "has more cells than there are columns")
        runs.append(Run({k: v or "" for k, v in cells.items()}, f"{path}, line {number}"))
    return columns, runs
