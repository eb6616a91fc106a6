"""Calls of plugins: what they get, what they give, and what happens when they fail."""

from __future__ import annotations

from typing import Any

import pytest
from plugin_fakes import load

from autopar_core.api import PluginInfo, hookimpl
from autopar_core.errors import InputError, PluginCallError, PluginError
from autopar_core.plugins import MISSING


# --- calls -------------------------------------------------------------------------------------


def test_an_implementation_gets_the_arguments_that_it_names() -> None:
    manager = load("complete", "half", "rival")
    everything = {"batch": 1, "work": 2, "ctx": 3}
    assert manager.call("complete", "autopar_shard", batch=1, ctx=3) == ["shard", 1]
    assert manager.call("complete", "autopar_memory", **everything) == ["memory", 2, 3]
    assert manager.call("complete", "autopar_performance", **everything) == ["performance"]
    assert manager.call("rival", "autopar_performance", **everything) == []


def test_missing_is_told_apart_from_empty() -> None:
    manager = load("moody", "half")
    arguments = {"batch": 1, "work": 2, "ctx": 3}
    assert manager.call("half", "autopar_shard", batch=1, ctx=3) == []
    assert manager.call("half", "autopar_memory", **arguments) is MISSING
    assert manager.call("moody", "autopar_shard", batch=1, ctx=3) is MISSING
    assert manager.call("moody", "autopar_memory", **arguments) is MISSING
    assert manager.call("nobody", "autopar_memory", **arguments) is MISSING
    assert manager.collect("autopar_shard", batch=1, ctx=3) == [("half", [])]


def test_a_failure_names_plugin_and_hook() -> None:
    manager = load("moody")
    with pytest.raises(PluginCallError) as caught:
        manager.call("moody", "autopar_performance", batch=1, work=2, ctx=3)
    assert str(caught.value) == (
        "plugin 'moody' failed in autopar_performance: ZeroDivisionError: division by zero"
    )
    assert (caught.value.plugin, caught.value.hook) == ("moody", "autopar_performance")
    with pytest.raises(PluginCallError, match="plugin 'moody' failed in autopar_rankers: SystemEx"):
        manager.call("moody", "autopar_rankers")
    with pytest.raises(InputError, match="no colour"):
        manager.call("moody", "autopar_renderers")


def test_wrappers_stay_in() -> None:
    manager = load("complete", "wrapper")
    arguments = {"batch": 1, "work": 2, "ctx": 3}
    answer = manager.call("complete", "autopar_performance", **arguments)
    assert answer == ["performance", "performance"]
    assert not manager.implements("wrapper", "autopar_performance")
    assert manager.collect("autopar_performance", **arguments) == [("complete", answer)]
    view = next(r for r in manager.records if r.name == "wrapper").view()
    assert view.hooks == ("autopar_plugin_info", "autopar_performance (wrapper)")


def test_a_wrapper_that_loses_the_list_is_told() -> None:
    class Losing:
        @hookimpl
        def autopar_plugin_info(self) -> PluginInfo:
            return PluginInfo(api=(1, 0), summary="")

        @hookimpl(wrapper=True)  # type: ignore[call-arg, untyped-decorator]
        def autopar_performance(self) -> Any:
            yield
            return 5

    manager = load("complete", extra=[("losing", Losing())])
    with pytest.raises(PluginCallError) as caught:
        manager.call("complete", "autopar_performance", batch=1, work=2, ctx=3)
    assert str(caught.value) == (
        "plugin 'complete' failed in autopar_performance: "
        "a wrapper must return the list it got (wrapped by 'losing')"
    )


def test_info_of_an_absent_plugin() -> None:
    with pytest.raises(PluginError, match="no active plugin is named 'x'; active: complete"):
        load("complete").info("x")
