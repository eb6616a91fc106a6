"""A calibration as a TOML file: overrides that an input takes over, and what is behind them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from autopar_core.domain.arrays import Floats
from autopar_core.validate.calibrate import Calibration, overrides
from autopar_core.validate.constants import sizes


_DIGITS = 5
_HEAD = """\
# Fitted on measured runs by `autopar calibrate`. To use it, put in the input file:
#   [framework]
#   calibration = "THIS FILE"
"""


def as_document(found: Calibration) -> dict[str, Any]:
    """Everything that was found, as plain data."""
    return {
        "system": found.system, "framework": found.framework, "rows": found.rows,
        "configurations": found.configurations, "left_out": found.left_out,
        "constants": [
            {
                "name": ".".join(each.constant.path), "value": _short(each.value),
                "shipped": each.constant.shipped, "spread": _short(each.spread), "rows": each.rows,
                "configurations": each.configurations,
            }
            for each in found.fitted
        ],
        "not_fitted": dict(found.refused),
        "errors": {
            name: sizes(logs)
            for name, logs in (("shipped", found.before), ("held_out", found.held_out))
            if len(logs)
        },
        "residuals": residuals(found),
    }  # fmt: skip


def residuals(found: Calibration) -> dict[str, dict[str, float]]:
    """Bands of later predictions: sizes of ln(measured / predicted) on runs that were not fitted."""
    given = {"time": found.held_out, "memory": found.memory, "reserved": found.reserved}
    return {name: _band(logs) for name, logs in given.items() if len(logs)}


def _band(logs: Floats) -> dict[str, float]:
    left = logs - np.median(logs)
    return {
        "rows": len(logs), "median": _short(np.median(np.abs(logs))),
        "p90": _short(np.percentile(np.abs(logs), 90)), "remaining": _short(np.median(np.abs(left))),
    }  # fmt: skip


def _short(value: float | np.floating) -> float:
    """So many significant digits: more would not be known."""
    return float(f"{float(value):.{_DIGITS}g}")


def as_toml(found: Calibration) -> str:
    """The content of the file."""
    document = as_document(found)
    lines = [_HEAD]
    lines += [f"{key} = {json.dumps(document[key])}" for key in ("system", "framework")]
    for section, table in overrides(found).items():
        assert isinstance(table, Mapping)
        lines += _section(f"override.{section}", table)
    for name, band in document["residuals"].items():
        lines += ["", "# sizes of ln(measured / predicted) on runs that were not fitted",
                  f"[residuals.{name}]"]  # fmt: skip
        lines += [f"{key} = {json.dumps(value)}" for key, value in band.items()]
    for each in document["constants"]:
        lines += ["", "[[constant]]"]
        lines += [f"{key} = {json.dumps(value)}" for key, value in each.items()]
    return "\n".join(lines) + "\n"


def _section(name: str, table: Mapping[str, Any]) -> list[str]:
    """Values of a table, then the tables in it."""
    plain = {key: value for key, value in table.items() if not isinstance(value, Mapping)}
    lines = ["", f"[{name}]"] if plain else []
    lines += [f"{json.dumps(key)} = {_short(value)}" for key, value in plain.items()]
    for key, value in table.items():
        if isinstance(value, Mapping):
            lines += _section(f"{name}.{key}", value)
    return lines
