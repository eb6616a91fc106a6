"""Has a typing error in the name of a hook."""

from __future__ import annotations

from autopar_core.api import PluginInfo, hookimpl


@hookimpl
def autopar_plugin_info():
    return PluginInfo(api=(1, 0), summary="Mistyped.")


@hookimpl
def autopar_memry():
    return []
