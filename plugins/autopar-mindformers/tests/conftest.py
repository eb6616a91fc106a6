"""Files with changes, read; requests from the fields that matter."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from autopar_core.api import ExportRequest
from autopar_core.testing import FrameworkBench
from autopar_mindformers.readers import READER


# An older Llama on 16 devices, a Qwen3 on 16, a PyNative file on 8: small, complete, without a fault.
OLDER = """
runner_config: {batch_size: 2}
use_parallel: True
parallel: {parallel_mode: 1, full_batch: True, enable_parallel_optimizer: True}
parallel_config: {data_parallel: 2, model_parallel: 2, pipeline_stage: 4, micro_batch_num: 8}
recompute_config: {recompute: False}
model:
  model_config:
    type: LlamaConfig
    seq_length: 4096
    hidden_size: 1024
    num_layers: 18
    num_heads: 16
    n_kv_heads: 8
    intermediate_size: 4096
    vocab_size: 32000
    compute_dtype: bfloat16
    offset: [0, 1, 1, 0]
"""
NEWER = """
use_legacy: False
runner_config: {batch_size: 1, gradient_accumulation_steps: 1}
parallel:
  full_batch: False
  dataset_strategy: [[2, 1], [2, 1]]
  pipeline_config: {pipeline_interleave: True, pipeline_scheduler: 1f1b}
parallel_config:
  data_parallel: 2
  model_parallel: 2
  pipeline_stage: 4
  micro_batch_num: 8
  use_seq_parallel: True
recompute_config: {recompute: [1, 0, 0, 0], select_recompute: True}
model:
  model_config:
    model_type: qwen3
    vocab_size: 32000
    hidden_size: 1024
    intermediate_size: 4096
    num_hidden_layers: 18
    num_attention_heads: 16
    num_key_value_heads: 8
    head_dim: 128
    seq_length: 4096
    pp_interleave_num: 2
    offset: [[0, 1, 0, 0], [0, 0, 1, 0]]
"""
PYNATIVE = """
training: {local_batch_size: 2, global_batch_size: 32}
parallelism:
  data_parallel_shard: 2
  tensor_parallel: 2
  pipeline_parallel: 2
  pipeline_parallel_layers_per_stage: ["0-4", "5-8"]
  sequence_parallel: true
recompute: {mode: full, full_recompute_layer: ["0-1", 8]}
model:
  model_type: qwen3
  vocab_size: 32000
  hidden_size: 1024
  intermediate_size: 4096
  num_hidden_layers: 9
  num_attention_heads: 16
  num_key_value_heads: 8
  seq_length: 4096
"""
FILES = {"older": OLDER, "newer": NEWER, "pynative": PYNATIVE}
Read = Callable[..., Mapping[str, Any]]


def changed(text: str, changes: Mapping[str, Any]) -> str:
    """A YAML text with values at dotted keys; None removes the key."""
    table = yaml.safe_load(text)
    for key, value in changes.items():
        *before, last = key.split(".")
        at = table
        for part in before:
            at = at.setdefault(part, {})
        if value is None:
            at.pop(last, None)
        else:
            at[last] = value
    return str(yaml.safe_dump(table, sort_keys=False))


@pytest.fixture(scope="session")
def files() -> Mapping[str, str]:
    """The files above by name."""
    return FILES


@pytest.fixture(scope="session")
def with_changes() -> Callable[[str, Mapping[str, Any]], str]:
    """A YAML text with values at dotted keys."""
    return changed


@pytest.fixture(scope="session")
def read() -> Read:
    """The tables of one of the files above, with changes."""

    def tables(name: str, changes: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
        text = changed(FILES[name], changes or {})
        path = Path("run.yaml")
        assert READER.recognises(path, text)
        return READER.read(path, text)

    return tables


@pytest.fixture(scope="session")
def bench() -> FrameworkBench:
    """A job of an 8B Llama; the number of devices follows from a strategy."""
    shape = {
        "num_layers": 32, "hidden": 4096, "ffn_hidden": 14336, "heads": 32, "kv_heads": 8,
        "vocab": 128256,
    }  # fmt: skip
    return FrameworkBench.of("mindformers", {
        "model": {**shape, "source": "llama-3-8b"},
        "cluster": {"system": "ascend-910b", "devices": 64}, "framework": {"name": "mindformers"},
    })  # fmt: skip


@pytest.fixture(scope="session")
def request_of(bench: FrameworkBench) -> Callable[..., ExportRequest]:
    """An export request from the fields that matter; partition even and recompute none if absent."""

    def made(
        *, model: Mapping[str, Any] | None = None, precision: str = "bf16",
        memory_limit: int = 2**36, **fields: Any,
    ) -> ExportRequest:  # fmt: skip
        values = {"micro_batch_num": 8, **fields}
        # A V-shaped schedule has two chunks, which no field says.
        folded = values.get("schedule") in ("zbv", "dualpipev")
        changes: dict[str, Any] = {
            "model": model or {}, "training": {"precision": precision},
            "cluster": {"memory_limit": memory_limit},
        }  # fmt: skip
        chunks = 2 if folded else values.get("vpp_degree", 1)
        return bench.request(chunks=chunks, changes=changes, **values)

    return made
