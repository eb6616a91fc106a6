"""Which plugins take part: those that are asked for, those that clash, those that are absent."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path

import plugin_fakes
import pytest
from attrs import frozen
from plugin_fakes import EXPLOSIVE, FAKES, Install, files, knob, load, plugin, standard

from autopar_core.api import PluginInfo, hookimpl
from autopar_core.errors import PluginError
from autopar_core.plugins import PluginManager


install = plugin_fakes.install


# --- disable and only --------------------------------------------------------------------------


def test_a_disabled_plugin_is_not_imported(install: Install, tmp_path: Path) -> None:
    install("ep", "acme-ep", EXPLOSIVE)
    file = tmp_path / "mine.py"
    file.write_text("AUTOPAR_NAME: str = 'own'\n" + EXPLOSIVE)
    manager = PluginManager.load(files=[file], disable=["ep", "own"])
    assert [(r.name, r.status, r.reason) for r in manager.records] == [
        ("ep", "disabled", "by request"),
        ("own", "disabled", "by request"),
    ]
    assert manager.asked_broken == ()


def test_given_plugins_can_be_disabled() -> None:
    manager = load(extra=[plugin("builtin"), plugin("other")], disable=["builtin"])
    assert manager.active == ("other",)


def test_unknown_names_are_errors_with_a_suggestion(install: Install) -> None:
    for name in ("dp", "tp", "pp", "cp"):
        install(name, f"autopar-{name}", standard(name))
    with pytest.raises(PluginError) as caught:
        PluginManager.load(disable=["ttp"])
    assert str(caught.value) == (
        "cannot disable 'ttp': no such plugin; installed: cp, dp, pp, tp. Did you mean 'tp'?"
    )
    with pytest.raises(PluginError) as caught:
        PluginManager.load(only=["tpp"])
    assert str(caught.value) == (
        "cannot keep only 'tpp': no such plugin or dimension; installed: cp, dp, pp, tp. "
        "Did you mean 'tp'?"
    )


def test_unknown_names_without_any_plugin() -> None:
    with pytest.raises(PluginError) as caught:
        load(disable=["x"])
    assert str(caught.value) == "cannot disable 'x': no such plugin; installed: none"


def test_only_leaves_standard_dimensions_unimported(install: Install) -> None:
    install("tp", "autopar-tp", standard("tp"))
    install("cp", "autopar-cp", EXPLOSIVE)
    manager = PluginManager.load(files=files("complete", "composer_a"), only=["tp"])
    assert manager.active == ("composer-a", "tp")
    assert [(r.name, r.status, r.reason) for r in manager.records] == [
        ("complete", "disabled", "by --only tp"),
        ("composer-a", "active", ""),
        ("cp", "disabled", "by --only tp"),
        ("tp", "active", ""),
    ]
    assert list(manager.dimensions) == ["tp"]


def test_only_takes_names_of_dimensions_and_of_plugins() -> None:
    assert load("complete", "half", "rival", only=["ep", "half"]).active == ("complete", "half")
    assert load("complete", "composer_a", only=["composer-a"]).active == ("composer-a",)


def test_only_leaves_broken_plugins_broken() -> None:
    manager = load("broken_import", "complete", "half", only=["half"])
    assert [r.status for r in manager.records] == ["broken", "disabled", "active"]


# --- conflicts ---------------------------------------------------------------------------------


def test_two_plugins_of_one_dimension(install: Install) -> None:
    install("tp", "autopar-tp", standard("tp"))
    manager = PluginManager.load(files=files("rival", "complete"))
    sentence = (
        "dimension 'tp' is claimed by 'rival' (rival.py) and 'tp' (autopar-tp 0.1.0); "
        "run with --disable rival or --disable tp"
    )
    assert manager.conflicts == (sentence,)
    assert [(r.name, r.status, r.reason) for r in manager.records] == [
        ("complete", "active", ""),
        ("rival", "conflict", sentence),
        ("tp", "conflict", sentence),
    ]
    assert manager.plugin_of("tp") is None
    assert not manager.implements("tp", "autopar_shard")
    assert PluginManager.load(files=files("rival"), disable=["tp"]).plugin_of("tp") == "rival"
    assert PluginManager.load(files=files("rival"), disable=["rival"]).plugin_of("tp") == "tp"
    assert PluginManager.load(files=files("rival"), only=["rival"]).active == ("rival",)


@pytest.mark.parametrize(
    ("extra", "sentence"),
    [
        (
            [plugin("a", knob("depth")), plugin("b", knob("depth"))],
            "field 'depth' is claimed by 'a' (in process) and 'b' (in process); "
            "run with --disable a or --disable b",
        ),
        (
            [plugin("a", knob("depth", "d")), plugin("b", knob("dust", "d"))],
            "short form 'd' is claimed by 'a' (in process) and 'b' (in process); "
            "run with --disable a or --disable b",
        ),
        (
            [plugin("a", knob("ep")), plugin("b", dimension="ep")],
            "field 'ep' is claimed by 'a' (in process) and 'b' (in process); "
            "run with --disable a or --disable b",
        ),
        (
            [plugin("a", knob("micro_batch_num"))],
            "field 'micro_batch_num' is claimed by 'a' (in process) and the core; "
            "run with --disable a",
        ),
        (
            [plugin("a", knob("depth", "sp"))],
            "short form 'sp' is claimed by 'a' (in process) "
            "and the standard field 'sequence_parallel'; run with --disable a",
        ),
        (
            [plugin("a", autopar_schedule=lambda: 1), plugin("b", autopar_schedule=lambda: 2)],
            "hook autopar_schedule is claimed by 'a' (in process) and 'b' (in process); "
            "run with --disable a or --disable b",
        ),
        (
            [plugin(name, dimension="ep", degree=f"{name}_n", short=name) for name in "abc"],
            "dimension 'ep' is claimed by 'a' (in process), 'b' (in process) and 'c' (in process); "
            "run with all but one of --disable a, --disable b and --disable c",
        ),
    ],
)
def test_conflicts(extra: list[tuple[str, object]], sentence: str) -> None:
    for order in permutations(extra):
        manager = load(extra=order)
        assert manager.conflicts == (sentence,)
        assert {record.status for record in manager.records} == {"conflict"}
        assert manager.active == ()


def test_two_composers() -> None:
    assert load("composer_a", "composer_b").conflicts == (
        "hook autopar_schedule is claimed by 'composer-a' (composer_a.py) "
        "and 'composer-b' (composer_b.py); run with --disable composer-a or --disable composer-b",
    )


def test_one_name_twice_is_a_conflict_without_import(install: Install, tmp_path: Path) -> None:
    install("mine", "acme-mine", EXPLOSIVE)
    file = tmp_path / "mine.py"
    file.write_text(EXPLOSIVE)
    manager = PluginManager.load(files=[file])
    assert manager.conflicts == (
        "plugin name 'mine' is claimed by 'mine' (acme-mine 0.1.0) and 'mine' (mine.py); "
        "remove one of them, or set AUTOPAR_NAME in a --plugin file",
    )
    assert [record.status for record in manager.records] == ["conflict", "conflict"]


def test_one_object_under_two_names_is_a_conflict() -> None:
    @frozen
    class Equal:
        @hookimpl
        def autopar_plugin_info(self) -> PluginInfo:
            return PluginInfo(api=(1, 0), summary="")

    manager = load(extra=[("b", Equal()), ("a", Equal())])
    assert manager.conflicts == (
        "module of 'a' is claimed by 'a' (in process) and 'b' (in process); "
        "run with --disable a or --disable b",
    )


def test_a_standard_field_may_have_another_owner() -> None:
    manager = load(extra=[plugin("a", knob("sequence_parallel", "sp"))])
    assert manager.conflicts == ()


# --- absence -----------------------------------------------------------------------------------


def test_absence_of_a_plugin_that_nobody_installed() -> None:
    manager = load()
    assert manager.absence("tp", "autopar_memory") == (
        "NotImplemented: no active plugin implements autopar_memory for dimension 'tp' "
        "(no plugin of that dimension is installed; try: pip install autopar-tp)"
    )
    assert manager.absence("ep", "autopar_memory") == (
        "NotImplemented: no active plugin implements autopar_memory for dimension 'ep' "
        "(no plugin of that dimension is installed)"
    )


def test_absence_by_request(install: Install) -> None:
    install("tp", "autopar-tp", standard("tp"))
    assert PluginManager.load(disable=["tp"]).absence("tp", "autopar_memory") == (
        "NotImplemented: no active plugin implements autopar_memory for dimension 'tp' "
        "(plugin 'tp' is disabled by request)"
    )
    assert load("complete", "half", only=["half"]).absence("ep", "autopar_shard") == (
        "NotImplemented: no active plugin implements autopar_shard for dimension 'ep' "
        "(plugin 'complete' is disabled by --only half)"
    )


def test_absence_of_a_broken_plugin(install: Install) -> None:
    install("cp", "autopar-cp", "import nosuchmodule\n")
    assert PluginManager.load().absence("cp", "autopar_memory") == (
        "NotImplemented: plugin 'cp' (autopar-cp 0.1.0) is broken: "
        "ModuleNotFoundError: No module named 'nosuchmodule'"
    )


def test_absence_of_an_incompatible_plugin_and_of_rivals() -> None:
    assert load("incompatible").absence("fp", "autopar_memory") == (
        "NotImplemented: plugin 'incompatible' (incompatible.py) is incompatible: "
        "written for plugin API 2.0; this core offers 1.0"
    )
    manager = load("rival", extra=[plugin("tp", dimension="tp")])
    assert manager.absence("tp", "autopar_memory") == (
        f"NotImplemented: plugin 'rival' (rival.py) is in conflict: {manager.conflicts[0]}"
    )


def test_absence_of_a_hook(install: Install) -> None:
    half = (FAKES / "half.py").read_text(encoding="utf-8").replace('"hp', '"cp')
    install("cp", "autopar-cp", half)
    manager = PluginManager.load(extra=[plugin("e", dimension="ep", autopar_shard=lambda: None)])
    assert manager.absence("cp", "autopar_memory") == (
        "NotImplemented: plugin 'cp' (autopar-cp 0.1.0) does not implement autopar_memory"
    )
    assert manager.absence("ep", "autopar_shard") == (
        "NotImplemented: plugin 'e' (in process) declines autopar_shard"
    )
