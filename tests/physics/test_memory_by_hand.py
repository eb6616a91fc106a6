"""Memory of Megatron, DeepSpeed and ScaleTorch worked out by hand from published formulas and sources."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

import autopar_core.builtin as builtin
from autopar_core.compose.memory_table import MemoryTable
from autopar_core.config.load import load_job
from autopar_core.config.overrides import Overrides
from autopar_core.domain.result import Detail
from autopar_core.domain.strategy import StrategyBatch
from autopar_core.domain.terms import MODES
from autopar_core.plugins import PluginManager
from autopar_core.search.contexts import Contexts
from autopar_core.search.detail import Describer
from autopar_core.search.evaluate import Estimator
from autopar_core.search.terms import Terms, collect


PLUGINS = PluginManager.load(extra=(("builtin", builtin),))
GIB = 2**30
# One device, one micro-batch, nothing sharded.
PLAIN: Mapping[str, Any] = {
    "dp_degree": 1, "tp_degree": 1, "pp_degree": 1, "cp_degree": 1, "micro_batch_size": 1,
    "micro_batch_num": 1, "vpp_degree": 1, "schedule": "none", "sequence_parallel": False,
    "zero_stage": 0, "shard_degree": 1, "replicate_degree": 1, "cp_comm_type": "none",
}  # fmt: skip
# GPT of 22 B parameters as in Korthikanti et al. 2022, table 3, as Megatron trains it.
GPT: Mapping[str, Any] = {
    "num_layers": 48, "hidden": 6144, "ffn_hidden": 24576, "heads": 64, "kv_heads": 64, "vocab": 51200,
    "gated_mlp": False, "tied_embeddings": True, "norm": "layernorm", "qkv_bias": True,
    "attention_out_bias": True, "mlp_bias": True, "position": "learned", "position_rows": 2048,
    "hidden_dropout": 0.1, "attention_dropout": 0.1,
}  # fmt: skip
LLAMA: Mapping[str, Any] = {
    "num_layers": 32, "hidden": 4096, "ffn_hidden": 14336, "heads": 32, "kv_heads": 8, "vocab": 128256,
}  # fmt: skip


class Case:
    """One strategy of a job."""

    def __init__(
        self, framework: str, model: Mapping[str, Any], *, seq_len: int = 2048, devices: int = 1,
        recompute: Any = "none", precision: str = "bf16", override: Mapping[str, Any] | None = None,
        partition: Any = "even", batch: int = 1, **fields: Any,
    ) -> None:  # fmt: skip
        tables = {
            "model": dict(model),
            "training": {"global_batch_size": batch, "seq_len": seq_len, "precision": precision},
            "cluster": {"system": "a100-sxm-80gb", "devices": devices},
            "framework": {"name": framework, "override": dict(override or {})},
            "search": {"stage_partition": partition, "layer_recompute": recompute},
        }  # fmt: skip
        self.contexts = Contexts.build(load_job(None, tables, Overrides(), PLUGINS), PLUGINS)
        known = self.contexts.fields
        values = {**PLAIN, **fields}
        self.batch = StrategyBatch.of(known, {n: [known[n].encode(v)] for n, v in values.items()})

    def terms(self) -> Terms:
        """What the estimators say."""
        return collect(self.batch, self.contexts)

    def saved(self, mode: str) -> int:
        """Bytes that a layer keeps per micro-batch."""
        return int(MemoryTable.build(self.terms().memory, 1).saved[0, MODES.index(mode)])

    def describe(self) -> Detail:
        """The strategy in full."""
        return Describer(Estimator(self.contexts)).describe(self.batch, 0, 1, (), "")


@pytest.mark.parametrize("tp", [1, 2, 8])
def test_korthikanti(tp: int) -> None:
    # Korthikanti et al. 2022: without sequence parallelism s b h (10 + 24/t + 5 a s / (h t)), with it
    # s b h / t (34 + 5 a s / h), which selective recompute leaves at 34 s b h / t; full keeps 2 s b h.
    s, b, h, a = 2048, 4, 6144, 64
    case = {"devices": tp, "batch": b, "micro_batch_size": b, "precision": "fp16", "tp_degree": tp}
    whole = Case("megatron-2021", GPT, **case)
    scores = 5 * a * s * s * b // tp
    assert whole.saved("none") == s * b * h * 10 + 24 * s * b * h // tp + scores
    assert whole.saved("selective") == s * b * h * 10 + 24 * s * b * h // tp
    assert whole.saved("full") == 2 * s * b * h
    split = Case("megatron-2021", GPT, sequence_parallel=tp > 1, **case)
    assert split.saved("none") == 34 * s * b * h // tp + scores
    assert split.saved("selective") == 34 * s * b * h // tp
    assert split.saved("full") == 2 * s * b * h // tp


def test_without_dropout_no_masks() -> None:
    # two masks of 1 B per element; of 5 bytes per score the mask and the dropped copy are 3
    s, h, a = 2048, 6144, 64
    calm = {**GPT, "hidden_dropout": 0.0, "attention_dropout": 0.0}
    one, other = (Case("megatron-2021", m, precision="fp16").saved("none") for m in (GPT, calm))
    assert one - other == 2 * s * h + 3 * a * s * s


def test_flash_attention_keeps_statistics_and_selective_is_a_choice() -> None:
    # Llama-3-8B, t = 2 with sequence parallelism, per token: 4 residual-wide tensors of 2 h / t, query,
    # key, value and output of 2 (4096 + 1024 + 1024 + 4096) / t, gate, up and product of 2 x 3 x 14336 /
    # t, statistics of 4 x 32 / t
    s = 4096
    case = {"seq_len": s, "devices": 2, "tp_degree": 2, "sequence_parallel": True}
    made = Case("megatron", LLAMA, **case)
    qkvo, mlp, stats = 2 * 10240 // 2, 2 * 3 * 14336 // 2, 4 * 32 // 2
    assert made.saved("none") == s * (4 * 2 * 4096 // 2 + qkvo + mlp + stats)
    # layernorm and mlp modules: both norm outputs and everything inside the MLP goes
    assert made.saved("selective") == s * (2 * 2 * 4096 // 2 + qkvo + stats)
    override = {"core": {"selective_modules": ["core_attn"]}}
    attention = Case("megatron", LLAMA, override=override, **case)
    assert attention.saved("selective") == made.saved("none") - s * stats


def parameters(tp: int) -> int:
    """A block of GPT: matrices 12 h^2 / t, biases of column-parallel ones (3 h + 4 h) / t, biases of
    row-parallel ones and two LayerNorms, 2 h + 4 h, on every rank."""
    h = 6144
    return 12 * h * h // tp + 7 * h // tp + 6 * h


@pytest.mark.parametrize("tp", [1, 8])
def test_column_parallel_biases_are_divided(tp: int) -> None:
    work = Case("megatron", GPT, devices=tp, tp_degree=tp).terms().work
    assert work.parameters("block").tolist() == [parameters(tp)]


@pytest.mark.parametrize(
    ("precision", "during", "step"), [("bf16", 2 + 4 + 12, 0), ("fp16", 2 + 2 + 12, 4)]
)
def test_states(precision: str, during: int, step: int) -> None:
    # bf16: fp32 main gradients. fp16: gradients of 2 B, and fp32 copies of them in the optimizer's step,
    # when no activation lives: the larger of the two instants is the peak.
    detail = Case("megatron-2021", GPT, devices=8, tp_degree=8, precision=precision,
                  recompute="full").describe()  # fmt: skip
    (stage,) = detail.memory.stages
    h, t, v = 6144, 8, 51200
    held = 48 * parameters(8) + v * h // t + 2048 * h + 2 * h  # tied head: the final norm only
    states = sum(
        part.bytes for part in stage.parts
        if part.name.startswith(("parameters", "gradients", "optimizer"))
    )  # fmt: skip
    if step:
        assert stage.instant == "end of the step"
    assert states == (during + step) * held


def test_loss_recipes() -> None:
    # one stage, t = 1: 6 against 2 bytes for each of 8192 x 128256 logits
    case = {"seq_len": 8192, "recompute": "full"}
    native = Case("megatron", LLAMA, **case).describe().memory.allocated_bytes
    te = Case("megatron", LLAMA, override={"core": {"loss": "te"}}, **case).describe()
    assert native - te.memory.allocated_bytes == 4 * 8192 * 128256


def test_offload_by_hand() -> None:
    # four stages of 8 layers, 8 micro-batches: stage 0 holds four micro-batches of 8 layers of A bytes.
    # With a share x in host memory and two chunks of it on the device all the same: 32 A (1 - x) and
    # 2 x 8 x A x.
    fields = {"devices": 4, "pp_degree": 4, "schedule": "1f1b", "batch": 8, "micro_batch_num": 8}
    away = {"core": {"offload": {"share": 0.75, "chunks": 2, "layers": 0}}}
    whole = Case("megatron", LLAMA, **fields)
    part = Case("megatron", LLAMA, override=away, **fields)
    saved = whole.saved("none")
    assert part.saved("none") == saved // 4
    kept = (
        stage.allocated_bytes for stage in (c.describe().memory.stages[0] for c in (whole, part))
    )
    before, after = kept
    assert before - after == 32 * saved - (32 * saved // 4 + 16 * saved * 3 // 4)


def test_kwai_selective_run() -> None:
    # Llama-65B of the artifact of Yuan et al. 2024: 65,330,982,400 B allocated at most on 256 H800
    model = {"num_layers": 80, "hidden": 8192, "ffn_hidden": 22016, "heads": 64, "kv_heads": 64,
             "vocab": 32004}  # fmt: skip
    detail = Case(
        "megatron-kwai", model, seq_len=8192, devices=256, batch=256, recompute="selective",
        dp_degree=8, tp_degree=2, pp_degree=8, cp_degree=2, micro_batch_num=32, vpp_degree=5,
        schedule="interleaved", sequence_parallel=True, zero_stage=1, shard_degree=8,
        cp_comm_type="p2p",
    ).describe()  # fmt: skip
    assert detail.memory.allocated_bytes == pytest.approx(65_330_982_400, rel=0.01)
    assert detail.memory.worst_rank == 0


def test_every_second_layer() -> None:
    # torchtitan's count runs on: layers 2, 4, ... of a rank. 7 layers keep 4 whole ones and 3 inputs.
    model = {**LLAMA, "num_layers": 7}
    case = {"seq_len": 16384, "devices": 2, "dp_degree": 2, "zero_stage": 3, "shard_degree": 2,
            "batch": 2}  # fmt: skip
    made = Case("torchtitan", model, recompute={"every": 2}, **case)
    full, none = made.saved("full"), made.saved("none")
    detail = made.describe()
    assert detail.recompute_plan == "every 2 layers"
    assert detail.strategy.layer_recompute == {"selective": [0], "full": [3]}
    (stage,) = detail.memory.stages
    blocks = sum(p.bytes for p in stage.parts if p.source == "framework profile: saved tensors")
    assert stage.instant.endswith("loss")
    assert blocks == 4 * none + 3 * full
    # Megatron cannot say so
    other = Case("megatron", model, recompute={"every": 2}, seq_len=2048)
    estimates = Estimator(other.contexts).rows(other.batch)
    assert not estimates.possible[0]


def test_scaletorch_counts_whole_logits_and_ignores_the_sequence_switch() -> None:
    # Qwen3-0.6B, 4096 tokens: the loss holds 2 + 4 + 4 + 4 bytes for each logit of the whole vocabulary
    model = {"num_layers": 28, "hidden": 1024, "ffn_hidden": 3072, "heads": 16, "kv_heads": 8,
             "head_dim": 128, "vocab": 151936, "tied_embeddings": True, "qk_norm": "head"}  # fmt: skip
    case = {"seq_len": 2048, "devices": 2, "tp_degree": 2, "micro_batch_size": 2, "batch": 2}
    detail = Case("scaletorch", model, **case).describe()
    (stage,) = detail.memory.stages
    logits = sum(p.bytes for p in stage.parts if "whole_logits" in p.formula)
    assert stage.instant.endswith("loss")
    assert logits == 14 * 4096 * 151936
    same = Case("scaletorch", model, sequence_parallel=True, **case)
    assert same.saved("none") == Case("scaletorch", model, **case).saved("none")
    # norms 2 x 8 h; query and key norms 6 (q + kv), attention 12 q and 64 B of statistics per head, MLP
    # 8 f, the latter two halves of a rank
    q, kv, f, h = 2048, 1024, 3072, 1024
    assert same.saved("none") == 4096 * (16 * h + (6 * (q + kv) + 12 * q + 64 * 16 + 8 * f) // 2)


def test_parts_sum_to_the_peak_of_every_stage() -> None:
    detail = Case(
        "megatron", LLAMA, devices=8, batch=16, pp_degree=8, schedule="interleaved", vpp_degree=2,
        micro_batch_num=16, recompute={"full": [1] * 16},
    ).describe()  # fmt: skip
    memory = detail.memory
    assert [stage.rank for stage in memory.stages] == list(range(8))
    for stage in memory.stages:
        assert stage.allocated_bytes == sum(part.bytes for part in stage.parts)
    assert memory.allocated_bytes == max(stage.allocated_bytes for stage in memory.stages)
    reserves = sum(part.bytes for part in memory.reserves)
    assert memory.total_bytes == memory.allocated_bytes + reserves
    assert np.isfinite(memory.allocated_bytes / GIB)
