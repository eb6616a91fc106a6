"""An answer that was read back from its result.json is the answer that the search printed."""

from __future__ import annotations

import io
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from rich.console import Console

from autopar_core.api import SearchResult
from autopar_core.builtin.answer import Answer
from autopar_core.builtin.answer_json import read_answer
from autopar_core.builtin.definition import NOT_DEFINING
from autopar_core.builtin.result_json import document
from autopar_core.builtin.tables import scalar_fields
from autopar_core.builtin.text import print_answer
from autopar_core.cli.main import main
from autopar_core.errors import InputError
from autopar_core.search.today import with_today
from autopar_core.testing import run_search
from autopar_core.testing.bench import load


CASES: dict[str, dict[str, Any]] = {
    "fits": {"search": {"pp": [1, 2], "top_k": 4}},
    "chunks": {"search": {"pp": 4, "schedule": "interleaved", "top_k": 3}},
    "nothing fits": {"cluster": {"memory_limit": "1 GiB"}},
    "no profile": {"framework": {"name": "somebodys"}, "search": {"pp": 1}},
    "no product": {"cluster": {"devices": 7}, "search": {"tp": 2}},
    "one plugin": {"only": ("dp",)},
    "today": {"today": {"dp": 4, "tp": 2}, "search": {"pp": 1}},
    "today cannot run": {"today": {"dp": 4, "tp": 2, "cp": 3}, "search": {"pp": 1}},
}  # fmt: skip
SMALL = {"tp": [1, 2], "cp": 1, "micro_batch_size": 1}
EMPTY = ("nothing fits", "no product")


@cache
def searched(case: str) -> SearchResult:
    changes = dict(CASES[case])
    only = changes.pop("only", ())
    search = {**SMALL, **changes.pop("search", {})}
    result = run_search({**changes, "search": search}, only=only)
    return result if result.job.today is None else with_today(result, result.job, load())


def printed(answer: Answer, width: int) -> str:
    file = io.StringIO()
    print_answer(Console(file=file, width=width), answer, every_term=True)
    return file.getvalue()


def stored(result: SearchResult) -> Any:
    return json.loads(json.dumps(document(result)))


@pytest.mark.parametrize("case", CASES)
def test_read_back_it_prints_the_same(case: str) -> None:
    result = searched(case)
    again = read_answer(stored(result), "report run")
    for width in (100, 200):
        assert printed(again, width) == printed(Answer.of(result), width)
    assert bool(again.top) == (case not in EMPTY)


def test_every_entry_of_a_strategy_is_a_field_or_known() -> None:
    result = searched("fits")
    entries = set(stored(result)["top_k_strategies"][0])
    assert entries - NOT_DEFINING == {
        *scalar_fields(result), "stage_partition", "layer_recompute"
    }  # fmt: skip
    assert entries >= NOT_DEFINING


def test_numbers_that_are_not_known_stay_so() -> None:
    """NaN is null in the file; a share that was never asked for is none."""
    result = searched("fits")
    best = result.top[0]
    unknown = evolve(best.performance, mfu=float("nan"), high_seconds=float("nan"))
    result = evolve(result, top=(evolve(best, performance=unknown), *result.top[1:]))
    again = read_answer(stored(result), "report run")
    assert again.top[0].performance.mfu != again.top[0].performance.mfu
    assert printed(again, 200) == printed(Answer.of(result), 200)


@pytest.mark.parametrize("key", ["infeasible_summary", "memory_breakdown", "plugins"])
def test_what_lacks_something_is_refused(key: str) -> None:
    found = stored(searched("fits"))
    if isinstance(found[key], dict):
        found[key].pop("rules")
    else:
        found[key][0] = {"place": 1}
    with pytest.raises(InputError, match=r"^report run: is no result of schema 1\.0") as caught:
        read_answer(found, "report run")
    assert "\n" not in str(caught.value)


def test_the_command_prints_what_the_search_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("in.toml").write_text(
        """
        model = {source = "llama-3-8b"}
        training = {global_batch_size = 64, seq_len = 4096}
        cluster = {system = "h100-sxm-80gb", devices = 8}
        search = {tp = 2, cp = 1, micro_batch_size = 1}
        """
    )
    for limit, code in (("60GiB", 0), ("1GiB", 1)):
        change = ("--set", f"cluster.memory_limit={limit}")
        assert main(["search", "in.toml", *change, "--no-charts", "--out", limit]) == code
        said = capsys.readouterr().out
        assert main(["report", limit]) == code
        assert capsys.readouterr().out == said
