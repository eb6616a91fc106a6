"""The model of a MindFormers file: the older classes by their own keys, the newer by Hugging Face's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from autopar_core.api import Document, Findings, InputError, hugging_face_model


# Older configuration classes of Llama shape, and what their constructors default to
# (models/llama/llama_config.py; research/telechat2/telechat_config.py, which ties nothing).
OLDER_CLASSES = ("LlamaConfig", "TelechatConfig")
OLDER_DEFAULTS: Mapping[str, Any] = {
    "num_layers": 32, "hidden_size": 4096, "num_heads": 32, "vocab_size": 32000, "multiple_of": 256,
}  # fmt: skip
# Key of another class -> the key that the older classes know; the former is ignored without a word.
_FOREIGN = {
    "num_hidden_layers": "num_layers", "num_attention_heads": "num_heads",
    "num_key_value_heads": "n_kv_heads",
}  # fmt: skip
# Newer classes of graph mode: the model type whose keys they have, and constructor defaults that
# differ from that type's (models/telechat3/configuration_telechat3.py).
NEWER_TYPES: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "qwen3": ("qwen3", {}),
    "telechat3": (
        "llama",
        {
            "vocab_size": 131072, "hidden_size": 4096, "intermediate_size": 22016,
            "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32,
            "head_dim": 128, "max_position_embeddings": 32768,
        },
    ),
}  # fmt: skip
_EXPERTS = ("expert_num", "num_moe_experts", "n_routed_experts", "num_experts")
_EXPERT_PLACES = ("model.model_config", "model", "moe_config", "model.model_config.moe_config")
_EXPERT_DEGREES = ("parallel_config.expert_parallel", "parallelism.expert_parallel")
_LATENT = ("multi_latent_attention", "kv_lora_rank", "q_lora_rank")
_PREDICTION = ("mtp_num_layers", "mtp_depth", "num_nextn_predict_layers")


def refuse_experts(document: Document) -> None:
    """Stop at a sign of experts, latent attention or extra prediction layers.

    Raises:
        InputError: Naming the key.
    """
    dense = "autopar plans dense models only"
    for section in _EXPERT_PLACES:
        for name in _EXPERTS:
            value = document.get(f"{section}.{name}")
            if isinstance(value, int) and value > 1:
                raise document.wrong(
                    f"{section}.{name}", f"{value} experts: a mixture-of-experts model; {dense}"
                )
    for key in _EXPERT_DEGREES:
        value = document.get(key)
        if isinstance(value, int) and value > 1:
            raise document.wrong(
                key, f"{value} ranks of experts: a mixture-of-experts model; {dense}"
            )
    for section in ("model.model_config", "model"):
        for name in _LATENT:
            if document.get(f"{section}.{name}") not in (None, False, 0):
                raise document.wrong(f"{section}.{name}", f"latent attention (MLA); {dense}")
        for name in _PREDICTION:
            value = document.get(f"{section}.{name}")
            if isinstance(value, int) and value > 0:
                raise document.wrong(
                    f"{section}.{name}",
                    f"{value} extra prediction layers (MTP) cannot be planned; set it to 0 to plan "
                    "without",
                )  # fmt: skip


def is_older(document: Document, section: str) -> bool:
    """Whether the file names an older class; ``use_legacy: False`` or a model type say newer."""
    return "type" in document.section(section) and "model_type" not in document.section(section)


def read_model(document: Document, found: Findings, section: str, folder: Path) -> None:
    """Put the model into ``found``.

    Args:
        document: The file.
        found: Where ``model.*`` goes.
        section: Dotted key of the model's table.
        folder: Where the file lies; it may name a folder with a ``config.json``.

    Raises:
        InputError: When the model is wrong, contradicts itself, or is of no known class.
    """
    config = document.section(section)
    if is_older(document, section):
        _older(document, found, section)
    elif "model_type" in config:
        _newer(document, found, section)
    else:
        _elsewhere(document, found, folder)


def _elsewhere(document: Document, found: Findings, folder: Path) -> None:
    """The template names the folder of a Hugging Face model."""
    key = "pretrained_model_dir"
    named = document.get(key)
    if not isinstance(named, str) or not named:
        found.note(
            "the file has no model.model_config.type or model_type; say the model with --model"
        )
        return
    inside = f"{named.rstrip('/')}/config.json"
    if not Path(named).is_absolute() and (folder / inside).is_file():
        found.name_file(document.place(key), inside)
    else:
        found.note(f"{document.place(key)}: {named} is not here; say the model with --model")


def _older(document: Document, found: Findings, section: str) -> None:
    kind = document.text(f"{section}.type")
    if kind not in OLDER_CLASSES:
        raise document.wrong(
            f"{section}.type", f"{kind!r} cannot be read; known: {', '.join(OLDER_CLASSES)}, and newer "
            f"classes by model_type ({', '.join(NEWER_TYPES)})",
        )  # fmt: skip
    place, config = _places(document, section, f"default of {kind}"), document.section(section)
    for foreign, own in _FOREIGN.items():
        if foreign in config and own not in config:
            raise document.wrong(
                f"{section}.{foreign}", f"{kind} ignores it without a word and takes its default; "
                f"write {own}",
            )  # fmt: skip

    def whole(name: str) -> int:
        if config.get(name) is None:
            return int(OLDER_DEFAULTS[name])
        return document.whole(f"{section}.{name}")

    fields = {"num_layers": "num_layers", "hidden": "hidden_size", "heads": "num_heads",
              "vocab": "vocab_size"}  # fmt: skip
    for field, name in fields.items():
        found.put(f"model.{field}", whole(name), place(name))
    heads = "n_kv_heads" if config.get("n_kv_heads") is not None else "num_heads"
    found.put("model.kv_heads", whole(heads), place("n_kv_heads"))
    width, source = _older_width(
        document, section, whole("hidden_size"), whole("multiple_of"), place
    )
    found.put("model.ffn_hidden", width, source)
    flags = {"qkv_bias": "qkv_has_bias", "tied_embeddings": "tie_word_embeddings",
             "attention_out_bias": "attn_proj_has_bias"}  # fmt: skip
    if kind == "TelechatConfig":
        flags["attention_out_bias"] = "wo_has_bias"
        if "wo_has_bias" not in config:
            found.note(
                "TelechatConfig adds a bias to the attention output where the file does not say "
                "wo_has_bias; the model is counted without it"
            )
    for field, name in flags.items():
        on = document.flag(f"{section}.{name}") if config.get(name) is not None else False
        found.put(f"model.{field}", on, place(name))
    found.put("model.norm", "rmsnorm", f"class {kind}")
    found.put("model.gated_mlp", True, f"class {kind}")
    if config.get("max_position_embedding") is not None:
        found.put(
            "model.max_position_embeddings", document.whole(f"{section}.max_position_embedding"),
            place("max_position_embedding"),
        )  # fmt: skip


def _places(document: Document, section: str, otherwise: str) -> Callable[[str], str]:
    config = document.section(section)

    def place(name: str) -> str:
        if config.get(name) is None:
            return f"{otherwise}, no key {section}.{name}"
        return document.place(f"{section}.{name}")

    return place


def _older_width(
    document: Document, section: str, hidden: int, multiple: int, place: Callable[[str], str]
) -> tuple[int, str]:
    """MLP width and its place: stated, or worked out as in models/llama/llama_layer.py."""
    config = document.section(section)
    if config.get("intermediate_size") is not None:
        return document.whole(f"{section}.intermediate_size"), place("intermediate_size")
    width, keys = 4 * hidden, "multiple_of"
    factor = config.get("ffn_dim_multiplier")
    if factor is not None:
        if isinstance(factor, bool) or not isinstance(factor, int | float) or not 0 < factor < 1e6:
            raise document.wrong(f"{section}.ffn_dim_multiplier", "expected a positive number")
        width, keys = int((factor + 0.01) * width), "ffn_dim_multiplier, multiple_of"
    width = max(1, int(2 * width / 3))
    return -(-width // multiple) * multiple, f"inferred: hidden_size, {keys}"


def _newer(document: Document, found: Findings, section: str) -> None:
    config = document.section(section)
    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in NEWER_TYPES:
        hugging_face_model(
            config, found, document.label, place=lambda key: document.place(f"{section}.{key}")
        )
        return
    same, defaults = NEWER_TYPES[kind]
    place = _places(document, section, f"default of model type {kind}")
    stated = {key: value for key, value in config.items() if value is not None}

    def shown(key: str) -> str:
        return place(key) if key in stated or key in defaults else f"key {section}.{key}"

    hugging_face_model(
        {**defaults, **stated, "model_type": same}, found, document.label, place=shown
    )
    _newer_biases(document, found, section, place)
    _newer_norms(document, found, section, kind)
    _tied(document, section, kind)


def _newer_biases(
    document: Document, found: Findings, section: str, place: Callable[[str], str]
) -> None:
    """``attention_bias`` is of query, key and value alone; ``add_bias_linear`` is of every matrix."""
    config = document.section(section)
    every = config.get("add_bias_linear") is not None and document.flag(
        f"{section}.add_bias_linear"
    )
    some = config.get("attention_bias") is not None and document.flag(f"{section}.attention_bias")
    all_place = place("add_bias_linear")
    found.replace("model.qkv_bias", every or some, all_place if every else place("attention_bias"))
    found.replace("model.attention_out_bias", every, all_place)
    found.replace("model.mlp_bias", every, all_place)


def _newer_norms(document: Document, found: Findings, section: str, kind: str) -> None:
    """Qwen3 always has norms over queries and keys; TeleChat3 where the file asks for them."""
    key = f"{section}.qk_layernorm"
    asked = document.get(key)
    if asked is not None:
        document.flag(key)
    if kind == "qwen3" and asked is False:
        found.note(f"{document.place(key)}: MindFormers' Qwen3 has these norms all the same")
    if kind == "telechat3":
        source = document.place(key) if asked is not None else "default of model type telechat3"
        found.replace("model.qk_norm", "head" if asked else "none", source)


def _tied(document: Document, section: str, kind: str) -> None:
    tie, untie = f"{section}.tie_word_embeddings", f"{section}.untie_embeddings_and_output_weights"
    tied = document.flag(tie) if document.get(tie) is not None else None
    untied = document.flag(untie) if document.get(untie) is not None else None
    if tied is not None and tied is untied:
        raise InputError(
            document.label, f"{document.place(tie)} is {tied}, but {document.place(untie)} is {untied}; "
            "only one of them can hold",
        )  # fmt: skip
    if kind == "telechat3" and (tied or untied is False):
        where = tie if tied else untie
        raise document.wrong(
            where, "MindFormers' TeleChat3 never ties embeddings; write the opposite"
        )
    if tied is None and untied is False:
        raise document.wrong(
            untie, "MindFormers' Qwen3 ties embeddings by tie_word_embeddings alone; write "
            "tie_word_embeddings: True",
        )  # fmt: skip
