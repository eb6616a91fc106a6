"""A calibration file in an input: its values become overrides below the person's own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attrs import field, frozen

from autopar_core.config.converter import structure
from autopar_core.config.source_file import find_file
from autopar_core.config.tables import Origins, Table, as_table, deep_merge, leaves, read_toml
from autopar_core.domain.bands import Band
from autopar_core.errors import InputError


_AT = ("framework", "calibration")
_PROFILES = ("cluster", "framework")


@frozen(kw_only=True)
class FittedConstant:
    """One constant of a calibration file; ``spread`` is the standard error of ln(value)."""

    name: str
    value: float
    shipped: float
    spread: float
    rows: int
    configurations: int = 0


@frozen(kw_only=True)
class CalibrationFile:
    """The content of a calibration file.

    Attributes:
        system, framework: Names of the profiles that it belongs to.
        override: ``cluster`` and ``framework`` -> values over those profiles.
        residuals: Quantity -> band on runs that were not fitted.
        constant: What is behind each value.
    """

    system: str
    framework: str
    override: Mapping[str, Mapping[str, Any]] = field(factory=dict)
    residuals: Mapping[str, Band] = field(factory=dict)
    constant: tuple[FittedConstant, ...] = ()

    def check(self, system: str, framework: str, origins: Origins) -> None:
        """Refuse profiles that the values do not belong to.

        Raises:
            InputError: When the job has another system or framework.
        """
        for what, mine, wanted in (
            ("system", self.system, system), ("framework", self.framework, framework),
        ):  # fmt: skip
            if mine != wanted:
                raise InputError(
                    origins.where(*_AT), f"was fitted for the {what} {mine!r}, this is {wanted!r}"
                )

    @property
    def note(self) -> str:
        """A sentence for the person."""
        rows = max((each.rows for each in self.constant), default=0)
        band = self.residuals.get("time")
        error = f", median error {100 * band.median:.1f} % on runs not fitted" if band else ""
        return f"calibrated on {rows} measured runs of {self.framework} on {self.system}{error}"


def calibrated(
    tables: Table, origins: Origins, folder: Path
) -> tuple[Table, CalibrationFile | None]:
    """The input tables with a calibration's values as overrides, and the calibration.

    A path is replaced by the content of its file, so that the tables stand alone.

    Raises:
        InputError: When there is no such file, or it is no calibration.
    """
    section = tables.get("framework", {})
    if not isinstance(section, Mapping) or "calibration" not in section:
        return tables, None
    where, given = origins.where(*_AT), section["calibration"]
    label = ""
    if isinstance(given, str):
        path = find_file(given, folder)
        if path is None:
            raise InputError(where, f"no such file: {given}")
        given, label = read_toml(path, f"{where}: {given}"), path.name
    table = as_table(given, where)
    made = structure(CalibrationFile, table, f"{label}:" if label else f"{where}:")
    changed = dict(tables)
    for name, values in made.override.items():
        if name not in _PROFILES:
            raise InputError(where, f"override.{name} is neither {' nor '.join(_PROFILES)}")
        own = as_table(changed.get(name, {}), origins.where(name))
        mine = as_table(own.get("override", {}), origins.where(name, "override"))
        for keys, _ in leaves(values):
            if label and not _has(mine, keys):
                origins.said[(name, "override", *keys)] = label
        changed[name] = {**own, "override": deep_merge(values, mine)}
    changed["framework"] = {**changed["framework"], "calibration": table}
    return changed, made


def _has(table: Mapping[str, Any], keys: tuple[str, ...]) -> bool:
    at: Any = table
    for key in keys:
        if not isinstance(at, Mapping) or key not in at:
            return False
        at = at[key]
    return True
