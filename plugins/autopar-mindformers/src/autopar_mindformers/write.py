"""Writes a strategy as a YAML file of graph mode and the script that launches it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autopar_core.api import Exporter, ExportRequest
from autopar_mindformers import faults
from autopar_mindformers.layers import Rows, shaped
from autopar_mindformers.shapes import OLDER, class_of
from autopar_mindformers.write_model import model_config
from autopar_mindformers.write_run import (
    dataset_section,
    launch_script,
    optimizer_sections,
    run_sections,
)


NAME, CONFIG = "mindformers", "mindformers.yaml"
ALGORITHMS = {"p2p": "colossalai_cp", "all_gather": "colossalai_cp", "a2a": "ulysses_cp"}
_OPEN = (
    "To be filled in, as no strategy says it: the path of the data set (train_dataset), its tokens for",
    "padding and end of document, the checkpoint to start from (load_checkpoint; empty: random weights),",
    "base of the rotary positions, epsilon of the norms, learning rate and number of epochs.",
)


def export(request: ExportRequest) -> Mapping[str, str]:
    """``mindformers.yaml`` and ``launch.sh``.

    Raises:
        CannotExpress: When graph mode has no way to say the strategy.
    """
    import yaml

    faults.check(request)
    older = class_of(request.model) == OLDER
    document = {
        **run_sections(request, older=older),
        "parallel_config": _degrees(request),
        "micro_batch_interleave_num": 1,
        "parallel": _context(request, older=older),
        "recompute_config": _recompute(request),
        "model": model_config(request, _offset(request)),
        **dataset_section(request, older=older),
        **optimizer_sections(),
    }
    text = yaml.dump(document, Dumper=_flow(yaml), sort_keys=False, default_flow_style=False)
    comment = request.comment() + "".join(f"# {line}\n" for line in (*_OPEN, *_notes(request)))
    return {CONFIG: comment + text, "launch.sh": launch_script(request, CONFIG)}


def _flow(yaml: Any) -> Any:
    """A dumper that writes lists on one line, and one anchor: the data set that two sections name."""

    class Dumper(yaml.SafeDumper):  # type: ignore[misc]
        def ignore_aliases(self, data: Any) -> bool:
            return not isinstance(data, dict)

        def generate_anchor(self, _node: Any) -> str:
            return "train_dataset"

    def lists(dumper: Any, data: list[Any]) -> Any:
        short = all(not isinstance(each, dict) for each in data)
        return dumper.represent_sequence("tag:yaml.org,2002:seq", data, flow_style=short)

    Dumper.add_representer(list, lists)
    return Dumper


def _notes(request: ExportRequest) -> list[str]:
    if not any(request.recomputed("selective")):
        return []
    return [
        "select_recompute repeats silu and mul of the gated MLP and nothing else, which is what the",
        "estimate assumes for this framework's profile; Megatron's selective mode is another.",
    ]


def _rows(request: ExportRequest, values: tuple[int, ...]) -> Rows:
    ranks = request.count("pp_degree")
    chunks = len(values) // ranks
    return [list(values[chunk * ranks : (chunk + 1) * ranks]) for chunk in range(chunks)]


def _degrees(request: ExportRequest) -> dict[str, Any]:
    context = request.count("cp_degree")
    section: dict[str, Any] = {
        "data_parallel": request.count("dp_degree"), "model_parallel": request.count("tp_degree"),
        "pipeline_stage": request.count("pp_degree"), "context_parallel": context,
        "use_seq_parallel": bool(request["sequence_parallel"]),
        # Without a pipeline MindFormers resets it to 1, and runner_config counts the micro-batches.
        "micro_batch_num": request.count("micro_batch_num") if request.count("pp_degree") > 1 else 1,
        "vocab_emb_dp": False, "gradient_aggregation_group": 4,
    }  # fmt: skip
    if context > 1:
        exchange = str(request["cp_comm_type"])
        section["context_parallel_algo"] = ALGORITHMS[exchange]
        # The newer classes take the ranks of the all-to-all from here, whatever the algorithm.
        section["ulysses_degree_in_cp"] = context if exchange == "a2a" else 1
    return section


def _context(request: ExportRequest, *, older: bool) -> dict[str, Any]:
    several = len(request.stages) > request.count("pp_degree")
    scheduler = "zero_bubble_v" if request["schedule"] == faults.V_SHAPED else "1f1b"
    sharded = bool(request.count("zero_stage"))
    section: dict[str, Any] = {
        "parallel_mode": 1, "gradients_mean": False, "enable_alltoall": False, "full_batch": older,
    }  # fmt: skip
    if not older:
        section["dataset_strategy"] = [[request.count("dp_degree"), 1] for _ in range(4)]
    section |= {
        "search_mode": "sharding_propagation",
        "pipeline_config": {"pipeline_interleave": several, "pipeline_scheduler": scheduler},
        "strategy_ckpt_config": {"save_file": "./ckpt_strategy.ckpt", "only_trainable_params": False},
        "enable_parallel_optimizer": sharded,
    }  # fmt: skip
    if sharded:
        # 64 KB is MindSpore's default: smaller tensors stay whole.
        optimizer: dict[str, Any] = {
            "gradient_accumulation_shard": False,
            "parallel_optimizer_threshold": 64,
        }
        if request.count("shard_degree") < request.count("dp_degree"):
            size = request.count("shard_degree") * request.count("cp_degree")
            optimizer["optimizer_weight_shard_size"] = size
        section["parallel_optimizer_config"] = optimizer
    return section


def _offset(request: ExportRequest) -> Any:
    """``layers // stages + offset`` on every virtual stage; 0 where all have the same."""
    stages = request.stages
    base = request.model.num_layers // len(stages)
    offsets = tuple(count - base for count in stages)
    return shaped(_rows(request, offsets)) if any(offsets) else 0


def _recompute(request: ExportRequest) -> dict[str, Any]:
    full, selective = request.recomputed("full"), request.recomputed("selective")
    # A layer recomputed in full is not also in part, and both lists count from a stage's first layer.
    some = tuple(f + s if s else 0 for f, s in zip(full, selective, strict=True))
    return {
        "recompute": _counts(request, full), "select_recompute": _counts(request, some),
        "parallel_optimizer_comm_recompute": False, "select_comm_recompute": False,
        "mp_comm_recompute": True, "recompute_slice_activation": False,
    }  # fmt: skip


def _counts(request: ExportRequest, counts: tuple[int, ...]) -> Any:
    if not any(counts):
        return False
    return True if counts == request.stages else shaped(_rows(request, counts))


EXPORTER = Exporter(NAME, "MindFormers' YAML of graph mode and launch.sh", (NAME,), export)
