"""Each status and each message, word for word; nothing depends on the load order."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from importlib import metadata
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from attrs import define, frozen

import autopar_core
from autopar_core.api import Dimension, Field, Level, PluginInfo, hookimpl
from autopar_core.errors import InputError, PluginCallError, PluginError
from autopar_core.plugins import MISSING, PluginManager, PluginRecord


FAKES = Path(__file__).resolve().parents[1] / "fakes"
Install = Callable[..., None]


def files(*names: str) -> list[Path]:
    return [FAKES / f"{name}.py" for name in names]


def load(*names: str, **options: Any) -> PluginManager:
    return PluginManager.load(files=files(*names), **{"entry_points": False, **options})


def only_record(manager: PluginManager) -> PluginRecord:
    (record,) = manager.records
    return record


def plugin(
    name: str, *fields: Field, dimension: str = "", degree: str = "", short: str = "", **hooks: Any
) -> tuple[str, object]:
    """An in-process plugin; hooks are functions."""
    split = Dimension(
        name=dimension,
        degree=Field(
            name=degree or f"{dimension}_degree",
            short=short or dimension,
            level=Level.DEGREE,
            neutral=1,
        ),
    )
    info = PluginInfo(
        api=(1, 0), summary=f"{name}.", dimension=split if dimension else None, fields=fields
    )

    def introduce() -> PluginInfo:
        return info

    made = {"autopar_plugin_info": introduce, **hooks}
    namespace = type(name, (), {key: staticmethod(hookimpl(value)) for key, value in made.items()})
    return name, namespace()


def knob(name: str, short: str = "", **changes: Any) -> Field:
    return Field(
        **{"level": Level.SHARDING, "neutral": 0, **changes}, name=name, short=short or name
    )


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Installs distributions into a folder that stands for the environment.

    Metadata are read twice, as they are where a checkout also has its egg-info.
    """
    loaded = set(sys.modules)
    monkeypatch.syspath_prepend(tmp_path)

    def entry_points(group: str) -> list[metadata.EntryPoint]:
        found = [
            point
            for distribution in metadata.distributions(path=[str(tmp_path)])
            for point in distribution.entry_points
        ]
        return [point for point in [*found, *found] if point.group == group]

    monkeypatch.setattr(metadata, "entry_points", entry_points)

    def add(name: str, distribution: str, source: str, version: str = "0.1.0") -> None:
        module = distribution.replace("-", "_")
        folder = tmp_path / f"{module}-{version}.dist-info"
        folder.mkdir(exist_ok=True)
        (folder / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n"
        )
        (folder / "entry_points.txt").write_text(f"[autopar]\n{name} = fake_{module}\n")
        (tmp_path / f"fake_{module}.py").write_text(source)

    yield add
    for name in set(sys.modules) - loaded:
        if name.startswith("fake_"):
            del sys.modules[name]


EXPLOSIVE = "raise AssertionError('this plugin must not be imported')\n"


def standard(name: str) -> str:
    """Source of a plugin for one of the dimensions."""
    source = (FAKES / "rival.py").read_text(encoding="utf-8")
    return source.replace('"tp', f'"{name}')


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
