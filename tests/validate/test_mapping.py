"""Cells of a measured run in this project's words."""

from __future__ import annotations

from typing import Any

import pytest

from autopar_core.cli.session import load_plugins
from autopar_core.config.catalogue import Profiles
from autopar_core.errors import InputError
from autopar_core.validate.mapping import (
    MissingFactError,
    cost_split,
    ends_split,
    even_split,
    map_run,
    recompute_plan,
    stage_split,
    zero_stage,
)
from autopar_core.validate.rows import Run


CELLS = {
    "id": "mine-1", "framework": "Megatron-LM", "version": "core r0.12", "num_layers": "32",
    "hidden": "4096", "ffn_hidden": "14336", "gated_mlp": "1", "heads": "32", "kv_heads": "8",
    "vocab": "128256", "seq_len": "8192", "gpu": "H100-SXM-80GB", "gpus": "16",
    "gpus_per_node": "8", "precision": "bf16", "dp": "2", "tp": "4", "pp": "2", "cp": "1",
    "vpp": "1", "sequence_parallel": "1", "micro_batch": "1", "global_batch": "64",
    "zero_or_fsdp": "zero1 (distributed optimizer)", "recompute": "none", "collectives": "real",
}  # fmt: skip


@pytest.fixture(scope="module")
def systems() -> Profiles:
    return Profiles("system", load_plugins())


def run(**cells: str) -> Run:
    return Run({**CELLS, **cells}, "runs.tsv, line 2")


def test_a_plain_row(systems: Profiles) -> None:
    mapped = map_run(run(), systems)
    assert mapped.tables["framework"] == {"name": "megatron"}
    assert mapped.tables["cluster"] == {"system": "h100-sxm-80gb", "devices": 16}
    assert mapped.tables["search"] == {"stage_partition": [16, 16], "layer_recompute": "none"}
    assert mapped.tables["training"]["precision"] == "bf16"
    assert mapped.fields == {
        "dp_degree": 2, "tp_degree": 4, "pp_degree": 2, "cp_degree": 1, "micro_batch_size": 1,
        "micro_batch_num": 32, "vpp_degree": 1, "schedule": "1f1b", "sequence_parallel": True,
        "zero_stage": 1, "shard_degree": 2, "replicate_degree": 1, "cp_comm_type": "none",
    }  # fmt: skip
    assert (mapped.stage, mapped.alone, mapped.no_memory) == (None, False, "")


@pytest.mark.parametrize(
    ("cells", "profile"),
    [
        ({"framework": "torchtitan", "other_flags": "eager"}, "torchtitan"),
        ({"framework": "torchtitan", "other_flags": "torch.compile"}, "torchtitan-compile"),
        ({"framework": "Megatron-Bridge (Megatron-Core)"}, "megatron-bridge"),
        ({"framework": "Megatron-Kwai (Megatron-LM fork)"}, "megatron-kwai"),
        ({"framework": "Megatron-LM", "version": "2021"}, "megatron-2021"),
        ({"framework": "Megatron-LM", "version": "Megatron-LM 23e00ed, TE 2.11.0"}, "megatron"),
        ({"framework": "Megatron-DeepSpeed"}, "megatron-deepspeed"),
        ({"framework": "DeepSpeed ZeRO-3"}, "deepspeed-zero3"),
        ({"framework": "nanotron"}, "nanotron"),
        ({"framework": "something new"}, "generic"),
    ],
)
def test_profile(systems: Profiles, cells: dict[str, str], profile: str) -> None:
    assert map_run(run(**cells), systems).tables["framework"]["name"] == profile


@pytest.mark.parametrize("source", ["SC21", "vTrain", "kwai", "SimuMax"])
def test_the_source_decides_nothing(systems: Profiles, source: str) -> None:
    assert map_run(run(source=source, id=f"{source}-1"), systems) == map_run(run(), systems)


@pytest.mark.parametrize(
    ("words", "stage", "shard", "replicate"),
    [
        ("", 0, 1, 1),
        ("none", 0, 1, 1),
        ("no distributed optimizer", 0, 1, 1),
        ("zero1", 1, 8, 1),
        ("zero2-like / distributed optimizer", 2, 8, 1),
        ("fsdp SHARD_GRAD_OP (zero2)", 2, 8, 1),
        ("zero3", 3, 8, 1),
        ("fsdp (zero3) FSDP=4", 3, 4, 2),
        ("fsdp2 shard=8 reshard_after_forward=1", 3, 8, 1),
        ("hsdp shard=4 replicate=2 reshard_after_forward=0", 3, 4, 2),
        ("fsdp (Megatron-FSDP, shard group 4)", 3, 4, 2),
    ],
)
def test_sharding(systems: Profiles, words: str, stage: int, shard: int, replicate: int) -> None:
    cells = run(zero_or_fsdp=words, gpus="8", dp="8", tp="1", pp="1")
    fields = map_run(cells, systems).fields
    found = [fields[name] for name in ("zero_stage", "shard_degree", "replicate_degree")]
    assert found == [stage, shard, replicate]
    assert zero_stage(cells) == stage


@pytest.mark.parametrize(
    ("words", "plan"),
    [
        ("", "none"),
        ("none", "none"),
        ("full (uniform, 1 layer)", "full"),
        ("full (block, 7 layers)", {"full": [7, 7]}),
        ("selective (core attention)", "selective"),
        ("torchtitan selective per-op (every second matmul of a block recomputed)", "selective"),
        ("selective (every 2nd layer)", {"every": 2}),
        (
            "torchtitan selective per-layer (every second layer fully recomputed)",
            {"every": 2},
        ),
    ],
)
def test_recompute(words: str, plan: Any) -> None:
    assert recompute_plan(run(recompute=words), [8, 7]) == plan


def test_splits() -> None:
    assert even_split(32, 4) == [8, 8, 8, 8]
    assert even_split(30, 4) == [7, 8, 8, 7]
    assert even_split(31, 4) == [8, 8, 8, 7]
    assert ends_split(32, 8) == [4, 5, 4, 4, 4, 4, 4, 3]
    assert ends_split(32, 1) == [32]


@pytest.mark.parametrize(
    ("cells", "chunks", "split"),
    [
        ({"stage_layers": "3,9,9,9"}, 1, [3, 9, 9, 9]),
        ({"stage_layers": "7", "measured_stage": "0"}, 1, [7, 8, 8, 7]),
        ({"stage_layers": "6", "measured_stage": "3"}, 1, [8, 8, 8, 6]),
        ({}, 2, [3, 4, 4, 4, 4, 4, 4, 3]),
    ],
)
def test_stated_layers_win(cells: dict[str, str], chunks: int, split: list[int]) -> None:
    assert stage_split(run(**cells), 30, 4, chunks, "even") == split


@pytest.mark.parametrize(
    ("cells", "schedule"),
    [
        ({}, "1f1b"),
        ({"schedule": "GPipe"}, "gpipe"),
        ({"schedule": "Interleaved1F1B", "vpp": "2"}, "interleaved"),
        ({"vpp": "2"}, "interleaved"),
        ({"gpus": "8", "pp": "1"}, "none"),
    ],
)
def test_schedule(systems: Profiles, cells: dict[str, str], schedule: str) -> None:
    assert map_run(run(**cells), systems).fields["schedule"] == schedule


def test_flags_become_overrides(systems: Profiles) -> None:
    off = map_run(run(other_flags="TP/PP overlap disabled"), systems).tables["framework"]
    assert off["override"] == {
        "tp": {"overlap": "none"},
        "dp": {"overlap_gradients": False, "overlap_parameters": False},
    }
    flags = "origin Megatron-LM (tp-comm-overlap only if CP=1)"
    assert "override" not in map_run(run(other_flags=flags), systems).tables["framework"]
    two = map_run(run(other_flags=flags, gpus="32", cp="2"), systems)
    assert two.tables["framework"]["override"] == {"tp": {"overlap": "bulk"}}
    assert two.fields["cp_comm_type"] == "p2p"
    a2a = run(other_flags="CP comm a2a (Ulysses)", gpus="32", cp="2")
    assert map_run(a2a, systems).fields["cp_comm_type"] == "a2a"


def test_nodes_of_fewer_devices(systems: Profiles) -> None:
    assert map_run(run(gpus_per_node="4"), systems).tables["cluster"]["devices_per_domain"] == 4
    rack = run(gpus_per_node="4", gpu="GB200")
    assert map_run(rack, systems).tables["cluster"] == {"system": "gb200-nvl72", "devices": 16}


def test_layers_follow_costs() -> None:
    # A layer has 4 x 3072^2 + 3 x 3072 x 8192 = 113 246 208 parameters, the head 131072 x 3072 =
    # 402 653 184: 31.56 layers, 3.94 a stage. Four layers pass each share, the head is left alone.
    cells = {"hidden": "3072", "ffn_hidden": "8192", "vocab": "131072"}
    assert cost_split(run(**cells), 28, 8) == [4, 4, 4, 4, 4, 4, 4, 0]
    assert cost_split(run(**cells), 28, 2) == [16, 12]
    assert stage_split(run(**cells), 28, 8, 1, "costs") == cost_split(run(**cells), 28, 8)


def test_host_time_of_the_measuring_machine(systems: Profiles) -> None:
    cells = {
        "gpu": "H200-SXM-141GB", "framework": "torchtitan", "version": "0.2.2 / torch 2.11.0",
        "other_flags": "eager", "gpus": "2", "tp": "1", "pp": "1",
    }  # fmt: skip
    alone = map_run(run(**cells, collectives="none"), systems).tables["framework"]
    host = alone["override"]["core"]["host"]
    both = host["forward_seconds"] + host["backward_seconds"]
    assert both == pytest.approx(4e-3)
    assert alone["override"]["dp"]["host_sharded"]["forward_seconds"] == pytest.approx(1e-3)
    compiled = map_run(
        run(**{**cells, "other_flags": "torch.compile"}, collectives="none"), systems
    )
    less = compiled.tables["framework"]["override"]["core"]["host"]
    assert less["forward_seconds"] < host["forward_seconds"]
    assert less["recompute"] == host["recompute"]
    assert map_run(run(**cells), systems).tables["framework"] == {"name": "torchtitan"}


def test_what_memory_was_measured(systems: Profiles) -> None:
    assert map_run(run(mem_kind="as plotted, rank 0 (=first stage) only"), systems).stage == 0
    mapped = map_run(run(measured_stage="1", collectives="none"), systems)
    assert (mapped.stage, mapped.alone) == (1, True)
    assert map_run(run(other_flags="activation CPU offload"), systems).no_memory
    assert not map_run(run(other_flags="act CPU offload=False"), systems).no_memory


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("bf16", "bf16"), ("bf16 (amp, fp32 master)", "bf16"), ("fp16 mixed", "fp16"),
        ("fp8", "fp8"), ("fp8 (amp_fp8, TE)", "fp8"), ("FP8 (hybrid, delayed scaling)", "fp8-delayed"),
        ("fp8_ds", "fp8-delayed"), ("fp8-cs", "fp8-current"), ("fp8_cs", "fp8-current"),
        ("fp8-mx", "mxfp8"), ("MXFP8", "mxfp8"), ("nvfp4", "nvfp4"), ("fp8 rowwise", "fp8-rowwise"),
        ("fp8 tensorwise (torchao float8 linears, fp8 all-gather)", "fp8-tensorwise"),
        ("fp8 blockwise", "fp8-blockwise"), ("fp8_sc", "fp8-blockwise"),
    ],
)  # fmt: skip
def test_precisions(systems: Profiles, text: str, name: str) -> None:
    mapped = map_run(run(precision=text), systems)
    assert mapped.tables["training"]["precision"] == name
    gathers = mapped.tables["framework"].get("override", {}).get("core", {}).get("precision")
    assert gathers == ({name: {"gathered_bytes": 1.0}} if "all-gather" in text else None)


@pytest.mark.parametrize(
    ("flags", "share"),
    [
        ("activation offload to host ratio alpha=0.63; optimised fork", 0.63),
        ("activation CPU offload 8 layers (recipe)", 0.25),  # of 32
    ],
)
def test_offloaded_activations(systems: Profiles, flags: str, share: float) -> None:
    mapped = map_run(run(other_flags=flags), systems)
    assert not mapped.no_memory
    assert mapped.tables["framework"]["override"]["core"]["offload"] == {"share": share}


def test_old_layers_of_megatron(systems: Profiles) -> None:
    old = {
        "framework": "Megatron-LM",
        "precision": "fp16 mixed",
        "gated_mlp": "0",
        "version": "2023",
    }
    assert map_run(run(**old), systems).tables["framework"]["name"] == "megatron-2021"
    flash = map_run(run(**old, other_flags="flash attention"), systems)
    assert flash.tables["framework"]["name"] == "megatron"


def test_what_a_family_has_and_no_column_holds(systems: Profiles) -> None:
    assert map_run(run(model_name="Qwen3-32B"), systems).tables["model"]["qk_norm"] == "head"
    gpt = map_run(run(model_name="GPT-22B", gated_mlp="0"), systems).tables["model"]
    assert (gpt["norm"], gpt["mlp_bias"], gpt["position"]) == ("layernorm", True, "learned")
    assert gpt["position_rows"] == int(run().cells["seq_len"])
    assert gpt["hidden_dropout"] == 0.1
    calm = map_run(run(gated_mlp="0", other_flags="dropout 0"), systems).tables["model"]
    assert "hidden_dropout" not in calm
    assert "norm" not in map_run(run(), systems).tables["model"]


@pytest.mark.parametrize(
    ("cells", "fact"),
    [
        ({"precision": "int4"}, "precision 'int4'"),
        ({"phase": "LoRA"}, "LoRA"),
        ({"micro_batch": ""}, "micro_batch is not stated"),
        ({"heads": ""}, "heads is not stated"),
        ({"gpu": "Abacus-9000"}, "gpu 'Abacus-9000'"),
        ({"schedule": "ZB-H1"}, "schedule 'ZB-H1'"),
        ({"recompute": "some of it"}, "recompute 'some of it'"),
        ({"zero_or_fsdp": "sharded somehow"}, "zero_or_fsdp 'sharded somehow'"),
        ({"gpus": "15"}, "gpus"),
        ({"global_batch": "63"}, "global_batch"),
        ({"measured_stage": "2"}, "measured_stage"),
    ],
)
def test_missing_facts_are_named(systems: Profiles, cells: dict[str, str], fact: str) -> None:
    with pytest.raises(MissingFactError) as caught:
        map_run(run(**cells), systems)
    assert fact in str(caught.value)


def test_a_wrong_cell_is_named(systems: Profiles) -> None:
    with pytest.raises(InputError) as caught:
        map_run(run(seq_len="8k"), systems)
    assert str(caught.value) == "runs.tsv, line 2, seq_len: expected a number, got '8k'"
