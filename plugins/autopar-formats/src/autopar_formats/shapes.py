"""Which model shapes the frameworks of this plugin can build."""

from __future__ import annotations

from autopar_core.api import ModelConfig


def llama_fault(model: ModelConfig) -> str:
    """Why a model is neither a Llama nor a Qwen2 of nanotron; empty when it is."""
    wrong = {
        "norm": model.norm != "rmsnorm", "gated_mlp": not model.gated_mlp,
        "position": model.position != "rope", "norms_per_layer": model.norms_per_layer != 2,
        "final_norm": not model.final_norm, "qk_norm": model.qk_norm != "none",
        "attention_out_bias": model.attention_out_bias, "mlp_bias": model.mlp_bias,
        "head_bias": model.head_bias, "embedding_norm": model.embedding_norm,
        "embedding_width": model.embedding_width not in (0, model.hidden),
        "head_dim": model.query_width != model.hidden,
        "activation_parameters": model.activation_parameters > 0,
    }  # fmt: skip
    return next((name for name, is_wrong in wrong.items() if is_wrong), "")
