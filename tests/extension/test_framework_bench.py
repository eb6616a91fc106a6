"""The bench of framework plugins: rules asked row by row, strategies as exporters get them."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest

from autopar_core.api import (
    Broken,
    EvalContext,
    Level,
    PluginInfo,
    StrategyBatch,
    hookimpl,
)
from autopar_core.domain.model import ModelConfig
from autopar_core.testing import FrameworkBench


CODE = "lumen-heads"


@hookimpl
def autopar_plugin_info() -> PluginInfo:
    return PluginInfo(api=(1, 0), summary="Whole heads, in lumen alone.")


@hookimpl
def autopar_filter(batch: StrategyBatch, level: Level, ctx: EvalContext[Any, Any]) -> list[Broken]:
    if level is not Level.DEGREE or not ctx.framework.is_a("lumen"):
        return []
    rows = np.asarray(ctx.model.heads % batch["tp_degree"] != 0)
    sentence = "{heads} heads do not divide by tp {tp_degree}"
    return [Broken(code=CODE, rows=rows, sentence=sentence, numbers={"heads": ctx.model.heads})]


@pytest.fixture(scope="module")
def bench() -> FrameworkBench:
    module = ModuleType("lumen")
    vars(module).update(
        autopar_plugin_info=autopar_plugin_info, autopar_filter=autopar_filter
    )  # fmt: skip
    return FrameworkBench.of(
        "lumen", {"framework": {"name": "megatron"}}, extra=[("lumen", module)]
    )


def test_rules_see_rows_and_changes(bench: FrameworkBench) -> None:
    rows, lumen = {"tp_degree": [2, 3, 16]}, {"name": "lumen"}
    assert bench.broken(Level.DEGREE, rows) == {}
    assert bench.broken(Level.SHARDING, rows, framework=lumen) == {}
    found = bench.broken(Level.DEGREE, rows, framework=lumen)
    assert list(found) == [CODE]
    assert found[CODE].broken == [False, True, False]
    assert found[CODE].say(1) == "16 heads do not divide by tp 3"
    wider = bench.broken(Level.DEGREE, rows, framework=lumen, model={"heads": 24, "kv_heads": 8})
    assert wider[CODE].broken == [False, False, True]
    assert bench.job.framework.name == "megatron"


def test_a_request_is_whole(bench: FrameworkBench) -> None:
    """dp 2 x tp 4 x pp 2 are 16 devices; 3 sequences x 5 micro-batches x 2 replicas are 30."""
    request = bench.request(
        dp_degree=2, tp_degree=4, pp_degree=2, micro_batch_size=3, micro_batch_num=5,
        schedule="1f1b", stages=[9, 7], full=[2, 0], changes={"training": {"seq_len": 2048}},
    )  # fmt: skip
    assert request.cluster.devices == 16
    assert (request.training.global_batch_size, request.training.seq_len) == (30, 2048)
    assert request.strategy.stage_partition == [9, 7]
    assert request.strategy.layer_offset == [1, -1]
    assert request.strategy.layer_recompute == {"selective": [0, 0], "full": [2, 0]}
    assert request["zero_stage"] == 0
    assert "partition_plan" not in request.strategy.fields


def test_a_request_has_chunks_and_another_model(bench: FrameworkBench) -> None:
    """Six layers on two ranks of three chunks are one each."""
    model = ModelConfig(num_layers=6, hidden=64, ffn_hidden=128, heads=4, kv_heads=4, vocab=100)
    request = bench.request(
        pp_degree=2, vpp_degree=3, chunks=3, schedule="interleaved", changes={"model": model}
    )
    assert request.strategy.stage_partition == [[1, 1], [1, 1], [1, 1]]
    assert request.model is model


def test_a_plugin_that_is_not_there_is_said() -> None:
    with pytest.raises(AssertionError, match="'nobody' is not active"):
        FrameworkBench.of("nobody")
