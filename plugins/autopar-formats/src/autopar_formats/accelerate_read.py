"""Reads an Accelerate configuration: plugin, degrees, sharding; it says neither model nor batch."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autopar_core.api import FORMAT_DEFAULT, Document, Findings, Reader, counted, read_yaml


_SIGN = re.compile(r"^(?:distributed_type|compute_environment)\s*:", re.MULTILINE)
_TYPES = ("FSDP", "MULTI_GPU", "MEGATRON_LM", "DEEPSPEED", "NO")
_STRATEGIES = {"FULL_SHARD": 3, "SHARD_GRAD_OP": 2, "HYBRID_SHARD": 3, "NO_SHARD": 0}
_SWITCH = {"yes": True, "true": True, "no": False, "false": False}


def recognises(path: Path, text: str) -> bool:
    """It names a distributed type."""
    del path
    return "distributed_type" in text and _SIGN.search(text) is not None


def read(path: Path, text: str) -> Mapping[str, Any]:
    """Tables of a configuration.

    Raises:
        InputError: When it is wrong.
    """
    document = read_yaml(text, path.name)
    found = Findings(path.name)
    kind = document.text("distributed_type")
    if kind not in _TYPES:
        raise document.wrong("distributed_type", f"expected one of {', '.join(_TYPES)}")
    if "num_processes" in document:
        # In this format processes are devices of all machines together, never machines.
        devices = document.whole("num_processes")
        found.put("cluster.devices", devices, document.place("num_processes"))
    precision = document.get("mixed_precision", "no")
    if precision in ("bf16", "fp16"):
        found.put("training.precision", precision, document.place("mixed_precision"))
    if kind == "FSDP":
        _fsdp(document, found)
    elif kind == "MEGATRON_LM":
        _megatron(document, found)
    elif kind == "DEEPSPEED":
        _deepspeed(document, found)
    else:
        found.put("framework.name", "generic", document.place("distributed_type"))
        found.put("strategy.zero_stage", 0, document.place("distributed_type"))
        for name in ("tp", "pp", "cp"):
            found.put(f"strategy.{name}_degree", 1, document.place("distributed_type"))
    found.note(
        f"{path.name} says neither model nor batch; the training script does, so give them beside it"
    )
    return found.tables()


def _flag(document: Document, key: str, default: bool) -> tuple[bool, str]:
    """A switch, also spelled as text, and its place."""
    if key not in document:
        return default, FORMAT_DEFAULT
    value = document.get(key)
    if isinstance(value, str) and value.lower() in _SWITCH:
        value = _SWITCH[value.lower()]
    if not isinstance(value, bool):
        raise document.wrong(key, f"expected true or false, got {value!r}")
    return value, document.place(key)


def _fsdp(document: Document, found: Findings) -> None:
    config = "fsdp_config"
    found.put("framework.name", "generic", document.place("distributed_type"))
    found.put("strategy.pp_degree", 1, document.place("distributed_type"))
    version = document.get(f"{config}.fsdp_version", 1)
    if version == 1:
        key = f"{config}.fsdp_sharding_strategy"
        spelled = str(document.get(key, "FULL_SHARD"))
        if spelled not in _STRATEGIES:
            raise document.wrong(key, f"expected one of {', '.join(_STRATEGIES)}")
        stage, place = _STRATEGIES[spelled], document.place(key)
    else:
        reshard, place = _flag(document, f"{config}.fsdp_reshard_after_forward", True)
        stage = 3 if reshard else 2
    found.put("strategy.zero_stage", stage, place)
    full, place = _flag(document, f"{config}.fsdp_activation_checkpointing", False)
    found.put("strategy.layer_recompute", "full" if full else "none", place)
    offload, place = _flag(document, f"{config}.fsdp_offload_params", False)
    if offload:
        found.note(f"{place}: offload of parameters is not modelled")
    _mesh(document, found)


def _mesh(document: Document, found: Findings) -> None:
    before = "parallelism_config.parallelism_config_"
    sizes = {}
    for name in ("dp_replicate", "dp_shard", "tp", "cp"):
        key = f"{before}{name}_size"
        stated = key in document
        sizes[name] = document.whole(key) if stated else 1
        place = document.place(key) if stated else FORMAT_DEFAULT
        if name in ("tp", "cp"):
            found.put(f"strategy.{name}_degree", sizes[name], place)
    if f"{before}dp_shard_size" in document:
        place = document.place(f"{before}dp_shard_size")
        found.put("strategy.shard_degree", sizes["dp_shard"], place)
        replicas = sizes["dp_shard"] * sizes["dp_replicate"]
        found.put("strategy.dp_degree", replicas, f"{place} x dp_replicate_size")
        world = replicas * sizes["tp"] * sizes["cp"]
        if found.get("cluster.devices", world) != world:
            raise found.contradiction(
                "cluster.devices", found.get("cluster.devices"), found.source("cluster.devices"),
                world, "product of parallelism_config",
            )  # fmt: skip
    key = f"{before}cp_comm_strategy"
    if sizes["cp"] > 1:
        spelled = document.get(key, "allgather")
        kinds = {"allgather": "all_gather", "alltoall": "p2p"}
        if spelled not in kinds:
            raise document.wrong(key, f"expected {' or '.join(kinds)}")
        place = document.place(key) if key in document else FORMAT_DEFAULT
        found.put("strategy.cp_comm_type", kinds[spelled], place)


def _megatron(document: Document, found: Findings) -> None:
    before = "megatron_lm_config.megatron_lm_"
    found.put("framework.name", "megatron", document.place("distributed_type"))
    for name, key in (("tp", "tp_degree"), ("pp", "pp_degree"), ("cp", "context_parallel_size")):
        full = f"{before}{key}"
        stated = document.get(full) is not None
        degree = document.whole(full) if stated else 1
        found.put(
            f"strategy.{name}_degree", degree, document.place(full) if stated else FORMAT_DEFAULT
        )
    if document.get(f"{before}num_micro_batches") is not None:
        key = f"{before}num_micro_batches"
        found.put("strategy.micro_batch_num", document.whole(key), document.place(key))
    tensor, stages = found.get("strategy.tp_degree"), found.get("strategy.pp_degree")
    parallel, place = _flag(document, f"{before}sequence_parallelism", False)
    # Megatron-LM switches it off where there is one tensor-parallel rank.
    if tensor > 1:
        found.put("strategy.sequence_parallel", parallel, place)
    sharded, place = _flag(document, f"{before}use_distributed_optimizer", False)
    found.put("strategy.zero_stage", int(sharded), place)
    if stages > 1:
        found.put("strategy.schedule", "1f1b", "inferred: no virtual stages")
    key = f"{before}decoder_last_pipeline_num_layers"
    if stages > 1 and document.get(key) is not None:
        found.note(
            f"{document.place(key)}: {counted(document.whole(key), 'layer')} on the last stage; give "
            "stage_partition, as this file does not say how many layers there are"
        )
    if found.get("strategy.cp_degree") > 1:
        found.put("strategy.cp_comm_type", "p2p", FORMAT_DEFAULT)
    _megatron_recompute(document, found, before)


def _megatron_recompute(document: Document, found: Findings, before: str) -> None:
    key = f"{before}recompute_granularity"
    kind = document.get(key)
    old, place = _flag(document, f"{before}recompute_activations", False)
    if kind is None:
        found.put("strategy.layer_recompute", "selective" if old else "none", place)
    elif kind == "selective":
        found.put("strategy.layer_recompute", "selective", document.place(key))
    elif kind == "full":
        method = document.get(f"{before}recompute_method")
        if method == "block":
            number = document.whole(f"{before}recompute_num_layers", least=0)
            stages = found.get("strategy.pp_degree")
            found.put(
                "strategy.layer_recompute", {"full": [number] * stages},
                document.place(f"{before}recompute_num_layers"),
            )  # fmt: skip
        else:
            found.put("strategy.layer_recompute", "full", document.place(key))
    else:
        raise document.wrong(key, "expected selective or full")


def _deepspeed(document: Document, found: Findings) -> None:
    before = "deepspeed_config."
    found.put("framework.name", "deepspeed-zero3", document.place("distributed_type"))
    for name in ("tp", "pp", "cp"):
        found.put(f"strategy.{name}_degree", 1, document.place("distributed_type"))
    if f"{before}deepspeed_config_file" in document:
        key = f"{before}deepspeed_config_file"
        found.name_file(key, document.text(key))
    key = f"{before}zero_stage"
    if key in document:
        found.put("strategy.zero_stage", document.whole(key, least=0), document.place(key))
    key = f"{before}gradient_accumulation_steps"
    if key in document and document.get(key) != "auto":
        found.put("strategy.micro_batch_num", document.whole(key), document.place(key))
    for part in ("offload_optimizer_device", "offload_param_device"):
        if document.get(f"{before}{part}", "none") not in ("none", None):
            found.note(f"{document.place(f'{before}{part}')}: offload is not modelled")


READER = Reader("accelerate", "Accelerate YAML", recognises, read, "huggingface-accelerate")
