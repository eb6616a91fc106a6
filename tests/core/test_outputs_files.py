"""result.json, the CSV files and the log say what the result says, for any result."""

from __future__ import annotations

import csv
import importlib.util
import io
import json
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import jsonschema
import numpy as np
import pytest

from autopar_core.api import InputError, Renderer, SearchResult
from autopar_core.builtin import autopar_rankers, autopar_renderers, csv_files, rankers, series
from autopar_core.builtin.groups import stack
from autopar_core.builtin.json_text import dump, plain
from autopar_core.builtin.outputs import render_all
from autopar_core.builtin.result_json import document
from autopar_core.errors import PluginError


SCHEMA = Path(__file__).resolve().parents[2] / "docs" / "result.schema.json"
TOP_LEVEL = [
    "schema_version", "inputs", "plugins", "top_k_strategies", "all_candidate_summary",
    "infeasible_summary", "memory_breakdown", "performance_breakdown", "stage_summary",
    "visualization_report", "search_log",
]  # fmt: skip


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
    "third-party": {"extra": ("expert",), "many_parts": True, "top": 12},
}


@pytest.fixture(params=CASES, scope="module")
def result(request: pytest.FixtureRequest, factory: ModuleType) -> SearchResult:
    made: SearchResult = factory.make_result(**CASES[request.param])
    return made


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    made: dict[str, Any] = json.loads(SCHEMA.read_text(encoding="utf-8"))
    return made


def light(result: SearchResult) -> dict[str, bytes]:
    """Every file but charts and report, which are slow to draw."""
    renderers = [r for r in autopar_renderers() if r.name not in ("charts", "report")]
    return render_all(result, renderers)


def rows_of(content: bytes) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(content.decode())))


def test_json_is_what_the_schema_says(result: SearchResult, schema: dict[str, Any]) -> None:
    jsonschema.Draft202012Validator.check_schema(schema)
    found = json.loads(light(result)["result.json"], parse_constant=pytest.fail)
    jsonschema.Draft202012Validator(schema).validate(found)
    assert list(found) == TOP_LEVEL


def properties(schema: Any, path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    if isinstance(schema, dict):
        for name, one in schema.get("properties", {}).items():
            yield f"{path}.{name}", one
        for key, one in schema.items():
            yield from properties(one, f"{path}.{key}")
    elif isinstance(schema, list):
        for one in schema:
            yield from properties(one, path)


def test_schema_describes_every_key(schema: dict[str, Any]) -> None:
    bare = [
        path for path, one in properties(schema) if "description" not in one and "$ref" not in one
    ]
    assert bare == []
    scalars = {"integer", "number", "boolean", "string"}
    unitless = [
        path
        for path, one in properties(schema)
        if scalars & set(np.atleast_1d(one.get("type", []))) and "x-unit" not in one
    ]
    assert unitless == []
    strategy = schema["$defs"]["strategy"]["properties"]
    assert [name for name, one in strategy.items() if "x-neutral" not in one] == []


def test_schema_refuses_an_unknown_key(factory: ModuleType, schema: dict[str, Any]) -> None:
    found = document(factory.make_result(60))
    found["all_candidate_summary"]["feasable"] = 1
    with pytest.raises(jsonschema.ValidationError, match="feasable"):
        jsonschema.Draft202012Validator(schema).validate(found)


def test_nothing_feasible_has_no_strategy_but_misses(factory: ModuleType) -> None:
    found = document(factory.make_result(feasible=False))
    assert found["top_k_strategies"] == []
    misses = found["infeasible_summary"]["nearest_misses"]
    assert len(misses) == 5
    assert all(miss["excess_memory"] > 0 for miss in misses)
    advice = " ".join(found["infeasible_summary"]["advice"])
    assert "Nearest miss" in advice
    assert "over the limit of 72.00 GiB" in advice


def test_parts_sum_to_the_headline(result: SearchResult) -> None:
    found = document(result)
    tops = zip(
        found["top_k_strategies"],
        found["memory_breakdown"],
        found["performance_breakdown"],
        strict=True,
    )
    for strategy, memory, time_ in tops:
        worst = memory["stages"][memory["worst_rank"]]["parts"]
        size = sum(part["bytes"] for part in [*worst, *memory["reserves"]])
        assert size == memory["total_bytes"] == strategy["memory_cost"]
        assert sum(memory["by_owner"].values()) == size
        whole = sum(part["seconds"] for part in time_["parts"])
        assert whole == pytest.approx(strategy["performance_cost"], rel=1e-12)


def test_counts_agree_between_files(result: SearchResult) -> None:
    files = light(result)
    found = json.loads(files["result.json"])
    summary = found["all_candidate_summary"]
    lines = rows_of(files["candidates.csv"])
    assert len(lines) == summary["generated"]
    assert sum(line["feasible"] == "true" for line in lines) == summary["feasible"]
    assert sum(line["cost_kind"] == "exact" for line in lines) == summary["exact"]
    rejected = rows_of(files["rejected.csv"])
    for rule in found["infeasible_summary"]["rules"]:
        its = [line for line in rejected if line["code"] == rule["code"]]
        assert sum(line["scope"] != "branch" for line in its) == rule["rows"]
        assert sum(line["scope"] == "branch" for line in its) == rule["branches"]
    for trend in summary["trends"].values():
        assert sum(one["candidates"] for one in trend) == summary["generated"]
    assert found["search_log"] == files["search.log"].decode().splitlines()


def test_candidates_round_trip(factory: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csv_files, "CHUNK", 128)  # several chunks
    result = factory.make_result(500, extra=("expert",))
    lines = rows_of(csv_files.candidates(result))
    assert len(lines) == 500
    for row, line in enumerate(lines):
        assert int(line["row"]) == row
        for name, field in result.fields.items():
            if not name.endswith("_plan"):
                spelled = field.decode(int(result.batch[name][row]))
                assert line[name] == (str(spelled).lower() if field.boolean else str(spelled))
        assert line["recompute_plan"] == ("auto", "full")[result.batch["recompute_plan"][row]]
        known = result.memory_bytes[row] >= 0
        assert line["memory_cost"] == (str(result.memory_bytes[row]) if known else "")
        assert (float(line["performance_cost"]) if known else None) == (
            result.seconds[row] if known else None
        )
        kind = "none" if not known else "exact" if result.exact[row] else "bound"
        assert line["cost_kind"] == kind
        assert line["verdict"] == result.verdicts.codes[result.verdicts.code[row]]


def test_rejected_holds_every_sentence(factory: ModuleType) -> None:
    result = factory.make_result(300)
    lines = rows_of(csv_files.rejected(result))
    wanted = [
        (str(row), entry.code, entry.say(k))
        for entry in result.sentences
        for k, row in enumerate(entry.rows.tolist())
    ]
    wanted += [("branch", code, text) for cut in result.cuts for code, _, text in cut.reasons]
    assert [(line["scope"], line["code"], line["sentence"]) for line in lines] == wanted
    cut = next(line for line in lines if line["scope"] == "branch")
    assert (cut["stands_for"], cut["level"], cut["tp_degree"], cut["cp_degree"]) == (
        "4800000", "DEGREE", "16", "",
    )  # fmt: skip


def test_speed_of_many_rows(factory: ModuleType) -> None:
    result = factory.make_result(200_000)
    start = time.perf_counter()
    size = len(csv_files.candidates(result))
    middle = time.perf_counter()
    size += len(csv_files.rejected(result))
    seconds = (middle - start, time.perf_counter() - middle)
    sys.stdout.write(f"candidates {seconds[0]:.2f} s, rejected {seconds[1]:.2f} s, {size} bytes\n")


def test_same_bytes_again(factory: ModuleType) -> None:
    assert light(factory.make_result()) == light(factory.make_result())


def test_json_text_is_json() -> None:
    value = {"a": [1, 2.5, None], "b": {}, "c": [{"d": "é\n"}], "e": ["x" * 200, "y"], "f": True}
    assert json.loads(dump(value)) == value
    assert plain({"a": float("nan"), "b": np.int64(3), "c": (np.inf, 1.5)}) == {
        "a": None, "b": 3, "c": [None, 1.5],
    }  # fmt: skip


def test_stack_keeps_sums_and_is_never_negative() -> None:
    bars = [[("a", 5), ("b", 3), ("shared", -4)], [(c, i + 1) for i, c in enumerate("abcdefgh")]]
    names, values = stack(bars, 3)
    assert len(names) <= 5
    assert [sum(row[i] for row in values) for i in (0, 1)] == [4, 36]
    assert min(min(row) for row in values) >= 0


def test_series_are_the_tables(result: SearchResult) -> None:
    found = document(result)
    drawn = {chart["name"]: chart["series"] for chart in found["visualization_report"]["charts"]}
    shown = found["top_k_strategies"] or [
        miss["strategy"] for miss in found["infeasible_summary"]["nearest_misses"]
    ]
    assert drawn["memory"]["total_bytes"] == [one["memory_cost"] for one in shown]
    assert drawn["step_time"]["total_seconds"] == [one["performance_cost"] for one in shown]
    for name, unit in (("memory", "bytes"), ("step_time", "seconds")):
        columns = zip(*(bar[unit] for bar in drawn[name]["bars"]), strict=True)
        totals = drawn[name][f"total_{unit}"]
        assert [sum(column) for column in columns] == pytest.approx(totals, rel=1e-9)
    rules = found["infeasible_summary"]["rules"]
    assert drawn["reasons"]["candidates"] == [rule["rows"] + rule["stands_for"] for rule in rules]
    for panel in drawn["trends"]["panels"]:
        table = found["all_candidate_summary"]["trends"][panel["field"]]
        assert panel["values"] == [one["value"] for one in table]
        assert panel["best_seconds"] == [one["best_step_time"] for one in table]
    front = found["all_candidate_summary"]["pareto_front"]
    assert drawn["distribution"]["front_seconds"] == [one["performance_cost"] for one in front]
    assert len(drawn["distribution"]["rows"]) <= series.SCATTER_ROWS


def renderer_of(name: str) -> Renderer:
    return Renderer("out", "", lambda _: {name: b""})


def test_renderers_may_not_clash(factory: ModuleType) -> None:
    result = factory.make_result(60)
    one = Renderer("one", "", lambda _: {"a.txt": b"1"})
    with pytest.raises(PluginError, match=r"'one' and 'two' both write a\.txt"):
        render_all(result, [one, Renderer("two", "", lambda _: {"a.txt": b"2"})])
    for name in ("/a", "../a", "a\\b", "", "a//b"):
        with pytest.raises(PluginError, match="relative"):
            render_all(result, [renderer_of(name)])


class Asked:
    """As much of a context as a ranker looks at."""

    def __init__(self, job: Any, weights: Mapping[str, float]) -> None:
        self.model, self.training, self.cluster = job.model, job.training, job.cluster
        self.system = job.system
        self.space = type("Space", (), {"weights": weights})


def test_rankers_judge_each_row_alone(factory: ModuleType) -> None:
    ctx = Asked(factory.job_of(), {})
    seconds, memory = np.array([9.0, 10.0, 12.0]), np.array([70, 60, 10]) * 2**30
    for ranker in autopar_rankers():
        assert ranker.monotone
        key = ranker.key(seconds, memory, ctx)
        for i in range(3):
            assert ranker.key(seconds[i : i + 1], memory[i : i + 1], ctx)[0] == key[i]
            assert ranker.key(seconds + 1, memory, ctx)[i] >= key[i]
            assert ranker.key(seconds, memory + 1, ctx)[i] >= key[i]


def test_weights(factory: ModuleType) -> None:
    job = factory.job_of()
    # 6 FLOP x (80 layers x matrices + head + attention) x tokens / (256 x 989e12)
    assert rankers.ideal_seconds(Asked(job, {})) == pytest.approx(14.9, rel=0.01)  # type: ignore[arg-type]
    assert rankers.weights_of({}) == {"step_time": 0.7, "memory": 0.3}
    assert rankers.weights_of({"memory": 2}) == {"step_time": 0.0, "memory": 2.0}
    with pytest.raises(InputError, match=r"weights\.speed.*step_time, memory"):
        rankers.weights_of({"speed": 1})
    for wrong in ({"memory": -1}, {"memory": 0}, {"memory": float("nan")}):
        with pytest.raises(InputError):
            rankers.weights_of(wrong)
