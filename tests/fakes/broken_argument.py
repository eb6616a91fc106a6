"""Asks for arguments that no hook has."""

from __future__ import annotations

from autopar_core.api import PluginInfo, hookimpl


@hookimpl
def autopar_plugin_info():
    return PluginInfo(api=(1, 0), summary="Wants more.")


@hookimpl
def autopar_memory(batch, nope, also):
    return []
