"""The search section: values, ranges, plans, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

import autopar_core.builtin
from autopar_core.api import InputError
from autopar_core.config.search_section import Keys, search_space
from autopar_core.config.tables import Origins
from autopar_core.domain.space import Plan, SearchSpace
from autopar_core.domain.training import Range
from autopar_core.plugins.manager import PluginManager


KEYS = Keys.of(PluginManager.load(extra=[("builtin", autopar_core.builtin)], entry_points=False))
LAYERS = 80


def space(**section: Any) -> SearchSpace:
    return search_space(section, KEYS, LAYERS, Origins("run.toml"))


def given(value: Any) -> Plan:
    return Plan(kind="given", given=value)


def test_nothing_said_is_the_default() -> None:
    assert space() == SearchSpace()


def test_names_short_forms_and_dimensions() -> None:
    made = space(tp=8, pp_degree=[1, 2], mbs=[2, 2, 1], m={"min": 4}, sp=True, zero=[0, 1])
    assert made.wanted == {
        "tp_degree": (8,),
        "pp_degree": (1, 2),
        "micro_batch_size": (2, 1),
        "micro_batch_num": Range(min=4),
        "sequence_parallel": (True,),
        "zero_stage": (0, 1),
    }


def test_plain_settings() -> None:
    made = space(
        top_k=3, rank_by="weighted", weights={"memory": 1}, habits=["a", "b"], schedule="1f1b"
    )
    assert (made.top_k, made.rank_by, made.weights) == (3, "weighted", {"memory": 1.0})
    assert made.habits == ("a", "b")
    assert made.wanted == {"schedule": ("1f1b",)}


@pytest.mark.parametrize(
    ("section", "expected"),
    [
        ({"micro_batchsize": 1}, "micro_batchsize: unknown key; did you mean micro_batch_size?"),
        ({"partition_plan": 1}, "partition_plan: unknown key"),
        ({"micro_batch_size": 0}, "micro_batch_size: must be a positive whole number, got 0"),
        ({"tp": -2}, "tp: must be a positive whole number, got -2"),
        ({"tp": [1, 0]}, "tp: must be a positive whole number, got 0"),
        ({"tp": "4"}, "tp: expected a positive whole number, got '4'"),
        ({"tp": 2.0}, "tp: expected a positive whole number, got 2.0"),
        ({"tp": True}, "tp: expected a positive whole number, got True"),
        ({"tp": [[1]]}, "tp: expected a positive whole number, got [1]"),
        ({"tp": []}, "tp: empty search space: the list has no value"),
        ({"tp": {"min": 8, "max": 4}}, "tp: empty search space: min = 8 is above max = 4"),
        ({"tp": {"min": 0}}, "tp.min: must be a positive whole number, got 0"),
        ({"tp": {"from": 1}}, "tp.from: unknown key; legal keys: min, max"),
        ({"tp": 1, "tp_degree": 2}, "tp_degree: is also given as tp; keep one of them"),
        ({"zero_stage": -1}, "zero_stage: must be a whole number, 0 or more, got -1"),
        ({"sp": "yes"}, "sp: expected true or false, got 'yes'"),
        ({"sp": {"min": 0}}, "sp: takes values, no range; true or false"),
        ({"schedule": "1f2b"}, "schedule: expected one of none, 1f1b, "),
        ({"schedule": [["1f1b"]]}, "schedule: expected one of none, 1f1b, "),
        ({"top_k": 0}, "top_k: expected a positive whole number, got 0"),
        ({"top_k": "3"}, "top_k: expected a positive whole number, got '3'"),
        ({"rank_by": "steptime"}, "rank_by: unknown name 'steptime'; did you mean step_time?"),
        ({"rank_by": 1}, "rank_by: expected a name, got 1"),
        ({"weights": {"memory": -1}}, "weights.memory: expected a number, 0 or more, got -1"),
        ({"weights": 1}, "weights: expected a table, got 1"),
        ({"habits": [1]}, "habits: expected a list of names, got [1]"),
        ({"stage_partition": "evn"}, "stage_partition: 'evn' is none of auto, even; or give"),
        ({"stage_partition": 4}, "stage_partition: expected auto, even or a list"),
        ({"stage_partition": []}, "stage_partition: empty search space"),
        ({"stage_partition": [40, 39]}, "stage_partition: [40, 39] places 79 layers, but"),
        ({"stage_partition": [81, -1]}, "stage_partition: expected a whole number of layers, 0"),
        ({"stage_partition": [[40, 40], [40, 41]]}, "stage_partition: [[40, 40], [40, 41]] places"),
        ({"stage_partition": [[20, 20], [40]]}, "stage_partition: every chunk must list the same"),
        ({"stage_partition": [40.0, 40]}, "stage_partition: expected a whole number of layers"),
        ({"layer_offset": []}, "layer_offset: empty search space"),
        ({"layer_offset": [1, 0, 0]}, "layer_offset: [1, 0, 0] sums to 1; over 3 stages"),
        ({"layer_offset": [27, -27, 2]}, "layer_offset: expected a whole number of layers, 0"),
        (
            {"layer_offset": [0, 0], "stage_partition": "even"},
            "layer_offset: says the layers of each stage, and so does stage_partition",
        ),
        ({"layer_recompute": "ful"}, "layer_recompute: 'ful' is none of auto, none, selective"),
        ({"layer_recompute": []}, "layer_recompute: empty search space"),
        ({"layer_recompute": [5, 5]}, "layer_recompute[0]: expected auto, none, selective, full"),
        ({"layer_recompute": {"max": -1}}, "layer_recompute: must not be negative"),
        ({"layer_recompute": {"full": [1], "sel": [1]}}, "layer_recompute.sel: unknown mode"),
        (
            {"layer_recompute": {"full": [1, 2], "selective": [1]}},
            "layer_recompute: selective and full must list the same stages",
        ),
        ({"layer_recompute": {"full": 3}}, "layer_recompute.full: expected a list of whole"),
    ],
)
def test_wrong_values(section: dict[str, Any], expected: str) -> None:
    with pytest.raises(InputError) as caught:
        space(**section)
    assert str(caught.value).startswith(f"run.toml: search.{expected}")


@pytest.mark.parametrize(
    ("value", "plans"),
    [
        ("auto", [Plan()]),
        ("even", [Plan(kind="even")]),
        ([20, 20, 20, 20], [given([20, 20, 20, 20])]),
        ([[20, 20, 20, 20]], [given([20, 20, 20, 20])]),
        ([[40, 40], [41, 39]], [given([40, 40]), given([41, 39])]),
        ([[20, 20], [20, 20]], [given([[20, 20], [20, 20]])]),
        (["auto", [40, 40], "even"], [Plan(), given([40, 40]), Plan(kind="even")]),
        (["auto", [[20, 20], [20, 20]]], [Plan(), given([[20, 20], [20, 20]])]),
        (["auto", "auto"], [Plan()]),
        ([[[20, 20], [20, 20]], [[21, 19], [20, 20]]],
         [given([[20, 20], [20, 20]]), given([[21, 19], [20, 20]])]),
        ([80, 0], [given([80, 0])]),
    ],
)  # fmt: skip
def test_partitions(value: Any, plans: list[Plan]) -> None:
    assert space(stage_partition=value).partitions == tuple(plans)
    assert space(partition=value).partitions == tuple(plans)


@pytest.mark.parametrize(
    ("value", "plans"),
    [
        ({"min": -2, "max": 2}, [Plan(offset=Range(-2, 2))]),
        ([0, 1, 1], [given([26, 27, 27])]),
        ([-1, 1], [given([39, 41])]),
        ([[0, 0], [0, 0]], [given([[20, 20], [20, 20]])]),
        ([[[-1, 1]], [[0, 0]]], [given([39, 41]), given([40, 40])]),
        ([[1, 1, 0], [0, 0, 0]], [given([[14, 14, 13], [13, 13, 13]])]),
    ],
)
def test_offsets(value: Any, plans: list[Plan]) -> None:
    assert space(layer_offset=value).partitions == tuple(plans)


def test_offset_range_goes_with_an_explicit_auto() -> None:
    made = space(layer_offset={"max": 1}, stage_partition="auto")
    assert made.partitions == (Plan(offset=Range(max=1)),)


@pytest.mark.parametrize(
    ("value", "plans"),
    [
        ("full", [Plan(kind="full")]),
        ({"max": 4}, [Plan(layers=Range(max=4))]),
        ({"full": [5, 0]}, [given({"full": [5, 0]})]),
        ({"full": [[5, 0]], "selective": [[0, 5]]}, [given({"selective": [0, 5], "full": [5, 0]})]),
        (["none", {"min": 1}, "none"], [Plan(kind="none"), Plan(layers=Range(min=1))]),
    ],
)
def test_recompute(value: Any, plans: list[Plan]) -> None:
    assert space(layer_recompute=value).recomputes == tuple(plans)


def test_an_override_beats_another_spelling_of_the_file() -> None:
    origins = Origins("run.toml", {("search", "tp_degree"): "--set"})
    section = {"tp": [1, 2], "tp_degree": 4}
    assert search_space(section, KEYS, LAYERS, origins).wanted == {"tp_degree": (4,)}


def test_limits_of_an_open_partition() -> None:
    made = space(max_layer_diff=2, layer_offset={"min": -1}, uniform_recompute=True)
    assert made.partitions == (Plan(offset=Range(min=-1), difference=2),)
    assert made.uniform_recompute
    several = space(stage_partition=["even", "auto"], max_layer_diff=0)
    assert several.partitions == (Plan(kind="even"), Plan(difference=0))


@pytest.mark.parametrize(
    ("section", "expected"),
    [
        ({"max_layer_diff": -1}, "run.toml: search.max_layer_diff: expected a whole number of layers"),
        ({"max_layer_diff": True}, "expected a whole number of layers, 0 or more, got True"),
        ({"max_layer_diff": 1, "stage_partition": "even"}, "which is not asked for"),
        ({"uniform_recompute": 1}, "expected true or false, got 1"),
    ],
)  # fmt: skip
def test_wrong_limits(section: dict[str, Any], expected: str) -> None:
    with pytest.raises(InputError) as caught:
        space(**section)
    assert expected in str(caught.value)
