"""Writes nanotron's YAML and the command that launches it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from autopar_core.api import CannotExpress, Exporter, ExportRequest
from autopar_formats.faults import Faults
from autopar_formats.launch import launch_script
from autopar_formats.nanotron_read import ENGINES, PRECISIONS
from autopar_formats.nanotron_split import padded_vocab, split
from autopar_formats.shapes import llama_fault


NAME = "nanotron"
CONFIG = "config.yaml"


def export(request: ExportRequest) -> Mapping[str, str]:
    """``config.yaml`` and ``launch.sh``.

    Raises:
        CannotExpress: When nanotron has no way to say the strategy.
    """
    _check(request)
    document = {
        "general": {"project": "autopar", "run": request.model.name or "run", "seed": 42},
        "checkpoints": {
            "checkpoints_path": "checkpoints", "checkpoint_interval": 1000,
            "checkpoints_path_is_shared_file_system": False,
        },
        "model": _model(request),
        "optimizer": _optimizer(request),
        "parallelism": _parallelism(request),
        "tokenizer": {"tokenizer_name_or_path": "SET-YOUR-TOKENIZER"},
        "tokens": {
            "sequence_length": request.training.seq_len,
            "micro_batch_size": request.count("micro_batch_size"),
            "batch_accumulation_per_replica": request.count("micro_batch_num"),
            "train_steps": 1000,
        },
        "data_stages": [
            {"name": "stage", "start_training_step": 1, "data": {"dataset": None, "seed": 42}}
        ],
    }  # fmt: skip
    text = yaml.safe_dump(document, sort_keys=False, default_flow_style=False)
    # Nanotron orders its queues by one connection where tensor parallelism overlaps.
    launch = launch_script(
        request, f"run_train.py --config-file {CONFIG}", {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}
    )
    return {CONFIG: request.comment() + text, "launch.sh": launch}


def _check(request: ExportRequest) -> None:
    faults = Faults(request, NAME)
    fault = llama_fault(request.model)
    if fault:
        raise CannotExpress(f"model.{fault}", f"{NAME} builds Llama and Qwen2 only", {})
    if request.training.precision not in PRECISIONS.values():
        raise CannotExpress("precision", f"{NAME} trains in bf16 or fp16", {"precision": "bf16"})
    faults.no_virtual_stages()
    stage = request.count("zero_stage")
    if stage > 1:
        faults.add("zero_stage", f"accepts stage {stage} and runs it as 1", zero_stage=1)
    faults.whole_kv_heads()
    faults.shard_all()
    if request.count("cp_degree") > 1 and request["cp_comm_type"] != "p2p":
        faults.add("cp_comm_type", "has a ring only", cp_comm_type="p2p")
    faults.whole_recompute()
    _check_stages(request, faults)
    faults.raise_any()


def _check_stages(request: ExportRequest, faults: Faults) -> None:
    stages, tensor = request.count("pp_degree"), faults.value("tp_degree")
    if stages == 1:
        return
    theirs = split(request.model, stages, padded_vocab(request.model.vocab, 1, tensor))
    if theirs != request.stages:
        faults.add(
            "stage_partition", "deals layers to stages by cost and takes no other split",
            stage_partition=list(theirs),
        )  # fmt: skip


def _model(request: ExportRequest) -> dict[str, Any]:
    model = request.model
    # The Llama class ignores context parallelism and has no biases.
    qwen = request.count("cp_degree") > 1 or model.qkv_bias
    config: dict[str, Any] = {"is_qwen2_config" if qwen else "is_llama_config": True}
    config |= {
        "hidden_size": model.hidden, "intermediate_size": model.ffn_hidden,
        "num_hidden_layers": model.num_layers, "num_attention_heads": model.heads,
        "num_key_value_heads": model.kv_heads, "vocab_size": model.vocab,
        "tie_word_embeddings": model.tied_embeddings, "hidden_act": "silu",
        "max_position_embeddings": max(model.max_position_embeddings, request.training.seq_len),
    }  # fmt: skip
    if qwen:
        config["attention_bias"] = model.qkv_bias
    if request.count("cp_degree") > 1:
        config["_attn_implementation"] = "ring_flash_triton"
    names = {name: spelled for spelled, name in PRECISIONS.items()}
    return {
        "dtype": names[request.training.precision],
        "make_vocab_size_divisible_by": 1, "ddp_bucket_cap_mb": 25,
        "init_method": {"std": 0.02}, "model_config": config,
    }  # fmt: skip


def _optimizer(request: ExportRequest) -> dict[str, Any]:
    return {
        "zero_stage": request.count("zero_stage"), "accumulate_grad_in_fp32": True,
        "clip_grad": 1.0, "weight_decay": 0.1,
        "learning_rate_scheduler": {
            "learning_rate": 3.0e-4, "lr_warmup_steps": 100, "lr_warmup_style": "linear",
            "lr_decay_style": "cosine", "min_decay_lr": 3.0e-5,
        },
        "optimizer_factory": {
            "name": "adamW", "adam_beta1": 0.9, "adam_beta2": 0.95, "adam_eps": 1.0e-8,
            "torch_adam_is_fused": True,
        },
    }  # fmt: skip


def _parallelism(request: ExportRequest) -> dict[str, Any]:
    engines = {name: spelled for spelled, name in ENGINES.items()}
    parallel = bool(request["sequence_parallel"])
    return {
        "dp": request.count("dp_degree"), "pp": request.count("pp_degree"),
        "tp": request.count("tp_degree"), "context_parallel_size": request.count("cp_degree"),
        "expert_parallel_size": 1, "pp_engine": engines.get(str(request["schedule"]), "1f1b"),
        "tp_mode": "REDUCE_SCATTER" if parallel else "ALL_REDUCE",
        "tp_linear_async_communication": parallel,
        "recompute_layer": any(request.recomputed("full")),
    }  # fmt: skip


EXPORTER = Exporter(NAME, "nanotron's config.yaml and launch.sh", (NAME,), export)
