"""The bands of a job: residuals of the measured runs of its system and framework."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from attrs import evolve, fields

from autopar_core.config.catalogue import shipped
from autopar_core.config.converter import structure
from autopar_core.config.tables import read_toml
from autopar_core.domain.bands import Band, Bands


# A quantile of fewer runs says little: their band is never narrower than that of other classes.
LEAST_ROWS = 5
# What a framework allocates hardly depends on the device; how fast it runs does.
_OF_FRAMEWORK = ("memory", "reserved")
_FILE = "residuals.toml"


@cache
def residuals() -> Mapping[str, Any]:
    """The table ``residuals.toml``: one command makes it from the measured runs."""
    return read_toml(shipped(_FILE))


def bands_of(
    system: str, framework: str, own: Mapping[str, Band] | None = None,
    table: Mapping[str, Any] | None = None,
) -> Bands:  # fmt: skip
    """Bands of a class.

    Args:
        system, framework: Names of the profiles.
        own: Residuals by quantity from a calibration, which win.
        table: Residuals of all classes; the shipped ones when None.
    """
    known = residuals() if table is None else table
    mine = [each for each in known["class"] if each["framework"] == framework]
    made = {}
    for name in (each.name for each in fields(Bands)):
        where = f"{_FILE}: {name}"
        every = {
            each["system"]: structure(Band, each[name], where) for each in mine if name in each
        }
        given = every.pop(system, None)
        if own and name in own:
            given = own[name]
        large = [band for band in every.values() if band.rows >= LEAST_ROWS]
        general = structure(Band, known["unmeasured"][name], where)
        if large and name in _OF_FRAMEWORK:
            general = evolve(_widest(large), rows=0)
        made[name] = given if given and given.rows >= LEAST_ROWS else _both(given, general)
    return Bands(**made)


def _both(given: Band | None, general: Band) -> Band:
    return general if given is None else evolve(_widest((given, general)), rows=given.rows)


def _widest(bands: Iterable[Band]) -> Band:
    """The largest of each number."""
    every = list(bands)
    return Band(
        median=max(band.median for band in every), p90=max(band.p90 for band in every),
        remaining=max(band.remaining for band in every),
    )  # fmt: skip
