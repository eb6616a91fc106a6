"""The command line with a stub for the search."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from attrs import evolve

import autopar_core.search
from autopar_core.api import SearchResult
from autopar_core.cli.main import main
from autopar_core.domain.job import Job


ROOT = Path(__file__).resolve().parents[2]
INPUT = """
[model]
source = "llama-3-70b"
[training]
global_batch_size = 1024
seq_len = 8192
[cluster]
system = "h100-sxm-80gb"
devices = 256
memory_limit = "72 GiB"
[search]
tp = [1, 2, 4, 8]
"""


def _factory() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "result_factory", Path(__file__).with_name("result_factory.py")
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


make_result = _factory().make_result


class Search:
    """Stands in for ``autopar_core.search.run``; remembers what it was asked."""

    def __init__(self) -> None:
        self.jobs: list[Job] = []
        self.fields: Mapping[str, Any] = {}
        self.feasible = True
        self.chatter = ""
        self.error: Exception | None = None

    def search(self, job: Job, manager: Any, **options: Any) -> SearchResult:
        self.jobs.append(job)
        if self.error:
            raise self.error
        options["progress"](1, 2)
        if self.chatter:
            sys.stdout.write(self.chatter)
        result: SearchResult = make_result(60, feasible=self.feasible)
        return evolve(result, job=job)

    def estimate(self, job: Job, manager: Any, fields: Mapping[str, Any]) -> SearchResult:
        self.jobs.append(job)
        self.fields = fields
        result: SearchResult = make_result(60, feasible=self.feasible, top=1)
        shown = result.top or result.misses
        spelled = {**shown[0].strategy.fields, **fields}
        detail = evolve(shown[0], strategy=evolve(shown[0].strategy, fields=spelled))
        top, misses = ((detail,), ()) if self.feasible else ((), (detail,))
        return evolve(result, job=job, top=top, misses=misses)


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> Search:
    search = Search()
    name = "autopar_core.search.run"
    module: Any = SimpleNamespace(search=search.search, estimate=search.estimate)
    monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(autopar_core.search, "run", module, raising=False)
    return search


@pytest.fixture
def run_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "run.toml"
    path.write_text(INPUT)
    return path


def fails(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one sentence of a command that must be refused."""
    capsys.readouterr()
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert "Traceback" not in err
    assert err.count("\n") == 1
    return err.removeprefix("error: ").rstrip("\n")
