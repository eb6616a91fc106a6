"""Schedules that a framework refuses for too few micro-batches."""

from __future__ import annotations

from autopar_core.api import Level, StrategyBatch
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
