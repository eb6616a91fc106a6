"""Models that are not dense decoders, told by the setting that shows it."""

from __future__ import annotations

from autopar_core.api import InputError
from autopar_megatron.settings import Settings


# Setting -> (what it means, the largest number that means nothing). Switches and texts have -1.
_SHOWS = {
    "num_experts": ("a mixture of experts", 1),
    "num_moe_experts": ("a mixture of experts", 1),
    "expert_model_parallel_size": ("expert parallelism of a mixture of experts", 1),
    "multi_latent_attention": ("multi-head latent attention", -1),
    "multi_head_latent_attention": ("multi-head latent attention", -1),
    "hybrid_layer_pattern": ("a hybrid state-space model", -1),
    "hybrid_override_pattern": ("a hybrid state-space model", -1),
    "hybrid_attention_ratio": ("a hybrid state-space model", 0),
    "is_hybrid_model": ("a hybrid state-space model", -1),
    "experimental_attention_variant": ("an experimental attention", -1),
    "linear_attention_freq": ("linear attention", -1),
    "heterogeneous_layers_config_path": ("layers of different shapes", -1),
    "mtp_num_layers": ("multi-token-prediction layers, which are not counted here", 0),
    "vision_pretraining": ("a vision model", -1),
    "disable_vision_class_token": ("a multimodal model", -1),
    "decoder_num_layers": ("an encoder-decoder", 0),
    "pipeline_model_parallel_split_rank": ("an encoder-decoder", 0),
    "retro_add_retriever": ("a retrieval model", -1),
    "lora_r": ("LoRA fine-tuning, where most parameters have no gradient", 0),
    "lora_rank": ("LoRA fine-tuning, where most parameters have no gradient", 0),
    "lora_target_modules": ("LoRA fine-tuning, where most parameters have no gradient", -1),
}  # fmt: skip
_ENTRY = {"pretrain_t5.py": "T5", "pretrain_bert.py": "BERT", "pretrain_vlm.py": "a multimodal model",
          "pretrain_mamba.py": "a state-space model", "pretrain_retro.py": "RETRO"}  # fmt: skip


def refuse_other_models(settings: Settings) -> None:
    """Refuse what is no dense decoder.

    Raises:
        InputError: Naming the setting that shows it.
    """
    for name, (what, harmless) in _SHOWS.items():
        if name not in settings:
            continue
        if harmless < 0:
            values = settings.found[name].values
            if not values or values[0].lower() not in ("false", "0", "no"):
                raise _refused(settings, name, what)
        elif _number(settings, name) > harmless:
            raise _refused(settings, name, what)


def refuse_other_programs(place: str, program: str) -> None:
    """Refuse a script that launches a program for other models.

    Args:
        place: Where it is launched.
        program: Its path.

    Raises:
        InputError: Naming the program.
    """
    name = program.rsplit("/", 1)[-1]
    if name in _ENTRY:
        raise InputError(
            place, f"launches {name}: {_ENTRY[name]}; autopar plans dense decoders only"
        )


def _number(settings: Settings, name: str) -> int:
    values = settings.found[name].values
    if not values:
        return 1
    try:
        return int(float(values[0]))
    except (ValueError, OverflowError):
        return 1


def _refused(settings: Settings, name: str, what: str) -> InputError:
    value = " ".join(settings.found[name].values)
    said = f"{settings.found[name].spelled} {value}".strip()
    return settings.wrong(name, f"{said} is {what}; autopar plans dense models only")
