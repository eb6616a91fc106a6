"""Which class of MindFormers builds a model: the older Llama, Qwen3 or TeleChat3."""

from __future__ import annotations

from autopar_core.api import ModelConfig


OLDER, QWEN3, TELECHAT3 = "llama", "qwen3", "telechat3"
# (query/key/value, attention output, MLP) biases that the newer classes can have: none, attention_bias
# (of query, key and value alone), add_bias_linear (of every matrix). training_graph/transformer/
# attention.py and mlp.py.
_NEWER_BIASES = ((False, False, False), (True, False, False), (True, True, True))


def shape_fault(model: ModelConfig) -> str:
    """Field that no training class of MindFormers has; empty when one builds the model."""
    wrong = {
        "norm": model.norm != "rmsnorm", "gated_mlp": not model.gated_mlp,
        "position": model.position != "rope", "norms_per_layer": model.norms_per_layer != 2,
        "final_norm": not model.final_norm, "qk_norm": model.qk_norm == "full",
        "head_bias": model.head_bias, "embedding_norm": model.embedding_norm,
        "embedding_width": model.embedding_width not in (0, model.hidden),
        "activation_parameters": model.activation_parameters > 0,
    }  # fmt: skip
    fault = next((name for name, is_wrong in wrong.items() if is_wrong), "")
    return fault or ("" if class_of(model) else _class_fault(model))


def class_of(model: ModelConfig) -> str:
    """The class that builds a model of Llama shape; empty when none does."""
    if model.qk_norm == "none" and model.query_width == model.hidden and not model.mlp_bias:
        return OLDER
    if not _newer(model):
        return ""
    if model.qk_norm == "head":
        return QWEN3
    return "" if model.tied_embeddings else TELECHAT3


def _newer(model: ModelConfig) -> bool:
    biases = (model.qkv_bias, model.attention_out_bias, model.mlp_bias)
    return biases in _NEWER_BIASES and model.hidden % model.heads == 0


def _class_fault(model: ModelConfig) -> str:
    """The field because of which no class builds a model."""
    if model.hidden % model.heads:
        return "heads"
    if (model.qkv_bias, model.attention_out_bias, model.mlp_bias) not in _NEWER_BIASES:
        return "mlp_bias" if model.mlp_bias else "attention_out_bias"
    return "tied_embeddings"
