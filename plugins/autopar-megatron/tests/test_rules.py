"""What Megatron refuses besides the rules of the dimensions, and only for its own family."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from attrs import evolve

from autopar_core.api import HABIT, HARD, Broken, Level, ModelConfig, StrategyBatch
from autopar_core.config.load import load_job
from autopar_core.config.overrides import Overrides
from autopar_core.domain.space import Plan
from autopar_core.search.contexts import Contexts
from autopar_core.testing.bench import SMALL_JOB, load, run_search
from autopar_megatron import rules


@pytest.fixture(scope="module")
def contexts() -> Contexts:
    manager = load()
    job = load_job(None, {**SMALL_JOB, "framework": {"name": "megatron"}}, Overrides(), manager)
    return Contexts.build(job, manager)


def broken(
    contexts: Contexts, level: Level, rows: Mapping[str, list[Any]], **changes: Any
) -> dict[str, tuple[list[bool], Broken, StrategyBatch]]:
    """Code -> (rows that break it, the rule, the rows) for a job with changes."""
    context = contexts.by_plugin["megatron"]
    training = evolve(
        context.training,
        seq_len=changes.get("seq_len", 4096), precision=changes.get("precision", "bf16"),
    )  # fmt: skip
    model: ModelConfig = evolve(context.model, **changes.get("model", {}))
    framework = changes.get("framework", context.framework)
    context = evolve(context, training=training, model=model, framework=framework)
    fields = contexts.fields
    columns = {name: np.array([fields[name].encode(v) for v in vs]) for name, vs in rows.items()}
    batch = StrategyBatch.of(fields, columns)
    found = rules.broken(batch, level, context)
    return {rule.code: (rule.rows.tolist(), rule, batch) for rule in found}


def test_all_to_all_needs_whole_heads(contexts: Contexts) -> None:
    """16 heads and 8 groups: tp 2 leaves 8 and 4; cp 4 divides both, cp 8 does not divide 4."""
    rows = {
        "tp_degree": [2, 2, 2, 1], "cp_degree": [4, 8, 8, 1],
        "cp_comm_type": ["a2a", "a2a", "p2p", "none"], "micro_batch_size": [1, 1, 1, 1],
    }  # fmt: skip
    found, rule, batch = broken(contexts, Level.SHARDING, rows)["megatron-a2a-heads"]
    assert found == [False, True, False, False]
    assert rule.kind == HARD
    assert rule.say(batch, 1) == (
        "all-to-all gives whole heads to cp 8 ranks: 8 attention and 4 key/value heads of a tp 2 rank "
        "are not divisible; use p2p or all_gather"
    )


def test_eight_bit_needs_multiples_of_tokens(contexts: Contexts) -> None:
    """4104 tokens over cp 2 are 2052, no multiple of 16; two sequences are 8208 = 16 x 513 at cp 1."""
    rows = {
        "tp_degree": [1, 1, 4, 4], "cp_degree": [2, 1, 1, 1], "micro_batch_size": [1, 2, 1, 1],
        "sequence_parallel": [False, False, True, False],
    }  # fmt: skip
    code = "megatron-fp8-tokens"
    found, rule, batch = broken(contexts, Level.SHARDING, rows, seq_len=4104, precision="fp8")[code]
    assert found == [True, False, True, True]
    assert rule.say(batch, 0).endswith("pad sequences to a multiple of 32 tokens")
    assert code not in broken(contexts, Level.SHARDING, rows, seq_len=4104)
    whole = broken(contexts, Level.SHARDING, rows, seq_len=4096, precision="mxfp8")[code][0]
    assert whole == [False] * 4


def test_eight_bit_needs_multiples_of_widths(contexts: Contexts) -> None:
    """1024 / 32 = 32 is a multiple of 32; a width of 4064 over 2 is 2032 = 16 x 127."""
    rows = {"tp_degree": [1, 2, 32]}
    code = "megatron-fp8-width"
    assert broken(contexts, Level.DEGREE, rows, precision="mxfp8")[code][0] == [False] * 3
    odd = {"ffn_hidden": 4064}
    found = broken(contexts, Level.DEGREE, {"tp_degree": [1, 2]}, precision="mxfp8", model=odd)[
        code
    ]
    assert found[0] == [False, True]
    assert broken(contexts, Level.DEGREE, {"tp_degree": [1, 2]}, precision="fp8", model=odd)[code][0] == [
        False, False,
    ]  # fmt: skip


def test_learned_positions_bound_the_sequence(contexts: Contexts) -> None:
    learned = {"position": "learned", "position_rows": 2048}
    rows = {"tp_degree": [1, 2]}
    found, rule, batch = broken(contexts, Level.DEGREE, rows, model=learned)["megatron-positions"]
    assert found == [True, True]
    assert "at most 2048" in rule.say(batch, 0)
    assert broken(contexts, Level.DEGREE, rows, model=learned, seq_len=2048)["megatron-positions"][0] == [
        False, False,
    ]  # fmt: skip
    assert not any(broken(contexts, Level.DEGREE, rows)["megatron-positions"][0])


def test_interleaving_over_two_ranks_is_a_habit(contexts: Contexts) -> None:
    rows = {"pp_degree": [2, 4, 2], "schedule": ["interleaved", "interleaved", "1f1b"]}
    found, rule, _ = broken(contexts, Level.CHUNKS, rows)["megatron-interleave-two"]
    assert found == [True, False, False]
    assert rule.kind == HABIT


def test_other_frameworks_are_left_alone(contexts: Contexts) -> None:
    other = evolve(contexts.job.framework, name="torchtitan", bases=("generic",))
    rows = {"tp_degree": [2], "cp_degree": [8], "cp_comm_type": ["a2a"], "micro_batch_size": [1]}
    for level in Level:
        assert broken(contexts, level, rows, framework=other, precision="fp8", seq_len=4100) == {}
    kin = evolve(other, name="mine", bases=("megatron-bridge", "nemo", "megatron", "generic"))
    assert broken(contexts, Level.SHARDING, rows, framework=kin)["megatron-a2a-heads"][0] == [True]


def test_delayed_scaling_repeats_no_norms(contexts: Contexts) -> None:
    space = evolve(contexts.job.space, recomputes=(Plan(kind="none"), Plan(kind="selective")))
    made = Contexts.build(evolve(contexts.job, space=space), contexts.manager)
    rows = {"recompute_plan": [0, 1], "tp_degree": [1, 1]}
    code = "megatron-delayed-selective"
    assert broken(made, Level.RECOMPUTE, rows, precision="fp8-delayed")[code][0] == [False, True]
    assert broken(made, Level.RECOMPUTE, rows, precision="fp8-current")[code][0] == [False, False]


def test_every_rule_has_a_source_and_a_remedy(contexts: Contexts) -> None:
    rows = {"tp_degree": [1], "micro_batch_size": [1]}
    for level in Level:
        for _, rule, _ in broken(contexts, level, rows, precision="fp8").values():
            assert rule.source
            assert any(word in rule.sentence for word in ("use ", "pad ", "train with", "need "))


def test_a_search_with_mindspeed_proposes_what_it_has() -> None:
    result = run_search({"framework": {"name": "mindspeed"}, "search": {"layer_recompute": "none"}})
    assert result.job.framework.is_a("megatron")
    assert result.top
    assert {detail.strategy.fields["zero_stage"] for detail in result.top} <= {0, 1}
    assert "gpipe" not in {detail.strategy.fields["schedule"] for detail in result.top}
