"""What Megatron refuses besides the rules of the dimensions, and only for its own family."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from autopar_core.api import HABIT, HARD, ExportRequest, Level
from autopar_core.testing import FrameworkBench, run_search
from autopar_megatron.export_bridge import export_bridge
from autopar_megatron.export_script import export_megatron


MEGATRON = {"framework": {"name": "megatron"}}


@pytest.fixture(scope="module")
def bench() -> FrameworkBench:
    return FrameworkBench.of("megatron", MEGATRON)


def test_all_to_all_needs_whole_heads(bench: FrameworkBench) -> None:
    """16 heads and 8 groups: tp 2 leaves 8 and 4; cp 4 divides both, cp 8 does not divide 4."""
    rows = {
        "tp_degree": [2, 2, 2, 1], "cp_degree": [4, 8, 8, 1],
        "cp_comm_type": ["a2a", "a2a", "p2p", "none"], "micro_batch_size": [1, 1, 1, 1],
    }  # fmt: skip
    found = bench.broken(Level.SHARDING, rows)["megatron-a2a-heads"]
    assert found.broken == [False, True, False, False]
    assert found.rule.kind == HARD
    assert found.say(1) == (
        "all-to-all gives whole heads to cp 8 ranks: 8 attention and 4 key/value heads of a tp 2 rank "
        "are not divisible; use p2p or all_gather"
    )


def test_eight_bit_needs_multiples_of_tokens(bench: FrameworkBench) -> None:
    """4104 tokens over cp 2 are 2052, no multiple of 16; two sequences are 8208 = 16 x 513 at cp 1."""
    rows = {
        "tp_degree": [1, 1, 4, 4], "cp_degree": [2, 1, 1, 1], "micro_batch_size": [1, 2, 1, 1],
        "sequence_parallel": [False, False, True, False],
    }  # fmt: skip
    code, odd = "megatron-fp8-tokens", {"seq_len": 4104}
    found = bench.broken(Level.SHARDING, rows, training={**odd, "precision": "fp8"})[code]
    assert found.broken == [True, False, True, True]
    assert found.say(0).endswith("pad sequences to a multiple of 32 tokens")
    assert code not in bench.broken(Level.SHARDING, rows, training=odd)
    whole = bench.broken(Level.SHARDING, rows, training={"precision": "mxfp8"})[code]
    assert whole.broken == [False] * 4


def test_eight_bit_needs_multiples_of_widths(bench: FrameworkBench) -> None:
    """1024 / 32 = 32 is a multiple of 32; a width of 4064 over 2 is 2032 = 16 x 127."""

    def broken(precision: str, tp: list[int], **model: int) -> list[bool]:
        training = {"precision": precision}
        found = bench.broken(Level.DEGREE, {"tp_degree": tp}, training=training, model=model)
        return found["megatron-fp8-width"].broken

    assert broken("mxfp8", [1, 2, 32]) == [False] * 3
    assert broken("mxfp8", [1, 2], ffn_hidden=4064) == [False, True]
    assert broken("fp8", [1, 2], ffn_hidden=4064) == [False, False]


def test_learned_positions_bound_the_sequence(bench: FrameworkBench) -> None:
    learned = {"position": "learned", "position_rows": 2048}
    rows, code = {"tp_degree": [1, 2]}, "megatron-positions"
    found = bench.broken(Level.DEGREE, rows, model=learned)[code]
    assert found.broken == [True, True]
    assert "at most 2048" in found.say(0)
    short = bench.broken(Level.DEGREE, rows, model=learned, training={"seq_len": 2048})[code]
    assert short.broken == [False, False]
    assert not any(bench.broken(Level.DEGREE, rows)[code].broken)


def test_interleaving_over_two_ranks_is_a_habit(bench: FrameworkBench) -> None:
    rows = {"pp_degree": [2, 4, 2], "schedule": ["interleaved", "interleaved", "1f1b"]}
    found = bench.broken(Level.CHUNKS, rows)["megatron-interleave-two"]
    assert found.broken == [True, False, False]
    assert found.rule.kind == HABIT


def test_other_frameworks_are_left_alone(bench: FrameworkBench) -> None:
    other = {"name": "torchtitan", "bases": ("generic",)}
    rows = {"tp_degree": [2], "cp_degree": [8], "cp_comm_type": ["a2a"], "micro_batch_size": [1]}
    wrong = {"precision": "fp8", "seq_len": 4100}
    for level in Level:
        assert bench.broken(level, rows, framework=other, training=wrong) == {}
    kin = {"name": "mine", "bases": ("megatron-bridge", "nemo", "megatron", "generic")}
    found = bench.broken(Level.SHARDING, rows, framework=kin)
    assert found["megatron-a2a-heads"].broken == [True]


def test_delayed_scaling_repeats_no_norms() -> None:
    plans = ["none", "selective", {"full": [4]}, {"selective": [4, 0], "full": [0, 4]}, "auto"]
    bench = FrameworkBench.of("megatron", {**MEGATRON, "search": {"layer_recompute": plans}})
    rows = {"recompute_plan": [0, 1, 2, 3, 4]}
    for precision, refused in (("fp8-delayed", {1, 3}), ("fp8-current", set())):
        found = bench.broken(Level.RECOMPUTE, rows, training={"precision": precision})
        broken = found["megatron-delayed-selective"].broken
        assert {row for row, one in enumerate(broken) if one} == refused


@pytest.mark.parametrize("framework", ["megatron", "nemo", "megatron-bridge"])
def test_delayed_scaling_is_not_offered_what_export_refuses(
    framework: str, request_of: Callable[..., ExportRequest]
) -> None:
    """7 GiB want recompute everywhere; the two searches differ in nothing but the scaling.

    ``fp8`` is delayed scaling in Megatron-LM and NeMo.
    """
    exporter = export_bridge if framework == "megatron-bridge" else export_megatron
    used = {}
    for precision in ("fp8-current", "fp8-delayed"):
        result = run_search({
            "training": {"precision": precision}, "framework": {"name": framework},
            "cluster": {"memory_limit": "7 GiB"},
            "search": {"tp": 1, "pp": 2, "cp": 1, "micro_batch_size": 2, "schedule": "1f1b"},
        })  # fmt: skip
        chosen = [detail.strategy for detail in result.top]
        used[precision] = {
            mode for each in chosen for mode, n in each.layer_recompute.items() if any(n)
        }
        for each in chosen:
            if precision == "fp8-delayed":
                assert exporter(request_of(
                    framework, precision=precision, stages=each.stage_partition,
                    **each.layer_recompute, **each.fields,
                ))  # fmt: skip
    assert used == {"fp8-current": {"selective", "full"}, "fp8-delayed": {"full"}}


def test_every_rule_has_a_source_and_a_remedy(bench: FrameworkBench) -> None:
    rows = {"tp_degree": [1], "micro_batch_size": [1]}
    for level in Level:
        for one in bench.broken(level, rows, training={"precision": "fp8"}).values():
            assert one.rule.source
            said = one.rule.sentence
            assert any(word in said for word in ("use ", "pad ", "train with", "need "))


def test_a_search_with_mindspeed_proposes_what_it_has() -> None:
    result = run_search({"framework": {"name": "mindspeed"}, "search": {"layer_recompute": "none"}})
    assert result.job.framework.is_a("megatron")
    assert result.top
    assert {detail.strategy.fields["zero_stage"] for detail in result.top} <= {0, 1}
    assert "gpipe" not in {detail.strategy.fields["schedule"] for detail in result.top}
