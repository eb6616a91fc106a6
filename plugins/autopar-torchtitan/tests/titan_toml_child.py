"""Asks TorchTitan 0.2.2 about TOML files and about how it deals layers.

Reads cases as JSON on standard input and writes one verdict for each to the file named on the command
line: ``toml`` with ``world`` goes through its configuration manager and its check of the degrees,
``automatic`` through the function that deals layers to stages, ``nth`` through the one that chooses the
layers to recompute.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import tempfile
import types
import typing
from pathlib import Path
from typing import Any

import torch
from torchtitan.config import ConfigManager
from torchtitan.config.job_config import ActivationCheckpoint
from torchtitan.distributed import ParallelDims
from torchtitan.distributed import activation_checkpoint as checkpoints
from torchtitan.distributed.pipeline_parallel import generate_llm_fqn_per_model_part


def judge(case: dict[str, Any]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "job.toml"
        path.write_text(case["toml"], encoding="utf-8")
        config = ConfigManager().parse_args(["--job.config_file", str(path)])
    wrong = list(mistyped(config))
    if wrong:  # its manager does not look
        raise TypeError(", ".join(wrong))
    parallel, training = config.parallelism, config.training
    dims = ParallelDims(
        dp_replicate=parallel.data_parallel_replicate_degree,
        dp_shard=parallel.data_parallel_shard_degree, cp=parallel.context_parallel_degree,
        tp=parallel.tensor_parallel_degree, pp=parallel.pipeline_parallel_degree, ep=1, etp=1,
        world_size=case["world"],
    )  # fmt: skip
    return {
        "data": dims.dp_replicate * dims.dp_shard, "local": training.local_batch_size,
        "global": training.global_batch_size, "schedule": parallel.pipeline_parallel_schedule,
        "micro": parallel.pipeline_parallel_microbatch_size, "compile": config.compile.enable,
        "parts": parallel.module_fqns_per_model_part, "mode": config.activation_checkpoint.mode,
        "option": config.activation_checkpoint.selective_ac_option,
        "converters": config.model.converters,
    }  # fmt: skip


def mistyped(config: Any, path: str = "") -> typing.Iterator[str]:
    hints = typing.get_type_hints(type(config))
    for each in dataclasses.fields(config):
        value, hint = getattr(config, each.name), hints[each.name]
        name = f"{path}{each.name}"
        if dataclasses.is_dataclass(value):
            yield from mistyped(value, f"{name}.")
        elif not fits(value, hint):
            yield f"{name} = {value!r}, which is no {hint}"


def fits(value: Any, hint: Any) -> bool:
    origin = typing.get_origin(hint)
    if origin is typing.Literal:
        return value in typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        return any(fits(value, each) for each in typing.get_args(hint))
    if origin is list:
        (inner,) = typing.get_args(hint)
        return isinstance(value, list) and all(fits(each, inner) for each in value)
    if hint is float:
        return type(value) in (int, float)
    return hint is Any or type(value) is hint


def nth(case: dict[str, Any]) -> list[int]:
    """Recomputed layers of every stage of one rank; the wrapper changes the type of a layer."""
    checkpoints._layer_sac_count = 0
    config = ActivationCheckpoint(mode="selective", selective_ac_option=str(case["nth"]))
    counts = []
    for layers in case["stages"]:
        model = torch.nn.Module()
        model.layers = torch.nn.ModuleDict({str(i): torch.nn.Identity() for i in range(layers)})
        checkpoints.apply_ac(model, config)
        counts.append(sum(type(m) is not torch.nn.Identity for m in model.layers.values()))
    return counts


def verdict(case: dict[str, Any]) -> dict[str, Any]:
    try:
        if "toml" in case:
            return {"ok": True, **judge(case)}
        if "nth" in case:
            return {"ok": True, "counts": nth(case)}
        return {"ok": True, "parts": generate_llm_fqn_per_model_part(*case["automatic"])}
    except (Exception, SystemExit) as error:
        return {"ok": False, "error": f"{type(error).__name__}: {error}"[:600]}


if __name__ == "__main__":
    made = [verdict(each) for each in json.load(sys.stdin)]
    Path(sys.argv[1]).write_text(json.dumps(made), encoding="utf-8")
