"""What a person fixes holds in every row, and what nobody can run is in none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest


SEARCH = {"micro_batch_size": 1, "layer_recompute": "none", "top_k": 3, "zero_stage": [1, 3]}


@pytest.fixture
def place(kit: Any, tmp_path: Path) -> Path:
    path: Path = kit.write(tmp_path / "in.toml", search=SEARCH)
    return path


def feasible(answer: Any) -> list[dict[str, str]]:
    return [row for row in answer.table("candidates.csv") if row["feasible"] == "true"]


@pytest.mark.parametrize(
    ("fixes", "column", "value"),
    [
        ({"shard_degree": 2, "zero_stage": 3, "tp": 1, "pp": 1, "cp": 1}, "shard_degree", "2"),
        ({"schedule": "gpipe", "pp": 2, "tp": 1, "cp": 1}, "schedule", "gpipe"),
        ({"vpp": 3, "schedule": "interleaved", "pp": 2, "cp": 1}, "vpp_degree", "3"),
        ({"sequence_parallel": "true", "tp": 2, "pp": 1, "cp": 1}, "sequence_parallel", "true"),
        ({"cp_comm_type": "a2a", "cp": 2, "pp": 1, "tp": 1}, "cp_comm_type", "a2a"),
        pytest.param(
            {"replicate_degree": 2, "pp": 1, "cp": 1, "tp": 1}, "replicate_degree", "2",
        ),
    ],
)  # fmt: skip
def test_a_fixed_field_holds_in_every_row(
    place: Path, search: Any, fixes: dict[str, object], column: str, value: str
) -> None:
    options = [text for name, fixed in fixes.items() for text in ("--fix", f"{name}={fixed}")]
    answer = search(place, *options)
    assert answer.code == 0
    assert {row[column] for row in answer.table("candidates.csv")} == {value}


def test_split_tokens_without_an_exchange_are_refused(place: Path, search: Any) -> None:
    answer = search(place, "--fix", "cp_comm_type=none", "--fix", "cp=2", "--fix", "pp=1")
    assert answer.code in (1, 2)
    assert answer.code == 2 or feasible(answer) == []


def test_a_range_of_micro_batches_may_be_open(place: Path, search: Any) -> None:
    answer = search(place, "--set", "search.micro_batch_num={min = 4}", "--fix", "pp=1")
    assert answer.code == 0
    assert all(int(row["micro_batch_num"]) >= 4 for row in feasible(answer))


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(
            ["--fix", "stage_partition=[0,8]", "--fix", "pp=2"],
            id="an empty stage where the framework has none",
        ),
        pytest.param(
            ["--fix", "stage_partition=[[2,2],[2,2]]", "--fix", "pp=4", "--fix", "schedule=1f1b"],
            id="two chunks on a schedule without chunks",
        ),
        pytest.param(
            ["--fix", "layer_recompute={full=[1,2]}", "--fix", "pp=2", "--fix", "schedule=1f1b",
             "--set", "framework.name=megatron", "--fix", "zero=1"],
            id="a count per stage where one count holds for all",
        ),
        pytest.param(
            ["--fix", "layer_recompute={full=[1,2]}", "--fix", "pp=2", "--fix", "schedule=1f1b",
             "--set", "framework.name=torchtitan", "--fix", "zero=3"],
            id="some layers where all or none are recomputed",
        ),
        pytest.param(
            ["--fix", "layer_offset=[1,-1]", "--fix", "pp=4"], id="offsets of two stages for four"
        ),
    ],
)  # fmt: skip
def test_a_plan_that_the_framework_cannot_run_is_refused(
    place: Path, search: Any, options: list[str]
) -> None:
    answer = search(place, "--fix", "cp=1", "--fix", "tp=1", *options)
    assert answer.code in (1, 2)
    assert answer.code == 2 or feasible(answer) == []


@pytest.mark.parametrize(
    ("framework", "plan", "code", "sentence"),
    [
        ("megatron", "layer_recompute={full=[1,2]}", "recompute-shape",
         "megatron has one number of fully recomputed layers for every stage, and selective recompute "
         "in all layers or none, not full [1, 2]"),
        ("torchtitan", "layer_recompute={full=[1,2]}", "recompute-shape",
         "torchtitan recomputes all layers in one mode or none, not full [1, 2]"),
        ("mindformers", "layer_recompute={full=[1,2,3]}", "recompute-shape",
         "layer_recompute lists 3 stages, and here are 2 stages"),
        ("mindformers", "layer_recompute={full=[[1,2],[3,1]]}", "recompute-shape",
         "layer_recompute lists 2 chunks of 2 stages, and here are 2 stages"),
        ("mindformers", "layer_recompute={full=[5,4]}", "recompute-shape",
         "layer_recompute recomputes 9 layers, and the model has 8"),
        ("megatron", "layer_recompute={every=2}", "recompute-shape",
         "megatron cannot recompute one layer in 2 and keep the others"),
        ("megatron", "layer_recompute={min=5}", "recompute-shape",
         "layer_recompute wants at least 5 recomputed layers on every rank, and no recompute that "
         "megatron has gives that on ranks of "),
        ("megatron", "stage_partition=[2,2,2,2]", "pp-partition",
         "the partition lists 4 stages, and here are 2 stages"),
    ],
)  # fmt: skip
def test_a_plan_that_does_not_suit_is_refused_with_its_cause(
    place: Path, search: Any, framework: str, plan: str, code: str, sentence: str
) -> None:
    zero = {"torchtitan": "3"}.get(framework, "1")
    answer = search(place, "--fix", "cp=1", "--fix", "tp=1", "--fix", "pp=2", "--fix",
                    "schedule=1f1b", "--fix", f"zero={zero}", "--set",
                    f"framework.name={framework}", "--fix", plan)  # fmt: skip
    assert answer.code == 1
    said = {row["sentence"] for row in answer.table("rejected.csv") if row["code"] == code}
    assert said
    assert all(each.startswith(sentence) for each in said), said


def test_more_recompute_than_a_given_stage_has_is_refused(place: Path, search: Any) -> None:
    answer = search(place, "--fix", "cp=1", "--fix", "tp=1", "--fix", "pp=2", "--fix",
                    "schedule=1f1b", "--fix", "stage_partition=[5,3]", "--fix",
                    "layer_recompute={full=[1,4]}")  # fmt: skip
    said = {row["sentence"] for row in answer.table("rejected.csv")}
    assert "layer_recompute recomputes 4 layers of stage 1, which has 3 layers" in said


def test_stages_get_the_layers_that_are_to_recompute(place: Path, search: Any) -> None:
    answer = search(place, "--fix", "cp=1", "--fix", "tp=1", "--fix", "pp=2", "--fix",
                    "schedule=1f1b", "--fix", "layer_recompute={full=[6,0]}")  # fmt: skip
    assert answer.code == 0
    assert answer.best[0]["stage_partition"][0] >= 6
    assert answer.best[0]["layer_recompute"]["full"] == [6, 0]


def test_a_flat_list_of_layers_is_for_one_chunk(place: Path, search: Any) -> None:
    flat = search(place, "--fix", "cp=1", "--fix", "tp=1", "--fix", "stage_partition=[2,2,2,2]")
    assert {(row["pp_degree"], row["vpp_degree"]) for row in feasible(flat)} == {("4", "1")}
    nested = search(place, "--fix", "cp=1", "--fix", "tp=1", "--fix",
                    "stage_partition=[[2,2],[2,2]]")  # fmt: skip
    held = {(row["pp_degree"], row["vpp_degree"], row["schedule"]) for row in feasible(nested)}
    assert ("2", "2", "interleaved") in held
    assert {pp for pp, _, _ in held} == {"2"}


PLUGIN = """
import numpy as np
from autopar_core.api import Generator, PluginInfo, Ranker, TimeTerm, hookimpl

AUTOPAR_NAME = "odd"

@hookimpl
def autopar_plugin_info():
    return PluginInfo(api=(1, 0), summary="odd")

"""
ODD = {
    "a ranker raises": (
        '@hookimpl\ndef autopar_rankers():\n    return [Ranker("r", "r", lambda s, m, c: 1 / 0)]\n',
        ["--rank-by", "r"],
    ),
    "a ranker gives no numbers": (
        '@hookimpl\ndef autopar_rankers():\n'
        '    return [Ranker("r", "r", lambda s, m, c: s * np.nan)]\n',
        ["--rank-by", "r"],
    ),
    "a generator raises": (
        '@hookimpl\ndef autopar_generators():\n    return [Generator("g", "g", lambda c: 1 / 0)]\n',
        ["--set", "search.generator=g"],
    ),
    "a generator gives nothing": (
        '@hookimpl\ndef autopar_generators():\n    return [Generator("g", "g", lambda c: None)]\n',
        ["--set", "search.generator=g"],
    ),
    "a time is no number": (
        '@hookimpl\ndef autopar_performance(batch):\n'
        '    return [TimeTerm(name="x", seconds=np.full(len(batch), np.nan))]\n',
        [],
    ),
    "a time is negative": (
        '@hookimpl\ndef autopar_performance(batch):\n'
        '    return [TimeTerm(name="x", seconds=np.full(len(batch), -1.0))]\n',
        [],
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    "case",
    [
        *ODD,
    ],
)
@pytest.mark.timeout(20)
def test_a_wrong_answer_is_refused_by_name(
    place: Path, search: Any, tmp_path: Path, case: str
) -> None:
    code, options = ODD[case]
    plugin = tmp_path / "odd.py"
    plugin.write_text(PLUGIN + code)
    answer = search(place, "--fix", "pp=1", "--fix", "cp=1", "--plugin", plugin, *options)
    assert answer.code == 2
    assert "'odd'" in answer.err
    assert answer.err.count("\n") == 1
