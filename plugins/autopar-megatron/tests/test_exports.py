"""What is written, and what cannot be said in each format."""

from __future__ import annotations

import ast
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from autopar_core.api import CannotExpress
from autopar_megatron.export_bridge import export_bridge
from autopar_megatron.export_script import export_megatron, export_mindspeed


EVERY = (("megatron", export_megatron), ("megatron-bridge", export_bridge),
         ("mindspeed", export_mindspeed))  # fmt: skip
PIPELINE = {"pp_degree": 4, "schedule": "1f1b", "model": {"num_layers": 16}}


def text(request: Any, export: Any = export_megatron) -> str:
    ((_, written),) = export(request).items()
    return str(written)


def flags(written: str) -> dict[str, str]:
    lines = [line.strip() for line in written.splitlines() if line.strip().startswith("--")]
    return {line.split()[0]: line.partition(" ")[2] for line in lines}


def test_a_script_has_the_strategy_and_the_whole_model(request_of: Any) -> None:
    request = request_of(
        **PIPELINE, stages=[3, 4, 4, 5], tp_degree=8, cp_degree=2, dp_degree=2, zero_stage=1,
        shard_degree=2, sequence_parallel=True, cp_comm_type="a2a", full=[2, 2, 2, 2],
    )  # fmt: skip
    written = flags(text(request))
    wanted = {
        "--num-layers": "16", "--hidden-size": "1024", "--num-query-groups": "8", "--swiglu": "",
        "--tensor-model-parallel-size": "8", "--context-parallel-size": "2", "--cp-comm-type": "a2a",
        "--pipeline-model-parallel-layout": "'Et*3|t*4|t*4|t*5L'", "--use-distributed-optimizer": "",
        "--overlap-grad-reduce": "", "--overlap-param-gather": "", "--recompute-method": "block",
        "--recompute-num-layers": "2", "--bf16": "", "--global-batch-size": "16",
        "--attention-dropout": "0.0", "--hidden-dropout": "0.0", "--vocab-size": "32768",
    }  # fmt: skip
    assert {name: written.get(name) for name in wanted} == wanted
    assert "--data-parallel-size" not in written


def test_the_header_says_how_the_estimate_was_made(request_of: Any) -> None:
    for _, export in EVERY:
        lines = text(request_of(), export).splitlines()
        assert "# autopar 0.1.0: place 1 of 3" in lines[:3]
        assert "# estimated step time 1.50 s" in lines[:4]


def test_environment_lines_that_megatron_insists_on(request_of: Any) -> None:
    one = "CUDA_DEVICE_MAX_CONNECTIONS"
    assert f"export {one}=1" in text(request_of(tp_degree=2))
    assert f"export {one}=1" in text(request_of(cp_degree=2, cp_comm_type="p2p"))
    assert one not in text(request_of(dp_degree=2))
    sharded = request_of(dp_degree=8, zero_stage=3, shard_degree=8, tp_degree=2)
    assert f"unset {one}" in text(sharded)
    assert f'os.environ.pop("{one}"' in text(sharded, export_bridge)
    assert f'os.environ.setdefault("{one}", "1")' in text(request_of(tp_degree=2), export_bridge)


def test_what_autopar_cannot_know_is_asked_for(request_of: Any, tmp_path: Path) -> None:
    written = text(request_of())
    for name in ("DATA_PATH", "TOKENIZER_MODEL", "TRAIN_ITERS", "LR", "MEGATRON_PATH"):
        assert f"${{{name}:?" in written
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("no bash")
    (tmp_path / "run.sh").write_text(written)
    done = subprocess.run([bash, "run.sh"], cwd=tmp_path, capture_output=True, text=True, check=False,
                          env={"PATH": "/usr/bin:/bin"})  # fmt: skip
    assert done.returncode != 0
    assert "MEGATRON_PATH: folder of Megatron-LM" in done.stderr


def test_nodes(request_of: Any) -> None:
    written = text(request_of(dp_degree=32))
    assert "GPUS_PER_NODE=8\nNNODES=4\n" in written
    assert "${MASTER_ADDR:?address of node 0}" in written
    small = text(request_of(dp_degree=3))
    assert "GPUS_PER_NODE=3\nNNODES=1\n" in small
    assert "${MASTER_ADDR:-localhost}" in small


@pytest.mark.parametrize(
    ("precision", "wanted"),
    [
        ("bf16", {"--bf16": ""}), ("fp16", {"--fp16": "", "--accumulate-allreduce-grads-in-fp32": ""}),
        ("fp32", {}),
        ("fp8-delayed", {"--bf16": "", "--fp8-format": "hybrid", "--fp8-recipe": "delayed"}),
        ("fp8-current", {"--bf16": "", "--fp8-format": "hybrid", "--fp8-recipe": "tensorwise"}),
        ("mxfp8", {"--bf16": "", "--fp8-format": "e4m3", "--fp8-recipe": "mxfp8"}),
        ("nvfp4", {"--bf16": "", "--fp4-format": "e2m1", "--fp4-recipe": "nvfp4"}),
    ],
)  # fmt: skip
def test_precisions(precision: str, wanted: dict[str, str], request_of: Any) -> None:
    written = flags(text(request_of(precision=precision)))
    names = {"--bf16", "--fp16", "--fp8-format", "--fp8-recipe", "--fp4-format", "--fp4-recipe",
             "--accumulate-allreduce-grads-in-fp32"}  # fmt: skip
    assert {name: written[name] for name in names & written.keys()} == wanted


def test_virtual_stages(request_of: Any) -> None:
    even = request_of(pp_degree=4, vpp_degree=2, schedule="interleaved", model={"num_layers": 16})
    assert flags(text(even))["--num-virtual-stages-per-pipeline-rank"] == "2"
    assert flags(text(even, export_mindspeed))["--num-layers-per-virtual-pipeline-stage"] == "2"
    assert "virtual_pipeline_model_parallel_size=2" in text(even, export_bridge)
    plain = request_of(**PIPELINE)
    assert not {name for name in flags(text(plain)) if "virtual" in name or "layout" in name}
    listed = request_of(**PIPELINE, stages=[3, 4, 4, 5])
    assert flags(text(listed, export_mindspeed))["--num-layer-list"] == "3,4,4,5"


@pytest.mark.parametrize("schedule", ["zbv", "zb-h1"])
def test_a_split_backward_has_1f1b_as_its_nearest(schedule: str, request_of: Any) -> None:
    request = request_of(**{**PIPELINE, "schedule": schedule})
    if schedule == "zbv":  # by chunk and rank; a rank keeps its layers
        rows = [[1, 2, 2, 2], [3, 2, 2, 2]]
        request = evolve(request, strategy=evolve(request.strategy, stage_partition=rows))
    with pytest.raises(CannotExpress, match=f"no {schedule}") as refusal:
        export_megatron(request)
    partition = {"stage_partition": [4, 4, 4, 4]} if schedule == "zbv" else {}
    assert refusal.value.nearest == {"schedule": "1f1b", **partition}


def test_fsdp(request_of: Any) -> None:
    request = request_of(dp_degree=8, zero_stage=3, shard_degree=4)
    written = flags(text(request))
    assert written["--data-parallel-sharding-strategy"] == "optim_grads_params"
    assert written["--ckpt-format"] == "fsdp_dtensor"
    assert written["--num-distributed-optimizer-instances"] == "2"
    recipe = text(request, export_bridge)
    assert 'data_parallel_sharding_strategy="optim_grads_params"' in recipe
    assert 'ckpt_format="fsdp_dtensor"' in recipe


def test_rank_order(request_of: Any) -> None:
    request = request_of(**PIPELINE, dp_degree=2)
    assert "--use-tp-pp-dp-mapping" not in text(request)
    inside = evolve(request, framework=evolve(request.framework, rank_order="tp-cp-pp-dp"))
    assert "--use-tp-pp-dp-mapping" in text(inside)
    assert "use_tp_pp_dp_mapping=True" in text(inside, export_bridge)
    other = evolve(request, framework=evolve(request.framework, rank_order="pp-tp-cp-dp"))
    assert text(other)  # one rank of tp: its place means nothing
    other = evolve(
        request_of(**PIPELINE, tp_degree=2),
        framework=evolve(request.framework, rank_order="pp-tp-cp-dp"),
    )
    with pytest.raises(CannotExpress, match="orders tp-cp-dp-pp and tp-cp-pp-dp"):
        text(other)


@pytest.mark.parametrize(("name", "export"), EVERY)
@pytest.mark.parametrize(
    ("changes", "field", "nearest"),
    [
        ({**PIPELINE, "full": [1, 2, 2, 2]}, "layer_recompute", {"layer_recompute": {"full": [2] * 4}}),
        ({**PIPELINE, "selective": [4, 4, 4, 3]}, "layer_recompute", {"layer_recompute": "selective"}),
        ({**PIPELINE, "selective": [4, 4, 0, 0], "full": [0, 0, 4, 4]}, "layer_recompute",
         {"layer_recompute": "selective"}),
        ({**PIPELINE, "schedule": "gpipe"}, "schedule", {"schedule": "1f1b"}),
        ({"precision": "fp8-delayed", "selective": [16]}, "layer_recompute",
         {"precision": "fp8-current"}),
        ({"precision": "int8"}, "training.precision", {"precision": "bf16"}),
        ({"model": {"qk_norm": "full"}}, "model.qk_norm", {}),
        ({"model": {"norms_per_layer": 3}}, "model.norms_per_layer", {}),
        ({"model": {"head_bias": True}}, "model.head_bias", {}),
        ({"model": {"final_norm": False}}, "model.final_norm", {}),
        ({"model": {"qkv_bias": True, "mlp_bias": True}}, "model.biases", {}),
        ({"model": {"embedding_width": 512}}, "model.embedding_width", {}),
        ({"model": {"position": "learned", "position_rows": 100}}, "model.position_rows", {}),
    ],
)  # fmt: skip
def test_what_cannot_be_said_names_the_nearest(
    name: str, export: Any, changes: dict[str, Any], field: str, nearest: dict[str, Any],
    request_of: Any,
) -> None:  # fmt: skip
    with pytest.raises(CannotExpress) as refusal:
        export(request_of(name, **changes))
    assert refusal.value.where == field
    assert refusal.value.nearest == nearest


def test_what_one_format_alone_lacks(request_of: Any) -> None:
    alibi = {"model": {"position": "alibi"}}
    with pytest.raises(CannotExpress, match="no ALiBi"):
        export_megatron(request_of(**alibi))
    assert (
        flags(text(request_of(**alibi), export_mindspeed))["--position-embedding-type"] == "alibi"
    )
    sandwich = {"model": {"norms_per_layer": 4}}
    with pytest.raises(CannotExpress, match="two norms"):
        export_bridge(request_of(**sandwich))
    assert "--post-norm" in flags(text(request_of(**sandwich), export_mindspeed))
    with pytest.raises(CannotExpress, match="optimizer state only"):
        export_mindspeed(request_of(dp_degree=2, zero_stage=3, shard_degree=2))
    with pytest.raises(CannotExpress, match="not in fp8-current"):
        export_mindspeed(request_of(precision="fp8-current"))
    with pytest.raises(CannotExpress, match="not fp32"):
        export_bridge(request_of(precision="fp32"))
    learned = {"model": {"position": "learned", "position_rows": 8192}}
    with pytest.raises(CannotExpress, match="as many learned positions"):
        export_bridge(request_of(**learned))


def test_a_recipe_is_python(request_of: Any) -> None:
    tree = ast.parse(text(request_of(**PIPELINE, stages=[3, 4, 4, 5], tp_degree=2), export_bridge))
    calls = {
        n.func.id
        for n in ast.walk(tree)
        if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)
    }
    assert {"GPTModelProvider", "ConfigContainer", "TrainingConfig"} <= calls
