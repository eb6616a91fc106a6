"""A machine of one's own: what differs from a catalogue entry."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from autopar_core.api import PluginInfo, hookimpl


@hookimpl
def autopar_plugin_info() -> PluginInfo:
    """Introduce the plugin."""
    return PluginInfo(api=(1, 0), summary="Systems of our lab")


@hookimpl
def autopar_systems() -> Sequence[Mapping[str, Any]]:
    """Four devices to a node, and a smaller memory."""
    table = {
        "name": "lab-a100",
        "title": "Our four-way A100 workstation",
        "base": "a100-sxm-80gb",
        "devices_per_domain": 4,
        "memory_bytes": 48 * 2**30,
        "sources": {"memory_bytes": "nvidia-smi", "devices_per_domain": "lspci"},
    }
    return (table,)
