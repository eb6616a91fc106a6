"""Real files read to their exact parameter count and to the strategy that they launch."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

from autopar_core.api import ModelConfig


STRATEGIES: dict[str, dict[str, Any]] = {
    "gpt3_175b_tp8_pp16.sh": {
        "tp_degree": 8, "pp_degree": 16, "cp_degree": 1, "dp_degree": 1, "micro_batch_size": 1,
        "micro_batch_num": 1536, "zero_stage": 0, "sequence_parallel": False, "schedule": "1f1b",
        "stage_partition": [6] * 16,
    },
    "llama2_70b_uneven_first_last.args": {
        "tp_degree": 8, "pp_degree": 4, "sequence_parallel": True, "zero_stage": 1,
        "stage_partition": [19, 21, 21, 19],
        "layer_recompute": {"selective": [0, 0, 0, 0], "full": [5, 5, 5, 5]},
    },
    "llama31_405b_account_for_embedding.args": {
        "vpp_degree": 2, "cp_degree": 2, "schedule": "interleaved", "cp_comm_type": "p2p",
        "stage_partition": [[7, *[8] * 7], [*[8] * 7, 7]],
    },
    "llama3_70b_layout_vpp2.args": {
        "vpp_degree": 2, "stage_partition": [[9, 10, 10, 10], [10, 10, 10, 11]],
    },
    "llama3_8b_tp1_cp2_array.sh": {
        "tp_degree": 1, "cp_degree": 2, "dp_degree": 4, "pp_degree": 1, "micro_batch_num": 32,
        "sequence_parallel": False, "zero_stage": 1, "shard_degree": 4, "schedule": "none",
    },
    "mindspeed_gemma2_27b_tied.sh": {"pp_degree": 2, "stage_partition": [20, 26], "dp_degree": 1},
    "mindspeed_qwen25_72b_num_layer_list.sh": {
        "cp_degree": 4, "cp_comm_type": "p2p", "stage_partition": [17, 20, 22, 21], "dp_degree": 1,
    },
    "mindspeed_qwen3_32b_vpp_layers.sh": {
        "vpp_degree": 8, "pp_degree": 2, "micro_batch_size": 2, "stage_partition": [[4, 4]] * 8,
    },
    "nemotron_15b_args.yaml": {"tp_degree": 8, "micro_batch_size": 4, "schedule": "none"},
}  # fmt: skip


def index(samples: Path) -> dict[str, str]:
    with (samples / "INDEX.tsv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    return {Path(row["file"]).name: row["expected_params"] for row in rows}


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_sample_reads_as_it_launches(name: str, samples: Path, read: Any) -> None:
    tables = read((samples / "megatron" / name).read_text(), name)
    assert ModelConfig(**tables["model"]).parameters == int(index(samples)[name])
    strategy = tables["strategy"]
    assert {key: strategy[key] for key in STRATEGIES[name]} == STRATEGIES[name]
    for table, values in tables.items():
        if table in ("model", "training", "cluster"):
            assert all(f"{table}.{key}" in tables["sources"] for key in values)


def test_every_sample_of_the_kind_is_here(samples: Path) -> None:
    assert {file.name for file in samples.glob("megatron/*")} == STRATEGIES.keys()


def test_each_value_tells_its_place(samples: Path, read: Any) -> None:
    name = "mindspeed_qwen25_72b_num_layer_list.sh"
    sources = read((samples / "megatron" / name).read_text(), name)["sources"]
    assert sources["model.num_layers"] == "line 22, --num-layers"
    assert sources["strategy.tp_degree"] == (
        "line 19, --tensor-model-parallel-size, value on line 6"
    )
    assert sources["model.norms_per_layer"] == "default of the format"
    assert sources["strategy.dp_degree"].startswith("inferred: ")
    assert sources["cluster.devices"] == (
        "line 12, --nproc_per_node, value on line 3 x line 13, --nnodes, value on line 4"
    )


def test_bf16_reductions_and_missing_overlap_reach_the_profile(samples: Path, read: Any) -> None:
    text = (samples / "megatron" / "llama3_8b_tp1_cp2_array.sh").read_text()
    override = read(text)["framework"]["override"]
    assert override == {
        "core": {"states": {"gradients": 2}}, "dp": {"gradient_reduce_bytes": 2.0},
    }  # fmt: skip
    override = read(text.replace("--overlap-param-gather", ""))["framework"]["override"]
    assert override["dp"] == {"gradient_reduce_bytes": 2.0, "overlap_parameters": False}


def test_overrides_of_a_bridge_recipe_leave_the_model_open(samples: Path, read: Any) -> None:
    name = "megatron_bridge_llama31_405b_overrides.txt"
    tables = read((samples / "other" / name).read_text(), name)
    assert tables["model"] == {"source": "megatron_bridge_llama31_405b_overrides"}
    assert tables["sources"]["model.source"] == "inferred: name of the file"
    assert tables["framework"] == {"name": "megatron-bridge"}
    strategy = tables["strategy"]
    assert (strategy["tp_degree"], strategy["pp_degree"], strategy["cp_degree"]) == (8, 8, 4)
    assert strategy["vpp_degree"] == 2
    assert tables["training"] == {"seq_len": 131072, "global_batch_size": 512}
