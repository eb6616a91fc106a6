"""Answers with nothing, declines, raises: a plugin without a dimension."""

from __future__ import annotations

import sys

from autopar_core.api import InputError, PluginInfo, hookimpl


@hookimpl
def autopar_plugin_info():
    return PluginInfo(api=(1, 0), summary="Moody.")


@hookimpl
def autopar_shard():
    return None


@hookimpl
def autopar_memory():
    return NotImplemented


@hookimpl
def autopar_performance():
    raise ZeroDivisionError("division by zero")


@hookimpl
def autopar_rankers():
    sys.exit(1)


@hookimpl
def autopar_renderers():
    raise InputError("run.toml: plugins.moody", "no colour")
