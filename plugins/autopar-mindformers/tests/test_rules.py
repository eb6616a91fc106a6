"""What MindFormers refuses besides the rules of the dimensions, and only for its own profile."""

from __future__ import annotations

from typing import Any

import pytest

from autopar_core.api import HARD, Level
from autopar_core.testing import FrameworkBench, run_search


ROWS = {"dp_degree": [1], "tp_degree": [1], "pp_degree": [1], "cp_degree": [1]}


@pytest.fixture(scope="module")
def bench() -> FrameworkBench:
    return FrameworkBench.of("mindformers", {"framework": {"name": "mindformers"}})


def test_all_to_all_needs_whole_heads(bench: FrameworkBench) -> None:
    """16 heads: tp 2 x cp 8 divides them, tp 4 x cp 8 = 32 does not."""
    rows = {
        "tp_degree": [2, 4, 4, 4], "cp_degree": [8, 8, 8, 1],
        "cp_comm_type": ["a2a", "a2a", "all_gather", "none"],
    }  # fmt: skip
    found = bench.broken(Level.SHARDING, rows)["mindformers-ulysses-heads"]
    assert found.broken == [False, True, False, False]
    assert found.say(1) == (
        "ulysses_cp gives whole heads to tp x cp = 32 ranks, which 16 heads are not divisible by; use "
        "p2p or all_gather (colossalai_cp)"
    )


def test_micro_batches_fill_the_pipeline(bench: FrameworkBench) -> None:
    rows = {"pp_degree": [4, 4, 1], "micro_batch_num": [3, 4, 1]}
    found = bench.broken(Level.CHUNKS, rows)["mindformers-micro-batches"]
    assert found.broken == [True, False, False]
    assert "needs pp 4 micro-batches or more, not 3" in found.say(0)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({}, ""),
        ({"training": {"precision": "fp8"}}, "mindformers-precision"),
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
def test_models_and_formats(bench: FrameworkBench, changes: dict[str, Any], code: str) -> None:
    found = bench.broken(Level.DEGREE, ROWS, **changes)
    assert {name for name, one in found.items() if any(one.broken)} == ({code} if code else set())
    for one in found.values():
        assert one.rule.kind == HARD
        assert one.rule.source
        assert not any(one.broken) or "use" in one.say(0) or "train in bf16" in one.say(0)


def test_other_frameworks_are_left_alone(bench: FrameworkBench) -> None:
    for level in Level:
        assert not bench.broken(level, ROWS, framework={"name": "megatron"})


def test_a_search_names_the_rule() -> None:
    """GPT-2's norms have biases: nothing fits, and the reason says what would."""
    result = run_search({"model": {"source": "gpt2-xl"}, "framework": {"name": "mindformers"}})
    reasons = {code: said for cut in result.cuts for code, _, said in cut.reasons}
    assert "mindformers-family" in reasons
    assert "build no model with norm layernorm" in reasons["mindformers-family"]
