"""The model that Megatron builds from its settings, each field with its source.

Defaults and rules are those of megatron/training/arguments.py (``validate_args``) and
megatron/core/transformer/transformer_config.py.
"""

from __future__ import annotations

import re

from attrs import frozen

from autopar_core.api import FORMAT_DEFAULT, Findings
from autopar_megatron.settings import Settings


GPT2_ROWS = 50257
# Tokenizers whose number of rows the file's words tell: pattern, rows, name. Published sizes.
_TOKENIZERS = (
    (r"gpt-?2|GPT2BPE", GPT2_ROWS, "GPT-2 byte-pair"),
    (r"llama-?_?2|llama2tokenizer|codellama", 32000, "Llama 2"),
    (r"llama-?_?3|meta-llama-3", 128256, "Llama 3"),
    (r"mistral-?_?7b-v0\.1", 32000, "Mistral"),
)
_POSITIONS = {"rope": "rope", "learned_absolute": "learned", "none": "rope", "alibi": "alibi"}


@frozen
class Shape:
    """What later parts ask of the model."""

    layers: int
    heads: int
    kv_heads: int
    vocab: int


def read_model(settings: Settings, found: Findings) -> Shape | None:
    """Put the model's fields; None when the settings hold no model.

    Raises:
        InputError: When a field is missing, wrong, or would silently mean something else.
    """
    if "num_layers" not in settings and "hidden_size" not in settings:
        return None
    for name in ("num_layers", "hidden_size", "num_attention_heads"):
        if name not in settings:
            raise settings.wrong(name, f"has no {name.replace('_', '-')}; Megatron needs it")
    layers = settings.whole("num_layers")
    noop = len(settings.numbers("noop_layers")) if "noop_layers" in settings else 0
    source = settings.place("num_layers") + (f", less {noop} of --noop-layers" if noop else "")
    found.put("model.num_layers", layers - noop, source)
    hidden, heads = settings.whole("hidden_size"), settings.whole("num_attention_heads")
    found.put("model.hidden", hidden, settings.place("hidden_size"))
    found.put("model.heads", heads, settings.place("num_attention_heads"))
    kv = _kv_heads(settings, found, heads)
    _head_dim(settings, found, hidden, heads)
    _mlp(settings, found, hidden)
    _norms_and_biases(settings, found)
    _positions(settings, found)
    return Shape(layers - noop, heads, kv, _vocabulary(settings, found))


def _kv_heads(settings: Settings, found: Findings, heads: int) -> int:
    name = "num_query_groups"
    grouped = settings.on("group_query_attention") or not settings.flags
    if grouped and name in settings:
        kv, source = settings.whole(name), settings.place(name)
    elif grouped and settings.on("group_query_attention"):
        kv, source = 1, f"{FORMAT_DEFAULT}: --num-query-groups is 1"
    elif name in settings and settings.whole(name) not in (1, heads):
        raise settings.wrong(
            name, f"has no effect without --group-query-attention: Megatron would build {heads} "
            "key/value heads; add that flag, or delete this one",
        )  # fmt: skip
    else:
        kv, source = heads, f"{FORMAT_DEFAULT}: one per attention head"
    if heads % kv:
        near = max(d for d in range(1, heads + 1) if heads % d == 0 and d <= max(kv, 1))
        raise settings.wrong(
            name, f"{heads} attention heads are not divisible by {kv} query groups; nearest legal is "
            f"{near}",
        )  # fmt: skip
    found.put("model.kv_heads", kv, source)
    return kv


def _head_dim(settings: Settings, found: Findings, hidden: int, heads: int) -> None:
    if "kv_channels" in settings:
        found.put("model.head_dim", settings.whole("kv_channels"), settings.place("kv_channels"))
    elif hidden % heads:
        raise settings.wrong(
            "hidden_size",
            f"{hidden} is not divisible by {heads} attention heads; give --kv-channels",
        )
    else:
        found.put("model.head_dim", hidden // heads, f"{FORMAT_DEFAULT}: hidden size / heads")


def _mlp(settings: Settings, found: Findings, hidden: int) -> None:
    gated, source = False, FORMAT_DEFAULT
    for name in ("swiglu", "gated_linear_unit", "quick_geglu", "geglu", "gelu_tanh"):
        if settings.on(name):
            gated, source = True, settings.place(name)
    if "activation_func" in settings and settings.text("activation_func") == "swiglu":
        gated, source = True, settings.place("activation_func")
    if settings.on("squared_relu") and gated:
        raise settings.wrong("squared_relu", f"excludes a gated MLP ({source}); keep one of them")
    found.put("model.gated_mlp", gated, source)
    name = "ffn_hidden_size"
    if name in settings:
        found.put("model.ffn_hidden", settings.whole(name), settings.place(name))
    elif settings.on("swiglu") and settings.flags:
        width = int((4 * hidden * 2 / 3) / 64) * 64
        found.put("model.ffn_hidden", width, f"{FORMAT_DEFAULT}: 8/3 of the hidden size, by 64")
    else:
        found.put("model.ffn_hidden", 4 * hidden, f"{FORMAT_DEFAULT}: 4 x hidden size")


def _norms_and_biases(settings: Settings, found: Findings) -> None:
    name = "normalization"
    norm = settings.text(name) if name in settings else "LayerNorm"
    known = {"layernorm": "layernorm", "rmsnorm": "rmsnorm"}
    if norm.lower() not in known:
        raise settings.wrong(name, f"expected LayerNorm or RMSNorm, got {norm!r:.40}")
    found.put("model.norm", known[norm.lower()], settings.place(name) or FORMAT_DEFAULT)
    extra = (
        "post_self_attn_layernorm",
        "post_mlp_layernorm",
        "post_attention_norm",
        "post_mlp_norm",
    )
    norms = 2 + 2 * settings.on("post_norm") + sum(settings.on(each) for each in extra)
    place = settings.place("post_norm", *extra) or FORMAT_DEFAULT
    found.put("model.norms_per_layer", norms, place)
    qk = settings.on("qk_layernorm")
    found.put(
        "model.qk_norm", "head" if qk else "none", settings.place("qk_layernorm") or FORMAT_DEFAULT
    )
    bias = settings.on("add_bias_linear", True) and not settings.on("disable_bias_linear")
    place = settings.place("disable_bias_linear", "add_bias_linear") or FORMAT_DEFAULT
    found.put("model.mlp_bias", bias, place)
    dense = settings.on("add_dense_bias")
    found.put("model.attention_out_bias", bias or dense, settings.place("add_dense_bias") or place)
    if settings.on("skip_bias_add") and not bias:
        found.note("--skip-bias-add has no effect without biases")
    qkv = settings.on("add_qkv_bias")
    found.put("model.qkv_bias", bias or qkv, settings.place("add_qkv_bias") if qkv else place)
    name, shared = "untie_embeddings_and_output_weights", "share_embeddings_and_output_weights"
    tied = settings.on(shared, not settings.on(name))
    found.put("model.tied_embeddings", tied, settings.place(name, shared) or FORMAT_DEFAULT)
    if settings.on("embed_layernorm"):
        found.put("model.embedding_norm", True, settings.place("embed_layernorm"))


def _positions(settings: Settings, found: Findings) -> None:
    kind, place = "learned_absolute", FORMAT_DEFAULT
    if settings.on("use_rotary_position_embeddings"):
        kind, place = "rope", settings.place("use_rotary_position_embeddings")
    elif "position_embedding_type" in settings:
        kind = settings.text("position_embedding_type")
        place = settings.place("position_embedding_type")
    if kind not in _POSITIONS:
        known = ", ".join(_POSITIONS)
        raise settings.wrong("position_embedding_type", f"{kind!r:.40} is none of {known}")
    found.put("model.position", _POSITIONS[kind], place)
    name = "max_position_embeddings"
    if name in settings:
        longest = settings.whole(name)
        found.put("model.max_position_embeddings", longest, settings.place(name))
        if kind == "learned_absolute":
            found.put("model.position_rows", longest, settings.place(name))
    elif kind == "learned_absolute":
        seq = settings.first("seq_length")
        if not seq:
            raise settings.wrong(name, "learned positions need --max-position-embeddings")
        found.put("model.position_rows", settings.whole(seq), "inferred: the sequence length")


def _vocabulary(settings: Settings, found: Findings) -> int:
    """Rows of the embedding before padding; 0 when only the tokenizer knows."""
    name = settings.first("padded_vocab_size", "vocab_size")
    if name and not settings.found[name].holes:
        rows = settings.whole(name)
        found.put("model.vocab", rows, settings.place(name))
        return rows
    said = " ".join(
        value
        for each in ("tokenizer_type", "tokenizer_model", "tokenizer_name_or_path")
        if each in settings
        for value in settings.found[each].values
    )
    if "vocab_file" in settings and "merge_file" in settings and "Llama" not in said:
        rows, which = GPT2_ROWS, "GPT-2 byte-pair"
        place = settings.place("merge_file")
    else:
        match = next(((r, n) for p, r, n in _TOKENIZERS if re.search(p, said, re.IGNORECASE)), None)
        if match is None:
            found.note("the vocabulary comes from the tokenizer: give model.vocab")
            return 0
        rows, which = match
        place = settings.place("tokenizer_name_or_path", "tokenizer_model", "tokenizer_type")
    found.put("model.vocab", rows, f"inferred: {which} tokenizer ({place})")
    found.note(f"the vocabulary is assumed to be {rows}, that of the {which} tokenizer ({place})")
    return rows
