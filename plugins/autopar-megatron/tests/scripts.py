"""Small files that start Megatron: a launch script with changes, its own YAML, a recipe."""

from __future__ import annotations


BASE = {
    "num-layers": "8", "hidden-size": "1024", "num-attention-heads": "16", "seq-length": "2048",
    "max-position-embeddings": "2048", "micro-batch-size": "1", "global-batch-size": "64",
    "vocab-size": "32000", "bf16": "", "swiglu": "", "position-embedding-type": "rope",
}  # fmt: skip


GROUP = "microbatch-group-size-per-virtual-pipeline-stage"
INTERLEAVED = {
    "pipeline-model-parallel-size": "4", "num-virtual-stages-per-pipeline-rank": "2",
}  # fmt: skip


def script(changes: dict[str, str] | None = None, launcher: str = "--nproc_per_node 8") -> str:
    flags = {**BASE, **(changes or {})}
    lines = [f"  --{name} {value} \\" for name, value in flags.items() if value != "absent"]
    return f"torchrun {launcher} --nnodes 1 pretrain_gpt.py \\\n" + "\n".join(lines) + "\n\n"


YAML = """
language_model:
  num_layers: 24
  hidden_size: 1024
  num_attention_heads: 16
  num_query_groups: 4
  activation_func: swiglu
  ffn_hidden_size: 2816
  add_bias_linear: False
  normalization: RMSNorm
model_parallel:
  tensor_model_parallel_size: 2
  pipeline_model_parallel_size: 4
  virtual_pipeline_model_parallel_size: 2
  sequence_parallel: True
  bf16: True
micro_batch_size: 2
global_batch_size: 128
untie_embeddings_and_output_weights: True
position_embedding_type: rope
max_position_embeddings: 4096
seq_length: 4096
vocab_size: 32000
use_distributed_optimizer: True
"""


RECIPE = """
from megatron.bridge.models.gpt_provider import GPTModelProvider
from megatron.bridge.training.config import ConfigContainer, TrainingConfig

TP = 2 * 2

def config():
    model = GPTModelProvider(
        num_layers=8, hidden_size=1024, num_attention_heads=16, seq_length=2048, vocab_size=32000,
        gated_linear_unit=True, position_embedding_type="rope", tensor_model_parallel_size=TP,
    )
    model.pipeline_model_parallel_size = 2
    cfg = ConfigContainer(model=model, train=TrainingConfig(micro_batch_size=1, global_batch_size=16))
    cfg.model.sequence_parallel = True
    cfg.ddp.use_distributed_optimizer = True
    cfg.train.train_iters = compute()
    return cfg
"""
