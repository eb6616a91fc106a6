"""Strategies of a result.json as people read them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from autopar_core.builtin import words
from autopar_core.builtin.definition import definition
from autopar_core.config.search_section import PARTITION, RECOMPUTE
from autopar_core.plugins.fields import BATCH_FIELDS, standard


_LONG = 24


def identity(strategy: Mapping[str, Any]) -> str:
    """The same text for the same strategy, in any run."""
    return json.dumps(definition(strategy), sort_keys=True)


def spell(value: Any) -> str:
    """A value as the input file spells it; nothing for None."""
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def cell(key: str, value: Any) -> str:
    """A value of a strategy, short enough for a table."""
    if value is None:
        return ""
    if key == PARTITION:
        text = words.stages(value)
    elif key == RECOMPUTE:
        text = words.recompute(value)
    else:
        text = spell(value)
    return text if len(text) <= _LONG else f"{text[: _LONG - 3]}..."


@cache
def _headings() -> Mapping[str, str]:
    table = standard()
    degrees = [dimension.degree for dimension in table.dimensions.values()]
    short = {f.name: f.short for f in (*degrees, *BATCH_FIELDS, *table.fields.values())}
    return {**short, PARTITION: "layers", RECOMPUTE: "recomputed"}


def heading(key: str) -> str:
    """A field's short form where the standard table has one."""
    return _headings().get(key, key)


def columns(strategies: Iterable[Mapping[str, Any]]) -> list[str]:
    """Keys that a table needs: values that differ, and degrees above one."""
    every = [definition(each) for each in strategies]
    degrees = {dimension.degree.name for dimension in standard().dimensions.values()}
    found = []
    for key in dict.fromkeys(key for each in every for key in each):
        values = {spell(each.get(key)) for each in every}
        if len(values) > 1 or (key in degrees and values != {"1"}):
            found.append(key)
    return found


def row(strategy: Mapping[str, Any], keys: Iterable[str]) -> dict[str, str]:
    """Cells of a strategy by heading."""
    return {heading(key): cell(key, strategy.get(key)) for key in keys}


def brief(strategy: Mapping[str, Any]) -> str:
    """A strategy in two lines: degrees and what is not neutral; layers of each rank and recompute."""
    table = standard()
    degrees = {dimension.degree.name for dimension in table.dimensions.values()}
    neutral = {f.name: f.neutral for f in table.fields.values()}
    found = []
    for key, value in definition(strategy).items():
        if key in (PARTITION, RECOMPUTE) or (key not in degrees and value == neutral.get(key)):
            continue
        if isinstance(value, bool):
            found.append(heading(key) if value else f"no {heading(key)}")
        else:
            found.append(value if isinstance(value, str) else f"{heading(key)}{spell(value)}")
    layers = words.stage_totals(strategy.get(PARTITION) or ())
    again = words.recompute_total(strategy.get(RECOMPUTE) or {})
    return f"{' '.join(found)}\nlayers {layers}; recomputed {again}"


def seconds(value: float | None) -> str:
    """A time; nothing where it is unknown."""
    return "" if value is None else words.seconds(value)


def memory(value: float | None) -> str:
    """Bytes; nothing where they are unknown."""
    return "" if value is None else words.gib(value)


def costs(strategy: Mapping[str, Any]) -> dict[str, str]:
    """Step time and memory of a strategy."""
    return {
        "step time": seconds(strategy.get("performance_cost")),
        "memory": memory(strategy.get("memory_cost")),
    }


def difference(text: str, value: float) -> str:
    """A difference with its sign."""
    return f"+{text}" if value > 0 else text
