"""Writes a Python configuration function for release 0.3.0."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autopar_core.api import Exporter, ExportRequest
from autopar_torchtitan.flavors import FLAVORS, PYTHON_ERA, Flavor
from autopar_torchtitan.launch import launch_script
from autopar_torchtitan.plan import Plan, plan_of
from autopar_torchtitan.stages import EMBEDDING, LAYER, NORM


MODULE, FUNCTION, LAUNCH = "autopar_run", "autopar_config", "launch.sh"
_CONVERTERS = {
    "fp8-rowwise": ("Float8LinearConverter", 'recipe_name="rowwise", filter_fqns=["lm_head"]'),
    "mxfp8": ("MXFP8LinearConverter", 'fqns=["layers"]'),
    "nvfp4": ("NVFP4LinearConverter", 'fqns=["layers"]'),
}
_CHECKPOINTS = {"full": "FullAC", "selective": "SelectiveAC"}


def export(request: ExportRequest) -> Mapping[str, str]:
    """``autopar_run.py`` and ``launch.sh``.

    Raises:
        CannotExpress: When release 0.3.0 has no way to say the strategy.
    """
    plan = plan_of(request, PYTHON_ERA)
    launch = launch_script(request, plan, f"--module {MODULE} --config {FUNCTION}")
    return {f"{MODULE}.py": request.comment() + _module(plan), LAUNCH: launch}


def _module(plan: Plan) -> str:
    base = base_of(plan.flavor)
    converter = _CONVERTERS.get(plan.precision)
    checkpoint = _CHECKPOINTS.get(plan.checkpoint)
    package = f"torchtitan.models.{plan.flavor.family}"
    imports = ["from torchtitan.config import CompileConfig, ParallelismConfig"]
    if converter:
        imports.insert(0, f"from torchtitan.components.quantization import {converter[0]}")
    if checkpoint:
        imports.append(f"from torchtitan.distributed.activation_checkpoint import {checkpoint}")
    imports += [
        f"from {package} import model_registry",
        f"from {package}.config_registry import {base}",
        "from torchtitan.trainer import Trainer",
    ]
    return (
        "#\n# For torchtitan 0.3.0. Not known here, check them: hf_assets_path (tokenizer), "
        "dataset, steps,\n"
        "# learning rate. The strategy does not depend on them.\n"
        '"""A configuration of TorchTitan\'s trainer."""\n\n'
        + "\n".join(imports)
        + f"\n\n\nDEVICES = {plan.devices}\n\n\n"
        f"def {FUNCTION}() -> Trainer.Config:\n"
        '    """The strategy above with its model."""\n'
        f"    config = {base}()\n"
        f"{_model(plan, converter)}{_training(plan)}{_parallelism(plan)}"
        f"    config.activation_checkpoint = {f'{checkpoint}.Config()' if checkpoint else None}\n"
        f'    config.compile = CompileConfig(enable={plan.compiled}, components=["model", "loss"])\n'
        "    return config\n"
    )


def base_of(flavor: Flavor) -> str:
    """The function of TorchTitan's registry to start from: of the flavour, or of its family."""
    if flavor.base:
        return flavor.base
    same = [one for one in FLAVORS if one.family == flavor.family and one.base]
    # The loss takes the size of the vocabulary from the base.
    return next(one.base for one in same if one.fields["vocab"] == flavor.fields["vocab"])


def _model(plan: Plan, converter: tuple[str, str] | None) -> str:
    text = ""
    if plan.flavor.assets:
        text += f'    config.hf_assets_path = "./assets/hf/{plan.flavor.assets}"\n'
    if not converter:
        return f'{text}    config.model_spec = model_registry("{plan.flavor.name}")\n'
    return (
        f'{text}    config.model_spec = model_registry(\n        "{plan.flavor.name}",\n'
        f"        converters=[\n            {converter[0]}.Config(\n"
        f"                {converter[1]}, model_compile_enabled={plan.compiled}\n"
        "            ),\n        ],\n    )\n"
    )


def _training(plan: Plan) -> str:
    fields: dict[str, Any] = {
        "local_batch_size": plan.local_batch,
        "global_batch_size": plan.global_batch,
        "seq_len": plan.sequence,
        "mixed_precision_param": "float32" if plan.precision == "fp32" else "bfloat16",
    }
    lines = "".join(f"    config.training.{k} = {_literal(v)}\n" for k, v in fields.items())
    # Graphs exclude a pipeline, keep memory of their own, and no measured run had them.
    return f"{lines}    config.training.disable_cuda_graphs = True  # as estimated; a pipeline needs it\n"


def _parallelism(plan: Plan) -> str:
    fields: dict[str, Any] = {
        "data_parallel_replicate_degree": plan.replicate,
        "data_parallel_shard_degree": plan.shard,
        "fsdp_reshard_after_forward": plan.reshard,
        "tensor_parallel_degree": plan.tensor,
        "enable_sequence_parallel": plan.sequence_parallel or plan.tensor == 1,
        "context_parallel_degree": plan.context,
        "pipeline_parallel_degree": plan.pipeline,
    }
    if plan.pipeline > 1:
        fields["pipeline_parallel_schedule"] = plan.schedule
        fields["pipeline_parallel_microbatch_size"] = plan.micro_batch
    lines = "".join(f"        {key}={_literal(value)},\n" for key, value in fields.items())
    if plan.pipeline > 1:
        lines += f"        module_fqns_per_model_part=[\n{_parts(plan.stages)}        ],\n"
    return f"    config.parallelism = ParallelismConfig(\n{lines}    )\n"


def _parts(stages: tuple[int, ...]) -> str:
    """Module names of every stage, a range of layers on each line."""
    text, at = "", 0
    for stage, count in enumerate(stages):
        items = [f'"{EMBEDDING}"'] if not stage else []
        if count:
            items.append(f'*[f"{LAYER}{{i}}" for i in range({at}, {at + count})]')
        at += count
        if stage == len(stages) - 1:
            items += [f'"{NORM}"', '"lm_head"']
        text += f"            [{', '.join(items)}],\n"
    return text


def _literal(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else repr(value)


EXPORTER = Exporter(
    "torchtitan", "A configuration function for TorchTitan 0.3.0 (autopar_run.py) and launch.sh.",
    ("torchtitan",), export,
)  # fmt: skip
