"""Precision recipes: products, casts and memory by hand; who may use which."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autopar_core.cli.main import main
from autopar_core.config.catalogue import Profiles, system_profile
from autopar_core.config.load import load_job
from autopar_core.config.overrides import Overrides
from autopar_core.config.tables import Origins, deep_merge
from autopar_core.domain.framework import SavedTensor
from autopar_core.domain.job import Job
from autopar_core.domain.precision import PrecisionRecipe
from autopar_core.domain.strategy import StrategyBatch
from autopar_core.domain.system import SystemProfile
from autopar_core.errors import InputError
from autopar_core.laws.compute import linear_seconds
from autopar_core.search.contexts import Contexts
from autopar_core.search.terms import Terms, collect
from autopar_core.testing.bench import SMALL_JOB, load


MANAGER = load()
SYSTEMS = Profiles("system", MANAGER)
# 50 TFLOP/s sustained in bf16, no launches, 1 TB/s for elementwise kernels.
MACHINE = {
    "cluster": {
        "override": {
            "gemm": {"efficiency": 0.5, "k0": 0.0,
                     "formats": {"fp8": {"speed": 2.0, "transposes": True, "uncertainty": 0.03}}},
            "peak_flops": {"bf16": 100e12, "fp8": 200e12}, "kernel": {"launch_seconds": 0.0},
            "memory": {"bytes_per_second": 2e12, "elementwise_efficiency": 0.5},
        }
    },
    "framework": {"override": {"core": {"time_scale": {"default": 1.0, "h100-sxm-80gb": 1.0}}}},
}  # fmt: skip
RECIPE = {
    "format": "fp8", "cast_input": 3.0, "cast_gradient": 4.0, "cast_weight": 5.0, "transpose": 2.0,
    "exchanged_bytes": 1.0, "input_bytes": 1.0, "weight_bytes": 1.0, "transpose_weight_bytes": 0.5,
    "uncertainty": 0.04,
}  # fmt: skip
# Query, output 1024 x 1024; key, value 512 x 1024; three of 4096 x 1024; two norms of 1024.
WEIGHTS = 2 * 1_048_576 + 2 * 524_288 + 3 * 4_194_304
TOKENS = 4096


def job(changes: Mapping[str, Any] | None = None, **training: Any) -> Job:
    tables = deep_merge(deep_merge(SMALL_JOB, MACHINE), changes or {})
    return load_job(None, deep_merge(tables, {"training": training}), Overrides(), MANAGER)


def own(recipe: Mapping[str, Any], framework: str = "generic") -> dict[str, Any]:
    """A framework with one recipe that stands in for fp8-delayed."""
    core = {"precisions": ["fp8-delayed"], "precision": {"fp8-delayed": recipe}}
    return {"framework": {"name": framework, "override": {"core": core}}}


def terms(made: Job, **values: Any) -> Terms:
    contexts = Contexts.build(made, MANAGER)
    given = {"micro_batch_size": 1, "micro_batch_num": 8, **values}
    columns = {n: [contexts.fields[n].encode(v)] for n, v in given.items()}
    return collect(StrategyBatch.of(contexts.fields, columns), contexts)


def seconds(found: Terms, start: str, phase: str) -> float:
    kept = [t for t in found.time if t.name.startswith(start) and t.phase == phase]
    return sum(float(t.seconds[0]) for t in kept if t.segment == "block")


def memory(found: Terms, name: str) -> int:
    return sum(int(t.bytes[0]) for t in found.memory if t.name == name)


# --- time ---------------------------------------------------------------------------------------


def test_products_and_casts_of_a_block() -> None:
    # 4096 tokens; q 1024, k and v 512 each, f 4096 (gated).
    found = terms(job(own(RECIPE), precision="fp8"), dp_degree=1)
    # Products: 2 x 4096 x 15 728 640 FLOP = 128.849 GFLOP at 2 x 50 TFLOP/s = 1.28849 ms forward,
    # twice that backward.
    assert WEIGHTS == 15_728_640
    forward = 2 * TOKENS * WEIGHTS / 100e12
    assert seconds(found, "linear", "forward") == pytest.approx(forward, rel=1e-12)
    assert seconds(found, "linear", "backward") == pytest.approx(2 * forward, rel=1e-12)
    # Inputs: qkv 1024, output 1024, gate and up 1024 together, down 4096 = 7168 per token;
    # 3 B for the cast and 2 B for the transposed copy at 1 TB/s: 5 x 4096 x 7168 B = 146.80064 us.
    # Weights: 7 x 15 728 640 B = 110.10048 us once per step, an eighth with each micro-batch.
    assert seconds(found, "casts to fp8", "forward") == pytest.approx(
        146.80064e-6 + 110.10048e-6 / 8, rel=1e-12
    )
    # Gradients: 2048 + 1024 + 8192 + 1024 = 12 288 per token, 6 B: 301.989888 us.
    assert seconds(found, "casts to fp8", "backward") == pytest.approx(301.989888e-6, rel=1e-12)
    # Recomputing a block repeats its products and the casts of their inputs.
    again = seconds(found, "casts to fp8", "recompute_full")
    assert again == pytest.approx(146.80064e-6, rel=1e-12)


def test_devices_that_read_any_layout_make_no_transposed_copies() -> None:
    device = {"cluster": {"override": {"gemm": {"formats": {"fp8": {"transposes": False}}}}}}
    found = terms(job(deep_merge(own(RECIPE), device), precision="fp8"), dp_degree=1)
    # 3 x 4096 x 7168 B + 5 x 15 728 640 B / 8; gradients 4 x 4096 x 12 288 B
    forward = 88.080384e-6 + 78.6432e-6 / 8
    assert seconds(found, "casts", "forward") == pytest.approx(forward, rel=1e-12)
    assert seconds(found, "casts", "backward") == pytest.approx(201.326592e-6, rel=1e-12)


def test_weights_with_every_micro_batch_and_inputs_cast_again() -> None:
    recipe = {**RECIPE, "cast_weight_each": True, "cast_input_again": 1.0, "transpose": 0.0}
    found = terms(job(own(recipe), precision="fp8"), dp_degree=1)
    # weights 5 x 15 728 640 B with each of 8 micro-batches; inputs once more, 1 x 4096 x 7168 B
    forward = 88.080384e-6 + 78.6432e-6
    assert seconds(found, "casts", "forward") == pytest.approx(forward, rel=1e-12)
    backward = 201.326592e-6 + 29.360128e-6
    assert seconds(found, "casts", "backward") == pytest.approx(backward, rel=1e-12)


@pytest.mark.parametrize(("exchanged", "share"), [(1.0, 1), (2.0, 4)])
def test_casts_before_ranks_gather_from_each_other(exchanged: float, share: int) -> None:
    # tp 4 with sequence parallelism: a rank has 1024 of 4096 tokens of the residual stream. What
    # comes from there (qkv 1024, gate and up 1024) is cast before it is gathered, or after; output
    # (256) and down (1024) read what the rank computed for all tokens. Transposed copies are made of
    # what was gathered.
    recipe = {**RECIPE, "exchanged_bytes": exchanged, "cast_weight": 0.0}
    found = terms(
        job(own(recipe), precision="fp8"), tp_degree=4, sequence_parallel=True, dp_degree=2
    )
    stream, local, weights = 2048 * 1024 * share, 1280 * 4096, WEIGHTS // 4
    moved = 3 * (stream + local) + 2 * (2048 + 1280) * 4096 + 2 * weights / 8
    assert seconds(found, "casts", "forward") == pytest.approx(moved / 1e12, rel=1e-12)


def test_sixteen_bits_cast_nothing() -> None:
    for precision in ("bf16", "fp16"):
        made = job(own(RECIPE), precision=precision)
        found = terms(made, dp_degree=1)
        assert not [t for t in found.time if "cast" in t.name]
        assert not [t for t in found.memory if "weights in" in t.name]
        assert (made.format_uncertainty, made.recipe.format) == (0.0, precision)


@settings(derandomize=True, max_examples=60, deadline=None)
@given(
    st.sampled_from(SYSTEMS.names()),
    st.tuples(*(st.integers(1, 300) for _ in range(3))),
    st.sampled_from([0.88, 1.0]),
)
def test_products_are_never_slower_than_in_16_bits(
    name: str, sizes: tuple[int, int, int], share: float
) -> None:
    system: SystemProfile = system_profile(SYSTEMS.table(name, ""), Origins(name).below())
    shape = [np.array([64 * size]) for size in sizes]
    half = linear_seconds(system, "bf16", *shape)[:2]
    for kind, law in system.gemm.formats.items():
        if law.speed * share >= 1:
            cast = linear_seconds(system, kind, *shape, share)[:2]
            assert all(c <= h for c, h in zip(cast, half, strict=True))


def test_every_offered_recipe_speeds_up_the_products_and_shows_its_casts() -> None:
    for framework in Profiles("framework", MANAGER).names():
        for system in ("h100-sxm-80gb", "gb200-nvl72"):
            change = {"framework": {"name": framework}, "cluster": {"system": system}}
            tables = deep_merge(SMALL_JOB, change)
            half = terms(load_job(None, tables, Overrides(), MANAGER), dp_degree=1)
            core = load_job(None, tables, Overrides(), MANAGER).framework.core
            for name in core.precisions:
                formats = SYSTEMS.table(system, "")["gemm"]["formats"]
                if core.precision[name].format not in formats:
                    continue
                asked = deep_merge(tables, {"training": {"precision": name}})
                found = terms(load_job(None, asked, Overrides(), MANAGER), dp_degree=1)
                for phase in ("forward", "backward"):
                    fast, slow = (seconds(x, "linear", phase) for x in (found, half))
                    assert fast < slow, (framework, name)
                    assert seconds(found, "casts to", phase) > 0


# --- memory -------------------------------------------------------------------------------------


def test_saved_inputs_of_linears() -> None:
    only = SavedTensor(name="x", bytes={"hidden": 2}, linear_input="only")
    also = SavedTensor(name="x", bytes={"hidden": 2}, linear_input="also")
    other = SavedTensor(name="x", bytes={"hidden": 2})
    for size in (1.0, 1.03125, 0.5625):
        recipe = PrecisionRecipe(format="fp8", input_bytes=size)
        assert only.held_bytes(recipe) == {"hidden": size}
        assert also.held_bytes(recipe) == {"hidden": 2 + size}
        assert other.held_bytes(recipe) == {"hidden": 2}
    kept = PrecisionRecipe(format="fp8")
    assert {t.held_bytes(kept)["hidden"] for t in (only, also, other)} == {2}


def test_saved_bytes_of_a_block() -> None:
    found = terms(job(own(RECIPE), precision="fp8"), dp_degree=1)
    half = terms(job(precision="bf16"), dp_degree=1)
    # 4096 tokens: outputs of the norms 1 B x 1024, of the MLP's activation 1 B x 4096; attention's
    # own output stays, with a cast beside it: 3 B x 1024.
    for name, bytes_per_token in (("norm 1 output", 1024), ("norm 2 output", 1024),
                                  ("MLP activation output", 4096), ("attention output", 3072),
                                  ("MLP up projection output", 16384)):  # fmt: skip
        assert memory(found, name) == TOKENS * bytes_per_token, name
    assert memory(half, "attention output") == TOKENS * 2048
    # 1 B cast and 0.5 B transposed per weight of each block, the 2-byte weights as before
    block = WEIGHTS + 2048
    assert memory(found, "weights in fp8") == 1.5 * block
    assert memory(found, "gathered weights in fp8") == 0
    assert memory(found, "parameters (block)") == memory(half, "parameters (block)") == 2 * block


def test_cast_weights_of_sharded_parameters_live_with_their_block() -> None:
    found = terms(job(own(RECIPE), precision="fp8"), dp_degree=8, zero_stage=3, shard_degree=8)
    assert memory(found, "weights in fp8") == 0
    assert memory(found, "gathered weights in fp8") == 1.5 * (WEIGHTS + 2048)


def test_weights_kept_in_the_format() -> None:
    recipe = {**RECIPE, "parameter_bytes": 1.0, "weight_bytes": 0.0}
    found = terms(job(own(recipe), precision="fp8"), dp_degree=1)
    assert memory(found, "parameters (block)") == WEIGHTS + 2048
    assert memory(found, "weights in fp8") == 0.5 * (WEIGHTS + 2048)  # the transposed copies
    assert memory(found, "parameters (embedding)") == 2 * 32768 * 1024


def test_gathers_of_weights_in_the_format() -> None:
    # ZeRO-1 gathers new weights once per step, ZeRO-3 with every pass: half the bytes of a block,
    # so half of what is proportional to them; embedding and head stay in 16 bits
    def gathered(stage: int, size: float | None, **where: str) -> float:
        recipe = {**RECIPE} if size is None else {**RECIPE, "gathered_bytes": size}
        made = job(own(recipe), precision="fp8")
        found = terms(made, dp_degree=8, zero_stage=stage, shard_degree=8)
        kept = [t for t in found.time if t.name == "parameter gather" and t.owner == "dp"
                and all(getattr(t, key) == value for key, value in where.items())]  # fmt: skip
        return sum(float(t.seconds[0]) for t in kept)

    step = {"segment": "step", "scale": "layer"}
    link = job().system.links.intra
    half = link.half_bytes / link.bytes_per_second
    moved = (WEIGHTS + 2048) * 7 / 8 / link.bytes_per_second
    assert gathered(1, None, **step) - gathered(1, 1.0, **step) == pytest.approx(moved, rel=1e-9)
    each = {"segment": "block", "phase": "forward"}
    assert gathered(3, 1.0, **each) == pytest.approx(link.latency_seconds + half + moved, rel=1e-9)
    ends = {"segment": "step", "on": "first"}
    assert gathered(1, None, **ends) == gathered(1, 1.0, **ends)


def test_gathered_weights_in_the_format() -> None:
    # ZeRO-3: the block at work and the one gathered ahead, 2 B per weight or 1 B; the head stays
    values = {"dp_degree": 8, "zero_stage": 3, "shard_degree": 8}
    narrow = terms(job(own({**RECIPE, "gathered_bytes": 1.0}), precision="fp8"), **values)
    wide = terms(job(own(RECIPE), precision="fp8"), **values)
    for name in ("gathered parameters", "gathered ahead"):
        assert memory(narrow, name) == WEIGHTS + 2048
        assert memory(wide, name) == 2 * (WEIGHTS + 2048)
    for name in ("gathered head", "reduction buffer"):
        assert memory(narrow, name) == memory(wide, name) > 0


# --- who may use which --------------------------------------------------------------------------


def test_a_format_means_the_first_recipe_of_the_framework() -> None:
    for framework, meant in (("megatron", "fp8-delayed"), ("megatron-bridge", "fp8-current"),
                             ("torchtitan", "fp8-tensorwise"), ("nemo", "fp8-delayed")):  # fmt: skip
        made = job({"framework": {"name": framework}}, precision="fp8")
        assert made.training.precision == meant
        assert f"precision fp8 is read as {meant} of {framework}" in made.notes
        assert made.raw["training"]["precision"] == "fp8"
        assert made.recipe.format == "fp8"
    assert not job({"framework": {"name": "megatron"}}, precision="fp8-current").notes


def test_a_recipe_may_go_with_some_recompute_modes_only() -> None:
    recipe = {**RECIPE, "recompute_modes": ["full"]}
    made = job(own(recipe, "torchtitan"), precision="fp8")
    assert made.framework.core.recompute_modes == ("full",)
    plain = job(own(recipe, "torchtitan"), precision="bf16")
    assert plain.framework.core.recompute_modes == ("selective", "full")
    with pytest.raises(InputError, match="recompute_modes = 'some' is none of none, selective"):
        job(own({**RECIPE, "recompute_modes": ["some"]}), precision="fp8")
    # Megatron tells where the modes of its delayed scaling come from.
    found = job({"framework": {"name": "megatron"}}, precision="fp8").framework
    assert found.core.recompute_modes == ("full",)
    assert "transformer_config.py" in found.sources["core.recompute_modes"]


def test_todays_framework_has_its_own_modes() -> None:
    today = {"dp": 8, "framework": "megatron"}
    made = job({"framework": {"name": "generic"}, "today": today}, precision="fp8")
    assert made.today is not None
    assert made.today.framework.core.recompute_modes == ("full",)
    assert made.framework.core.recompute_modes == ("selective", "full")


def test_uncertainty_of_recipe_and_device() -> None:
    # 0.04 of the recipe and 0.03 of the device's speed
    assert job(own(RECIPE), precision="fp8").format_uncertainty == pytest.approx(0.07)


@pytest.mark.parametrize(
    ("system", "framework", "precision", "words"),
    [
        ("h100-sxm-80gb", "megatron", "int3", "framework megatron has no precision 'int3'; it has"),
        ("h100-sxm-80gb", "megatron", "fp8-delaid", "did you mean fp8-delayed?"),
        ("h100-sxm-80gb", "megatron-2021", "fp8", "has no precision 'fp8'; it has: bf16, fp16"),
        ("h100-sxm-80gb", "torchtitan", "nvfp4", "framework torchtitan has no precision 'nvfp4'"),
        ("h100-sxm-80gb", "mindformers", "fp8", "framework mindformers has no precision"),
        ("a100-sxm-80gb", "megatron", "fp8", "system a100-sxm-80gb has no fp8 products"),
        ("ascend-910b", "megatron", "fp8", "system ascend-910b has no fp8 products"),
        ("h100-sxm-80gb", "megatron", "mxfp8", "has no mxfp8 products for 'mxfp8'; it has: bf16"),
        ("h100-sxm-80gb", "megatron", "fp8-blockwise", "has no precision 'fp8-blockwise'"),
    ],
)
def test_refused_in_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str],
    system: str, framework: str, precision: str, words: str,
) -> None:  # fmt: skip
    path = tmp_path / "run.toml"
    path.write_text(
        f"""
        [model]
        source = "llama-3-8b"
        [training]
        global_batch_size = 64
        seq_len = 4096
        precision = "{precision}"
        [cluster]
        system = "{system}"
        devices = 8
        [framework]
        name = "{framework}"
        """,
        encoding="utf-8",
    )
    assert main(["search", str(path)]) == 2
    said = capsys.readouterr()
    assert said.err.count("\n") == 1
    assert "run.toml: training.precision: " in said.err
    assert words in said.err


def test_an_offered_recipe_needs_its_table() -> None:
    change = {"framework": {"override": {"core": {"precisions": ["fp6"]}}}}
    with pytest.raises(InputError, match=r"'fp6' has no table core.precision.fp6"):
        job(change)
