"""TorchTitan: legality rules, readers and exporters of its TOML and Python configurations."""

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
from autopar_torchtitan import readers, rules
from autopar_torchtitan.config import TorchTitanConfig
from autopar_torchtitan.write_python import EXPORTER as PYTHON
from autopar_torchtitan.write_toml import EXPORTER as TOML


@hookimpl
def autopar_plugin_info() -> PluginInfo:
    """Introduce the plugin."""
    return PluginInfo(
        api=(1, 0),
        summary="TorchTitan: what it refuses, its TOML and Python configurations in and out",
        config=TorchTitanConfig,
    )


@hookimpl
def autopar_filter(batch: StrategyBatch, level: Level, ctx: rules.Context) -> list[Broken]:
    """What TorchTitan refuses, for its profiles only."""
    return rules.broken(batch, level, ctx)


@hookimpl
def autopar_readers() -> Sequence[Reader]:
    """TOML job configurations and Python configuration functions."""
    return readers.READERS


@hookimpl
def autopar_exporters() -> Sequence[Exporter]:
    """The same two."""
    return (PYTHON, TOML)
