"""The other schedule composer of two; states its own name."""

from __future__ import annotations

from autopar_core.api import PluginInfo, hookimpl


AUTOPAR_NAME = "composer-b"


@hookimpl
def autopar_plugin_info():
    return PluginInfo(api=(1, 0), summary="Composes.")


@hookimpl
def autopar_schedule(ctx):
    return ctx
