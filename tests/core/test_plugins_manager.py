"""Each status and each message, word for word; where plugins come from; their order."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path
from typing import Any

import plugin_fakes
import pytest
from attrs import define
from plugin_fakes import Install, knob, load, only_record, plugin, standard

import autopar_core
from autopar_core.api import Dimension, Level, PluginInfo, hookimpl
from autopar_core.errors import InputError
from autopar_core.plugins import PluginManager


install = plugin_fakes.install


# --- status ------------------------------------------------------------------------------------


def test_active() -> None:
    manager = load("complete")
    assert manager.active == ("complete",)
    view = only_record(manager).view()
    assert (view.name, view.status, view.reason) == ("complete", "active", "")
    assert (view.distribution, view.version) == ("complete.py", "")
    assert (view.summary, view.dimension) == ("Splits experts.", "ep")
    assert view.hooks == (
        "autopar_plugin_info", "autopar_shard", "autopar_memory", "autopar_performance",
    )  # fmt: skip
    assert view.missing == ()
    assert manager.asked_broken == manager.conflicts == ()
    assert manager.info("complete").summary == "Splits experts."
    assert manager.dimensions["ep"].degree.owner == manager.plugin_of("ep") == "complete"


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("broken_import", "ModuleNotFoundError: No module named 'nosuchmodule'"),
        ("broken_exit", "SystemExit: 3"),
        ("broken_no_info", "it has no hook autopar_plugin_info"),
        ("broken_wrong_info", "autopar_plugin_info must return a PluginInfo, not dict"),
        ("broken_unknown_hook", "unknown hook 'autopar_memry'; did you mean 'autopar_memory'?"),
        (
            "broken_argument",
            "Plugin 'broken_argument' for hook 'autopar_memory'; "
            "hookimpl definition: autopar_memory(batch, nope, also); "
            "Argument(s) {'also', 'nope'} are declared in the hookimpl "
            "but can not be found in the hookspec",
        ),
        ("broken_unmarked", "autopar_memory is not marked with @hookimpl"),
    ],
)
def test_broken(name: str, reason: str) -> None:
    manager = load(name, "complete")
    record = manager.records[0]
    assert (record.name, record.status, record.reason) == (name, "broken", reason)
    assert manager.active == ("complete",)
    assert manager.asked_broken == (name,)


def test_incompatible_is_told_before_its_unknown_hooks() -> None:
    manager = load("incompatible")
    record = only_record(manager)
    assert record.status == "incompatible"
    assert record.reason == "written for plugin API 2.0; this core offers 1.0"
    assert manager.asked_broken == ("incompatible",)


@pytest.mark.parametrize(
    ("api", "status"),
    [((1, 0), "active"), ((1, 1), "incompatible"), ((0, 9), "incompatible"), ("1.0", "broken")],
)
def test_versions(api: Any, status: str) -> None:
    class Versioned:
        @hookimpl
        def autopar_plugin_info(self) -> PluginInfo:
            return PluginInfo(api=api, summary="")

    assert only_record(load(extra=[("v", Versioned())])).status == status


@define
class NeedsValue:
    size: int


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"config": NeedsValue}, "config class NeedsValue: 'size' has no default"),
        ({"profile": dict}, "PluginInfo.profile must be an attrs class"),
        ({"fields": [knob("x")]}, "PluginInfo.fields must be a tuple of Field"),
        ({"fields": ("x",)}, "a field must be a Field, not str"),
        ({"fields": (knob("x", level="SHARDING"),)}, "field 'x': level must be a Level"),
        (
            {"fields": (knob("x", neutral="a", choices=("b", "c")),)},
            "field 'x': neutral value 'a' is none of b, c",
        ),
        ({"fields": (knob("x"), knob("y", "x"))}, "fields 'x' and 'y' share the name 'x'"),
        ({"dimension": "tp"}, "PluginInfo.dimension must be a Dimension or None"),
        (
            {"dimension": Dimension(name="ep", degree=knob("ep_degree", "ep"))},
            "degree field 'ep_degree' must have level DEGREE and neutral value 1",
        ),
        (
            {
                "dimension": Dimension(
                    name="tp", degree=knob("tp_size", "tp", level=Level.DEGREE, neutral=1)
                )
            },
            "the degree field of dimension 'tp' must be named 'tp_degree', not 'tp_size'",
        ),
    ],
)
def test_faults_in_the_introduction(changes: dict[str, Any], reason: str) -> None:
    class Faulty:
        @hookimpl
        def autopar_plugin_info(self) -> PluginInfo:
            return PluginInfo(**{"api": (1, 0), "summary": "", **changes})

    record = only_record(load(extra=[("faulty", Faulty())]))
    assert (record.status, record.reason) == ("broken", reason)


def test_a_file_with_a_syntax_error_is_broken_and_told_without_folders(tmp_path: Path) -> None:
    (tmp_path / "typo.py").write_text("def f(:\n")
    record = only_record(PluginManager.load(files=[tmp_path / "typo.py"], entry_points=False))
    assert record.reason == "SyntaxError: invalid syntax (typo.py, line 1)"


def test_reasons_hold_no_folders(tmp_path: Path) -> None:
    (tmp_path / "opens.py").write_text("open('/no/such/folder/table.csv')\n")
    record = only_record(PluginManager.load(files=[tmp_path / "opens.py"], entry_points=False))
    assert record.reason == "FileNotFoundError: [Errno 2] No such file or directory: 'table.csv'"


def test_an_object_that_is_not_hashable_is_broken() -> None:
    @define
    class Unhashable:
        pass

    record = only_record(load(extra=[("odd", Unhashable())]))
    assert (record.status, record.reason) == ("broken", "TypeError: unhashable type: 'Unhashable'")


def test_half_a_plugin_lists_what_it_lacks() -> None:
    record = only_record(load("half"))
    assert record.status == "active"
    assert record.missing == ("autopar_memory", "autopar_performance")


def test_a_plugin_without_dimension_lacks_nothing() -> None:
    assert only_record(load("composer_a")).missing == ()


def test_printing_at_import_leaves_standard_output_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "loud.py").write_text("print('hello')\n")
    PluginManager.load(files=[tmp_path / "loud.py"], entry_points=False)
    assert capsys.readouterr() == ("", "hello\n")


# --- where plugins come from -------------------------------------------------------------------


def test_installed_plugins_are_found_once_with_name_and_version(install: Install) -> None:
    install("tp", "autopar-tp", standard("tp"), "1.2.3")
    manager = PluginManager.load()
    record = only_record(manager)
    assert (record.name, record.status) == ("tp", "active")
    assert record.label == "'tp' (autopar-tp 1.2.3)"
    assert PluginManager.load(entry_points=False).records == ()


def test_a_module_of_the_core_is_named_after_its_distribution() -> None:
    import autopar_core.units as module

    record = only_record(load(extra=[("units", module)]))
    assert (record.distribution, record.version) == ("autopar-core", autopar_core.__version__)
    assert only_record(load(extra=[plugin("x")])).label == "'x' (in process)"


def test_a_file_may_state_its_name(tmp_path: Path) -> None:
    assert load("composer_a").active == ("composer-a",)
    late = tmp_path / "late.py"
    late.write_text("AUTOPAR_NAME = 'a'\nAUTOPAR_NAME = 'b'\n")
    record = only_record(PluginManager.load(files=[late], entry_points=False))
    assert record.name == "a"
    assert record.reason == "PluginError: AUTOPAR_NAME must be set once, to a plain string"


def test_the_same_file_twice_is_one_plugin() -> None:
    assert load("complete", "complete").active == ("complete",)


def test_a_file_may_use_dataclasses_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    file = tmp_path / "classy.py"
    file.write_text(
        "from __future__ import annotations\n"
        "from dataclasses import dataclass\n"
        "from typing import ClassVar\n"
        "from autopar_core.api import PluginInfo, hookimpl\n"
        "@dataclass\nclass C:\n    x: ClassVar[int] = 1\n"
        "@hookimpl\ndef autopar_plugin_info(): return PluginInfo(api=(1, 0), summary='')\n"
    )
    assert PluginManager.load(files=[file], entry_points=False).active == ("classy",)
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize(
    ("file", "what"), [("nowhere.py", "does not exist"), ("notes.txt", "is no Python file")]
)
def test_a_missing_file_is_wrong_input(tmp_path: Path, file: str, what: str) -> None:
    (tmp_path / "notes.txt").write_text("")
    path = tmp_path / file
    with pytest.raises(InputError) as caught:
        PluginManager.load(files=[path], entry_points=False)
    assert str(caught.value) == f"--plugin: {path} {what}; give the path of a .py file"


# --- order -------------------------------------------------------------------------------------


def test_load_order_changes_nothing() -> None:
    names = ["rival", "complete", "half", "broken_import", "wrapper", "composer_a", "incompatible"]
    extra = [plugin("tp", dimension="tp")]
    first = load(*names, extra=extra)
    for order in list(permutations(names))[::97]:
        manager = load(*order, extra=extra)
        assert manager.records == first.records
        assert manager.conflicts == first.conflicts
        assert manager.asked_broken == first.asked_broken == ("broken_import", "incompatible")
        assert list(manager.dimensions.items()) == list(first.dimensions.items())
        assert [n for n, _ in manager.collect("autopar_shard", batch=1, ctx=2)] == [
            "complete",
            "half",
        ]


def test_dimensions_are_in_output_order() -> None:
    extra = [plugin(name, dimension=name) for name in ("zp", "cp", "ap", "tp", "dp")]
    assert list(load(extra=extra).dimensions) == ["dp", "tp", "cp", "ap", "zp"]
