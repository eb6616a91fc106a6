"""What is written reads back as the same strategy, model and job."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from autopar_core.testing import Space, exported, read_back, requests, same_job, same_strategy
from autopar_mindformers.layers import offset_fault
from autopar_mindformers.write import CONFIG, EXPORTER


# One shape for each class of MindFormers that is written.
SHAPES = {
    "llama": {"qkv_bias": True, "tied_embeddings": True},
    "qwen3": {"qk_norm": "head", "head_dim": 128},
    "telechat3": {"qkv_bias": True, "attention_out_bias": True, "mlp_bias": True},
}
TOLD = {
    "dp_degree", "tp_degree", "pp_degree", "cp_degree", "micro_batch_size", "micro_batch_num",
    "layer_recompute",
}  # fmt: skip


@cache
def space(shape: str, devices: int) -> Space:
    return Space.of(
        {
            "model": SHAPES[shape], "training": {"global_batch_size": 64, "seq_len": 4096},
            "cluster": {"system": "ascend-910b", "devices": devices},
            "framework": {"name": "mindformers"},
            "search": {"micro_batch_size": [1, 2], "schedule": ["1f1b", "interleaved", "zbv"]},
        }
    )  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_export_then_read_is_the_same_strategy(shape: str, data: Any) -> None:
    found = space(shape, data.draw(st.sampled_from([1, 16])))
    request, files = exported(EXPORTER, data.draw(requests(found)))
    manager = found.contexts.manager
    reading = read_back(files, CONFIG, manager)
    same_strategy(request, reading, manager)
    same_job(request, reading)
    assert reading.strategy.keys() >= TOLD
    stages, ranks = len(request.stages), request.count("pp_degree")
    assert ("stage_partition" in reading.strategy) or stages == 1
    if ranks > 1:
        assert {"schedule"} <= reading.strategy.keys()
        assert reading.strategy.get("vpp_degree", 1) == request.count("vpp_degree")
    if request.count("cp_degree") > 1:
        assert reading.strategy["cp_comm_type"] == request["cp_comm_type"]
    if request.count("dp_degree") > 1:
        assert reading.strategy["zero_stage"] == request.count("zero_stage")
    if request.count("tp_degree") > 1:
        assert reading.strategy["sequence_parallel"] == request["sequence_parallel"]
    assert reading.of("training").keys() >= {"global_batch_size", "seq_len", "precision"}
    assert reading.of("cluster")["devices"] == request.cluster.devices
    assert reading.of("model")
    document = yaml.safe_load(files[CONFIG])
    offset = document["model"]["model_config"]["offset"]
    chunks = stages // ranks
    assert not (ranks > 1 and offset_fault(offset, request.model.num_layers, ranks, chunks))
    assert all("made up" in text for text in files.values())
