"""What TorchTitan refuses in a search, and what of it a legal alternative repairs."""

from __future__ import annotations

from typing import Any

import pytest

from autopar_core.testing import run_search
from autopar_torchtitan.flavors import flavor_named


# The catalogue has no rate for these formats; the rules do not depend on it.
RATES = {"mxfp8": 4500e12, "nvfp4": 9000e12}
SEARCH = {"tp": 1, "pp": 1, "cp": 1, "micro_batch_size": 1, "layer_recompute": "none",
          "stage_partition": "even"}  # fmt: skip


def broken(
    flavor: tuple[str, str] = ("llama3", "8B"),
    *,
    framework: str = "torchtitan",
    version: str = "0.3.0",
    training: dict[str, Any] | None = None,
    model: dict[str, Any] | None = None,
    profile: dict[str, Any] | None = None,
    devices: int = 16,
    **search: Any,
) -> dict[str, str]:
    """Code -> sentence of every rule that some row breaks."""
    result = run_search({
        "model": {**flavor_named(*flavor).fields, **(model or {})},
        "training": {"global_batch_size": 64, "seq_len": 8192, **(training or {})},
        "cluster": {"system": "b200-sxm-180gb", "devices": devices, "override": {"peak_flops": RATES}},
        "framework": {"name": framework, "override": profile or {}},
        "search": {**SEARCH, **search},
        "plugins": {"torchtitan": {"version": version}},
    })  # fmt: skip
    return {code: said for cut in result.cuts for code, _, said in cut.reasons}


def codes(*arguments: Any, **changes: Any) -> set[str]:
    return {code for code in broken(*arguments, **changes) if code.startswith("torchtitan")}


# Arguments that TorchTitan refuses -> code, a part of its sentence, and changes that repair it.
CASES: dict[str, tuple[dict[str, Any], str, str, dict[str, Any]]] = {
    "tied": ({"flavor": ("llama3", "1B"), "pp": 2}, "torchtitan-tied", "use pp 1", {"pp": 1}),
    "old qwen": (
        {"flavor": ("qwen3", "8B"), "pp": 2, "version": "0.2.2"}, "torchtitan-qwen-pipeline",
        "or release 0.3.0", {"version": "0.3.0"},
    ),
    "half precision": (
        {"training": {"precision": "fp16"}}, "torchtitan-precision", "use bf16", {"training": {}}
    ),
    "both shares": (  # 48 = 2 x 2 x cp 4 x 3: by tp 4 and by 2 x cp 4, but not by 32
        {"tp": 4, "cp": 4, "training": {"seq_len": 48}}, "torchtitan-sequence", "sequence has 32",
        {"training": {"seq_len": 32}},
    ),
    "long": (
        {"flavor": ("qwen3", "8B"), "training": {"seq_len": 65536}}, "torchtitan-rope", "at most 40960",
        {"training": {"seq_len": 40960}},
    ),
    "four bits": (
        {"flavor": ("llama3", "3B"), "model": {"ffn_hidden": 8200}, "training": {"precision": "nvfp4"},
         "profile": {"core": {"precisions": ["nvfp4", "mxfp8"]}}},
        "torchtitan-nvfp4-width", "8200 is none", {"training": {"precision": "mxfp8"}},
    ),
    "DDP": (
        {"tp": 2, "version": "0.2.2", "profile": {"dp": {"zero_stages": [0]}}}, "torchtitan-ddp",
        "use zero_stage 3", {"profile": {}},
    ),
    "context": (
        {"cp": 2, "profile": {"dp": {"zero_stages": [0]}}}, "torchtitan-cp-sharding",
        "use zero_stage 3", {"profile": {}},
    ),
    "empty stage": (
        {"pp": 4, "stage_partition": [16, 0, 8, 8]}, "torchtitan-empty-stage", "one layer or more",
        {"stage_partition": [16, 1, 7, 8]},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_rule_refuses_and_its_alternative_passes(case: str) -> None:
    arguments, code, said, repair = CASES[case]
    found = broken(**arguments)
    assert said in found[code]
    assert code not in codes(**{**arguments, **repair})
    assert not codes(**{**arguments, "framework": "megatron"})


def test_key_value_heads_are_not_replicated() -> None:
    """Issue 2574: two key/value heads over four ranks crash in the first forward."""
    model = {"kv_heads": 2}
    assert "tp-kv-heads" in broken(model=model, tp=4)
    assert "tp-kv-heads" not in broken(model=model, tp=2)
    assert "tp-kv-heads" not in broken(model=model, tp=4, framework="megatron")


def test_a_shape_without_a_flavour_is_a_warning() -> None:
    result = run_search({
        "model": {**flavor_named("llama3", "8B").fields, "num_layers": 30},
        "training": {"global_batch_size": 64, "seq_len": 2048},
        "cluster": {"system": "h100-sxm-80gb", "devices": 8},
        "framework": {"name": "torchtitan"}, "search": SEARCH,
    })  # fmt: skip
    assert "torchtitan-flavor" in result.warnings
    assert result.top


@pytest.mark.parametrize(
    ("version", "precision", "warned"),
    [("0.3.0", "fp8", True), ("0.3.0", "fp8-rowwise", False), ("0.2.2", "fp8-tensorwise", False)],
)
def test_tensorwise_scaling_needs_the_older_release(
    version: str, precision: str, warned: bool
) -> None:
    result = run_search({
        "model": flavor_named("llama3", "8B").fields,
        "training": {"global_batch_size": 64, "seq_len": 8192, "precision": precision},
        "cluster": {"system": "h100-sxm-80gb", "devices": 8},
        "framework": {"name": "torchtitan"}, "search": SEARCH,
        "plugins": {"torchtitan": {"version": version}},
    })  # fmt: skip
    assert ("torchtitan-precision-release" in result.warnings) == warned
    assert result.top


def test_the_release_is_one_of_two() -> None:
    with pytest.raises(Exception, match=r"0\.3\.0"):
        broken(version="1.0")
