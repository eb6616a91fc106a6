"""Rows of measured runs as jobs: what a published configuration means in this project's words."""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import autopar_core.builtin as builtin
from autopar_core.config.load import load_job
from autopar_core.config.overrides import Overrides
from autopar_core.domain.result import Detail
from autopar_core.domain.strategy import StrategyBatch
from autopar_core.plugins import PluginManager
from autopar_core.search.contexts import Contexts
from autopar_core.search.detail import Describer
from autopar_core.search.evaluate import Estimator


DATA = Path(__file__).parents[1] / "data" / "measured"
GIB = 2**30
Row = Mapping[str, str]

# Words of the framework column -> profile.
FRAMEWORKS = {
    "Megatron-Bridge": "megatron-bridge", "NeMo": "nemo", "Megatron-Kwai": "megatron-kwai",
    "llm-foundry": "llm-foundry", "MaxText": "maxtext", "ScaleTorch": "scaletorch",
    "LiBai": "libai", "Meta internal": "meta-internal", "MegaScale": "megascale",
    "DeepSpeed ZeRO-3": "deepspeed-zero3", "nanotron": "nanotron",
}  # fmt: skip
# Whose Megatron-LM it is: words of the source column -> profile.
MEGATRONS = {
    "SC21": "megatron-2021", "Korthikanti": "megatron-2021", "libai": "megatron-2021",
    "kwai": "megatron-kwai", "vTrain": "megatron-deepspeed",
}  # fmt: skip


def manager() -> PluginManager:
    """All installed plugins and the built-in ones."""
    return PluginManager.load(extra=(("builtin", builtin),))


def read(name: str) -> list[dict[str, str]]:
    """Rows of a file of measured runs."""
    with (DATA / name).open(encoding="utf-8") as file:
        return list(csv.DictReader(file, delimiter="\t"))


def number(row: Row, key: str, default: int = 0) -> int:
    """A whole number, or the default where the column is empty."""
    return int(float(row[key])) if row[key] else default


def model_table(row: Row) -> dict[str, Any]:
    """The model of a row; heads are 128 wide and MLPs gated unless said otherwise."""
    table = {
        "num_layers": number(row, "num_layers"), "hidden": number(row, "hidden"),
        "ffn_hidden": number(row, "ffn_hidden") or 4 * number(row, "hidden"),
        "heads": number(row, "heads"), "kv_heads": number(row, "kv_heads") or number(row, "heads"),
        "vocab": number(row, "vocab", 51200), "gated_mlp": row["gated_mlp"] == "1",
        "tied_embeddings": row["tied_embeddings"] == "1",
    }  # fmt: skip
    if row["head_dim"]:
        table["head_dim"] = number(row, "head_dim")
    return table


def torchtitan_split(layers: int, stages: int) -> list[int]:
    """torchtitan's split: embedding and head count as one layer each."""
    if stages == 1:
        return [layers]
    base, extra = divmod(layers + 2, stages)
    split = [base + (stage < extra) for stage in range(stages)]
    split[0] -= 1
    split[-1] -= 1
    return split


def published_split(layers: int, stages: int) -> list[int]:
    """Even; or one layer less on both ends where that divides; or the first stages take more."""
    if stages > 1 and layers % stages and (layers + 2) % stages == 0:
        return torchtitan_split(layers, stages)
    base, extra = divmod(layers, stages)
    return [base + (stage < extra) for stage in range(stages)]


def columns(row: Row, zero: int, shard: int, replicate: int, cp_comm: str) -> dict[str, Any]:
    """Field values of the row's strategy."""
    pp, dp, batch = number(row, "pp", 1), number(row, "dp", 1), number(row, "micro_batch")
    chunks = number(row, "vpp", 1) or 1
    schedule = "none"
    if pp > 1:
        named = row["schedule"].lower()
        schedule = "interleaved" if chunks > 1 else "gpipe" if "gpipe" in named else "1f1b"
    tp = number(row, "tp", 1)
    return {
        "dp_degree": dp, "tp_degree": tp, "pp_degree": pp, "cp_degree": number(row, "cp", 1),
        "micro_batch_size": batch,
        "micro_batch_num": max(1, number(row, "global_batch") // (dp * batch)),
        "vpp_degree": chunks, "schedule": schedule,
        "sequence_parallel": tp > 1 and row["sequence_parallel"] == "1",
        "zero_stage": zero, "shard_degree": shard, "replicate_degree": replicate,
        "cp_comm_type": cp_comm if number(row, "cp", 1) > 1 else "none",
    }  # fmt: skip


def describe(plugins: PluginManager, tables: dict[str, Any], values: Mapping[str, Any]) -> Detail:
    """Memory and time of one strategy of a job."""
    job = load_job(None, tables, Overrides(), plugins)
    contexts = Contexts.build(job, plugins)
    fields = contexts.fields
    batch = StrategyBatch.of(fields, {n: [fields[n].encode(v)] for n, v in values.items()})
    return Describer(Estimator(contexts)).describe(batch, 0, 1, (), "")


def h200_recompute(row: Row) -> str:
    """Recompute of a torchtitan run; empty for alternating layers, which no plan describes."""
    words = row["recompute"]
    if words.startswith(("none", "full")):
        return words[:4]
    return "selective" if "per-op" in words else ""


def h200(plugins: PluginManager, row: Row) -> Detail:
    """A run of torchtitan 0.2.2 on one H200."""
    shard = int(re.findall(r"shard=(\d+)", row["zero_or_fsdp"])[0])
    replicate = int((re.findall(r"replicate=(\d+)", row["zero_or_fsdp"]) or ["1"])[0])
    stages = number(row, "pp", 1) * (number(row, "vpp", 1) or 1)
    compiled = "compile" in row["other_flags"]
    tables = {
        "model": model_table(row),
        "training": {"global_batch_size": number(row, "global_batch"),
                     "seq_len": number(row, "seq_len")},
        "cluster": {"system": row["gpu"], "devices": number(row, "gpus")},
        "framework": {"name": "torchtitan-compile" if compiled else "torchtitan"},
        "search": {
            "stage_partition": torchtitan_split(number(row, "num_layers"), stages),
            "layer_recompute": h200_recompute(row),
        },
    }  # fmt: skip
    return describe(plugins, tables, columns(row, 3, shard, replicate, "all_gather"))


def profile(row: Row) -> str:
    """The framework profile of a published row."""
    if "torchtitan" in row["framework"]:
        return "torchtitan-compile" if "compile" in row["other_flags"] else "torchtitan"
    for word, name in FRAMEWORKS.items():
        if word in row["framework"]:
            return name
    for word, name in MEGATRONS.items():
        if word in row["source"]:
            return name
    return "megatron" if row["framework"] == "Megatron-LM" else "generic"


def override(row: Row) -> dict[str, Any]:
    """What the row's own flags change in the profile."""
    flags, changes = row["other_flags"].lower(), {}
    if "overlap disabled" in flags:
        changes = {"tp": {"overlap": "none"},
                   "dp": {"overlap_gradients": False, "overlap_parameters": False}}  # fmt: skip
    elif "origin megatron-lm" in flags and number(row, "cp", 1) > 1:
        changes = {"tp": {"overlap": "bulk"}}  # without the fork's tensor-parallel overlap
    elif "async tp" in flags:
        changes = {"tp": {"overlap": "fraction", "exposed": 0.4}}
    elif "pure bf16" in row["precision"].lower():
        changes = {"dp": {"gradient_reduce_bytes": 2.0}}
    return changes


def network(row: Row) -> dict[str, Any]:
    """Network shares of clusters that differ from the catalogue's."""
    if "foundry" in row["source"]:
        rate = 18e9 if "H100" in row["gpu"] else 5e9
        return {"override": {"links": {"inter": {"bytes_per_second": rate}}}}
    return {}


def recompute_plan(row: Row, split: list[int]) -> Any:
    """The plan of a published recompute column."""
    words = row["recompute"].lower()
    if words.startswith("full"):
        return "full"
    if "every 2nd" in words:
        return {"full": [count // 2 for count in split]}
    return "selective" if words.startswith("selective") else "none"


def zero_stage(row: Row) -> int:
    """Sharding of states as the row states it."""
    words = row["zero_or_fsdp"].lower()
    if "zero2" in words:
        return 1
    if "fsdp" in words or "zero3" in words:
        return 3
    return 0 if words in ("", "none") else 1


def published(plugins: PluginManager, row: Row) -> Detail:
    """A published run of any framework."""
    layers, chunks = number(row, "num_layers"), number(row, "vpp", 1) or 1
    split = published_split(layers, number(row, "pp", 1) * chunks)
    zero, name = zero_stage(row), profile(row)
    kind = "a2a" if "a2a" in row["other_flags"] else "p2p"
    shard = number(row, "dp", 1) if zero else 1
    framework: dict[str, Any] = {"name": name}
    if override(row):
        framework["override"] = override(row)
    tables = {
        "model": model_table(row),
        "training": {"global_batch_size": number(row, "global_batch"),
                     "seq_len": number(row, "seq_len"),
                     "precision": "fp16" if "fp16" in row["precision"] else "bf16"},
        "cluster": {"system": row["gpu"], "devices": number(row, "gpus"), **network(row)},
        "framework": framework,
        "search": {"stage_partition": split, "layer_recompute": recompute_plan(row, split)},
    }  # fmt: skip
    cp_comm = "all_gather" if name.startswith("torchtitan") else kind
    return describe(plugins, tables, columns(row, zero, shard, 1, cp_comm))
