"""The model section of an exported file: an older Llama, Qwen3 or TeleChat3."""

from __future__ import annotations

from typing import Any

from autopar_core.api import ExportRequest
from autopar_mindformers.shapes import OLDER, QWEN3, class_of


_DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
# Values that a shape does not fix and a person may change.
_ROPE_BASE, _NORM_EPSILON = 10000.0, 1e-5


def model_config(request: ExportRequest, offset: Any) -> dict[str, Any]:
    """The section ``model``."""
    name = class_of(request.model)
    common = {
        "offset": offset, "pp_interleave_num": len(request.stages) // request.count("pp_degree"),
        "use_flash_attention": True,
        "use_ring_attention": request.count("cp_degree") > 1 and request["cp_comm_type"] == "p2p",
        "compute_dtype": _DTYPES[request.training.precision], "rms_norm_eps": _NORM_EPSILON,
    }  # fmt: skip
    if name == OLDER:
        return {
            "model_config": {**_older(request), **common},
            "arch": {"type": "LlamaForCausalLM"},
        }
    return {"model_config": {**_newer(request, name), **common}}


def _positions(request: ExportRequest) -> int:
    return max(request.model.max_position_embeddings, request.training.seq_len)


def _older(request: ExportRequest) -> dict[str, Any]:
    model = request.model
    return {
        "type": "LlamaConfig", "seq_length": request.training.seq_len, "hidden_size": model.hidden,
        "num_layers": model.num_layers, "num_heads": model.heads, "n_kv_heads": model.kv_heads,
        "intermediate_size": model.ffn_hidden, "vocab_size": model.vocab,
        "max_position_embedding": _positions(request), "qkv_has_bias": model.qkv_bias,
        "attn_proj_has_bias": model.attention_out_bias, "tie_word_embeddings": model.tied_embeddings,
        "theta": _ROPE_BASE, "param_init_type": "float32", "layernorm_compute_type": "float32",
        "softmax_compute_type": "float32", "rotary_dtype": "float32", "input_sliced_sig": False,
    }  # fmt: skip


def _newer(request: ExportRequest, name: str) -> dict[str, Any]:
    model = request.model
    # silu, not swiglu: the patterns of select_recompute find silu and mul only where the activation is
    # an operator beside the product (training_graph/transformer/mlp.py).
    architecture = "Qwen3ForCausalLM" if name == QWEN3 else "TeleChat3ForCausalLM"
    return {
        "model_type": name, "architectures": [architecture],
        "seq_length": request.training.seq_len, "hidden_size": model.hidden,
        "intermediate_size": model.ffn_hidden, "num_hidden_layers": model.num_layers,
        "num_attention_heads": model.heads, "num_key_value_heads": model.kv_heads,
        "head_dim": model.head_dim, "vocab_size": model.vocab, "hidden_act": "silu",
        "max_position_embeddings": _positions(request), "qk_layernorm": model.qk_norm == "head",
        "attention_bias": model.qkv_bias, "add_bias_linear": model.mlp_bias,
        "tie_word_embeddings": model.tied_embeddings,
        "untie_embeddings_and_output_weights": not model.tied_embeddings,
        "position_embedding_type": "rope", "rope_theta": _ROPE_BASE, "params_dtype": "float32",
        "layernorm_compute_dtype": "float32", "softmax_compute_dtype": "float32",
        "rotary_dtype": "float32", "hidden_dropout": 0.0, "attention_dropout": 0.0,
        "input_sliced_sig": True,
    }  # fmt: skip
