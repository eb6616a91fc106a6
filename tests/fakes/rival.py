"""Another estimator of a standard dimension."""

from __future__ import annotations

from autopar_core.api import Dimension, Field, Level, PluginInfo, hookimpl


@hookimpl
def autopar_plugin_info():
    return PluginInfo(
        api=(1, 0),
        summary="Tensor parallelism, counted differently.",
        dimension=Dimension(
            name="tp",
            degree=Field(name="tp_degree", short="tp", level=Level.DEGREE, neutral=1),
        ),
    )


@hookimpl
def autopar_shard():
    return []


@hookimpl
def autopar_memory():
    return []


@hookimpl
def autopar_performance():
    return []
