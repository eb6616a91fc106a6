"""Half a plugin: a dimension without memory and performance."""

from __future__ import annotations

from autopar_core.api import Dimension, Field, Level, PluginInfo, hookimpl


@hookimpl
def autopar_plugin_info():
    return PluginInfo(
        api=(1, 0),
        summary="Half of sequence splitting.",
        dimension=Dimension(
            name="hp",
            degree=Field(name="hp_degree", short="hp", level=Level.DEGREE, neutral=1),
        ),
    )


@hookimpl
def autopar_shard():
    return []
