"""Which entries of a strategy in result.json say what it is, and which what became of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


# Its place, cost or verdict, and what follows from its layers.
NOT_DEFINING = frozenset((
    "place", "row", "partition_plan", "recompute_plan", "layer_offset", "memory_cost",
    "memory_low", "memory_high", "reserved_memory", "memory_verdict", "performance_cost",
    "performance_low", "performance_high", "mfu", "tokens_per_second_per_device", "feasible",
    "filter_reason", "partition_gain", "partition_gap", "tie_with_best", "warnings",
))  # fmt: skip


def definition(strategy: Mapping[str, Any]) -> dict[str, Any]:
    """What a strategy is: its fields, layers and recompute."""
    return {key: value for key, value in strategy.items() if key not in NOT_DEFINING}
