"""What an exported file says besides strategy and model, and the script that launches it."""

from __future__ import annotations

from typing import Any

from autopar_core.api import ExportRequest


_GB = 2**30
_MOST_PER_NODE = 8


def run_sections(request: ExportRequest, *, older: bool) -> dict[str, Any]:
    """Top-level switches, trainer, runner and device context."""
    piped = request.count("pp_degree") > 1
    return {
        "use_legacy": older, "run_mode": "train", "use_parallel": True, "seed": 0,
        "output_dir": "./output", "load_checkpoint": "", "load_ckpt_format": "safetensors",
        "auto_trans_ckpt": False, "resume_training": False,
        "trainer": {"type": "CausalLanguageModelingTrainer", "model_name": "autopar"},
        "runner_config": {
            "epochs": 1, "batch_size": request.count("micro_batch_size"), "sink_mode": True,
            "sink_size": 1,
            "gradient_accumulation_steps": 1 if piped else request.count("micro_batch_num"),
        },
        "context": {
            "mode": 0, "device_target": "Ascend",
            "max_device_memory": f"{max(1, request.cluster.memory_limit // _GB)}GB",
            "jit_config": {"jit_level": "O1" if older else "O0"},
        },
    }  # fmt: skip


def dataset_section(request: ExportRequest, *, older: bool) -> dict[str, Any]:
    """Where tokens come from: the columns that the model's class takes, and a path to be filled in."""
    common = {
        "num_parallel_workers": 8, "python_multiprocessing": False, "drop_remainder": True,
        "numa_enable": False, "prefetch_size": 1, "seed": 1234,
    }  # fmt: skip
    if older:
        # Packed samples of seq_length + 1 tokens (MindRecord).
        loader: dict[str, Any] = {
            "type": "MindDataset", "dataset_dir": "/path/to/dataset.mindrecord", "shuffle": True,
        }  # fmt: skip
        columns = ["input_ids"]
        own: dict[str, Any] = {"data_loader": loader, "input_columns": columns}
    else:
        columns = ["input_ids", "labels", "loss_mask", "position_ids"]
        config = {
            "seed": 1234, "split": "1, 0, 0", "seq_length": request.training.seq_len,
            "eod_mask_loss": False, "reset_position_ids": False, "create_attention_mask": False,
            "reset_attention_mask": False, "create_compressed_eod_mask": False,
            "eod_pad_length": 128, "eod": 1, "pad": -1,
            "data_path": ["1", "/path/to/megatron_dataset_text_document"],
        }  # fmt: skip
        loader = {
            "type": "BlendedMegatronDatasetDataLoader", "datasets_type": "GPTDataset",
            "sizes": [1000, 0, 0], "config": config,
        }  # fmt: skip
        own = {"data_loader": loader, "input_columns": columns, "construct_args_key": columns}
    dataset = {**own, **common}
    task = {"type": "CausalLanguageModelDataset", "dataset_config": dataset}
    return {"train_dataset": dataset, "train_dataset_task": task}


def optimizer_sections() -> dict[str, Any]:
    """Optimizer, schedule of the learning rate, wrapper and callbacks."""
    return {
        "optimizer": {"type": "AdamW", "betas": [0.9, 0.95], "eps": 1.0e-8, "weight_decay": 0.1},
        "lr_schedule": {
            "type": "ConstantWarmUpLR", "learning_rate": 1.0e-4, "warmup_ratio": 0, "total_steps": -1,
        },
        "runner_wrapper": {"type": "MFTrainOneStepCell", "scale_sense": 1.0, "use_clip_grad": True},
        "callbacks": [{"type": "MFLossMonitor"}],
    }  # fmt: skip


def launch_script(request: ExportRequest, config: str) -> str:
    """``msrun_launcher.sh`` of MindFormers with as many workers as the strategy has devices."""
    # Also for one device: outside the parallel modes MindFormers resets gradient accumulation to 1.
    devices, each = request.cluster.devices, _per_node(request)
    run = '"run_mindformer.py --config $CONFIG --use_parallel True --run_mode train"'
    lines = [
        "set -euo pipefail",
        f'CONFIG="$(cd "$(dirname "${{BASH_SOURCE[0]}}")" && pwd)/{config}"',
        'cd "${MINDFORMERS_PATH:?the folder of a checkout of MindFormers}"',
    ]
    if devices == each:
        lines.append(
            f"bash scripts/msrun_launcher.sh {run} \\\n"
            f'  {devices} "${{MASTER_PORT:-8118}}" "${{LOG_DIR:-output/msrun_log}}" True 7200'
        )
    else:
        lines += [
            f"# On each of {devices // each} machines, with its own NODE_RANK.",
            f"bash scripts/msrun_launcher.sh {run} \\\n"
            f'  {devices} {each} "${{MASTER_ADDR:?address of the first machine}}" '
            '"${MASTER_PORT:-8118}" \\\n'
            '  "${NODE_RANK:?number of this machine, from 0}" "${LOG_DIR:-output/msrun_log}" True 7200',
        ]
    return f"#!/usr/bin/env bash\n{request.comment()}" + "\n".join(lines) + "\n"


def _per_node(request: ExportRequest) -> int:
    """Devices of a machine: the scale-up domain, machines of eight where that is larger."""
    devices = request.cluster.devices
    each = min(request.cluster.devices_per_domain, devices)
    if each > _MOST_PER_NODE and devices % _MOST_PER_NODE == 0:
        each = _MOST_PER_NODE
    while devices % each:
        each -= 1
    return each
