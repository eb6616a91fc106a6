"""What is exported reads back as the same strategy, model and job; a refusal has a neighbour."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from attrs import asdict, evolve
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from autopar_core.testing import Space, exported, read_back, requests, same_job, same_strategy
from autopar_torchtitan import write_python, write_toml
from autopar_torchtitan.flavors import FLAVORS, TOML_ERA


FORMS = {
    "torchtitan": (write_python.EXPORTER, "autopar_run.py"),
    "torchtitan-toml": (write_toml.EXPORTER, "torchtitan.toml"),
}
DEGREES = {"dp_degree", "tp_degree", "pp_degree", "cp_degree"}
BATCH = {"micro_batch_size", "micro_batch_num", "layer_recompute"}


PLAIN = ["1f1b", "interleaved", "gpipe"]
SCHEDULES = {"torchtitan": [*PLAIN, "zbv", "dualpipev"], "torchtitan-compile": PLAIN}


@cache
def space(profile: str, devices: int, flavor: int) -> Space:
    stages = {"dp": {"zero_stages": [0, 1, 2, 3], "hybrid_stages": [3]}}
    return Space.of(
        {
            "model": dict(FLAVORS[flavor].fields),
            "training": {"global_batch_size": 64, "seq_len": 4096},
            "cluster": {"system": "h100-sxm-80gb", "devices": devices},
            "framework": {"name": profile, "override": stages},
            "search": {"micro_batch_size": [1, 2, 4], "schedule": SCHEDULES[profile]},
        }
    )  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_export_then_read_is_the_same(form: str, data: Any) -> None:
    exporter, main = FORMS[form]
    profile = data.draw(st.sampled_from(["torchtitan", "torchtitan-compile"]))
    known = [i for i, one in enumerate(FLAVORS) if form == "torchtitan" or TOML_ERA in one.releases]
    found = space(
        profile, data.draw(st.sampled_from([1, 8, 16])), data.draw(st.sampled_from(known))
    )
    precision = data.draw(
        st.sampled_from(["bf16", "fp32", "fp8-tensorwise", "fp8-rowwise", "mxfp8", "fp16"])
    )
    asked = data.draw(requests(found))
    asked = evolve(asked, training=evolve(asked.training, precision=precision))
    request, files = exported(exporter, asked)
    manager = found.contexts.manager
    reading = read_back(files, main, manager)
    same_strategy(request, reading, manager)
    same_job(request, reading)
    said = set(reading.strategy)
    assert said >= DEGREES | BATCH
    assert ("stage_partition" in said) == (request.count("pp_degree") > 1)
    assert ("cp_comm_type" in said) == (request.count("cp_degree") > 1)
    assert ("zero_stage" in said) == (request.count("dp_degree") * request.count("cp_degree") > 1)
    assert reading.of("model")
    assert reading.of("training") == asdict(request.training)
    assert reading.of("cluster") == {"devices": request.cluster.devices}
    assert reading.of("framework")["name"] == profile
    assert all("# made up" in text for text in files.values())


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_each_nth_layer_reads_back(data: Any) -> None:
    found = space("torchtitan", 8, next(i for i, one in enumerate(FLAVORS) if one.name == "8B"))
    row = data.draw(st.integers(0, len(found.rows) - 1))
    full = data.draw(st.integers(1, 32))
    request, files = exported(write_toml.EXPORTER, found.request(row, None, full, "full"))
    reading = read_back(files, "torchtitan.toml", found.contexts.manager)
    same_strategy(request, reading, found.contexts.manager)
    assert all(
        a >= min(full, b) for a, b in zip(request.recomputed("full"), request.stages, strict=True)
    )
