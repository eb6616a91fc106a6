"""Fields of Megatron-Bridge's ConfigContainer under the names of Megatron's parser."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from autopar_core.api import InputError
from autopar_megatron.settings import Setting, Settings, keep


SECTIONS = ("model", "train", "ddp", "dataset", "tokenizer", "validation", "comm_overlap", "dist")
# Where Bridge (and core) names differ from the flags that say the same.
RENAMED = {
    "virtual_pipeline_model_parallel_size": "num_virtual_stages_per_pipeline_rank",
    "num_layers_in_first_pipeline_stage": "decoder_first_pipeline_num_layers",
    "num_layers_in_last_pipeline_stage": "decoder_last_pipeline_num_layers",
    "grad_reduce_in_fp32": "grad_reduce_in_fp32",
    "fp8": "fp8_format",
    "fp4": "fp4_format",
}
_TOP = ("mixed_precision",)


def is_bridge_key(key: str) -> bool:
    """Whether a dotted key is one of the container's."""
    parts = key.split(".")
    return (len(parts) == 2 and parts[0] in SECTIONS) or key in _TOP


def bridge_settings(label: str, pairs: Iterable[tuple[str, Any, int]]) -> Settings:
    """Settings from (dotted key, value, line).

    Raises:
        InputError: When two keys say one thing differently (``model.seq_length`` and
            ``dataset.seq_length`` must agree).
    """
    found: dict[str, Setting] = {}
    for key, value, line in pairs:
        parts = key.split(".")
        if not is_bridge_key(key) or value is None:
            continue
        name = RENAMED.get(parts[-1], parts[-1])
        if parts[0] == "tokenizer" and name == "vocab_size":
            name = "tokenizer_vocab_size"
        keep(label, found, Setting(name, key, _texts(value), line, line))
    if not found:
        raise InputError(
            label, "has no key of a Megatron-Bridge configuration (model., train., ddp.)"
        )
    return Settings(label, found, flags=False, family="megatron-bridge")


def _texts(value: Any) -> tuple[str, ...]:
    if isinstance(value, list | tuple):
        return tuple(str(each) for each in value)
    if isinstance(value, bool):
        return ("true" if value else "false",)
    return (str(value),)
