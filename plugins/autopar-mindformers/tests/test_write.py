"""Files that are written, and strategies that graph mode has no way to say."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from autopar_core.api import CannotExpress, ExportRequest
from autopar_mindformers.readers import READER
from autopar_mindformers.write import CONFIG, EXPORTER


PIPELINE = {"pp_degree": 4, "schedule": "1f1b"}
QWEN3 = {"qk_norm": "head"}


def written(request: ExportRequest) -> dict[str, Any]:
    table: dict[str, Any] = yaml.safe_load(EXPORTER.export(request)[CONFIG])
    return table


def test_uneven_stages_and_mixed_recompute(request_of: Any) -> None:
    """32 layers as 7, 8, 8, 9: offsets -1, 0, 0, 1; of 7 layers 2 in full and 3 more in part."""
    request = request_of(
        **PIPELINE, stages=[7, 8, 8, 9], full=[2, 0, 0, 0], selective=[3, 4, 0, 0],
        dp_degree=4, zero_stage=1, shard_degree=2, replicate_degree=2, tp_degree=2,
        sequence_parallel=True,
    )  # fmt: skip
    table = written(request)
    assert table["model"]["model_config"]["offset"] == [-1, 0, 0, 1]
    assert table["recompute_config"]["recompute"] == [2, 0, 0, 0]
    assert table["recompute_config"]["select_recompute"] == [5, 4, 0, 0]
    assert table["parallel"]["parallel_optimizer_config"]["optimizer_weight_shard_size"] == 2
    assert table["parallel_config"]["use_seq_parallel"] is True
    text = EXPORTER.export(request)[CONFIG]
    for part in ("# made up", "# To be filled in", "silu and mul"):
        assert part in text
    strategy = READER.read(Path(CONFIG), text)["strategy"]
    assert strategy["layer_recompute"] == {"full": [2, 0, 0, 0], "selective": [3, 4, 0, 0]}
    assert strategy["shard_degree"] == 2


def test_virtual_stages_have_two_dimensions(request_of: Any) -> None:
    request = request_of(
        pp_degree=2, vpp_degree=2, schedule="interleaved", stages=[7, 8, 8, 9], full=[1, 0, 0, 2],
        model=QWEN3, dp_degree=2,
    )  # fmt: skip
    table = written(request)
    config = table["model"]["model_config"]
    assert (config["offset"], config["pp_interleave_num"]) == ([[-1, 0], [0, 1]], 2)
    assert table["parallel"]["pipeline_config"]["pipeline_interleave"] is True
    assert table["recompute_config"]["recompute"] == [[1, 0], [0, 2]]
    assert table["parallel"]["dataset_strategy"] == [[2, 1]] * 4
    assert table["train_dataset_task"]["dataset_config"] == table["train_dataset"]


def test_micro_batches_stand_where_they_count(request_of: Any) -> None:
    flat, piped = written(request_of(dp_degree=2)), written(request_of(**PIPELINE))
    assert flat["runner_config"]["gradient_accumulation_steps"] == 8
    assert flat["parallel_config"]["micro_batch_num"] == 1
    assert piped["runner_config"]["gradient_accumulation_steps"] == 1
    assert piped["parallel_config"]["micro_batch_num"] == 8


@pytest.mark.parametrize(
    ("exchange", "algorithm", "inner", "ring"),
    [("p2p", "colossalai_cp", 1, True), ("all_gather", "colossalai_cp", 1, False),
     ("a2a", "ulysses_cp", 2, False)],
)  # fmt: skip
def test_exchanges(request_of: Any, exchange: str, algorithm: str, inner: int, ring: bool) -> None:
    table = written(request_of(cp_degree=2, cp_comm_type=exchange, model=QWEN3))
    assert table["parallel_config"]["context_parallel_algo"] == algorithm
    assert table["parallel_config"]["ulysses_degree_in_cp"] == inner
    assert table["model"]["model_config"]["use_ring_attention"] is ring


@pytest.mark.parametrize(
    ("model", "kind"),
    [({}, "LlamaConfig"), ({"tied_embeddings": True}, "LlamaConfig"), (QWEN3, "qwen3"),
     ({"head_dim": 64}, "telechat3")],
)  # fmt: skip
def test_classes(request_of: Any, model: dict[str, Any], kind: str) -> None:
    table = written(request_of(model=model))
    config = table["model"]["model_config"]
    assert config.get("type", config.get("model_type")) == kind
    assert table["use_legacy"] is (kind == "LlamaConfig")


def test_the_script_starts_every_worker(request_of: Any, tmp_path: Path) -> None:
    """bash runs it with a launcher that only notes its arguments."""
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("no bash to run the written script with")
    scripts = tmp_path / "mindformers" / "scripts"
    scripts.mkdir(parents=True)
    (scripts / "msrun_launcher.sh").write_text('printf "%s\\n" "$@" > "$NOTED"\n')
    given = {"PATH": "/usr/bin:/bin", "MINDFORMERS_PATH": str(tmp_path / "mindformers"),
             "NOTED": str(tmp_path / "noted"), "MASTER_ADDR": "node0", "NODE_RANK": "3"}  # fmt: skip
    expected = {
        16: ["16", "8", "node0", "8118", "3", "output/msrun_log", "True", "7200"],
        4: ["4", "8118", "output/msrun_log", "True", "7200"],
        1: ["1", "8118", "output/msrun_log", "True", "7200"],
    }
    for devices, rest in expected.items():
        script = EXPORTER.export(request_of(dp_degree=devices))["launch.sh"]
        (tmp_path / "launch.sh").write_text(script)
        subprocess.run([bash, str(tmp_path / "launch.sh")], check=True, env=given, timeout=30)
        first, *others = (tmp_path / "noted").read_text().splitlines()
        assert first.startswith("run_mindformer.py --config ")
        assert CONFIG in first
        assert others == rest


REFUSED: tuple[tuple[dict[str, Any], str, dict[str, Any]], ...] = (
    ({"dp_degree": 2, "zero_stage": 3, "shard_degree": 2}, "zero_stage", {"zero_stage": 1}),
    ({"precision": "fp8"}, "precision", {"precision": "bf16"}),
    ({"pp_degree": 2, "schedule": "gpipe"}, "schedule", {"schedule": "1f1b"}),
    ({"pp_degree": 2, "schedule": "zb-h1"}, "schedule", {"schedule": "1f1b"}),
    ({"pp_degree": 2, "schedule": "dualpipev"}, "schedule", {"schedule": "zbv"}),
    ({"pp_degree": 2, "schedule": "zbv", "micro_batch_size": 2, "micro_batch_num": 2},
     "micro_batch_num", {"micro_batch_size": 1, "micro_batch_num": 4}),
    ({**PIPELINE, "stages": [10, 0, 11, 11]}, "stage_partition", {"stage_partition": [10, 1, 10, 11]}),
    ({**PIPELINE, "micro_batch_size": 4, "micro_batch_num": 2}, "micro_batch_num",
     {"micro_batch_size": 2, "micro_batch_num": 4}),
    ({"tp_degree": 2, "cp_degree": 32, "cp_comm_type": "a2a"}, "cp_comm_type",
     {"cp_comm_type": "all_gather"}),
    # 8 key/value heads over 16 ranks: 8 ranks and 2 replicas, 8 sequences as 4 each.
    ({"tp_degree": 16, "sequence_parallel": True}, "tp_degree",
     {"tp_degree": 8, "dp_degree": 2, "micro_batch_size": 1, "micro_batch_num": 4,
      "replicate_degree": 2}),
    ({"tp_degree": 2, "model": {"vocab": 50257}}, "tp_degree",
     {"tp_degree": 1, "dp_degree": 2, "sequence_parallel": False, "micro_batch_size": 1,
      "micro_batch_num": 4, "replicate_degree": 2}),
    ({"model": {"norm": "layernorm"}}, "model.norm", {}),
    ({"model": {"mlp_bias": True}}, "model.mlp_bias", {}),
    ({"model": {"qk_norm": "full"}}, "model.qk_norm", {}),
    ({"model": {"tied_embeddings": True, "head_dim": 64}}, "model.tied_embeddings", {}),
)  # fmt: skip


@pytest.mark.parametrize(("fields", "field", "nearest"), REFUSED)
def test_refused(
    request_of: Any, fields: dict[str, Any], field: str, nearest: dict[str, Any]
) -> None:
    with pytest.raises(CannotExpress) as error:
        EXPORTER.export(request_of(**fields))
    assert error.value.where == field
    assert error.value.nearest == nearest
    assert "MindFormers" in str(error.value)


def test_empty_ends_are_written(request_of: Any) -> None:
    table = written(request_of(**PIPELINE, stages=[0, 16, 16, 0]))
    assert table["model"]["model_config"]["offset"] == [-8, 8, 8, -8]


def test_zero_bubble_keeps_chunks_and_ranks(request_of: Any) -> None:
    """LayerSetting adds offset[chunk][rank] to the even share, and turns the second row around itself.

    4 stages of 8 layers; rank 0 holds 7 and 9, the first and the last stage of the model.
    """
    request = request_of(
        pp_degree=2, schedule="zbv", stages=[7, 8, 9, 8], full=[1, 0, 2, 0], model=QWEN3,
    )  # fmt: skip
    table = written(request)
    config = table["model"]["model_config"]
    assert (config["offset"], config["pp_interleave_num"]) == ([[-1, 0], [1, 0]], 2)
    pipeline = table["parallel"]["pipeline_config"]
    assert pipeline == {"pipeline_interleave": True, "pipeline_scheduler": "zero_bubble_v"}
    assert table["recompute_config"]["recompute"] == [[1, 0], [2, 0]]
    strategy = READER.read(Path(CONFIG), EXPORTER.export(request)[CONFIG])["strategy"]
    assert strategy["schedule"] == "zbv"
    assert strategy["stage_partition"] == [[7, 8], [9, 8]]
    assert strategy["layer_recompute"]["full"] == [[1, 0], [2, 0]]
    assert "vpp_degree" not in strategy
