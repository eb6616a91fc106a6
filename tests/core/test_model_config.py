"""ModelConfig: exact parameter counts of the presets, and its refusals."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import tomli

from autopar_core.domain.model import ModelConfig


ROOT = Path(__file__).resolve().parents[2]
PRESETS: dict[str, dict[str, Any]] = tomli.loads(
    (ROOT / "autopar_core" / "catalogue" / "models.toml").read_text(encoding="utf-8")
)
COUNTS = [
    line.split("\t")
    for line in (ROOT / "tests" / "data" / "parameter_counts.tsv")
    .read_text(encoding="utf-8")
    .splitlines()[1:]
]
SMALL: dict[str, Any] = {
    "num_layers": 2,
    "hidden": 64,
    "ffn_hidden": 128,
    "heads": 8,
    "kv_heads": 2,
    "vocab": 100,
}


def small(**changes: Any) -> ModelConfig:
    return ModelConfig(**{**SMALL, **changes})


@pytest.mark.parametrize(("model", "parameters"), COUNTS)
def test_preset_has_the_published_count(model: str, parameters: str) -> None:
    assert ModelConfig(name=model, **PRESETS[model]).parameters == int(parameters)


def test_every_preset_is_counted() -> None:
    assert set(PRESETS) - {model for model, _ in COUNTS} == {"llama-3-405b"}
    assert PRESETS["llama-3-405b"] == PRESETS["llama-3.1-405b"]


def test_head_dim_defaults_to_hidden_over_heads() -> None:
    assert small().head_dim == 8
    assert small(head_dim=16).query_width == 128
    assert small(head_dim=16).kv_width == 32


def test_matrices_name_the_extent_that_tensor_parallelism_divides() -> None:
    shapes = {m.name: (m.rows, m.cols) for m in small(head_dim=16).matrices()}
    assert shapes == {
        "query": (128, 64),
        "key": (32, 64),
        "value": (32, 64),
        "output": (64, 128),
        "gate": (128, 64),
        "up": (128, 64),
        "down": (64, 128),
    }
    extents = {m.name: (m.rows_extent, m.cols_extent) for m in small().matrices()}
    assert extents["value"] == ("kv_heads", "hidden")
    assert extents["output"] == ("hidden", "attention_heads")
    assert extents["down"] == ("hidden", "ffn_width")
    assert "gate" not in {m.name for m in small(gated_mlp=False).matrices()}


@pytest.mark.parametrize(
    ("changes", "vectors"),
    [
        ({}, 2 * 64),
        ({"norm": "layernorm", "norms_per_layer": 1}, 2 * 64),
        ({"qk_norm": "head"}, 2 * 64 + 2 * 8),
        ({"qk_norm": "full"}, 2 * 64 + 64 + 16),
        ({"qkv_bias": True}, 2 * 64 + 64 + 2 * 16),
        ({"attention_out_bias": True}, 2 * 64 + 64),
        ({"mlp_bias": True}, 2 * 64 + 2 * 128 + 64),
    ],
)
def test_block_vectors(changes: dict[str, Any], vectors: int) -> None:
    model = small(**changes)
    assert model.block_vectors == vectors
    matrices = sum(m.parameters for m in model.matrices())
    assert model.block_parameters == matrices + vectors


def test_parts_add_up_and_a_tied_head_is_counted_once() -> None:
    model = small(tied_embeddings=True, head_bias=True, final_norm=False)
    assert model.head_parameters == 100
    assert model.final_norm_parameters == 0
    assert model.parameters == 64 * 100 + 100 + 2 * model.block_parameters
    assert small().parameters == small(tied_embeddings=True).parameters + 64 * 100


def test_narrow_embedding_adds_two_projections() -> None:
    model = small(embedding_width=32)
    assert model.embedding_parameters == 100 * 32 + 32 * 64
    assert model.head_parameters == 100 * 32 + 32 * 64
    assert small(embedding_width=64).parameters == small().parameters


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_layers": 0}, "model.num_layers = 0: must be a positive integer"),
        ({"hidden": 64.0}, "model.hidden = 64.0: must be a positive integer"),
        ({"heads": True}, "model.heads = True: must be a positive integer"),
        ({"head_dim": -1}, "model.head_dim = -1: must be zero or a positive integer"),
        ({"kv_heads": 3}, "model.kv_heads = 3: must divide model.heads = 8"),
        ({"hidden": 60}, "model.heads = 8: does not divide model.hidden = 60"),
        ({"norm": "batchnorm"}, "model.norm = 'batchnorm': must be one of rmsnorm, layernorm"),
        ({"position": "learned"}, "model.position_rows = 0: must be positive"),
        ({"position_rows": 8}, "model.position_rows = 8: must be positive"),
        (
            {"experts": 8},
            "model.experts = 8: mixture-of-experts is not supported; "
            "autopar plans dense models only",
        ),
        ({"experts": -1}, "model.experts = -1: must be zero or a positive integer"),
    ],
)
def test_refusals_are_one_sentence(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        small(**changes)
    assert "\n" not in str(caught.value)
