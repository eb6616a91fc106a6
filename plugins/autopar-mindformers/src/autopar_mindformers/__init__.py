"""MindSpore MindFormers: legality rules, reader of its YAML files, exporter."""

from __future__ import annotations

from collections.abc import Sequence

from autopar_core.api import (
    Broken,
    Exporter,
    Level,
    PluginInfo,
    Reader,
    StrategyBatch,
    hookimpl,
)
from autopar_mindformers import readers, rules, write


@hookimpl
def autopar_plugin_info() -> PluginInfo:
    """Introduce the plugin."""
    return PluginInfo(
        api=(1, 0), summary="MindFormers: what it refuses, its YAML files in and out."
    )


@hookimpl
def autopar_filter(batch: StrategyBatch, level: Level, ctx: rules.Context) -> list[Broken]:
    """What MindFormers refuses, for its own profile only."""
    return rules.broken(batch, level, ctx)


@hookimpl
def autopar_readers() -> Sequence[Reader]:
    """YAML files of graph mode and of PyNative."""
    return (readers.READER,)


@hookimpl
def autopar_exporters() -> Sequence[Exporter]:
    """A YAML file of graph mode, and its launch script."""
    return (write.EXPORTER,)
