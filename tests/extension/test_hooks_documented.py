"""The documents for plugin authors name every hook, every name of the API, and run."""

from __future__ import annotations

import contextlib
import inspect
import io
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from attrs import evolve

import autopar_core.api
from autopar_core.api import EvalContext, PluginInfo, hookimpl
from autopar_core.cli.main import main
from autopar_core.domain.terms import (
    INSTANTS,
    PHASES,
    PLACES,
    POSITIONS,
    RESOURCES,
    SCALES,
    SEGMENTS,
    WHENS,
    Extent,
    Rounding,
)
from autopar_core.hooks.specs import AutoparSpec
from autopar_core.plugins import PluginManager
from autopar_core.testing import DimensionConformance
from autopar_core.testing.dimension import PHASE_WINDOWS, STEP_WINDOWS
from autopar_core.work.rank_work import ELEMENTS


DOCS = Path(__file__).resolve().parents[2] / "docs"
LANGUAGES = {"en": DOCS / "plugins", "zh": DOCS / "zh" / "plugins"}
HOOKS = {name: hook for name, hook in vars(AutoparSpec).items() if name.startswith("autopar_")}


def text(language: str, page: str) -> str:
    return (LANGUAGES[language] / page).read_text(encoding="utf-8")


def both(language: str) -> str:
    return text(language, "writing.md") + text(language, "hooks.md")


def blocks(page: str, *kinds: str) -> list[tuple[str, str]]:
    """(kind, content) of the fenced blocks of some kinds, in order."""
    found = re.findall(r"^```(\w*)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    return [(kind, content) for kind, content in found if kind in kinds]


@pytest.fixture(params=sorted(LANGUAGES))
def language(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.mark.parametrize("name", sorted(HOOKS))
def test_every_hook_has_a_section_with_its_arguments(language: str, name: str) -> None:
    arguments = list(inspect.signature(HOOKS[name]).parameters)[1:]
    page = text(language, "hooks.md")
    heading = f"### `{name}({', '.join(arguments)})`\n"
    assert page.count(heading) == 1
    section = page.split(heading)[1].split("\n##")[0]
    assert f"def {name}(" in section, "an example"


def test_no_other_hook_is_documented(language: str) -> None:
    assert set(re.findall(r"^### `(autopar_\w+)", text(language, "hooks.md"), re.M)) == set(HOOKS)
    named = set(re.findall(r"\bautopar_[a-z_]+", both(language)))
    assert named - set(HOOKS) == {"autopar_core", "autopar_thin"}


def test_every_name_of_the_api_is_there_and_documented(language: str) -> None:
    page = both(language)
    quoted = set(re.findall(r"\b\w+\b", " ".join(re.findall(r"`([^`\n]+)`", page))))
    for name in autopar_core.api.__all__:
        assert hasattr(autopar_core.api, name)
        assert name in quoted, f"{name} is not documented"
    assert len(set(autopar_core.api.__all__)) == len(autopar_core.api.__all__)


def test_every_word_of_the_contract_is_documented(language: str) -> None:
    page = text(language, "hooks.md")
    quoted = {word for part in re.findall(r"`([^`\n]+)`", page) for word in part.split()}
    words = {*SCALES, *PLACES, *POSITIONS, *WHENS, *RESOURCES, *SEGMENTS, *PHASES, *ELEMENTS}
    words |= {*PHASE_WINDOWS, *STEP_WINDOWS}
    words |= {member.name for kind in (Extent, Rounding) for member in kind}
    words |= {instant.upper() for instant in INSTANTS}
    assert words - quoted == set()


def test_the_kit_is_documented(language: str) -> None:
    checks = [n for n, _ in inspect.getmembers(DimensionConformance) if n.startswith("test_")]
    listed = re.findall(r"^\| `(test_\w+)` \|", text(language, "writing.md"), re.M)
    assert sorted(listed) == sorted(checks)


@pytest.mark.parametrize("page", ["writing.md", "hooks.md"])
def test_languages_have_the_same_blocks_and_headings(page: str) -> None:
    kinds = ("", "python", "sh", "text", "toml")
    one, two = (blocks(text(language, page), *kinds) for language in sorted(LANGUAGES))
    assert one == two
    levels = [
        re.findall(
            r"^(#+) ", re.sub(r"^```.*?^```$", "", text(each, page), flags=re.M | re.S), re.M
        )
        for each in sorted(LANGUAGES)
    ]
    assert levels[0] == levels[1]


def test_links_lead_somewhere(language: str) -> None:
    for page in ("writing.md", "hooks.md"):
        for target in re.findall(r"\]\(([^)#]*)(?:#[^)]*)?\)", text(language, page)):
            assert (LANGUAGES[language] / (target or page)).is_file(), target


@pytest.mark.parametrize("number", range(len(HOOKS) + 1))
def test_examples_of_hooks_load(number: int) -> None:
    """Each example is an active plugin, with nothing around it but imports and an introduction."""
    _, content = blocks(text("en", "hooks.md"), "python")[number]
    module = ModuleType("example_of_a_hook")
    outside = {"Any": Any, "Mapping": Mapping, "Sequence": Sequence, "evolve": evolve}
    outside |= {"Context": EvalContext[Any, Any], "MyComposer": object, "read": dict}
    info = hookimpl(lambda: PluginInfo(api=(1, 0), summary="Example."))
    api = {name: getattr(autopar_core.api, name) for name in autopar_core.api.__all__}
    vars(module).update({**api, **outside, "autopar_plugin_info": info})
    exec(content, vars(module))
    manager = PluginManager.load(extra=[("shown", module)], entry_points=False)
    record = next(record for record in manager.records if record.name == "shown")
    assert (record.status, record.reason) == ("active", "")
    hook = re.findall(r"^def (autopar_\w+)", content, re.MULTILINE)[0]
    assert hook in (*record.hooks, *record.wraps)


def test_the_tutorial_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Step by step: files are written, commands run, and say what the page says they say."""
    monkeypatch.chdir(tmp_path)
    source = printed = ""
    ran = 0
    for kind, content in blocks(text("en", "writing.md"), "toml", "python", "sh", "text"):
        if kind == "toml":
            Path("job.toml").write_text(content)
        elif kind == "python" and "autopar_core.testing" not in content:
            source += content + "\n\n"
            Path("thin.py").write_text(source)
        elif kind == "python":
            check_tests(content)
        elif kind == "sh":
            program, *arguments = shlex.split(content)
            assert program == "autopar"
            printed = run(arguments)
            ran += 1
        else:
            flat = " ".join(printed.split())
            for line in content.splitlines():
                assert line in flat, f"{line!r} is not in the output"
    assert ran == 5


def run(arguments: list[str]) -> str:
    """Output of a command that must succeed."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert main(arguments) == 0
    return out.getvalue()


def check_tests(content: str) -> None:
    """The tests of the tutorial pass."""
    scope: dict[str, object] = {"__name__": "test_thin"}
    exec(compile(content, "test_thin.py", "exec"), scope)
    for name, thing in list(scope.items()):
        if name.startswith("test_") and callable(thing):
            thing()
        elif name.startswith("Test") and isinstance(thing, type):
            for check in dir(thing):
                if check.startswith("test_"):
                    getattr(thing(), check)()
