"""Schedules that a framework refuses for too few micro-batches."""

from __future__ import annotations

from typing import Any

from autopar_core.api import Broken, Level, StrategyBatch
from autopar_core.config.load import load_job
from autopar_core.config.overrides import Overrides
from autopar_core.config.tables import deep_merge
from autopar_core.search.contexts import Contexts
from autopar_core.testing.bench import SMALL_JOB, load
from autopar_pp import rules


def test_only_plain_1f1b_needs_a_micro_batch_per_stage() -> None:
    manager = load()
    tables = deep_merge(SMALL_JOB, {"framework": {"name": "torchtitan"}})
    contexts = Contexts.build(load_job(None, tables, Overrides(), manager), manager)
    fields = contexts.fields
    schedules = ("1f1b", "1f1b", "gpipe", "interleaved", "none")
    batch = StrategyBatch.of(
        fields,
        {
            "schedule": [fields["schedule"].encode(name) for name in schedules],
            "pp_degree": [4, 4, 4, 4, 1],
            "micro_batch_num": [3, 4, 3, 3, 1],
        },
    )
    broken = {
        rule.code: rule for rule in rules.broken(batch, Level.SCHEDULE, contexts.by_plugin["pp"])
    }
    rule = broken["pp-micro-batches"]
    assert rule.rows.tolist() == [True, False, False, False, False]
    assert rule.say(batch, 0) == "1F1B cannot fill pp 4 stages with 3 micro-batches"


def broken(
    name: str, level: Level, values: dict[str, list[Any]], **group: int
) -> dict[str, Broken]:
    """Rules that rows break under a framework, by code."""
    manager = load()
    tables = deep_merge(SMALL_JOB, {"framework": {"name": name}, "plugins": {"pp": group}})
    contexts = Contexts.build(load_job(None, tables, Overrides(), manager), manager)
    encoded = dict(values)
    encoded["schedule"] = [contexts.fields["schedule"].encode(one) for one in values["schedule"]]
    batch = StrategyBatch.of(contexts.fields, encoded)
    found = rules.broken(batch, level, contexts.by_plugin["pp"])
    return {rule.code: rule for rule in found}


def test_v_shaped_schedules_need_micro_batches_and_layers() -> None:
    # torch's DualPipeV raises below a micro-batch per stage, two stages per rank; its ZBV runs.
    values: dict[str, list[Any]] = {"schedule": ["dualpipev", "dualpipev", "zbv"], "pp_degree": [4, 4, 4],
              "micro_batch_num": [7, 8, 3]}  # fmt: skip
    for name, zbv in (("torchtitan", False), ("mindformers", True)):
        rule = broken(name, Level.SCHEDULE, values)["pp-v-micro-batches"]
        assert rule.rows.tolist() == [True, False, zbv]
    many: dict[str, list[Any]] = {
        "schedule": ["zbv", "1f1b"],
        "pp_degree": [16, 16],
        "micro_batch_num": [64, 64],
    }
    found = broken("generic", Level.CHUNKS, many)
    assert found["pp-v-layers"].rows.tolist() == [True, False]  # 32 stages for the small model
    assert not found["pp-chunk-layers"].rows[0]


def test_schedules_that_a_framework_lacks_are_refused() -> None:
    values: dict[str, list[Any]] = {
        "schedule": ["zb-h1", "zbv", "1f1b"],
        "pp_degree": [4] * 3,
        "micro_batch_num": [8] * 3,
    }
    for name, wanted in (("megatron", [True, True, False]), ("torchtitan", [True, False, False]),
                         ("torchtitan-compile", [True, True, False]),
                         ("generic", [False, False, False])):  # fmt: skip
        assert broken(name, Level.SCHEDULE, values)["pp-schedule"].rows.tolist() == wanted


def test_group_sizes_are_those_that_megatron_runs() -> None:
    # Groups of 6: on pp 4, 16 leave a last group of 4, 14 one of 2; pp 8 is more than a group.
    values: dict[str, list[Any]] = {"schedule": ["interleaved"] * 4, "pp_degree": [4, 4, 8, 4],
              "micro_batch_num": [16, 14, 24, 5], "vpp_degree": [2] * 4}  # fmt: skip
    rule = broken("megatron", Level.CHUNKS, values, group_size=6)["pp-group-size"]
    assert rule.rows.tolist() == [False, True, True, True]
    assert broken("torchtitan", Level.CHUNKS, values, group_size=6)["pp-group-size"].rows.all()
    assert "pp-group-size" not in broken("megatron", Level.CHUNKS, values)
