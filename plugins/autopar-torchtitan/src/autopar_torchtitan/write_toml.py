"""Writes the TOML job configuration of release 0.2.2."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autopar_core.api import Exporter, ExportRequest
from autopar_torchtitan.flavors import TOML_ERA
from autopar_torchtitan.launch import launch_script
from autopar_torchtitan.plan import Plan, plan_of
from autopar_torchtitan.stages import module_names


CONFIG, LAUNCH = "torchtitan.toml", "launch.sh"
# Recipe -> (converter, its recipe_name).
_CONVERTERS = {
    "fp8-tensorwise": ("float8", "tensorwise"), "fp8-rowwise": ("float8", "rowwise"),
    "mxfp8": ("mx", "mxfp8_cublas"),
}  # fmt: skip


def export(request: ExportRequest) -> Mapping[str, str]:
    """``torchtitan.toml`` and ``launch.sh``.

    Raises:
        CannotExpress: When release 0.2.2 has no way to say the strategy.
    """
    plan = plan_of(request, TOML_ERA)
    text = request.comment() + (
        "#\n# For torchtitan 0.2.2. Not known here, check them: hf_assets_path (tokenizer), "
        "dataset, steps,\n"
        "# learning rate. The strategy does not depend on them.\n"
    )
    for name, table in _sections(plan).items():
        text += f"\n[{name}]\n" + "".join(f"{key} = {_value(v)}\n" for key, v in table.items())
    return {
        CONFIG: text,
        LAUNCH: launch_script(request, plan, f'--job.config_file "$HERE/{CONFIG}"'),
    }


def _sections(plan: Plan) -> dict[str, dict[str, Any]]:
    converter, recipe = _CONVERTERS.get(plan.precision, ("", ""))
    assets = (
        f"./assets/hf/{plan.flavor.assets}" if plan.flavor.assets else "./tests/assets/tokenizer"
    )
    sections: dict[str, dict[str, Any]] = {
        "job": {"dump_folder": "./outputs"},
        "model": {
            "name": plan.flavor.family, "flavor": plan.flavor.name, "hf_assets_path": assets,
            "converters": [f"quantize.linear.{converter}"] if converter else [],
        },
        "optimizer": {"name": "AdamW", "lr": 3e-4},
        "training": {
            "local_batch_size": plan.local_batch, "global_batch_size": plan.global_batch,
            "seq_len": plan.sequence, "steps": 1000, "dataset": "c4",
            "mixed_precision_param": "float32" if plan.precision == "fp32" else "bfloat16",
        },
        "parallelism": _parallelism(plan),
        "activation_checkpoint": _checkpoint(plan),
        "compile": {"enable": plan.compiled, "components": ["model", "loss"]},
    }  # fmt: skip
    if converter:
        sections[f"quantize.linear.{converter}"] = {"recipe_name": recipe}
    return sections


def _parallelism(plan: Plan) -> dict[str, Any]:
    table: dict[str, Any] = {
        "data_parallel_replicate_degree": plan.replicate,
        "data_parallel_shard_degree": plan.shard,
        "fsdp_reshard_after_forward": plan.reshard,
        "tensor_parallel_degree": plan.tensor,
        "pipeline_parallel_degree": plan.pipeline,
        "context_parallel_degree": plan.context,
    }
    if plan.rotate:
        table["context_parallel_rotate_method"] = plan.rotate
    if plan.pipeline > 1:
        table["pipeline_parallel_schedule"] = plan.schedule
        table["pipeline_parallel_microbatch_size"] = plan.micro_batch
        table["module_fqns_per_model_part"] = module_names(plan.stages, "output")
    return table


def _checkpoint(plan: Plan) -> dict[str, Any]:
    if plan.checkpoint == "every":
        return {"mode": "selective", "selective_ac_option": str(plan.nth)}
    table: dict[str, Any] = {"mode": plan.checkpoint}
    if plan.checkpoint == "selective":
        table["selective_ac_option"] = "op"
    return table


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, list):
        inner = [_value(each) for each in value]
        if value and isinstance(value[0], list):
            return "[\n" + "".join(f"  {each},\n" for each in inner) + "]"
        return f"[{', '.join(inner)}]"
    return str(value)


EXPORTER = Exporter(
    "torchtitan-toml", "TorchTitan's job configuration up to 0.2.2 (torchtitan.toml) and launch.sh.",
    ("torchtitan",), export,
)  # fmt: skip
