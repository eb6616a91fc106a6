"""Accelerate, Galvatron, Picotron, llm-foundry, fast-tuner."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from attrs import evolve

from autopar_core.api import CannotExpress
from autopar_core.testing import Space
from autopar_formats import (
    accelerate_read,
    accelerate_write,
    fast_tuner_read,
    foundry_read,
    galvatron_read,
    picotron_read,
)


GALVATRON: dict[str, Any] = {
    "pp_deg": 2, "tp_sizes_enc": "2,2,2,2", "dp_types_enc": "0,0,0,0", "checkpoint": "1,0,0,1",
    "global_bsz": 32, "chunks": 4, "pp_division": "1,3", "pipeline_type": "pipedream_flush",
    "default_dp_type": "zero2",
}  # fmt: skip
PICOTRON: dict[str, Any] = {
    "distributed": {"tp_size": 4, "cp_size": 1, "pp_size": 2, "dp_size": 2, "pp_engine": "afab"},
    "model": {"name": "meta-llama/Llama-2-7b-hf", "num_hidden_layers": 7},
    "training": {"seq_length": 4096, "micro_batch_size": 1, "gradient_accumulation_steps": 8},
}
MPT = """variables:
  max_seq_len: 2048
  global_seed: 17
max_seq_len: ${variables.max_seq_len}
run_name:
model:
  name: mpt_causal_lm
  d_model: 7168
  n_heads: 56
  n_layers: 48
  expansion_ratio: 4
  max_seq_len: ${max_seq_len}
  vocab_size: 50368
  attn_config: {alibi: true, attn_impl: triton}
global_train_batch_size: 512
device_train_microbatch_size: 1
precision: amp_bf16
fsdp_config: {sharding_strategy: FULL_SHARD, activation_checkpointing: true}
"""
FSDP = """distributed_type: FSDP
mixed_precision: bf16
num_machines: 2
num_processes: 16
fsdp_config: {fsdp_version: 2, fsdp_reshard_after_forward: true}
"""


def galvatron(**changes: Any) -> str:
    table = {**GALVATRON, **changes}
    return json.dumps({key: value for key, value in table.items() if value is not None})


def test_galvatron_layer_by_layer(read: Any) -> None:
    tables = read(galvatron_read.READER, galvatron(), "galvatron_llama2-7b_16gpu.json")
    strategy = tables["strategy"]
    assert strategy["stage_partition"] == [1, 3]
    assert strategy["layer_recompute"] == {"full": [1, 1]}
    assert (strategy["zero_stage"], strategy["schedule"]) == (2, "1f1b")
    # 16 devices / (2 stages x 2) = 4 replicas; 32 sequences / 4 replicas / 4 chunks = 2
    assert (strategy["dp_degree"], strategy["micro_batch_size"]) == (4, 2)


def test_galvatron_gives_the_rest_to_the_last_stage(read: Any) -> None:
    text = galvatron(pp_division=None, pp_deg=3, checkpoint=None)
    tables = read(galvatron_read.READER, text, "strategy.json")
    assert tables["strategy"]["stage_partition"] == [1, 1, 2]
    assert "cluster" not in tables
    assert any("does not say the number of devices" in note for note in tables["notes"])


def test_galvatron_ulysses_and_ignored_keys(read: Any) -> None:
    tables = read(galvatron_read.READER, galvatron(use_sp="1,1,1,1", embed_sdp=1), "x.json")
    strategy = tables["strategy"]
    assert (strategy["tp_degree"], strategy["cp_degree"], strategy["cp_comm_type"]) == (1, 2, "a2a")
    assert any("embed_sdp is ignored by Galvatron" in note for note in tables["notes"])


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"tp_sizes_enc": "2,2,1,2"}, "differs between layers; autopar plans one value"),
        ({"pp_division": "1,2"}, "places 3 layers, but there are 4"),
        ({"pp_division": "1,1,2"}, "has 3 stages, but pp_deg is 2"),
        ({"checkpoint": "1,0,0"}, "expected 4 entries, each 0 or 1"),
        ({"dp_types_enc": "0,0,0"}, "has 3 entries, but tp_sizes_enc has 4"),
        ({"tp_sizes_enc": "2,x"}, "expected whole numbers with commas between them"),
        ({"global_bsz": 30}, "is no multiple of 4 replicas x 4 chunks"),
    ],
)
def test_galvatron_traps(refused: Any, changes: dict[str, Any], said: str) -> None:
    assert said in refused(galvatron_read.READER, galvatron(**changes), "a_16gpu.json")


def test_picotron(read: Any, refused: Any) -> None:
    tables = read(picotron_read.READER, json.dumps(PICOTRON))
    strategy = tables["strategy"]
    assert strategy["stage_partition"] == [4, 3]  # the first stages take the rest
    assert (strategy["schedule"], strategy["zero_stage"]) == ("gpipe", 0)
    assert tables["training"]["global_batch_size"] == 1 * 8 * 2
    assert tables["cluster"]["devices"] == 16
    assert tables["model"]["tied_embeddings"] is False
    odd = {**PICOTRON, "model": {"name": "x", "num_key_value_heads": 2}}
    assert "4 does not divide the 2 KV heads" in refused(picotron_read.READER, json.dumps(odd))


def test_foundry_resolves_what_values_point_to(read: Any, refused: Any) -> None:
    """Field case D06: MPT-30B by its own keys, the sequence length by two pointers."""
    tables = read(foundry_read.READER, MPT)
    model = tables["model"]
    assert (model["num_layers"], model["hidden"], model["ffn_hidden"]) == (48, 7168, 28672)
    assert (model["kv_heads"], model["position"], model["tied_embeddings"]) == (56, "alibi", True)
    assert tables["training"] == {"seq_len": 2048, "global_batch_size": 512, "precision": "bf16"}
    assert tables["strategy"]["zero_stage"] == 3
    assert tables["sources"]["model.hidden"] == "line 8, model.d_model"
    circle = MPT.replace("max_seq_len: 2048", "max_seq_len: ${max_seq_len}", 1)
    assert "point to each other in a circle" in refused(foundry_read.READER, circle)
    nowhere = MPT.replace("${variables.max_seq_len}", "${variables.length}")
    assert "points to a key that is not there" in refused(foundry_read.READER, nowhere)


def test_fast_tuner_reads_the_file_that_it_names(tmp_path: Path, refused: Any, read: Any) -> None:
    table = {"rank_num": 64, "gbs": 1024, "yaml_path": "./base.yaml", "ranknum": 3}
    tables = read(fast_tuner_read.READER, json.dumps(table))
    assert tables["files"] == {"key yaml_path": "./base.yaml"}
    assert any("key ranknum is unknown to fast-tuner" in note for note in tables["notes"])
    both = json.dumps({**table, "toml_path": "x.toml"})
    assert "names several launch files" in refused(fast_tuner_read.READER, both)
    nodes = json.dumps({**table, "nnodes": 4, "npus_per_node": 8})
    assert "rank_num is 64, but nnodes x npus_per_node is 32" in refused(
        fast_tuner_read.READER, nodes
    )


def test_accelerate_counts_devices_of_all_machines(read: Any) -> None:
    tables = read(accelerate_read.READER, FSDP)
    assert tables["cluster"] == {"devices": 16}
    assert tables["strategy"]["zero_stage"] == 3
    first = FSDP.replace(
        "fsdp_version: 2, fsdp_reshard_after_forward: true", "fsdp_offload_params: false"
    )
    assert read(accelerate_read.READER, first)["strategy"]["zero_stage"] == 3  # FULL_SHARD


def test_accelerate_mesh_must_have_all_devices(refused: Any) -> None:
    mesh = (
        "parallelism_config: {parallelism_config_dp_shard_size: 4, parallelism_config_tp_size: 2}\n"
    )
    assert "cluster.devices is 16 (line 4, num_processes) and 8" in refused(
        accelerate_read.READER, FSDP + mesh
    )


def accelerate(framework: str, **search: Any) -> Space:
    fixed = {"pp": 1, "cp": 1, "tp": 1, **search}
    return Space.of({"framework": {"name": framework}, "search": fixed})


def test_accelerate_splits_sequences_for_the_ring() -> None:
    """Field case C19: the length must divide by twice the degree; the nearest degree is named."""
    request = accelerate("generic", cp=8, zero=3, cp_comm="all_gather").request(0, None, -1, "none")
    odd = evolve(request, training=evolve(request.training, seq_len=4104))  # 8 x 513
    with pytest.raises(CannotExpress, match="splits 4104 tokens into 2 x cp equal parts") as caught:
        accelerate_write.export(odd)
    assert caught.value.nearest["cp_degree"] == 4


def test_accelerate_keeps_kv_heads_whole() -> None:
    """Field case C07: four KV heads on eight ranks load and then fail; four ranks work."""
    space = Space.of(
        {
            "framework": {"name": "generic"}, "model": {"kv_heads": 4},
            "search": {"tp": 8, "pp": 1, "cp": 1},
        }
    )  # fmt: skip
    with pytest.raises(CannotExpress) as caught:
        accelerate_write.export(space.request(0, None, -1, "none"))
    assert caught.value.where == "tp_degree"
    assert caught.value.nearest["tp_degree"] == 4


def test_accelerate_writes_the_plugin_of_the_profile() -> None:
    for framework, kind in (("megatron", "MEGATRON_LM"), ("deepspeed-zero3", "DEEPSPEED")):
        files = accelerate_write.export(accelerate(framework).request(0, None, -1, "none"))
        assert yaml.safe_load(files["accelerate.yaml"])["distributed_type"] == kind
    sharded = accelerate("generic", zero=3).request(0, None, -1, "none")
    document = yaml.safe_load(accelerate_write.export(sharded)["accelerate.yaml"])
    assert document["fsdp_config"]["fsdp_reshard_after_forward"] is True
    plain = accelerate("generic", zero=0).request(0, None, -1, "none")
    document = yaml.safe_load(accelerate_write.export(plain)["accelerate.yaml"])
    assert document["distributed_type"] == "MULTI_GPU"
