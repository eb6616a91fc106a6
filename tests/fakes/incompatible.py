"""Written for a plugin API to come, with a hook that this core does not know."""

from __future__ import annotations

from autopar_core.api import Dimension, Field, Level, PluginInfo, hookimpl


@hookimpl
def autopar_plugin_info():
    return PluginInfo(
        api=(2, 0),
        summary="From the future.",
        dimension=Dimension(
            name="fp",
            degree=Field(name="fp_degree", short="fp", level=Level.DEGREE, neutral=1),
        ),
    )


@hookimpl
def autopar_energy(nope):
    return []
