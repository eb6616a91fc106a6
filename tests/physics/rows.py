"""Rows of measured runs, read as the command reads them: `autopar_core.validate.mapping` decides."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path

import autopar_core.builtin as builtin
from autopar_core.domain.result import Detail
from autopar_core.plugins import PluginManager
from autopar_core.units import GIB
from autopar_core.validate.field import describe
from autopar_core.validate.mapping import first
from autopar_core.validate.rows import Run


__all__ = ["GIB", "h200", "manager", "number", "profile", "published", "read"]
DATA = Path(__file__).parents[1] / "data" / "measured"
Row = Mapping[str, str]


def manager() -> PluginManager:
    """All installed plugins and the built-in ones."""
    return PluginManager.load(extra=(("builtin", builtin),))


def read(name: str) -> list[dict[str, str]]:
    """Rows of a file of measured runs."""
    with (DATA / name).open(encoding="utf-8") as file:
        return list(csv.DictReader(file, delimiter="\t"))


def number(row: Row, key: str, default: int = 0) -> int:
    """A whole number, or the default where the column is empty."""
    return Run(row, key).whole(key, default)


def profile(row: Row) -> str:
    """The framework profile of a row."""
    found = first(Run(row, row["id"]), "framework")
    return str(found["name"]) if found else "generic"


def published(plugins: PluginManager, row: Row) -> Detail:
    """Memory and time of a row's strategy."""
    return describe(Run(row, row["id"]), plugins)[0]


h200 = published
