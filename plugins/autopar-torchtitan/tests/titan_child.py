"""Asks TorchTitan 0.3.0 about configurations, without a GPU and without other processes.

Reads cases as JSON on standard input and writes one verdict for each to the file named on the command
line. ``module`` is the text of a configuration; ``world`` the number of devices; with ``rank`` the
trainer itself is built as that rank, under a process group that communicates nothing.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import sys
import tempfile
import traceback
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torchtitan.tools.utils as utils


class NoDevice:
    """What the trainer asks of a device module, on a machine that has none."""

    def __getattr__(self, name: str) -> Any:
        if name == "memory_stats":
            return lambda *_: {}
        if name == "get_device_properties":
            return lambda *_: SimpleNamespace(total_memory=1 << 36, name="cpu")
        if name == "get_device_name":
            return lambda *_: "cpu"
        return getattr(torch.cpu, name, lambda *_, **__: 0)


# Random numbers are drawn per device, and a CPU counts as none.
torch.cpu.device_count = lambda: 1  # type: ignore[method-assign]
utils.device_type, utils.device_module = "cpu", NoDevice()

# Only now: these take the device by name when they are imported.
from torchtitan.components import quantization  # noqa: E402
from torchtitan.config.manager import ConfigManager  # noqa: E402
from torchtitan.distributed import ParallelDims  # noqa: E402
from torchtitan.distributed import pipeline_parallel as pipelines  # noqa: E402


for one in ("float8", "mx", "nvfp4"):
    kernels = importlib.import_module(f"{quantization.__name__}.{one}")
    for name in ("has_cuda_capability", "has_rocm_capability"):
        if hasattr(kernels, name):
            setattr(kernels, name, lambda *_: True)


def assets() -> None:
    """A tokenizer and a few texts where the debug models look for them."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    for folder in ("tests/assets/tokenizer", "tests/assets/c4_test"):
        Path(folder).mkdir(parents=True)
    words = {"<unk>": 0, "<s>": 1, "</s>": 2, "word": 3}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(["<s>", "</s>"])
    tokenizer.save("tests/assets/tokenizer/tokenizer.json")
    marks = {"bos_token": "<s>", "eos_token": "</s>"}
    Path("tests/assets/tokenizer/tokenizer_config.json").write_text(json.dumps(marks))
    line = json.dumps({"text": "word " * 3000})
    Path("tests/assets/c4_test/data.json").write_text(f"{line}\n" * 20)


def configuration(case: dict[str, Any]) -> Any:
    name = case["name"]
    Path(f"{name}.py").write_text(case["module"], encoding="utf-8")
    arguments = ["--module", name, "--config", "autopar_config", *case.get("arguments", [])]
    return ConfigManager().parse_args(arguments)


def judge(case: dict[str, Any]) -> dict[str, Any]:
    config = configuration(case)
    parallel, training = config.parallelism, config.training
    dims = ParallelDims.from_config(parallel, case["world"]) if hasattr(
        ParallelDims, "from_config"
    ) else ParallelDims(
        dp_replicate=parallel.data_parallel_replicate_degree,
        dp_shard=parallel.data_parallel_shard_degree, cp=parallel.context_parallel_degree,
        tp=parallel.tensor_parallel_degree, pp=parallel.pipeline_parallel_degree,
        ep=parallel.expert_parallel_degree, world_size=case["world"],
    )  # fmt: skip
    model = config.model_spec.model
    model.update_from_config(config=config)
    config._validate_cuda_graphs()
    with torch.device("meta"):
        parameters = {id(p): p for p in model.build().parameters()} if case.get("count") else {}
    return {
        "data": dims.dp_replicate * dims.dp_shard, "local": training.local_batch_size,
        "global": training.global_batch_size, "parts": parallel.module_fqns_per_model_part,
        "schedule": parallel.pipeline_parallel_schedule, "compile": config.compile.enable,
        "checkpoint": type(config.activation_checkpoint).__qualname__.split(".")[0],
        "parameters": sum(p.numel() for p in parameters.values()),
    }  # fmt: skip


def automatic(case: dict[str, Any]) -> dict[str, Any]:
    return {"parts": pipelines._generate_llm_fqn_per_model_part(*case["automatic"])}


def build(case: dict[str, Any]) -> dict[str, Any]:
    """The trainer of one rank: meshes, pipeline split, sharding, optimizer, data."""
    os.environ.update(
        NGPU=str(case["world"]), WORLD_SIZE=str(case["world"]), RANK=str(case["rank"]),
        LOCAL_RANK="0", MASTER_ADDR="localhost", MASTER_PORT="29555",
    )  # fmt: skip
    case = {**case, "arguments": ["--comm.mode=fake_backend", *case.get("arguments", [])]}
    config = configuration(case)
    try:
        trainer = config.build()
        layers = [sorted(part.layers) for part in trainer.model_parts]
        return {
            "layers": [len(each) for each in layers],
            "accumulates": trainer.gradient_accumulation_steps,
            "micro_batches": trainer.num_pipeline_parallel_microbatches,
        }
    finally:
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()


def verdict(case: dict[str, Any]) -> dict[str, Any]:
    said = io.StringIO()
    ask = automatic if "automatic" in case else build if "rank" in case else judge
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            return {"ok": True, **ask(case)}
    except (Exception, SystemExit) as error:
        # Its command line prints what a configuration refuses, and exits.
        printed = " ".join(said.getvalue().split()[-80:]) if isinstance(error, SystemExit) else ""
        where = traceback.extract_tb(error.__traceback__)[-1]
        return {"ok": False, "error": f"{type(error).__name__}: {error} {printed}"[:900],
                "where": f"{where.filename.rsplit('/', 1)[-1]}:{where.lineno}"}  # fmt: skip


if __name__ == "__main__":
    cases = json.load(sys.stdin)
    out = Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        sys.path.insert(0, folder)
        assets()
        importlib.invalidate_caches()
        made = []
        for number, each in enumerate(cases):
            made.append(verdict({"name": f"autopar_case_{number}", **each}))
            out.write_text(json.dumps(made), encoding="utf-8")
