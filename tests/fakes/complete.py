"""A whole plugin for a dimension of its own, with a knob."""

from __future__ import annotations

from autopar_core.api import Dimension, Field, Level, PluginInfo, hookimpl


@hookimpl
def autopar_plugin_info():
    return PluginInfo(
        api=(1, 0),
        summary="Splits experts.",
        dimension=Dimension(
            name="ep",
            degree=Field(name="ep_degree", short="ep", level=Level.DEGREE, neutral=1),
        ),
        fields=(
            Field(
                name="ep_overlap",
                short="epo",
                level=Level.SHARDING,
                neutral=False,
                boolean=True,
                needs="ep_degree",
            ),
        ),
    )


@hookimpl
def autopar_shard(batch):
    return ["shard", batch]


@hookimpl
def autopar_memory(work, ctx):
    return ["memory", work, ctx]


@hookimpl
def autopar_performance():
    return ["performance"]
