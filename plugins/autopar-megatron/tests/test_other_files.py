"""Files of Megatron, Primus and Megatron Bridge that are no launch scripts."""

from __future__ import annotations

from typing import Any

import pytest
from scripts import RECIPE, YAML

from autopar_core.api import InputError, ModelConfig


def test_megatrons_own_yaml(read: Any) -> None:
    tables = read(YAML, "gpt.yaml")
    model = ModelConfig(**tables["model"])
    assert (model.num_layers, model.kv_heads, model.gated_mlp, model.mlp_bias) == (
        24,
        4,
        True,
        False,
    )
    assert tables["strategy"]["stage_partition"] == [[3] * 4, [3] * 4]
    assert tables["sources"]["model.hidden"] == "line 4, language_model.hidden_size"
    with pytest.raises(InputError, match="nearest legal is"):
        read(YAML.replace("num_layers: 24", "num_layers: 20"), "gpt.yaml")
    with pytest.raises(InputError, match="num_layers is given twice, lines 3 and"):
        read(YAML.replace("  hidden_size", "  num_layers: 25\n  hidden_size"), "gpt.yaml")


PRIMUS = """
modules:
  pre_trainer:
    framework: megatron
    overrides:
      num_layers: 80
      hidden_size: 8192
      ffn_hidden_size: 28672
      num_attention_heads: 64
      group_query_attention: true
      num_query_groups: 8
      swiglu: true
      disable_bias_linear: true
      normalization: RMSNorm
      untie_embeddings_and_output_weights: true
      position_embedding_type: rope
      vocab_size: 128256
      seq_length: ${SEQ:8192}
      max_position_embeddings: 8192
      micro_batch_size: 3
      global_batch_size: 24
      tensor_model_parallel_size: ${TP:1}
      sequence_parallel: 1
      use_torch_fsdp2: true
      use_distributed_optimizer: false
      recompute_granularity: full
      recompute_method: block
      recompute_num_layers: 80
      bf16: true
"""


def test_primus_yaml_with_defaults_of_the_environment(read: Any) -> None:
    tables = read(PRIMUS, "llama.yaml")
    assert ModelConfig(**tables["model"]).parameters == 70553706496
    strategy = tables["strategy"]
    assert (strategy["tp_degree"], strategy["zero_stage"], strategy["sequence_parallel"]) == (
        1,
        3,
        False,
    )
    assert strategy["layer_recompute"]["full"] == [80]
    assert tables["training"]["seq_len"] == 8192
    with pytest.raises(InputError, match="takes values from other files"):
        read(PRIMUS.replace("    overrides:", "    extends: [a.yaml]\n    overrides:"), "x.yaml")
    with pytest.raises(InputError, match=r"\$TP has no value"):
        read(PRIMUS.replace("${TP:1}", "${TP}"), "x.yaml")


BRIDGE_YAML = """
model:
  _target_: megatron.bridge.models.gpt_provider.GPTModelProvider
  num_layers: 16
  hidden_size: 1024
  num_attention_heads: 16
  num_query_groups: 8
  gated_linear_unit: true
  ffn_hidden_size: 2816
  position_embedding_type: rope
  share_embeddings_and_output_weights: false
  add_bias_linear: false
  vocab_size: 32000
  seq_length: 4096
  tensor_model_parallel_size: 2
  pipeline_model_parallel_size: 2
  virtual_pipeline_model_parallel_size: 2
  num_layers_in_first_pipeline_stage: 6
train:
  micro_batch_size: 1
  global_batch_size: 64
dataset:
  seq_length: 4096
ddp:
  use_distributed_optimizer: true
  grad_reduce_in_fp32: true
mixed_precision: bf16_with_mxfp8_mixed
"""


def test_bridge_yaml(read: Any) -> None:
    """First stage 6, so 10 on the other; two chunks of each: 3 and 5."""
    tables = read(BRIDGE_YAML, "bridge.yaml")
    assert tables["strategy"]["stage_partition"] == [[3, 5], [3, 5]]
    assert tables["training"]["precision"] == "mxfp8"
    model = ModelConfig(**tables["model"])
    assert (model.kv_heads, model.tied_embeddings, model.mlp_bias) == (8, False, False)
    assert tables["framework"]["override"]["dp"]["gradient_reduce_bytes"] == 4.0
    with pytest.raises(InputError, match=r"is 4096 \(line \d+, model.seq_length.* and 2048"):
        read(
            BRIDGE_YAML.replace("dataset:\n  seq_length: 4096", "dataset:\n  seq_length: 2048"),
            "b.yaml",
        )


def test_a_recipe_is_read_by_its_literals(read: Any) -> None:
    tables = read(RECIPE, "recipe.py")
    strategy = tables["strategy"]
    assert (strategy["tp_degree"], strategy["pp_degree"], strategy["zero_stage"]) == (4, 2, 1)
    assert strategy["sequence_parallel"] is True
    assert tables["model"]["ffn_hidden"] == 4096  # 4 x hidden, whatever the activation
    assert tables["sources"]["strategy.tp_degree"] == "line 10, model.tensor_model_parallel_size"
    assert any("train.train_iters is computed" in note for note in tables["notes"])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("TP = 2 * 2", "TP = size()"), "model.tensor_model_parallel_size is computed"),
        (("    cfg.model.seq", "    if x:\n        cfg.model.seq"), "under a condition"),
        (
            ("def config", "def other():\n    cfg.model.num_layers = 4\n\ndef config"),
            "several recipes",
        ),
        (("def config():", "def config(:"), "no valid Python"),
        (
            ("    return cfg", "    cfg.dataset.seq_length = 1024\n    return cfg"),
            "is 2048 .* and 1024",
        ),
    ],
)
def test_what_a_recipe_hides_is_refused(change: tuple[str, str], said: str, read: Any) -> None:
    with pytest.raises(InputError, match=said):
        read(RECIPE.replace(*change), "recipe.py")
