"""What the functions of TorchTitan's own registries set, so that a file may start from one of them.

``torchtitan/models/llama3/config_registry.py`` and ``torchtitan/models/qwen3/config_registry.py`` of
release 0.3.0; only fields that autopar reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from autopar_torchtitan.python_values import Made, Placed


SOURCE = "torchtitan 0.3.0 config_registry.py"


class Preset(NamedTuple):
    """One function."""

    family: str
    flavor: str
    local_batch: int
    seq_len: int
    checkpoint: str
    tensor: int = 1
    schedule: str = ""
    converters: tuple[str, ...] = ()
    compile: Mapping[str, Any] = {}


_MODEL_ONLY = {"enable": True, "components": ["model"]}
PRESETS: Mapping[str, Preset] = {
    "llama3_debugmodel": Preset("llama3", "debugmodel", 8, 2048, "SelectiveAC", 1, "Interleaved1F1B"),
    "llama3_8b": Preset("llama3", "8B", 1, 8192, "SelectiveAC"),
    "llama3_8b_mxfp8": Preset(
        "llama3", "8B", 1, 8192, "SelectiveAC", converters=("MXFP8LinearConverter",),
        compile=_MODEL_ONLY,
    ),
    "llama3_70b": Preset("llama3", "70B", 8, 8192, "FullAC", 8),
    "llama3_405b": Preset(
        "llama3", "405B", 2, 8192, "FullAC", 8, converters=("Float8LinearConverter",),
        compile={"enable": True, "enable_async_tensor_parallel": True},
    ),
    "qwen3_debugmodel": Preset("qwen3", "debugmodel", 8, 2048, "SelectiveAC"),
    "qwen3_0_6b": Preset("qwen3", "0.6B", 4, 4096, "SelectiveAC"),
    "qwen3_1_7b": Preset("qwen3", "1.7B", 4, 4096, "SelectiveAC"),
    "qwen3_14b": Preset("qwen3", "14B", 4, 4096, "FullAC"),
    "qwen3_32b": Preset("qwen3", "32B", 2, 4096, "FullAC"),
}  # fmt: skip
# Functions of models that are no dense decoders, or of other ways of training.
OTHER_FUNCTIONS: Mapping[str, str] = {
    "qwen3_30b_a3b": "a mixture-of-experts model", "qwen3_235b_a22b": "a mixture-of-experts model",
    "qwen3_moe_debug": "a mixture-of-experts model", "qwen3_moe_deepep": "a mixture-of-experts model",
    "qwen3_debugmodel_moe_param_groups": "a mixture-of-experts model",
}  # fmt: skip
OTHER_PREFIXES: Mapping[str, str] = {
    "deepseek": "a mixture-of-experts model with latent attention",
    "llama4": "a mixture-of-experts model", "gpt_oss": "a mixture-of-experts model",
    "kimi": "a mixture-of-experts model", "qwen3_5": "a multimodal hybrid model",
    "muse": "a multimodal model", "flux": "an image generation model",
}  # fmt: skip


def preset_config(name: str, tokens: bool) -> Made:
    """The configuration that a function returns.

    Args:
        name: The function.
        tokens: In the spelling after 0.3.0, which counts tokens.
    """
    preset = PRESETS[name]
    place = f"default of the format: {name} of {SOURCE}"

    def made(kind: str, fields: Mapping[str, Any]) -> Made:
        return Made(kind, {key: Placed(value, place) for key, value in fields.items()})

    if tokens:
        training = {
            "num_tokens_per_microbatch_per_dp_rank": preset.local_batch * preset.seq_len,
            "max_context_length": preset.seq_len,
        }
    else:
        training = {"local_batch_size": preset.local_batch, "seq_len": preset.seq_len}
    parallelism: dict[str, Any] = {}
    if preset.tensor > 1:
        parallelism["tensor_parallel_degree"] = preset.tensor
    if preset.schedule:
        parallelism["pipeline_parallel_schedule"] = preset.schedule
    converters = [made(kind, {}) for kind in preset.converters]
    model = {"family": preset.family, "flavor": preset.flavor, "converters": converters}
    return made("Trainer", {
        "model_spec": made("model_registry", model),
        "training": made("TrainingConfig", training),
        "parallelism": made("ParallelismConfig", parallelism),
        "activation_checkpoint": made(preset.checkpoint, {}),
        "compile": made("CompileConfig", dict(preset.compile)),
    })  # fmt: skip
