"""Megatron-LM, Megatron-Bridge and MindSpeed-LLM: legality rules, readers, exporters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from autopar_core.api import (
    Broken,
    Exporter,
    Level,
    PluginInfo,
    Reader,
    StrategyBatch,
    hookimpl,
)
from autopar_megatron import readers, rules
from autopar_megatron.config import MINDSPEED_PROFILE, MegatronConfig
from autopar_megatron.export_bridge import export_bridge
from autopar_megatron.export_script import export_megatron, export_mindspeed


@hookimpl
def autopar_plugin_info() -> PluginInfo:
    """Introduce the plugin."""
    return PluginInfo(
        api=(1, 0),
        summary="Megatron-LM, Megatron-Bridge, MindSpeed-LLM: what they refuse, their files in and out",
        config=MegatronConfig,
    )


@hookimpl
def autopar_filter(batch: StrategyBatch, level: Level, ctx: rules.Context) -> list[Broken]:
    """What Megatron refuses, for frameworks of its family only."""
    return rules.broken(batch, level, ctx)


@hookimpl
def autopar_frameworks() -> Sequence[Mapping[str, Any]]:
    """The profile of MindSpeed-LLM."""
    return (MINDSPEED_PROFILE,)


@hookimpl
def autopar_readers() -> Sequence[Reader]:
    """Launch scripts, argument files, YAML files, recipes."""
    return readers.readers()


@hookimpl
def autopar_exporters() -> Sequence[Exporter]:
    """Launch scripts and recipes."""
    return (
        Exporter("megatron", "A launch script for Megatron-LM (run_megatron.sh).",
                 ("megatron", "nemo"), export_megatron),
        Exporter("megatron-bridge", "A recipe for Megatron-Bridge (autopar_recipe.py).",
                 ("megatron-bridge", "nemo"), export_bridge),
        Exporter("mindspeed", "A launch script for MindSpeed-LLM (run_mindspeed.sh).",
                 ("mindspeed",), export_mindspeed),
    )  # fmt: skip
