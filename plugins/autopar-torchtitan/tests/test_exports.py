"""What is written for TorchTitan, and what it has no way to say."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import tomli
from attrs import evolve

from autopar_core.api import CannotExpress, ExportRequest
from autopar_core.cli.main import main
from autopar_core.testing import FrameworkBench
from autopar_torchtitan import write_python, write_toml
from autopar_torchtitan.flavors import flavor_named
from autopar_torchtitan.read_toml import read_toml
from autopar_torchtitan.readers import READERS
from autopar_torchtitan.stages import every_nth, layer_counts, module_names


Export = Callable[[ExportRequest], Mapping[str, str]]
PYTHON, TOML = write_python.export, write_toml.export


@cache
def bench() -> FrameworkBench:
    return FrameworkBench.of("torchtitan", {"framework": {"name": "torchtitan"}})


def request_of(
    flavor: tuple[str, str] = ("llama3", "8B"),
    *,
    precision: str = "bf16",
    seq_len: int = 4096,
    hidden: int = 0,
    **fields: Any,
) -> ExportRequest:
    model = flavor_named(*flavor).model
    values = {"micro_batch_num": 8, **fields}
    changes: dict[str, Any] = {
        "model": evolve(model, hidden=hidden, head_dim=0) if hidden else model,
        "training": {"seq_len": seq_len, "precision": precision},
    }
    return bench().request(
        chunks=values.get("vpp_degree", 1), header=("place 1", "estimated step time 1.50 s"),
        changes=changes, **values,
    )  # fmt: skip


PP = {"pp_degree": 4, "schedule": "1f1b"}
FSDP = {"dp_degree": 2, "zero_stage": 3, "shard_degree": 2}
# Strategy, form -> field, a part of the reason, and the nearest.
CANNOT: dict[str, tuple[Export, dict[str, Any], str, str, dict[str, Any]]] = {
    "optimizer states alone": (
        PYTHON, {"dp_degree": 4, "zero_stage": 1, "shard_degree": 4}, "zero_stage", "always "
        "shards parameters",
        {"zero_stage": 3},
    ),
    "gradients in a pipeline": (
        PYTHON, {**PP, "dp_degree": 4, "zero_stage": 2, "shard_degree": 4}, "zero_stage",
        "that is stage 3", {"zero_stage": 3},
    ),
    "DDP with tp": (
        TOML, {"dp_degree": 2, "tp_degree": 2, "sequence_parallel": True, "replicate_degree": 2},
        "zero_stage", "no other dimension", {"zero_stage": 3, "shard_degree": 2, "replicate_degree": 1},
    ),
    "no sequence parallelism": (
        TOML, {"tp_degree": 2}, "sequence_parallel", "only", {"sequence_parallel": True}
    ),
    "tied": (
        PYTHON, {"flavor": ("llama3", "1B"), "pp_degree": 2, "schedule": "1f1b"}, "pp_degree", "tied",
        {"pp_degree": 1, "schedule": "none", "dp_degree": 2, "zero_stage": 3, "shard_degree": 2,
         "micro_batch_num": 4},
    ),
    "qwen in a pipeline": (
        TOML, {"flavor": ("qwen3", "8B"), **PP, **FSDP}, "pp_degree", "no pipeline for qwen3",
        {"pp_degree": 1, "schedule": "none", "dp_degree": 8, "shard_degree": 8, "micro_batch_num": 2},
    ),
    "cut heads": (
        PYTHON, {"tp_degree": 16, "sequence_parallel": True}, "tp_degree", "there are 8",
        {"tp_degree": 8, "dp_degree": 2, "micro_batch_num": 4, "replicate_degree": 2},
    ),
    "ring": (
        PYTHON, {**FSDP, "cp_degree": 2, "cp_comm_type": "p2p"}, "cp_comm_type", "by all_gather",
        {"cp_comm_type": "all_gather"},
    ),
    "all to all": (
        TOML, {**FSDP, "cp_degree": 2, "cp_comm_type": "a2a"}, "cp_comm_type", "all_gather or p2p",
        {"cp_comm_type": "all_gather"},
    ),
    "some layers": (
        PYTHON, {**PP, "full": [4, 2, 0, 0]}, "layer_recompute", "4/2/0/0 of 8/8/8/8",
        {"layer_recompute": "full"},
    ),
    "uneven counts": (  # each 2nd layer gives 4 in each stage; each 3rd only 2
        TOML, {**PP, "full": [4, 3, 3, 3]}, "layer_recompute", "4/4/4/4 with 2",
        {"layer_recompute": {"full": [4, 4, 4, 4]}},
    ),
    "both modes": (
        TOML, {"full": [16], "selective": [16]}, "layer_recompute", "one way", {"layer_recompute": "full"}
    ),
    "selective layers": (
        PYTHON, {"selective": [16]}, "layer_recompute", "one way", {"layer_recompute": "selective"}
    ),
    "empty stage": (
        PYTHON, {**PP, "stages": [16, 0, 8, 8]}, "stage_partition", "without a module",
        {"stage_partition": [8, 8, 8, 8]},
    ),
    "half precision": (
        PYTHON, {"precision": "fp16"}, "training.precision", "bf16", {"precision": "bf16"}
    ),
    "tensorwise": (
        PYTHON, {"precision": "fp8-tensorwise"}, "training.precision", "0.3.0 trains in",
        {"precision": "fp8-rowwise"},
    ),
    "split backward": (
        TOML, {**PP, "schedule": "zb-h1", **FSDP}, "schedule", "no zb-h1", {"schedule": "1f1b"}
    ),
    "four bits": (TOML, {"precision": "nvfp4"}, "training.precision", "0.2.2", {"precision": "bf16"}),
    "shape": (PYTHON, {"hidden": 2048}, "model", "32 layers, hidden 2048", {}),
    "new flavour": (TOML, {"flavor": ("llama3", "1B")}, "model", "0.2.2 builds models", {}),
    "long": (
        PYTHON, {"flavor": ("qwen3", "8B"), "seq_len": 65536}, "training.seq_len", "at most 40960",
        {"seq_len": 40960},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CANNOT)
def test_what_cannot_be_said_names_the_nearest(case: str) -> None:
    export, arguments, field, reason, nearest = CANNOT[case]
    with pytest.raises(CannotExpress) as refusal:
        export(request_of(**arguments))
    assert refusal.value.where == field
    assert reason in refusal.value.reason
    assert refusal.value.nearest == nearest


def test_each_second_layer_is_said_in_toml() -> None:
    request = request_of(**PP, stages=[7, 9, 9, 7], full=[3, 4, 4, 3])
    found = read_toml("job.toml", TOML(request)["torchtitan.toml"])
    assert found.text("activation_checkpoint.selective_ac_option") == "2"


def test_counters_of_layers_run_over_the_chunks_of_a_rank() -> None:
    # rank 0 holds 3 and 3 layers: its 2nd, 4th and 6th are one in the first chunk, two in the second
    assert every_nth([3, 4, 3, 4], 2, 2) == (1, 2, 2, 2)
    assert every_nth([3, 4], 2, 0) == (3, 4)


def test_module_names_cover_every_module_once() -> None:
    names = module_names([1, 0, 2], "lm_head")
    assert names == [
        ["tok_embeddings", "layers.0"],
        [],
        ["layers.1", "layers.2", "norm", "lm_head"],
    ]
    assert layer_counts(names, 3, "lm_head") == (1, 0, 2)
    with pytest.raises(ValueError, match=r"leaves out layers\.3"):
        layer_counts(names, 4, "lm_head")
    with pytest.raises(ValueError, match="out of order"):
        layer_counts([["layers.0", "tok_embeddings"], ["norm", "lm_head"]], 1, "lm_head")


def test_files_say_the_estimate_and_what_is_not_known() -> None:
    for export in (PYTHON, TOML):
        for name, text in export(request_of(**PP, **FSDP)).items():
            assert "# estimated step time 1.50 s\n" in text
            assert name == "launch.sh" or "hf_assets_path" in text


@pytest.mark.parametrize("export", [PYTHON, TOML])
def test_the_script_starts_as_many_processes_as_devices(export: Export, tmp_path: Path) -> None:
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("no bash to run the written script with")
    for name, text in export(request_of(**PP, **FSDP, tp_degree=8, sequence_parallel=True)).items():
        (tmp_path / name).write_text(text)
    torchrun = tmp_path / "torchrun"
    torchrun.write_text('#!/bin/sh\necho "$PYTHONPATH" "$@" > "$NOTED"\n')
    torchrun.chmod(0o755)
    noted = tmp_path / "noted"
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "NOTED": str(noted), "PYTHONPATH": ""}
    subprocess.run([bash, str(tmp_path / "launch.sh"), "--training.steps", "5"], check=True, timeout=60,
                   env=environment)  # fmt: skip
    words = noted.read_text().split()
    nodes, each = (int(words[words.index(f"--{key}") + 1]) for key in ("nnodes", "nproc_per_node"))
    assert nodes * each == 2 * 4 * 8
    assert words[0] == str(tmp_path)
    assert words[-2:] == ["--training.steps", "5"]
    if export is TOML:
        assert words[words.index("--job.config_file") + 1] == str(tmp_path / "torchtitan.toml")
    else:
        assert words[words.index("--module") + 1] == "autopar_run"


INPUT = """
[model]
source = "llama-3-8b"
[training]
global_batch_size = 64
seq_len = 8192
[cluster]
system = "h100-sxm-80gb"
devices = 16
[framework]
name = "torchtitan-compile"
[search]
pp = 2
cp = 1
micro_batch_size = 1
top_k = 1
"""


def test_from_a_search_to_files_and_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("run.toml").write_text(INPUT)
    assert main(["search", "run.toml", "--out", "out", "--no-charts"]) == 0
    best = json.loads(Path("out/result.json").read_text())["top_k_strategies"][0]
    for target, name in (("torchtitan", "autopar_run.py"), ("torchtitan-toml", "torchtitan.toml")):
        assert main(["export", "out", "--to", target, "--out", target]) == 0
        capsys.readouterr()
        arguments = ["--set", "cluster.system=h100-sxm-80gb", "--json"]
        assert main(["estimate", "--from-config", f"{target}/{name}", *arguments]) == 0
        again = json.loads(capsys.readouterr().out)["top_k_strategies"][0]
        for key in ("dp_degree", "tp_degree", "pp_degree", "cp_degree", "micro_batch_num", "schedule",
                    "stage_partition", "layer_recompute", "memory_cost", "performance_cost"):  # fmt: skip
            assert again[key] == best[key], key


@pytest.mark.parametrize("schedule", ["zbv", "dualpipev"])
@pytest.mark.parametrize("form", [PYTHON, TOML])
def test_v_shaped_schedules_end_on_the_first_rank(form: Export, schedule: str) -> None:
    """Second chunks of 2, 3, 3, 4 run from the last rank to the first: 9, 8, 2, 1, then 4, 3, 3, 2."""
    stages = [9, 8, 2, 1, 2, 3, 3, 4]  # by chunk and rank
    files = form(request_of(pp_degree=4, schedule=schedule, stages=stages, **FSDP))
    name, text = next(iter(files.items()))
    spelled = {"zbv": "ZBVZeroBubble", "dualpipev": "DualPipeV"}[schedule]
    assert f'"{spelled}"' in text
    if form is TOML:
        parts = tomli.loads(text)["parallelism"]["module_fqns_per_model_part"]
        assert layer_counts(parts, 32, "output") == (9, 8, 2, 1, 4, 3, 3, 2)
        assert parts[7] == ["layers.30", "layers.31", "norm", "output"]
    (known,) = [each for each in READERS if each.recognises(Path(name), text)]
    strategy = known.read(Path(name), text)["strategy"]
    assert strategy["schedule"] == schedule
    assert strategy["stage_partition"] == [[9, 8, 2, 1], [2, 3, 3, 4]]
    assert "vpp_degree" not in strategy


def test_an_empty_stage_of_a_v_is_in_the_middle_of_the_model() -> None:
    """Rank 0 has both ends, which may be empty; the turn on the last rank may not."""
    ends = [0, 8, 4, 4, 0, 8, 4, 4]
    assert TOML(request_of(pp_degree=4, schedule="zbv", stages=ends, **FSDP))
    turn = [4, 8, 4, 0, 4, 8, 4, 0]
    with pytest.raises(CannotExpress, match="without a module") as refusal:
        TOML(request_of(pp_degree=4, schedule="zbv", stages=turn, **FSDP))
    assert refusal.value.nearest["stage_partition"] == [[4, 4, 4, 4], [4, 4, 4, 4]]


def test_each_recipe_has_its_name() -> None:
    for recipe in ("tensorwise", "rowwise"):
        text = TOML(request_of(precision=f"fp8-{recipe}"))["torchtitan.toml"]
        assert tomli.loads(text)["quantize"]["linear"]["float8"] == {"recipe_name": recipe}
    assert 'recipe_name="rowwise"' in PYTHON(request_of(precision="fp8-rowwise"))["autopar_run.py"]
