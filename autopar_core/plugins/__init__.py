"""Finds plugins, judges each on its own, and asks them."""

from __future__ import annotations

from autopar_core.plugins.fields import all_dimensions, declared_fields
from autopar_core.plugins.manager import MISSING, PluginManager
from autopar_core.plugins.record import PluginRecord


__all__ = ["MISSING", "PluginManager", "PluginRecord", "all_dimensions", "declared_fields"]
