"""Charts, report and terminal text: made for any result, the same every time."""

from __future__ import annotations

import importlib.util
import io
import re
import sys
from collections.abc import Mapping
from html.parser import HTMLParser
from math import nan
from pathlib import Path
from types import ModuleType
from typing import Any

import attrs
import pytest
from rich.console import Console

from autopar_core.api import SearchResult
from autopar_core.builtin import autopar_renderers, charts, words
from autopar_core.builtin.answer import Answer
from autopar_core.builtin.outputs import render_all
from autopar_core.builtin.series import chart_data
from autopar_core.builtin.text import print_answer


NAMES = ("step_time", "memory", "stages", "distribution", "reasons", "trends")
VOID = {"meta", "br", "wbr", "img", "link", "hr", "input"}


@pytest.fixture(scope="module")
def factory() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "result_factory", Path(__file__).with_name("result_factory.py")
    )
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules.setdefault(spec.name, importlib.util.module_from_spec(spec))
    if not hasattr(module, "make_result"):
        spec.loader.exec_module(module)
    return module


CASES: Mapping[str, Mapping[str, Any]] = {
    "feasible": {},
    "nothing-feasible": {"feasible": False},
    "nothing-judged": {"feasible": False, "judged": False},
    "third-party": {"extra": ("expert", "long_dimension"), "many_parts": True, "top": 15},
}


@pytest.fixture(params=CASES, scope="module")
def result(request: pytest.FixtureRequest, factory: ModuleType) -> SearchResult:
    made: SearchResult = factory.make_result(**CASES[request.param])
    return made


@pytest.fixture(scope="module")
def files(result: SearchResult) -> dict[str, bytes]:
    return render_all(result, autopar_renderers())


def test_every_file_is_there(files: dict[str, bytes]) -> None:
    drawn = [f"charts/{name}.{kind}" for name in NAMES for kind in ("png", "svg")]
    others = ["candidates.csv", "rejected.csv", "report.html", "result.json", "search.log"]
    assert list(files) == sorted([*drawn, *others])
    for name in NAMES:
        assert files[f"charts/{name}.png"].startswith(b"\x89PNG")
        assert b"<svg" in files[f"charts/{name}.svg"]


def test_no_time_of_day_and_no_path(files: dict[str, bytes]) -> None:
    for name, content in files.items():
        if not name.endswith(".png"):
            text = content.decode()
            assert not re.search(r"\b20\d\d-\d\d-\d\d\b|\d\d:\d\d:\d\d", text), name
            assert str(Path.home()) + "/" not in text, name
            assert " object at 0x" not in text, name


@pytest.mark.slow
def test_drawing_again_gives_the_same_bytes(factory: ModuleType) -> None:
    first = render_all(factory.make_result(80), autopar_renderers())
    assert render_all(factory.make_result(80), autopar_renderers()) == first


def test_an_empty_answer_says_so(factory: ModuleType) -> None:
    result = factory.make_result(feasible=False)
    assert all(chart.title.startswith("No feasible strategy") for chart in chart_data(result))
    assert chart_data(result)[1].series["labels"]


@pytest.mark.slow
def test_a_miss_without_an_estimate_is_shown(factory: ModuleType) -> None:
    result = factory.make_result(60, feasible=False)
    miss = result.misses[0]
    unknown = attrs.evolve(
        miss,
        performance=attrs.evolve(
            miss.performance, seconds=nan, low_seconds=nan, high_seconds=nan, mfu=nan,
            tokens_per_second_per_device=nan, parts=(),
        ),
        memory=attrs.evolve(miss.memory, stages=(), reserves=()),
        stages=(),
    )  # fmt: skip
    for misses in ((unknown,), (miss, unknown)):
        changed = attrs.evolve(result, misses=misses)
        files = render_all(changed, autopar_renderers())
        assert b"NaN" not in files["result.json"]
        assert "nan" not in printed(changed, 120)


def test_charts_do_not_touch_the_settings(factory: ModuleType) -> None:
    import matplotlib as mpl

    loaded = "matplotlib.pyplot" in sys.modules
    names = [name for name in mpl.rcParams if name != "backend"]  # reading it loads pyplot
    before = [mpl.rcParams[name] for name in names]
    charts.draw(chart_data(factory.make_result(40))[4])
    assert [mpl.rcParams[name] for name in names] == before
    assert ("matplotlib.pyplot" in sys.modules) == loaded


class Page(HTMLParser):
    """Checks that tags nest, and collects identifiers and links."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)
        for name, value in attrs:
            if name == "id" and value:
                self.ids.append(value)
            if name in ("href", "xlink:href", "src") and value:
                self.links.append(value)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_report_stands_alone(files: dict[str, bytes]) -> None:
    page = Page()
    page.feed(files["report.html"].decode())
    page.close()
    assert page.open == []
    assert len(page.ids) == len(set(page.ids))
    inside = [link for link in page.links if not link.startswith("data:")]
    assert all(link.startswith("#") for link in inside)
    assert {link[1:] for link in inside} <= set(page.ids)
    assert "<script" not in files["report.html"].decode()


@pytest.mark.slow
def test_report_escapes_what_people_write(factory: ModuleType) -> None:
    result = factory.make_result(60)
    job = attrs.evolve(result.job, notes=("<script>alert(1)</script>",))
    page = render_all(attrs.evolve(result, job=job), autopar_renderers())["report.html"].decode()
    assert "<script>" not in page
    assert "&lt;script&gt;" in page


def printed(result: SearchResult, width: int) -> str:
    console = Console(file=io.StringIO(), width=width)
    print_answer(console, Answer.of(result))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize("width", [80, 120, 200])
def test_terminal_shows_the_answer_at_any_width(factory: ModuleType, width: int) -> None:
    text = printed(factory.make_result(), width)
    for word in ("Best strategies", "step time", "memory", "verdict", "~2", "Why candidates fell"):
        assert word in text
    assert all(len(line) <= width for line in text.splitlines())


def test_terminal_shows_a_diagnosis(result: SearchResult) -> None:
    text = printed(result, 160)
    assert ("Diagnosis" in text) == (not result.top)
    if result.misses:
        assert "over by" in text
        assert "Nearest miss" in text


def test_terminal_shows_brackets_as_they_are(factory: ModuleType) -> None:
    result = factory.make_result(60)
    job = attrs.evolve(result.job, notes=("see [bold]plugins.x[/bold]",))
    assert "[bold]plugins.x[/bold]" in printed(attrs.evolve(result, job=job), 120)


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0 candidates"), (1, "1 candidate"), (1234, "1,234 candidates")]
)
def test_one_candidate_is_no_plural(number: int, text: str) -> None:
    assert words.candidates(number) == text


def test_seconds_below_a_nanosecond_are_rounding() -> None:
    assert [words.seconds(x) for x in (3e-18, 2e-9, 0.0456)] == ["0 s", "0.00200 us", "45.6 ms"]
    assert [words.hidden(x) for x in (3e-18, 0.0456)] == ["", "45.6 ms"]
