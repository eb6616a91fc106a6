"""Writes a DeepSpeed JSON configuration and the command that launches it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from autopar_core.api import CannotExpress, Exporter, ExportRequest
from autopar_formats.deepspeed_read import BATCH, MICRO, NUMBER, ZERO
from autopar_formats.faults import Faults
from autopar_formats.launch import nodes


NAME = "deepspeed"
CONFIG = "ds_config.json"


def export(request: ExportRequest) -> Mapping[str, str]:
    """``ds_config.json`` and ``launch.sh``.

    Raises:
        CannotExpress: When a DeepSpeed configuration has no way to say the strategy.
    """
    recompute = check(request, "a DeepSpeed configuration")
    text = json.dumps(configuration(request), indent=2)
    return {CONFIG: f"{text}\n", "launch.sh": _launch(request, recompute)}


def check(request: ExportRequest, name: str) -> bool:
    """Whether every layer is recomputed.

    Raises:
        CannotExpress: When the configuration has no way to say the strategy.
    """
    faults = Faults(request, name)
    if request.training.precision not in ("bf16", "fp16"):
        raise CannotExpress("precision", f"{name} trains in bf16 or fp16", {"precision": "bf16"})
    faults.one_stage()
    faults.whole_kv_heads()
    if request["sequence_parallel"]:
        faults.add(
            "sequence_parallel", "splits no residual stream over tensor-parallel ranks",
            sequence_parallel=False,
        )  # fmt: skip
    faults.shard_all()
    if request.count("cp_degree") > 1 and request["cp_comm_type"] != "a2a":
        faults.add("cp_comm_type", "exchanges heads only (Ulysses)", cp_comm_type="a2a")
    tensor, context = faults.value("tp_degree"), request.count("cp_degree")
    if tensor > 1 and context > 1:
        faults.add(
            "cp_degree", "makes one mesh, for AutoTP or for Ulysses", cp_degree=1,
            cp_comm_type="none", dp_degree=faults.value("dp_degree") * context,
        )  # fmt: skip
    recompute = faults.whole_recompute()
    faults.raise_any()
    return recompute


def configuration(request: ExportRequest) -> dict[str, Any]:
    """The table of ``ds_config.json``."""
    stage = request.count("zero_stage")
    zero: dict[str, Any] = {"stage": stage}
    if stage:
        zero |= {
            "overlap_comm": True,
            "contiguous_gradients": True,
            "reduce_bucket_size": 500_000_000,
        }
    if stage == 3:
        zero |= {
            "stage3_prefetch_bucket_size": 500_000_000,
            "stage3_param_persistence_threshold": 1_000_000,
        }
    made: dict[str, Any] = {
        BATCH: request.training.global_batch_size, MICRO: request.count("micro_batch_size"),
        NUMBER: request.count("micro_batch_num"), "gradient_clipping": 1.0,
        request.training.precision: {"enabled": True}, ZERO: zero,
    }  # fmt: skip
    if request.count("tp_degree") > 1:
        made["tensor_parallel"] = {"autotp_size": request.count("tp_degree")}
    if request.count("cp_degree") > 1:
        # DeepSpeed makes its mesh of the two, and counts replicas in it.
        made["sequence_parallel_size"] = request.count("cp_degree")
        made["data_parallel_size"] = request.count("dp_degree")
    return made


def _launch(request: ExportRequest, recompute: bool) -> str:
    machines, each = nodes(request)
    hosts = f"--num_nodes {machines} --hostfile hostfile " if machines > 1 else ""
    activations = "on for every layer" if recompute else "off"
    return (
        f"#!/usr/bin/env bash\n{request.comment()}"
        f"# The configuration does not say: activation checkpointing {activations}, sequences of "
        f"{request.training.seq_len} tokens.\n"
        f"{_groups(request)}set -euo pipefail\n"
        f"deepspeed {hosts}--num_gpus {each} train.py --deepspeed --deepspeed_config {CONFIG}\n"
    )


def _groups(request: ExportRequest) -> str:
    """What the script must do where ranks share a replica."""
    tensor = request.count("tp_degree")
    if tensor == 1:
        return ""
    return (
        f"# train.py passes deepspeed.initialize an mpu with groups of {tensor} tensor-parallel ranks;\n"
        "# without one DeepSpeed counts every rank as a replica and refuses the batch sizes.\n"
    )


EXPORTER = Exporter(NAME, "DeepSpeed's ds_config.json and launch.sh", ("deepspeed-zero3",), export)
