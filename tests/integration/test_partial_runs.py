"""Runs with some of the four dimensions: every subset, by ``--only`` and by ``--disable``."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from typing import Any

import pytest


NAMES = ("dp", "tp", "pp", "cp")
SUBSETS = [set(some) for size in range(1, 5) for some in combinations(NAMES, size)]
# Even stages: which split is fastest is not the matter here, and takes most of a search.
SEARCH = {"micro_batch_size": 1, "layer_recompute": "none", "stage_partition": "even", "top_k": 2,
          "zero_stage": [0, 1]}  # fmt: skip
# A model that eight ranks of any one dimension divide.
MODEL = {
    "num_layers": 16, "hidden": 2048, "ffn_hidden": 8192, "heads": 32, "kv_heads": 8, "vocab": 32000,
}  # fmt: skip
HOOKS = ("autopar_shard", "autopar_memory", "autopar_performance", "autopar_schedule")


def label(subset: set[str]) -> str:
    return "+".join(name for name in NAMES if name in subset)


def left_out(subset: set[str]) -> list[str]:
    return [name for name in NAMES if name not in subset]


@pytest.fixture(scope="module")
def input_file(kit: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = kit.write(
        tmp_path_factory.mktemp("partial") / "in.toml", model=MODEL, search=SEARCH
    )
    return path


def options(subset: set[str], way: str) -> list[str]:
    if way == "--only":
        return ["--only", ",".join(sorted(subset))]
    return [text for name in left_out(subset) for text in ("--disable", name)]


@pytest.mark.parametrize("way", ["--only", "--disable"])
@pytest.mark.parametrize("subset", SUBSETS, ids=label)
def test_every_subset_runs(
    input_file: Path, search: Any, check_schema: Any, no_traceback: Any, subset: set[str], way: str
) -> None:
    answer = search(input_file, *options(subset, way))
    no_traceback(answer)
    assert answer.code == 0
    check_schema(answer.document)
    status = {plugin["name"]: plugin["status"] for plugin in answer.document["plugins"]}
    assert {name for name in NAMES if status[name] == "active"} == subset
    rows = answer.table("candidates.csv")
    degrees = {tuple(int(row[f"{name}_degree"]) for name in NAMES) for row in rows}
    for absent in left_out(subset):
        assert {row[NAMES.index(absent)] for row in degrees} == {1}
        assert all(each[f"{absent}_degree"] == 1 for each in answer.best)
    if len(subset) == 1:
        assert degrees == {tuple(8 if name in subset else 1 for name in NAMES)}
    else:
        assert len(degrees) > 1
    assert answer.best
    assert {"feasible"} == {row["verdict"] for row in rows}
    # a plugin that is off adds nothing
    for kind in ("memory_breakdown", "performance_breakdown"):
        for each in answer.document[kind]:
            assert not set(each["by_owner"]) & set(left_out(subset))


def test_both_ways_give_one_answer(input_file: Path, search: Any) -> None:
    for subset in ({"dp", "tp"}, {"tp", "pp", "cp"}):
        only, disable = (
            search(input_file, *options(subset, way), "--set", "search.stage_partition=auto")
            for way in ("--only", "--disable")
        )
        assert only.best == disable.best
        assert only.table("candidates.csv") == disable.table("candidates.csv")


@pytest.mark.parametrize("absent", NAMES)
@pytest.mark.parametrize("spelling", ["short", "long"])
def test_a_degree_of_an_absent_dimension_is_accepted_and_explained(
    input_file: Path, search: Any, check_schema: Any, no_traceback: Any, absent: str, spelling: str
) -> None:
    key = absent if spelling == "short" else f"{absent}_degree"
    answer = search(input_file, "--disable", absent, "--set", f"search.{key}=[1, 2]")
    no_traceback(answer)
    assert answer.code == 0
    check_schema(answer.document)
    rows = answer.table("candidates.csv")
    asked = {row["row"]: row for row in rows if row[f"{absent}_degree"] == "2"}
    rest = [row for row in rows if row["row"] not in asked]
    assert asked
    assert rest
    assert {row["verdict"] for row in asked.values()} == {"NotImplemented"}
    assert not any(row["feasible"] == "true" or row["memory_cost"] for row in asked.values())
    assert any(row["feasible"] == "true" for row in rest)
    assert all(each[f"{absent}_degree"] == 1 for each in answer.best)
    lines = [line for line in answer.table("rejected.csv") if line["code"] == "NotImplemented"]
    assert {line["scope"] for line in lines} == set(asked)
    for line in lines:
        assert line["sentence"].startswith("NotImplemented: ")
        assert any(hook in line["sentence"] for hook in HOOKS)
        assert f"dimension '{absent}'" in line["sentence"]
        assert f"plugin '{absent}' is disabled by request" in line["sentence"]
    assert answer.document["infeasible_summary"]["not_implemented"] == sorted(
        {line["sentence"] for line in lines}
    )


def test_degree_one_of_an_absent_dimension_stays_valid(input_file: Path, search: Any) -> None:
    plain = search(input_file, "--disable", "tp")
    told = search(input_file, "--disable", "tp", "--fix", "tp=1")
    assert told.code == 0
    assert told.best == plain.best


def test_only_an_absent_dimension_is_exit_one(
    input_file: Path, search: Any, check_schema: Any, no_traceback: Any
) -> None:
    answer = search(input_file, "--disable", "tp", "--fix", "tp=2")
    no_traceback(answer)
    assert answer.code == 1
    check_schema(answer.document)
    assert answer.best == []
    said = " ".join(answer.out.split())
    assert "NotImplemented: no active plugin implements" in said
    assert "plugin 'tp' is disabled by request" in said


@pytest.mark.parametrize(
    "change",
    [
        ["--disable", "dp,tp,pp,cp"],
        ["--only", "tp", "--fix", "tp=4"],
        ["--fix", "dp=3"],
        ["--fix", "dp=2", "--fix", "tp=2", "--fix", "pp=1", "--fix", "cp=1"],
    ],
    ids=" ".join,
)
def test_no_legal_product_is_exit_one_with_a_diagnosis(
    input_file: Path, search: Any, check_schema: Any, no_traceback: Any, change: list[str]
) -> None:
    answer = search(input_file, *change)
    no_traceback(answer)
    assert answer.code == 1
    check_schema(answer.document)
    assert answer.best == []
    (sentence,) = answer.document["infeasible_summary"]["advice"]
    assert "no product of wanted degrees" in sentence
    assert "8 devices" in sentence
    assert "8 devices" in " ".join(answer.out.split())


def test_one_device_needs_no_dimension(input_file: Path, search: Any, check_schema: Any) -> None:
    answer = search(input_file, "--disable", "dp,tp,pp,cp", "--set", "cluster.devices=1")
    assert answer.code == 0
    check_schema(answer.document)
    owners = {owner for each in answer.document["memory_breakdown"] for owner in each["by_owner"]}
    assert owners == {"core"}


HALF = '''
"""A dimension with two of the three hooks."""
from autopar_core.api import Dimension, Field, Level, PluginInfo, hookimpl

AUTOPAR_NAME = "half"

@hookimpl
def autopar_plugin_info():
    degree = Field(name="tp_degree", short="tp", level=Level.DEGREE, neutral=1, doc="Half.")
    return PluginInfo(api=(1, 0), summary="half", dimension=Dimension(name="tp", degree=degree))

@hookimpl
def autopar_shard(batch):
    return []

@hookimpl
def autopar_memory(batch):
    return {answer}
'''


@pytest.mark.parametrize(
    ("answer_text", "hook", "why"),
    [
        ("[]", "autopar_performance", "does not implement"),
        ("None", "autopar_memory", "declines"),
    ],
)
def test_half_a_plugin_is_explained(
    input_file: Path, search: Any, check_schema: Any, tmp_path: Path,
    answer_text: str, hook: str, why: str,
) -> None:  # fmt: skip
    plugin = tmp_path / "half.py"
    plugin.write_text(HALF.replace("{answer}", answer_text))
    answer = search(input_file, "--disable", "tp", "--plugin", plugin)
    assert answer.code == 0
    check_schema(answer.document)
    assert all(each["tp_degree"] == 1 for each in answer.best)
    split = [r for r in answer.table("candidates.csv") if r["tp_degree"] != "1"]
    assert {row["verdict"] for row in split} == {"NotImplemented"}
    (sentence, *_) = answer.document["infeasible_summary"]["not_implemented"]
    assert "'half'" in sentence
    assert why in sentence
    assert hook in sentence


PARTIAL = '''
"""Declines what it cannot do: degrees above two, and every answer about time."""
import numpy as np
from autopar_core.api import Dimension, Field, Level, Partial, PluginInfo, hookimpl

AUTOPAR_NAME = "careful"

@hookimpl
def autopar_plugin_info():
    degree = Field(name="cp_degree", short="cp", level=Level.DEGREE, neutral=1, doc="Careful.")
    return PluginInfo(api=(1, 0), summary="careful", dimension=Dimension(name="cp", degree=degree))

@hookimpl
def autopar_shard(batch):
    return []

@hookimpl
def autopar_memory(batch):
    return Partial([], supported=batch["cp_degree"] <= 2, why="only two ranks are modelled")

@hookimpl
def autopar_performance(batch):
    return []
'''


def test_a_combination_that_a_plugin_declines(
    input_file: Path, search: Any, check_schema: Any, tmp_path: Path
) -> None:
    plugin = tmp_path / "careful.py"
    plugin.write_text(PARTIAL)
    answer = search(input_file, "--disable", "cp", "--plugin", plugin)
    assert answer.code == 0
    check_schema(answer.document)
    told = {r["cp_degree"]: r["verdict"] for r in answer.table("candidates.csv")}
    assert (told["4"], told["8"]) == ("NotImplemented", "NotImplemented")
    assert (told["1"], told["2"]) == ("feasible", "feasible")
    assert answer.document["infeasible_summary"]["not_implemented"] == [
        "NotImplemented: plugin 'careful' autopar_memory: only two ranks are modelled"
    ]
