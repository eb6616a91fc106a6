"""A person's own generator: only strategies that use one dimension and no other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from autopar_core.api import Generator, Level, PluginInfo, StrategyBatch, hookimpl


def corners(ctx: Any) -> StrategyBatch:
    """Rows with one degree above one, for every micro-batch size; the core sifts them."""
    tuples = ctx.degree_tuples()
    degrees = [name for name, one in ctx.fields.items() if one.level is Level.DEGREE]
    used = sum((tuples[name] > 1).astype(int) for name in degrees)
    rows = tuples.take(np.asarray(used == 1))
    sizes = np.asarray(ctx.values("micro_batch_size"))
    grown = rows.repeat(np.full(len(rows), len(sizes)))
    column = np.tile(sizes, len(rows))
    made: StrategyBatch = ctx.batch({**grown.columns, "micro_batch_size": column})
    return made


@hookimpl
def autopar_plugin_info() -> PluginInfo:
    """Introduce the plugin."""
    return PluginInfo(api=(1, 0), summary="Generator corners: one dimension at a time")


@hookimpl
def autopar_generators() -> Sequence[Generator]:
    """Picked by ``search.generator``."""
    return (Generator("corners", "Strategies that use one dimension alone.", corners),)
