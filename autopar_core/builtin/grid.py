"""The generator that ships with the core: every legal combination, level by level."""

from __future__ import annotations

from typing import Any

from autopar_core.api import Generator, StrategyBatch


def _grid(ctx: Any) -> StrategyBatch:
    rows: StrategyBatch = ctx.grow(ctx.degree_tuples())
    return rows


GRID = Generator(
    "grid", "Every combination of wanted values, illegal branches cut level by level.", _grid, True
)
