"""Constants that a calibration may fit: where they stand, and what rows say without refitting."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np
import tomli
from attrs import frozen

from autopar_core.domain.arrays import Floats
from autopar_core.domain.framework import FrameworkProfile
from autopar_core.domain.system import SystemProfile


@cache
def rules() -> Mapping[str, Any]:
    """The table ``calibration.toml``."""
    text = files("autopar_core").joinpath("validate", "calibration.toml").read_text("utf-8")
    return tomli.loads(text)


@frozen(kw_only=True)
class Constant:
    """One number of a profile.

    Attributes:
        name: What people call it.
        path: Keys of its override: ``framework`` or ``cluster`` first.
        what: A sentence.
        most: Largest value that makes sense.
        shipped: Value of the profile.
        scalar: Whether it multiplies the whole step time.
    """

    name: str
    path: tuple[str, ...]
    what: str
    most: float
    shipped: float
    scalar: bool = False


def constants_of(system: SystemProfile, framework: FrameworkProfile) -> list[Constant]:
    """Constants of step time in the order in which they may be fitted."""
    return [_constant(entry, system, framework) for entry in rules()["constant"]]


def reserved_of(mode: str, system: SystemProfile, framework: FrameworkProfile) -> Constant:
    """Reserved over allocated memory of a recompute mode."""
    entry = {**rules()["reserved"]}
    entry["at"] = entry["at"].replace("{mode}", mode)
    return _constant({**entry, "name": f"{entry['name']}.{mode}"}, system, framework)


def _constant(
    entry: Mapping[str, Any], system: SystemProfile, framework: FrameworkProfile
) -> Constant:
    path = tuple(system.name if key == "{system}" else key for key in entry["at"].split("."))
    value: Any = framework if path[0] == "framework" else system
    for key in path[1:]:
        if isinstance(value, Mapping):
            value = value.get(key, value.get("default", 1.0))
        else:
            value = getattr(value, key)
    return Constant(
        name=entry["name"], path=path, what=entry["what"],
        most=float(entry.get("most", np.inf)), shipped=float(value),
        scalar=bool(entry.get("scalar", False)),
    )  # fmt: skip


def change(values: Mapping[Constant, float]) -> dict[str, Any]:
    """Input tables that override these constants."""
    tables: dict[str, Any] = {}
    for constant, value in values.items():
        at = tables.setdefault(constant.path[0], {}).setdefault("override", {})
        for key in constant.path[1:-1]:
            at = at.setdefault(key, {})
        at[constant.path[-1]] = value
    return tables


def sizes(logarithms: Floats) -> dict[str, float]:
    """Median and p90 of errors in percent, from ln(measured / predicted)."""
    error = 100 * np.abs(np.exp(-logarithms) - 1)
    return {
        "median_abs_pct": float(np.median(error)), "p90_abs_pct": float(np.percentile(error, 90)),
    }  # fmt: skip
