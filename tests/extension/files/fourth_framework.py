"""A fourth framework in one file: its profile as a table, and a rule of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from autopar_core.api import Broken, EvalContext, Level, PluginInfo, StrategyBatch, hookimpl


NAME = "lumen"


@hookimpl
def autopar_plugin_info() -> PluginInfo:
    """Introduce the plugin."""
    return PluginInfo(api=(1, 0), summary="Profile and rules of the framework lumen")


@hookimpl
def autopar_frameworks() -> Sequence[Mapping[str, Any]]:
    """What differs from the generic profile, each value with its source."""
    table = {
        "name": NAME,
        "title": "Lumen 2.1",
        "base": "generic",
        "rank_order": "cp-tp-dp-pp",
        "core": {"context_bytes": 1_500_000_000},
        "dp": {"zero_stages": [0, 1]},
        "sources": {
            "core.context_bytes": "measured on one device",
            "dp.zero_stages": "lumen manual, chapter 4",
        },
    }
    return (table,)


@hookimpl
def autopar_filter(batch: StrategyBatch, level: Level, ctx: EvalContext[Any, Any]) -> list[Broken]:
    """Legality of this framework only: other frameworks never meet it."""
    if ctx.framework.name != NAME or level is not Level.BATCH:
        return []
    return [
        Broken(
            code="lumen-even",
            rows=batch["micro_batch_size"] % 2 != 0,
            sentence="lumen packs sequences in pairs: micro_batch_size {micro_batch_size} is odd",
            source="lumen manual, chapter 2",
        )
    ]
