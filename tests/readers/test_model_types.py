"""Hugging Face model types: counts as transformers counts them, defaults, contradictions, refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from autopar_core.api import Findings, InputError, ModelConfig, hugging_face_model
from autopar_core.config.huggingface import model_types


# Small models of every type, counted with transformers 5.24.0: built on the meta device, summed.
COUNTS = [
    line.split("\t")
    for line in (Path(__file__).resolve().parents[1] / "data" / "model_type_counts.tsv")
    .read_text(encoding="utf-8")
    .splitlines()[1:]
]
# Code of their own, no class in transformers: closed forms of published files (the samples).
REMOTE = {"chatglm", "internlm2", "baichuan"}
LLAMA: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 8,
    "intermediate_size": 128, "vocab_size": 100,
}  # fmt: skip


def read(table: dict[str, Any]) -> Findings:
    found = Findings("config.json")
    hugging_face_model(table, found, "config.json")
    return found


def refused(table: dict[str, Any]) -> str:
    with pytest.raises(InputError) as caught:
        read(table)
    return str(caught.value)


@pytest.mark.parametrize(("kind", "config", "parameters"), COUNTS)
def test_count_is_that_of_transformers(kind: str, config: str, parameters: str) -> None:
    table = {"model_type": kind, **json.loads(config)}
    assert ModelConfig(**read(table).tables()["model"]).parameters == int(parameters)


def test_every_type_is_counted() -> None:
    assert {kind for kind, _, _ in COUNTS} | REMOTE == set(model_types())


def test_each_field_names_its_key_or_its_default() -> None:
    found = read({**LLAMA, "num_key_value_heads": 2})
    assert found.source("model.kv_heads") == "key num_key_value_heads"
    assert found.source("model.tied_embeddings").startswith("default of model type llama")
    assert read(LLAMA).get("model.kv_heads") == 8  # absent and null: as many as query heads
    assert read({**LLAMA, "num_key_value_heads": None}).get("model.kv_heads") == 8


def test_head_width_is_read_and_never_computed_where_it_is_stated() -> None:
    """Field cases: Qwen3-4B (32 x 128 over hidden 2560), Qwen3-0.6B, Gemma-7B (16 x 256 over 3072)."""
    qwen = {
        "model_type": "qwen3", "num_hidden_layers": 36, "hidden_size": 2560, "head_dim": 128,
        "intermediate_size": 9728, "num_attention_heads": 32, "num_key_value_heads": 8,
        "vocab_size": 151936, "tie_word_embeddings": True,
    }  # fmt: skip
    four = ModelConfig(**read(qwen).tables()["model"])
    assert four.query_width * four.hidden == 10_485_760
    # 36 x (2 x 4096 + 2 x 1024) x 2560 + 36 x 3 x 2560 x 9728 + 36 x (2 x 2560 + 256) + tied
    # embedding 151936 x 2560 + final norm 2560
    assert four.parameters == 4_022_468_096
    small = {**qwen, "num_hidden_layers": 28, "hidden_size": 1024, "num_attention_heads": 16}
    shape = ModelConfig(**read(small).tables()["model"])
    assert shape.query_width + 2 * shape.kv_width == 4096
    gemma = {
        "model_type": "gemma", "num_hidden_layers": 28, "hidden_size": 3072, "head_dim": 256,
        "intermediate_size": 24576, "num_attention_heads": 16, "num_key_value_heads": 16,
        "vocab_size": 256000,
    }  # fmt: skip
    seven = ModelConfig(**read(gemma).tables()["model"])
    assert (seven.query_width, seven.tied_embeddings, seven.gated_mlp) == (4096, True, True)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model_type": "lama"}, "key model_type: 'lama' cannot be read; did you mean llama?"),
        ({"model_type": None}, "has no key model_type"),
        ({"hidden_size": None}, "has no key hidden_size"),
        ({"num_hidden_layers": "two"}, "key num_hidden_layers: expected a positive whole number"),
        ({"num_hidden_layers": True}, "key num_hidden_layers: expected a positive whole number"),
        ({"intermediate_size": [1, 2]}, "key intermediate_size: lists a value for each layer"),
        ({"tie_word_embeddings": "yes"}, "key tie_word_embeddings: expected true or false"),
        ({"rope_theta": 1e4, "rope_parameters": {"rope_theta": 1e6}}, "they mean the same"),
        ({"torch_dtype": "float32", "dtype": "bfloat16"}, "they mean the same"),
        ({"layer_types": ["full_attention"]}, "key layer_types: lists 1 layer,"),
        ({"num_experts": 4}, "key num_experts: 4 experts: a mixture-of-experts model"),
        ({"moe_intermediate_size": 8}, "key moe_intermediate_size: a mixture-of-experts"),
        ({"model_type": "qwen9_moe"}, "key model_type: 'qwen9_moe' is a mixture-of-experts"),
        ({"kv_lora_rank": 512}, "key kv_lora_rank: latent attention (MLA)"),
        ({"is_encoder_decoder": True}, "key is_encoder_decoder: an encoder-decoder"),
        ({"layer_types": ["mamba", "mamba"]}, "key layer_types: 'mamba' layers: a hybrid"),
        ({"num_nextn_predict_layers": 1}, "key num_nextn_predict_layers: 1 extra prediction"),
        ({"architectures": ["LlamaForSequenceClassification"]}, "no language model"),
        ({"block_configs": []}, "key block_configs: lists a value for each layer"),
    ],
)
def test_refused_in_one_sentence_with_the_key(changes: dict[str, Any], said: str) -> None:
    sentence = refused({**LLAMA, **changes})
    assert said in sentence
    assert sentence.startswith("config.json")
    assert "\n" not in sentence


@pytest.mark.parametrize("value", [0, 1, None])
def test_a_dense_file_may_carry_the_keys_of_experts(value: int | None) -> None:
    found = read({**LLAMA, "num_experts": value, "num_experts_per_tok": value or None})
    assert found.get("model.hidden") == 64


def test_two_spellings_of_one_size_must_agree() -> None:
    table = {"model_type": "gpt2", "n_embd": 64, "hidden_size": 32, "n_layer": 2, "n_head": 8}
    assert "key n_embd is 64 and key hidden_size is 32" in refused(table)


def test_windows_and_quantised_weights_are_told() -> None:
    notes = read({**LLAMA, "sliding_window": 512, "quantization_config": {"bits": 4}}).tables()[
        "notes"
    ]
    assert "key sliding_window: attention over the last 512 tokens" in notes[0]
    assert "key quantization_config" in notes[1]
    assert (
        read({**LLAMA, "sliding_window": 512, "use_sliding_window": False}).tables()["notes"] == []
    )
