"""Doubles what plugins answer; a calibration."""

from __future__ import annotations

from autopar_core.api import PluginInfo, hookimpl


@hookimpl
def autopar_plugin_info():
    return PluginInfo(api=(1, 0), summary="Calibrates.")


@hookimpl(wrapper=True)
def autopar_performance():
    answers = yield
    return [answer * 2 for answer in answers]
