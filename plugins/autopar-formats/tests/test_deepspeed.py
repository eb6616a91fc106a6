"""DeepSpeed: what its configuration says, leaves to others, or says twice."""

from __future__ import annotations

import json
from typing import Any

import pytest

from autopar_core.testing import run_search
from autopar_formats import deepspeed_read, deepspeed_write


BASE: dict[str, Any] = {
    "train_batch_size": 64, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4,
    "bf16": {"enabled": True}, "zero_optimization": {"stage": 3},
}  # fmt: skip


def text(**changes: Any) -> str:
    table = {**BASE, **changes}
    return json.dumps({key: value for key, value in table.items() if value is not None})


def test_any_two_of_the_three_batch_numbers(read: Any) -> None:
    tables = read(deepspeed_read.READER, text())
    assert tables["strategy"]["dp_degree"] == 8
    assert tables["training"] == {"global_batch_size": 64, "precision": "bf16"}
    assert tables["sources"]["strategy.dp_degree"].startswith("inferred: ")
    open_number = read(deepspeed_read.READER, text(gradient_accumulation_steps=None))
    assert "micro_batch_num" not in open_number["strategy"]
    assert "dp_degree" not in open_number["strategy"]
    alone = read(
        deepspeed_read.READER,
        text(gradient_accumulation_steps=None, train_micro_batch_size_per_gpu=None),
    )
    assert alone["strategy"]["micro_batch_num"] == 1  # DeepSpeed's default


def test_auto_is_unknown_and_offload_is_told(read: Any) -> None:
    """Field case D14: nearly every value is the string auto, states lie in host memory."""
    zero = {
        "stage": 3, "offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"},
        "reduce_bucket_size": "auto",
    }  # fmt: skip
    auto = dict.fromkeys(
        ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"),
        "auto",
    )
    tables = read(
        deepspeed_read.READER,
        text(**auto, bf16={"enabled": "auto"}, fp16={"enabled": "auto"}, zero_optimization=zero),
    )
    assert "training" not in tables
    assert set(tables["strategy"]) == {"zero_stage", "pp_degree"}
    notes = " ".join(tables["notes"])
    assert "key train_batch_size is 'auto': the Trainer's arguments decide it" in notes
    assert "key zero_optimization.offload_param: offload to cpu is not modelled" in notes


def test_unknown_top_level_keys_are_told(read: Any) -> None:
    notes = read(deepspeed_read.READER, text(zero_optimisation={"stage": 1}))["notes"]
    assert "key zero_optimisation is unknown to DeepSpeed, which ignores it" in notes


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"train_batch_size": 60}, "is 60, which is no multiple of"),
        ({"train_batch_size": -1}, "must be 1 or more, got -1"),
        ({"zero_optimization": {"stage": 4}}, "expected 0 to 3, got 4"),
        ({"zero_optimization": {"stage": 3, "mics_shard_size": 8}}, "was removed from DeepSpeed"),
        ({"zero_optimization": {"stagee": 3}}, "is a key that DeepSpeed refuses"),
        ({"fp16": {"enabled": True}}, "key bf16.enabled and key fp16.enabled are both true"),
        (
            {"train_batch_size": None, "train_micro_batch_size_per_gpu": None},
            "has neither train_batch_size nor train_micro_batch_size_per_gpu",
        ),
    ],
)
def test_traps_are_refused(refused: Any, changes: dict[str, Any], said: str) -> None:
    assert said in refused(deepspeed_read.READER, text(**changes))


def test_tensor_parallelism_keeps_kv_heads_whole() -> None:
    """Field case C33: two KV heads (Qwen2.5-3B) fail beyond two ranks; two ranks work."""
    model = {"hidden": 2048, "heads": 16, "kv_heads": 2, "ffn_hidden": 11008, "num_layers": 36}
    changes = {"framework": {"name": "deepspeed-zero3"}, "model": model, "search": {"pp": 1}}
    result = run_search(changes)
    assert set(result.batch["tp_degree"][result.verdicts.feasible]) == {1, 2}
    said = [s for cut in result.cuts for _, code, s in cut.reasons if "AutoTP" in s]
    assert any("2 over tp 4" in one for one in said)


def test_stages_and_sharding_beyond_one_do_not_combine() -> None:
    result = run_search({"framework": {"name": "deepspeed-zero3"}})
    batch, feasible = result.batch, result.verdicts.feasible
    several = feasible & (batch["pp_degree"] > 1)
    assert several.any()
    assert (batch["zero_stage"][several] <= 1).all()
    sharded = feasible & (batch["zero_stage"] > 0)
    assert (batch["shard_degree"][sharded] == batch["dp_degree"][sharded]).all()


def test_files_have_a_launch_line(read: Any) -> None:
    from autopar_core.testing import Space

    fixed = {"tp": 1, "pp": 1, "cp": 1, "zero": 3}
    space = Space.of({"framework": {"name": "deepspeed-zero3"}, "search": fixed})
    files = deepspeed_write.export(space.request(0, None, -1, "full"))
    assert "deepspeed --num_gpus 8 train.py" in files["launch.sh"]
    assert "activation checkpointing on for every layer" in files["launch.sh"]
    assert json.loads(files["ds_config.json"])["zero_optimization"]["stage"] == 3
