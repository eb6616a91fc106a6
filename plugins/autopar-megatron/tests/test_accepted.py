"""Megatron's own argument parser, configuration class and layout parser take what is written.

They come from the package index: the wheel of Megatron core has the parser of pretrain_gpt.py since
0.19, and Megatron-Bridge's wheel has the classes of its recipes. MindSpeed-LLM is not on the index.
"""

from __future__ import annotations

import ast
import json
import os
import random
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from autopar_core.api import ExportRequest
from autopar_core.testing.environments import Unavailable, python_with, unpacked
from autopar_megatron.export_bridge import Code, export_bridge, model_fields
from autopar_megatron.export_script import export_megatron
from autopar_megatron.model_words import words_of
from autopar_megatron.partition import alternative, layout_text
from autopar_megatron.plan import plan_of


pytestmark = [pytest.mark.frameworks, pytest.mark.timeout(1800)]
CORE, BRIDGE = "megatron-core==0.19.2", "megatron-bridge==0.6.2"
CHILD = Path(__file__).with_name("megatron_child.py")
Judge = Callable[[Sequence[dict[str, Any]]], list[dict[str, Any]]]
# What a person must give; the values reach Megatron's parser and nothing reads them.
GIVEN = {
    "MEGATRON_PATH": "megatron", "DATA_PATH": "data", "TOKENIZER_MODEL": "tokenizer",
    "TRAIN_ITERS": "10", "LR": "1e-4", "NODE_RANK": "0", "MASTER_ADDR": "node0",
}  # fmt: skip


@pytest.fixture(scope="module")
def core() -> Path:
    """Modules of Megatron core, which is written for Python 3.12."""
    try:
        return unpacked(CORE, python="3.12")
    except Unavailable as reason:
        pytest.skip(str(reason))


@pytest.fixture(scope="module")
def judge(core: Path) -> Iterator[Judge]:
    """Megatron's verdicts on cases, from one process: importing it takes half a minute."""
    needs = ("torch>=2.6", "numpy", "packaging", "pyyaml", "typing_extensions")
    try:
        python = python_with("torch", needs)
    except Unavailable as reason:
        pytest.skip(str(reason))
    environment = {**os.environ, "PYTHONPATH": str(core), "PYTHONWARNINGS": "ignore"}
    with subprocess.Popen(
        [str(python), str(CHILD)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env=environment,
    ) as child:  # fmt: skip
        assert child.stdin is not None
        assert child.stdout is not None
        inlet, outlet = child.stdin, child.stdout

        def verdicts(cases: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
            inlet.write(json.dumps(list(cases)) + "\n")
            inlet.flush()
            line = outlet.readline()
            assert line, f"the process with Megatron ended with {child.wait()}"
            found: list[dict[str, Any]] = json.loads(line)
            return found

        yield verdicts
        inlet.close()


def arguments(script: str, folder: Path) -> list[str]:
    """What bash passes to torchrun when it runs a script, with a torchrun that only notes it."""
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("no bash to run the written scripts with")
    torchrun = folder / "torchrun"
    torchrun.write_text('#!/bin/sh\nfor a in "$@"; do printf "%s\\n" "$a"; done > "$NOTED"\n')
    torchrun.chmod(0o755)
    (folder / "run.sh").write_text(script)
    noted = folder / "noted"
    path = f"{folder}{os.pathsep}{os.environ['PATH']}"
    subprocess.run(
        [bash, str(folder / "run.sh")], check=True, timeout=60,
        env={**os.environ, **GIVEN, "PATH": path, "NOTED": str(noted)},
    )  # fmt: skip
    return noted.read_text().splitlines()


def program_arguments(words: list[str]) -> list[str]:
    place = next(i for i, word in enumerate(words) if word.endswith(".py"))
    return words[place + 1 :]


def random_strategies(count: int) -> Iterator[dict[str, Any]]:
    """Arguments of ``request_of``: degrees, virtual stages, partitions, recompute, sharding."""
    draw = random.Random(7)
    for _ in range(count):
        tp, pp = draw.choice([1, 2, 4, 8]), draw.choice([1, 2, 3, 4])
        cp, dp = draw.choice([1, 2, 4]), draw.choice([1, 2, 4])
        vpp = draw.choice([1, 2, 3]) if pp > 1 else 1
        even = draw.random() < 0.4
        stages = [draw.randint(1, 6)] * (pp * vpp) if even else [
            draw.randint(0, 6) for _ in range(pp * vpp)
        ]  # fmt: skip
        stages[0] += not sum(stages)
        kind = draw.choice(["none", "selective", "full", "block"])
        block = draw.randint(1, max(stages))
        recompute = {
            "none": {}, "selective": {"selective": stages}, "full": {"full": stages},
            "block": {"full": [min(block, n) for n in stages]},
        }[kind]  # fmt: skip
        stage = draw.choice([0, 1, 1, 3]) if dp * cp > 1 else 0
        bias = draw.choice([(True,) * 3, (True, False, False), (False,) * 3])
        learned = draw.random() < 0.3
        yield {
            "model": {
                "num_layers": sum(stages), "gated_mlp": draw.random() < 0.7,
                "tied_embeddings": draw.random() < 0.3, "qk_norm": draw.choice(["none", "head"]),
                "qkv_bias": bias[0], "attention_out_bias": bias[1], "mlp_bias": bias[2],
                "norm": draw.choice(["rmsnorm", "layernorm"]),
                "position": "learned" if learned else "rope",
                "position_rows": 4096 if learned else 0,
            },
            "stages": stages, **recompute,
            "precision": draw.choice(["bf16", "bf16", "fp16", "fp8-current"]),
            "dp_degree": dp, "tp_degree": tp, "pp_degree": pp, "cp_degree": cp, "vpp_degree": vpp,
            "micro_batch_num": pp * draw.randint(1, 3),
            "schedule": "none" if pp == 1 else "interleaved" if vpp > 1 else "1f1b",
            "sequence_parallel": tp > 1 and draw.random() < 0.7, "zero_stage": stage,
            "shard_degree": dp if stage else 1,
            "cp_comm_type": draw.choice(["p2p", "a2a", "all_gather"]) if cp > 1 else "none",
        }  # fmt: skip


def case_of(request: ExportRequest, folder: Path) -> dict[str, Any]:
    script = export_megatron(request)["run_megatron.sh"]
    environment = {"CUDA_DEVICE_MAX_CONNECTIONS": "1"} if "export CUDA_DEVICE" in script else {}
    return {
        "argv": program_arguments(arguments(script, folder)),
        "world": request.cluster.devices, "environment": environment,
    }  # fmt: skip


def test_scripts_are_accepted_as_meant(judge: Judge, request_of: Any, tmp_path: Path) -> None:
    requests = [request_of(**case) for case in random_strategies(40)]
    found = judge([case_of(request, tmp_path) for request in requests])
    for request, verdict in zip(requests, found, strict=True):
        assert verdict["ok"], (verdict, request.strategy)
        assert verdict["data"] == request.count("dp_degree")
        assert verdict["chunks"] == request.count("vpp_degree")
        assert tuple(verdict["stages"]) == request.stages
        assert verdict["ffn"] == request.model.ffn_hidden
        assert verdict["groups"] in (request.model.kv_heads, None)
        assert verdict["sequence_parallel"] == request["sequence_parallel"]
        assert verdict["global"] == request.training.global_batch_size
        full, selective = request.recomputed("full"), request.recomputed("selective")
        kind = "full" if any(full) else "selective" if any(selective) else None
        assert verdict["recompute"] == kind
        if kind == "full" and full != request.stages:
            assert verdict["recompute_layers"] == max(full)


def test_layouts_are_parsed_to_the_same_layers(judge: Judge) -> None:
    draw = random.Random(11)
    plans = []
    for _ in range(60):
        ranks, chunks = draw.randint(2, 8), draw.randint(1, 3)
        stages = [draw.randint(0, 9) for _ in range(ranks * chunks)]
        stages[0] += not sum(stages)
        plans.append((ranks, stages))
    found = judge([
        {"config": {"num_layers": sum(stages), "hidden_size": 64, "num_attention_heads": 4,
                    "pipeline_model_parallel_size": ranks, "pipeline_dtype": "torch.bfloat16",
                    "pipeline_model_parallel_layout": layout_text(stages)}}
        for ranks, stages in plans
    ])  # fmt: skip
    for (_, stages), verdict in zip(plans, found, strict=True):
        assert verdict["ok"], (stages, verdict)
        assert verdict["stages"] == stages


BASE = {"num-layers": "80", "hidden-size": "1024", "num-attention-heads": "16", "seq-length": "4096",
        "max-position-embeddings": "4096", "micro-batch-size": "1", "global-batch-size": "64",
        "tensor-model-parallel-size": "2", "pipeline-model-parallel-size": "4",
        "vocab-size": "32000", "tokenizer-type": "NullTokenizer", "lr": "1e-4", "train-iters": "1",
        "mock-data": ""}  # fmt: skip
# What the reader refuses: changes of the flags, and a part of its sentence.
REFUSED = {
    "layers": ({"num-layers": "30"}, "not divisible by pipeline size 4"),
    "one stage": ({"pipeline-model-parallel-size": "1", "decoder-last-pipeline-num-layers": "1"},
                  "must add up to 80"),
    "virtual stages": ({"num-virtual-stages-per-pipeline-rank": "3"}, "nearest legal is 2"),
    "layers of virtual stages": ({"num-layers-per-virtual-pipeline-stage": "7"}, "nearest legal is 5"),
    "layout loses layers": ({"pipeline-model-parallel-layout": "Et*20|t*20|t*20|t*19L"}, "79 layers"),
    "layout stages": ({"pipeline-model-parallel-layout": "Et*40|t*20|t*20L"}, "3 stages"),
    "two layouts": ({"pipeline-model-parallel-layout": "Et*20|t*20|t*20|t*20L",
                     "num-virtual-stages-per-pipeline-rank": "2"}, "exclude each other"),
    "ends": ({"decoder-first-pipeline-num-layers": "19"}, "must add up to 80"),
    "sequence": ({"context-parallel-size": "4", "seq-length": "4092"}, "nearest legal lengths"),
    "positions": ({"max-position-embeddings": "2048"}, "must be at least"),
    "batch": ({"global-batch-size": "63"}, "nearest legal"),
    "world": ({"context-parallel-size": "3", "seq-length": "4092"}, "cannot be divided by tp"),
    "groups": ({"group-query-attention": "", "num-query-groups": "5"}, "nearest legal is 4"),
    "full recompute": ({"recompute-granularity": "full"}, "--recompute-num-layers"),
    "selective recompute": ({"recompute-granularity": "selective", "recompute-num-layers": "1"},
                            "selective takes none"),
    "both precisions": ({"bf16": "", "fp16": ""}, "exclude each other"),
}  # fmt: skip


def words_of_flags(flags: Mapping[str, str]) -> list[str]:
    return [word for name, value in flags.items() for word in (f"--{name}", value) if word]


def test_what_is_refused_here_is_refused_there(judge: Judge, read: Any) -> None:
    """Our sentence for each, and Megatron's own refusal."""
    cases = []
    for changes, sentence in REFUSED.values():
        words = words_of_flags({**BASE, **changes})
        line = " ".join(f"'{w}'" if "|" in w else w for w in words)
        with pytest.raises(Exception, match=sentence):
            read(f"torchrun --nproc_per_node 8 --nnodes 4 pretrain_gpt.py {line}\n")
        cases.append({"argv": words, "world": 32,
                      "environment": {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}})  # fmt: skip
    found = judge([*cases, {**cases[0], "argv": words_of_flags(BASE)}])
    assert found[-1]["ok"], found[-1]
    accepted = [name for name, verdict in zip(REFUSED, found, strict=False) if verdict["ok"]]
    assert not accepted


def test_proposed_alternatives_are_accepted(judge: Judge) -> None:
    cases = []
    for layers, ranks in ((30, 4), (46, 4), (60, 8), (126, 8), (61, 3)):
        first, second = (alternative(layers, ranks) + ", or ").split(", or ")[:2]
        ways = [["--pipeline-model-parallel-layout", first.split("'")[1]]]
        if second:
            ways.append(
                [word for word in second.split() if word.startswith("--") or word.isdigit()]
            )
        for way in ways:
            changes = {"num-layers": str(layers), "pipeline-model-parallel-size": str(ranks)}
            words = words_of_flags({**BASE, **changes})
            cases.append({"argv": [*words, *way], "world": 2 * ranks,
                          "environment": {"CUDA_DEVICE_MAX_CONNECTIONS": "1"},
                          "layers": layers})  # fmt: skip
    for case, verdict in zip(cases, judge(cases), strict=True):
        assert verdict["ok"], (case, verdict)
        assert sum(verdict["stages"]) == case["layers"]


# --- Megatron-Bridge ---------------------------------------------------------------------------
def class_fields(folders: Sequence[Path], name: str) -> set[str]:
    """Annotated fields and constructor arguments of a class and the classes that it grows out of."""
    fields: set[str] = set()
    for folder in folders:
        for file in folder.rglob("*.py"):
            text = file.read_text(encoding="utf-8")
            if f"class {name}" not in text:
                continue
            for node in ast.parse(text).body:
                if isinstance(node, ast.ClassDef) and node.name == name:
                    fields |= _own_fields(node)
                    for base in node.bases:
                        fields |= _base_fields(folders, base, name)
    return fields


def _own_fields(node: ast.ClassDef) -> set[str]:
    fields = {each.target.id for each in node.body
              if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)}  # fmt: skip
    for each in node.body:
        if isinstance(each, ast.FunctionDef) and each.name == "__init__":
            fields |= {argument.arg for argument in each.args.args}
    return fields


def _base_fields(folders: Sequence[Path], base: ast.expr, name: str) -> set[str]:
    bases = {"MCoreGPTDatasetConfig": "GPTDatasetConfig", "MTrainTrainingConfig": "TrainingConfig",
             "MCoreDistributedDataParallelConfig": "DistributedDataParallelConfig",
             "MTrainCheckpointConfig": "CheckpointConfig", "MTrainLoggerConfig": "LoggerConfig",
             "MTrainDistributedInitConfig": "DistributedInitConfig"}  # fmt: skip
    spelled = base.id if isinstance(base, ast.Name) else ""
    wanted = bases.get(spelled, spelled)
    return class_fields(folders, wanted) if wanted and wanted != name else set()


def test_recipes_name_fields_that_exist(core: Path, request_of: Any) -> None:
    try:
        bridge = unpacked(BRIDGE, python="3.12")
    except Unavailable as reason:
        pytest.skip(str(reason))
    folders = (bridge / "megatron", core / "megatron")
    checked: dict[str, set[str]] = {}
    for case in random_strategies(30):
        if case["model"]["position"] == "learned" or case["precision"] == "fp32":
            continue
        tree = ast.parse(export_bridge(request_of("megatron-bridge", **case))["autopar_recipe.py"])
        for call in ast.walk(tree):
            if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
                continue
            name = call.func.id
            if not name[0].isupper() or name == "SystemExit":
                continue
            fields = checked.setdefault(name, class_fields(folders, name))
            used = {keyword.arg for keyword in call.keywords}
            assert used <= fields, f"{name} has no {used - fields}"
    assert {"GPTModelProvider", "ConfigContainer", "GPTDatasetConfig"} <= checked.keys()
    imported = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    for node in imported:
        if not (node.module or "").startswith("megatron.bridge"):
            continue
        file = bridge / Path(*(node.module or "").split(".")).with_suffix(".py")
        text = file.read_text(encoding="utf-8")
        for alias in node.names:
            assert f" {alias.name}" in text, f"{node.module} has no {alias.name}"


def test_recipes_make_configurations_that_core_accepts(judge: Judge, request_of: Any) -> None:
    """Fields of the recipe's model that Megatron core's configuration class has."""
    own = {"seq_length", "vocab_size", "should_pad_vocab", "make_vocab_size_divisible_by", "rotary_base",
           "position_embedding_type", "share_embeddings_and_output_weights"}  # fmt: skip
    requests, cases = [], []
    for case in random_strategies(30):
        if case["model"]["position"] == "learned":
            continue
        request = request_of("megatron-bridge", **case)
        plan = plan_of(request)
        fields = model_fields(request, plan, words_of(request))
        plain = {k: str(v) if isinstance(v, Code) else v for k, v in fields.items() if k not in own}
        requests.append(request)
        cases.append({"config": plain})
    for request, verdict in zip(requests, judge(cases), strict=True):
        assert verdict["ok"], (verdict, request.strategy)
        assert tuple(verdict["stages"]) == request.stages
