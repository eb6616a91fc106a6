"""Writes an Accelerate configuration (FSDP2, DDP, Megatron-LM or DeepSpeed) and its launch command."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import yaml

from autopar_core.api import CannotExpress, Exporter, ExportRequest
from autopar_formats import deepspeed_write
from autopar_formats.faults import Faults
from autopar_formats.launch import nodes


NAME = "huggingface-accelerate"
CONFIG = "accelerate.yaml"
Table = dict[str, Any]


def export(request: ExportRequest) -> Mapping[str, str]:
    """``accelerate.yaml`` and ``launch.sh``; the framework profile decides the plugin.

    Raises:
        CannotExpress: When Accelerate has no way to say the strategy.
    """
    if request.training.precision not in ("bf16", "fp16"):
        raise CannotExpress("precision", "Accelerate trains in bf16 or fp16", {"precision": "bf16"})
    machines, _ = nodes(request)
    document: Table = {
        "compute_environment": "LOCAL_MACHINE", "machine_rank": 0, "num_machines": machines,
        "num_processes": request.cluster.devices, "mixed_precision": request.training.precision,
        "rdzv_backend": "c10d" if machines > 1 else "static", "main_training_function": "main",
        "use_cpu": False, **_plugin(request)(request),
    }  # fmt: skip
    text = yaml.safe_dump(document, sort_keys=False)
    return {CONFIG: request.comment() + text, "launch.sh": _launch(request)}


def _plugin(request: ExportRequest) -> Callable[[ExportRequest], Table]:
    if request.framework.is_a("megatron"):
        return _megatron
    return _deepspeed if request.framework.is_a("deepspeed-zero3") else _torch


def _torch(request: ExportRequest) -> Table:
    """FSDP2 where states are sharded, DDP where they are not."""
    faults = Faults(request, "Accelerate")
    stage = request.count("zero_stage")
    faults.one_stage()
    faults.whole_kv_heads()
    if stage == 1:
        faults.add("zero_stage", "with FSDP2 shards gradients too", zero_stage=2)
    tensor, context = request.count("tp_degree"), request.count("cp_degree")
    if stage == 0 and (tensor > 1 or context > 1):
        faults.add(
            "zero_stage", "combines tensor or context parallelism with FSDP2 only", zero_stage=3,
            shard_degree=faults.value("dp_degree"),
        )  # fmt: skip
    if tensor > 1 and not request["sequence_parallel"]:
        pass  # the model's own plan decides whether norms are split along the sequence
    if context > 1:
        _ring(request, faults)
    recompute = faults.whole_recompute()
    faults.raise_any()
    if stage == 0:
        return {"distributed_type": "MULTI_GPU"}
    made: Table = {"distributed_type": "FSDP", "fsdp_config": _fsdp(stage, recompute)}
    shard, replicate = request.count("shard_degree"), request.count("replicate_degree")
    if tensor > 1 or context > 1 or replicate > 1:
        made["parallelism_config"] = {
            "parallelism_config_dp_replicate_size": replicate,
            "parallelism_config_dp_shard_size": shard, "parallelism_config_tp_size": tensor,
            "parallelism_config_cp_size": context,
        }  # fmt: skip
        if context > 1:
            comm = {"all_gather": "allgather", "p2p": "alltoall"}[str(request["cp_comm_type"])]
            made["parallelism_config"]["parallelism_config_cp_comm_strategy"] = comm
    return made


def _ring(request: ExportRequest, faults: Faults) -> None:
    context, seq = request.count("cp_degree"), request.training.seq_len
    if request["cp_comm_type"] == "a2a":
        faults.add("cp_comm_type", "exchanges no heads with FSDP2", cp_comm_type="all_gather")
    if seq % (2 * context):
        fits = max(d for d in range(1, context + 1) if context % d == 0 and seq % (2 * d) == 0)
        faults.add(
            "cp_degree", f"splits {seq} tokens into 2 x cp equal parts", cp_degree=fits,
            dp_degree=faults.value("dp_degree") * context // fits,
        )  # fmt: skip


def _fsdp(stage: int, recompute: bool) -> Table:
    return {
        "fsdp_version": 2, "fsdp_reshard_after_forward": stage == 3,
        "fsdp_activation_checkpointing": recompute,
        "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "fsdp_cpu_ram_efficient_loading": True, "fsdp_offload_params": False,
        "fsdp_state_dict_type": "SHARDED_STATE_DICT",
    }  # fmt: skip


def _megatron(request: ExportRequest) -> Table:
    """The Megatron-LM plugin: no virtual stages on its command line, even stages but the last."""
    faults = Faults(request, "Accelerate's Megatron-LM plugin")
    faults.no_virtual_stages()
    faults.shard_all()
    if request.count("zero_stage") > 1:
        faults.add("zero_stage", "shards optimizer states only", zero_stage=1)
    if request["cp_comm_type"] not in ("none", "p2p"):
        faults.add("cp_comm_type", "has a ring only", cp_comm_type="p2p")
    last = _last_stage(request, faults)
    recompute = _recompute(request, faults)
    if len(request.stages) > request.count("pp_degree"):
        # Plans of virtual stages mean nothing for the stages that are left.
        faults.replan()
    faults.raise_any()
    keys: Table = {
        "megatron_lm_tp_degree": request.count("tp_degree"),
        "megatron_lm_pp_degree": request.count("pp_degree"),
        "megatron_lm_context_parallel_size": request.count("cp_degree"),
        "megatron_lm_num_micro_batches": request.count("micro_batch_num"),
        "megatron_lm_sequence_parallelism": bool(request["sequence_parallel"]),
        "megatron_lm_use_distributed_optimizer": request.count("zero_stage") == 1,
        "megatron_lm_gradient_clipping": 1.0, **recompute, **last,
    }  # fmt: skip
    return {"distributed_type": "MEGATRON_LM", "megatron_lm_config": keys}


def _last_stage(request: ExportRequest, faults: Faults) -> Table:
    stages = request.stages
    *others, last = stages
    if len(set(stages)) == 1:
        return {}
    if len(set(others)) == 1:
        return {"megatron_lm_decoder_last_pipeline_num_layers": last}
    layers, count = request.model.num_layers, len(stages)
    most = -(-layers // count)
    while (count - 1) * most >= layers:
        most -= 1
    nearest = [most] * (count - 1) + [layers - most * (count - 1)]
    faults.add("stage_partition", "has equal stages, all but the last", stage_partition=nearest)
    return {}


def _recompute(request: ExportRequest, faults: Faults) -> Table:
    layers = request.model.num_layers
    full, selective = request.recomputed("full"), request.recomputed("selective")
    if sum(full) == layers:
        return {
            "megatron_lm_recompute_granularity": "full", "megatron_lm_recompute_method": "uniform",
            "megatron_lm_recompute_num_layers": 1,
        }  # fmt: skip
    if sum(selective) == layers:
        return {"megatron_lm_recompute_granularity": "selective"}
    count = max(full)
    stages = request.stages
    if sum(selective) == 0 and full == tuple(min(count, size) for size in stages):
        if count == 0:
            return {}
        return {
            "megatron_lm_recompute_granularity": "full", "megatron_lm_recompute_method": "block",
            "megatron_lm_recompute_num_layers": count,
        }  # fmt: skip
    faults.add(
        "layer_recompute", "recomputes the same number of layers on every stage",
        layer_recompute={"full": [min(count, size) for size in stages]} if count else "full",
    )  # fmt: skip
    return {}


def _deepspeed(request: ExportRequest) -> Table:
    deepspeed_write.check(request, "Accelerate's DeepSpeed plugin")
    if request.count("tp_degree") > 1 or request.count("cp_degree") > 1:
        faults = Faults(request, "Accelerate's DeepSpeed plugin")
        tensor, context = request.count("tp_degree"), request.count("cp_degree")
        faults.add(
            "tp_degree" if tensor > 1 else "cp_degree", "shards states only", tp_degree=1,
            cp_degree=1, dp_degree=request.count("dp_degree") * tensor * context,
        )  # fmt: skip
        faults.raise_any()
    return {
        "distributed_type": "DEEPSPEED",
        "deepspeed_config": {
            "zero_stage": request.count("zero_stage"),
            "gradient_accumulation_steps": request.count("micro_batch_num"),
            "gradient_clipping": 1.0, "offload_optimizer_device": "none",
            "offload_param_device": "none", "zero3_init_flag": request.count("zero_stage") == 3,
        },
    }  # fmt: skip


def _launch(request: ExportRequest) -> str:
    machines, _ = nodes(request)
    hosts = ""
    if machines > 1:
        hosts = '--machine_rank "$NODE_RANK" --main_process_ip "$MASTER_ADDR" --main_process_port 29500 '
    layers = request.model.num_layers
    full = "on for every layer" if sum(request.recomputed("full")) == layers else "off"
    checkpointing = ""
    if request.framework.is_a("deepspeed-zero3"):
        checkpointing = f", activation checkpointing {full}"
    return (
        f"#!/usr/bin/env bash\n{request.comment()}"
        f"# The training script sets: sequences of {request.training.seq_len} tokens{checkpointing}.\n"
        "set -euo pipefail\n"
        f"accelerate launch {hosts}--config_file {CONFIG} train.py \\\n"
        f"  --per_device_train_batch_size {request.count('micro_batch_size')} \\\n"
        f"  --gradient_accumulation_steps {request.count('micro_batch_num')}\n"
    )


EXPORTER = Exporter(
    NAME, "Accelerate's accelerate.yaml and launch.sh (FSDP2, DDP, Megatron-LM or DeepSpeed plugin)",
    ("generic", "torchtitan", "llm-foundry", "megatron", "deepspeed-zero3"), export,
)  # fmt: skip
