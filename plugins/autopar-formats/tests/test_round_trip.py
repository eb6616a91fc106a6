"""What is exported reads back as the same strategy; what is refused has a neighbour that exports."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from autopar_core.testing import Space, exported, read_back, requests, same_job, same_strategy
from autopar_formats import accelerate_write, deepspeed_write, nanotron_write


SEARCH = {"micro_batch_size": [1, 2, 4]}
TRAINING = {"global_batch_size": 64, "seq_len": 4096}
# The head costs half a layer: nanotron's split is even for two and four stages of 16 layers.
NARROW = {"vocab": 4096}


@cache
def space(framework: str, devices: int, tied: bool) -> Space:
    return Space.of(
        {
            "model": {**NARROW, "tied_embeddings": tied}, "training": TRAINING,
            "cluster": {"system": "h100-sxm-80gb", "devices": devices},
            "framework": {"name": framework}, "search": SEARCH,
        }
    )  # fmt: skip


CASES = {
    "nanotron": (nanotron_write.EXPORTER, "nanotron", "config.yaml"),
    "deepspeed": (deepspeed_write.EXPORTER, "deepspeed-zero3", "ds_config.json"),
    "accelerate-fsdp": (accelerate_write.EXPORTER, "generic", "accelerate.yaml"),
    "accelerate-megatron": (accelerate_write.EXPORTER, "megatron", "accelerate.yaml"),
    "accelerate-deepspeed": (accelerate_write.EXPORTER, "deepspeed-zero3", "accelerate.yaml"),
}


@pytest.mark.parametrize("name", CASES)
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_export_then_read_is_the_same_strategy(name: str, data: Any) -> None:
    exporter, framework, main = CASES[name]
    found = space(framework, data.draw(st.sampled_from([1, 16])), data.draw(st.booleans()))
    request, files = exported(exporter, data.draw(requests(found)))
    manager = found.contexts.manager
    reading = read_back(files, main, manager)
    same_strategy(request, reading, manager)
    same_job(request, reading)
    assert {"made up"} <= {
        line.lstrip("# ") for text in files.values() for line in text.splitlines()
    }


def test_nanotron_says_the_whole_strategy() -> None:
    found = space("nanotron", 8, False)
    row = next(r for r in range(len(found.rows)) if found.key(r).stages == 1)
    _, files = exported(nanotron_write.EXPORTER, found.request(row, None, -1, "full"))
    reading = read_back(files, "config.yaml", found.contexts.manager)
    degrees = {"dp_degree", "tp_degree", "pp_degree", "cp_degree"}
    assert degrees | {"micro_batch_size", "micro_batch_num", "layer_recompute"} <= set(
        reading.strategy
    )
    assert reading.strategy["layer_recompute"] == "full"
