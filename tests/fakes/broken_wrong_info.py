"""Introduces itself with a table."""

from __future__ import annotations

from autopar_core.api import hookimpl


@hookimpl
def autopar_plugin_info():
    return {"api": (1, 0)}
