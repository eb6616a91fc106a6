"""Values of a result.json for people."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from autopar_core.units import show_bytes, show_seconds


# Entries of a strategy in result.json that are its cost or verdict, not its definition.
NOT_FIELDS = frozenset((
    "place", "row", "partition_plan", "recompute_plan", "layer_offset", "memory_cost",
    "reserved_memory", "memory_verdict", "performance_cost", "performance_low",
    "performance_high", "mfu", "tokens_per_second_per_device", "feasible", "filter_reason",
    "tie_with_best", "warnings",
))  # fmt: skip


def definition(strategy: Mapping[str, Any]) -> dict[str, Any]:
    """What a strategy is, without what it costs."""
    return {key: value for key, value in strategy.items() if key not in NOT_FIELDS}


def identity(strategy: Mapping[str, Any]) -> str:
    """The same text for the same strategy, in any run."""
    return json.dumps(definition(strategy), sort_keys=True)


def spell(value: Any) -> str:
    """A value as the input file spells it."""
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False)


def varying(strategies: Iterable[Mapping[str, Any]]) -> list[str]:
    """Keys whose values differ among strategies, and those that are more than 1 in all."""
    every = [definition(each) for each in strategies]
    keys = list(dict.fromkeys(key for each in every for key in each))
    return [key for key in keys if len({spell(each.get(key)) for each in every}) > 1 or (
        every[0].get(key) not in (0, 1, False, "none", None)
    )]  # fmt: skip


def costs(strategy: Mapping[str, Any]) -> dict[str, str]:
    """Step time and memory of a strategy; empty texts where they are unknown."""
    seconds, memory = strategy.get("performance_cost"), strategy.get("memory_cost")
    return {
        "step time": show_seconds(seconds) if seconds is not None else "",
        "memory": show_bytes(memory) if memory is not None else "",
    }


def signed(text: str, value: float) -> str:
    """A difference with its sign."""
    return f"+{text}" if value > 0 else text


def bytes_difference(value: float) -> str:
    """A difference of bytes."""
    return signed(show_bytes(value), value)


def seconds_difference(value: float) -> str:
    """A difference of seconds."""
    return signed(("-" if value < 0 else "") + show_seconds(abs(value)), value)
