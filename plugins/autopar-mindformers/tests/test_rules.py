"""What MindFormers refuses besides the rules of the dimensions, and only for its own profile."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from attrs import evolve

from autopar_core.api import HARD, Broken, Level, StrategyBatch
from autopar_core.config.load import load_job
from autopar_core.config.overrides import Overrides
from autopar_core.search.contexts import Contexts
from autopar_core.testing import run_search
from autopar_core.testing.bench import SMALL_JOB, load
from autopar_mindformers import rules


ROWS = {"dp_degree": [1], "tp_degree": [1], "pp_degree": [1], "cp_degree": [1]}


@pytest.fixture(scope="module")
def contexts() -> Contexts:
    manager = load()
    job = load_job(None, {**SMALL_JOB, "framework": {"name": "mindformers"}}, Overrides(), manager)
    return Contexts.build(job, manager)


def broken(
    contexts: Contexts, level: Level, rows: Mapping[str, list[Any]], **changes: Any
) -> dict[str, tuple[list[bool], Broken, StrategyBatch]]:
    """Code -> (rows that break it, the rule, the rows) for a job with changes."""
    context = contexts.by_plugin["mindformers"]
    training = evolve(context.training, precision=changes.get("precision", "bf16"))
    model = evolve(context.model, **changes.get("model", {}))
    framework = changes.get("framework", context.framework)
    context = evolve(context, training=training, model=model, framework=framework)
    fields = contexts.fields
    columns = {name: np.array([fields[name].encode(v) for v in vs]) for name, vs in rows.items()}
    batch = StrategyBatch.of(fields, columns)
    found = rules.broken(batch, level, context)
    return {rule.code: (rule.rows.tolist(), rule, batch) for rule in found}


def test_all_to_all_needs_whole_heads(contexts: Contexts) -> None:
    """16 heads: tp 2 x cp 8 divides them, tp 4 x cp 8 = 32 does not."""
    rows = {
        "tp_degree": [2, 4, 4, 4], "cp_degree": [8, 8, 8, 1],
        "cp_comm_type": ["a2a", "a2a", "all_gather", "none"],
    }  # fmt: skip
    found, rule, batch = broken(contexts, Level.SHARDING, rows)["mindformers-ulysses-heads"]
    assert found == [False, True, False, False]
    assert rule.say(batch, 1) == (
        "ulysses_cp gives whole heads to tp x cp = 32 ranks, which 16 heads are not divisible by; use "
        "p2p or all_gather (colossalai_cp)"
    )


def test_micro_batches_fill_the_pipeline(contexts: Contexts) -> None:
    rows = {"pp_degree": [4, 4, 1], "micro_batch_num": [3, 4, 1]}
    found, rule, batch = broken(contexts, Level.CHUNKS, rows)["mindformers-micro-batches"]
    assert found == [True, False, False]
    assert "needs pp 4 micro-batches or more, not 3" in rule.say(batch, 0)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({}, ""),
        ({"precision": "fp8"}, "mindformers-precision"),
        ({"model": {"norm": "layernorm"}}, "mindformers-family"),
        ({"model": {"gated_mlp": False}}, "mindformers-family"),
        ({"model": {"qk_norm": "full"}}, "mindformers-family"),
        ({"model": {"mlp_bias": True}}, "mindformers-family"),
        ({"model": {"mlp_bias": True, "qkv_bias": True, "attention_out_bias": True}}, ""),
        ({"model": {"qk_norm": "head", "tied_embeddings": True}}, ""),
        ({"model": {"head_dim": 32, "tied_embeddings": True}}, "mindformers-family"),
        ({"model": {"head_dim": 32}}, ""),
    ],
)  # fmt: skip
def test_models_and_formats(contexts: Contexts, changes: dict[str, Any], code: str) -> None:
    found = broken(contexts, Level.DEGREE, ROWS, **changes)
    assert {name for name, (rows, _, _) in found.items() if any(rows)} == (
        {code} if code else set()
    )
    for rows, rule, batch in found.values():
        assert rule.kind == HARD
        assert rule.source
        assert not any(rows) or "use" in rule.say(batch, 0) or "train in bf16" in rule.say(batch, 0)


def test_other_frameworks_are_left_alone(contexts: Contexts) -> None:
    other = evolve(contexts.by_plugin["mindformers"].framework, name="megatron")
    for level in Level:
        assert not broken(contexts, level, ROWS, framework=other)


def test_a_search_names_the_rule() -> None:
    """GPT-2's norms have biases: nothing fits, and the reason says what would."""
    result = run_search(
        {**SMALL_JOB, "model": {"source": "gpt2-xl"}, "framework": {"name": "mindformers"}}
    )
    reasons = {code: said for cut in result.cuts for code, _, said in cut.reasons}
    assert "mindformers-family" in reasons
    assert "build no model with norm layernorm" in reasons["mindformers-family"]
