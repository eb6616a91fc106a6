"""What a ``config.json`` may describe that is no dense decoder, told by the key that shows it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from autopar_core.errors import InputError


# Keys that count experts: two or more are a mixture; dense files carry them with 0, 1 or null.
_EXPERT_COUNTS = (
    "num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts",
    "ffn_config.moe_num_experts", "num_routed_experts",
)  # fmt: skip
_EXPERT_SIGNS = (
    "num_experts_per_tok", "moe_intermediate_size", "n_shared_experts", "decoder_sparse_step",
    "moe_layer_freq", "first_k_dense_replace", "expert_layer_period", "num_selected_experts",
)  # fmt: skip
_EXPERT_TYPES = frozenset((
    "mixtral", "deepseek_v2", "deepseek_v3", "jamba", "dbrx", "gpt_oss", "llama4_text", "minimax",
    "minimax_m2", "grok", "arctic", "kimi_k2",
))  # fmt: skip
_MULTIMODAL = (
    "vision_config", "audio_config", "text_config", "llm_config", "thinker_config", "image_token_id",
)  # fmt: skip
_NESTED = ("text_config", "llm_config")
_STATE_SPACE = (
    "mamba_d_state", "ssm_cfg", "state_size", "attn_layer_period", "hybrid_override_pattern",
    "layers_block_type", "linear_attention", "linear_num_value_heads",
)  # fmt: skip
_STATE_SPACE_TYPES = frozenset((
    "jamba", "nemotron_h", "falcon_h1", "qwen3_next", "zamba", "zamba2", "bamba",
    "granitemoehybrid", "rwkv", "recurrent_gemma",
))  # fmt: skip
_LATENT = ("kv_lora_rank", "q_lora_rank", "qk_rope_head_dim", "v_head_dim")
_ENCODER_DECODER = ("encoder_layers", "decoder_layers", "d_kv", "num_decoder_layers")
_UNEVEN = ("block_configs", "intermediate_size", "num_key_value_heads", "num_attention_heads")
_HEADS = (
    "ForSequenceClassification",
    "ForMaskedLM",
    "ForTokenClassification",
    "ForQuestionAnswering",
)


# Key of a table -> where it stands.
Place = Callable[[str], str]


def key_place(key: str) -> str:
    """The place of a key in a file that is the table."""
    return f"key {key}"


def refuse(table: Mapping[str, Any], label: str, place: Place = key_place) -> None:
    """Stop at the first sign that this is no dense decoder.

    Args:
        table: The parsed ``config.json``.
        label: Name of the file.
        place: Where a key of the table stands.

    Raises:
        InputError: Naming the key.
    """
    for key, what in _signs(table):
        raise InputError(f"{label}: {place(key)}", what)


def _signs(table: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield from _multimodal(table)
    yield from _state_space(table)
    yield from _experts(table)
    for key in _LATENT:
        if _set(table, key):
            yield key, "latent attention (MLA) is not supported; autopar plans dense decoders only"
    if table.get("is_encoder_decoder") is True:
        yield "is_encoder_decoder", "an encoder-decoder; autopar plans dense decoders only"
    for key in _ENCODER_DECODER:
        if _set(table, key):
            yield key, "an encoder-decoder; autopar plans dense decoders only"
    names = table.get("architectures")
    for name in names if isinstance(names, list) else ():
        if isinstance(name, str) and name.endswith(_HEADS):
            yield "architectures", f"{name} is no language model for pretraining"
    if table.get("is_decoder") is False and "Bert" in str(names):
        yield "is_decoder", "an encoder; autopar plans dense decoders only"
    for key in _UNEVEN:
        if isinstance(table.get(key), list):
            yield key, "lists a value for each layer: layers of different shapes are not supported"
    extra = table.get("num_nextn_predict_layers")
    if isinstance(extra, int) and extra > 0:
        yield (
            "num_nextn_predict_layers",
            f"{extra} extra prediction layers (MTP) are not supported; set it to 0 to plan without",
        )


def _multimodal(table: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for key in _MULTIMODAL:
        if not _set(table, key):
            continue
        inside = next((name for name in _NESTED if isinstance(table.get(name), Mapping)), "")
        hint = ""
        if inside:
            kind = table[inside].get("model_type", "unnamed")
            hint = (
                f"; to plan its language model alone ({inside}: {kind}) name the reader "
                "huggingface-text"
            )
        yield key, f"a multimodal model, which is not supported{hint}"


def _state_space(table: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for key in _STATE_SPACE:
        if _set(table, key):
            yield key, "a state-space or hybrid model; autopar plans dense transformers only"
    kinds = table.get("layer_types")
    for kind in kinds if isinstance(kinds, list) else ():
        if isinstance(kind, str) and ("mamba" in kind or "linear" in kind or "recurrent" in kind):
            yield "layer_types", f"{kind!r} layers: a hybrid model; autopar plans transformers only"
    name = str(table.get("model_type", ""))
    if name in _STATE_SPACE_TYPES or "mamba" in name:
        yield "model_type", f"{name!r} is a state-space or hybrid model; autopar plans dense ones"


def _experts(table: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    sentence = "a mixture-of-experts model; autopar plans dense models only"
    counts = [key for key in _EXPERT_COUNTS if _value(table, key) is not None]
    for key in counts:
        value = _value(table, key)
        many = max(value, default=0) if isinstance(value, list) else value
        if not isinstance(many, int | float) or many > 1:
            yield key, f"{value} experts: {sentence}"
    if not counts:
        for key in _EXPERT_SIGNS:
            if _set(table, key):
                yield key, sentence
    name = str(table.get("model_type", ""))
    if "moe" in name or name in _EXPERT_TYPES:
        yield "model_type", f"{name!r} is {sentence}"


def _value(table: Mapping[str, Any], key: str) -> Any:
    at: Any = table
    for part in key.split("."):
        at = at.get(part) if isinstance(at, Mapping) else None
    return at


def _set(table: Mapping[str, Any], key: str) -> bool:
    """Whether a key is there and neither null, false nor zero."""
    return _value(table, key) not in (None, False, 0)
