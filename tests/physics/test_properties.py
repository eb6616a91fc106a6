"""Trends that hold for every model, framework and strategy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import autopar_core.builtin as builtin
from autopar_core.compose.memory_table import MemoryTable
from autopar_core.compose.time_table import TimeTable
from autopar_core.config.catalogue import shipped
from autopar_core.config.load import load_job
from autopar_core.config.overrides import Overrides
from autopar_core.domain.strategy import StrategyBatch
from autopar_core.domain.terms import MODES, Extent
from autopar_core.plugins import PluginManager
from autopar_core.search.contexts import Contexts
from autopar_core.search.evaluate import Effort, Estimator
from autopar_core.search.terms import Terms, collect


PLUGINS = PluginManager.load(extra=(("builtin", builtin),))
FRAMEWORKS = sorted(path.stem for path in shipped("frameworks").glob("*.toml"))
COPIES = {
    Extent.PARAMETER_COPIES: "parameters",
    Extent.GRADIENT_COPIES: "gradients",
    Extent.OPTIMIZER_COPIES: "optimizer",
}
QUICK = settings(derandomize=True, max_examples=25, deadline=None)
Strategy = Mapping[str, Any]


@cache
def contexts(
    framework: str = "generic", seq_len: int = 8192, faster: tuple[str, float] = ("", 1.0)
) -> Contexts:
    """A 16-layer model on 64 devices, eight per node; one kind of link may be faster."""
    link, factor = faster
    links: dict[str, Any] = {}
    if link:
        base = {"intra": 360e9, "inter": 45e9}[link]
        links = {"override": {"links": {link: {"bytes_per_second": base * factor}}}}
    tables = {
        "model": {"num_layers": 16, "hidden": 4096, "ffn_hidden": 14336, "heads": 32,
                  "kv_heads": 8, "vocab": 128256},
        "training": {"global_batch_size": 128, "seq_len": seq_len},
        "cluster": {"system": "h100-sxm-80gb", "devices": 64, **links},
        "framework": {"name": framework},
        # nothing may be traded for something else; nanotron splits by its own costs alone
        "search": {"layer_recompute": "none",
                   "stage_partition": "auto" if framework == "nanotron" else "even"},
    }  # fmt: skip
    job = load_job(None, tables, Overrides(), PLUGINS)
    return Contexts.build(job, PLUGINS)


def batch(made: Contexts, values: Strategy) -> StrategyBatch:
    fields = made.fields
    return StrategyBatch.of(fields, {n: [fields[n].encode(v)] for n, v in values.items()})


def asked(made: Contexts, values: Strategy) -> Terms:
    return collect(batch(made, values), made)


def step_seconds(made: Contexts, values: Strategy) -> float:
    return float(Estimator(made).rows(batch(made, values), Effort.REPLAY).seconds[0])


@st.composite
def strategies(draw: Callable[..., Any]) -> dict[str, Any]:
    """Strategies of 64 devices; powers of two that divide everything."""
    tp = draw(st.sampled_from([1, 2, 4, 8]))
    cp = draw(st.sampled_from([1, 2]))
    pp = draw(st.sampled_from([1, 2, 4]))
    dp = 64 // (tp * cp * pp)
    size = draw(st.sampled_from([1, 2]))
    zero = draw(st.sampled_from([0, 1, 2, 3]))
    # the head exchange needs key/value heads for every rank of both dimensions
    comms = ["p2p", "all_gather"] if tp * cp > 8 else ["p2p", "all_gather", "a2a"]
    schedule = draw(st.sampled_from(["1f1b", "interleaved", "gpipe"])) if pp > 1 else "none"
    return {
        "tp_degree": tp, "cp_degree": cp, "pp_degree": pp, "dp_degree": dp,
        "micro_batch_size": size, "micro_batch_num": max(1, 128 // dp // size),
        "sequence_parallel": tp > 1 and draw(st.booleans()),
        "cp_comm_type": draw(st.sampled_from(comms)) if cp > 1 else "none",
        "zero_stage": zero, "shard_degree": dp if zero else 1, "replicate_degree": 1,
        "schedule": schedule, "vpp_degree": 2 if schedule == "interleaved" else 1,
    }  # fmt: skip


@QUICK
@given(
    values=strategies(), link=st.sampled_from(["intra", "inter"]),
    factor=st.sampled_from([1.5, 2.0, 10.0]), framework=st.sampled_from(FRAMEWORKS),
)  # fmt: skip
def test_a_faster_link_never_slows_a_step(
    values: Strategy, link: str, factor: float, framework: str
) -> None:
    slow = step_seconds(contexts(framework), values)
    quick = step_seconds(contexts(framework, faster=(link, factor)), values)
    assert quick <= slow * (1 + 1e-12)


@QUICK
@given(values=strategies(), framework=st.sampled_from(FRAMEWORKS))
def test_more_sharding_never_needs_more_state(values: Strategy, framework: str) -> None:
    made = contexts(framework)
    states = made.job.framework.core.states
    held = []
    for stage in (0, 1, 2, 3):
        shard = values["dp_degree"] if stage else 1
        work = asked(made, {**values, "zero_stage": stage, "shard_degree": shard}).work
        total = 0.0
        for copy, name in COPIES.items():
            layers = 16 // values["pp_degree"]
            total += getattr(states, name) * layers * float(work.held(copy, "block")[0])
            total += getattr(states, name) * float(work.held(copy, "embedding")[0])
        held.append(total)
    assert held == sorted(held, reverse=True)


@QUICK
@given(values=strategies(), framework=st.sampled_from(FRAMEWORKS))
def test_larger_shard_groups_never_need_more_state(values: Strategy, framework: str) -> None:
    made, dp = contexts(framework), values["dp_degree"]
    held = []
    for shard in (s for s in (1, 2, 4, 8, 16, 32, 64) if dp % s == 0):
        replicas = {"shard_degree": shard, "replicate_degree": dp // shard}
        work = asked(made, {**values, "zero_stage": 3, **replicas}).work
        held.append(int(work.held(Extent.PARAMETER_COPIES, "block")[0]))
    assert held == sorted(held, reverse=True)


@QUICK
@given(values=strategies(), framework=st.sampled_from(FRAMEWORKS))
def test_longer_sequences_never_shrink_activations(values: Strategy, framework: str) -> None:
    saved, allocated = [], []
    for length in (4096, 8192, 16384):
        made = contexts(framework, length)
        saved.append(MemoryTable.build(asked(made, values).memory, 1).saved[0])
        allocated.append(int(Estimator(made).rows(batch(made, values)).allocated[0]))
    for shorter, longer in ((0, 1), (1, 2)):
        assert (saved[longer] >= saved[shorter]).all()
        assert allocated[longer] >= allocated[shorter]


@pytest.mark.parametrize("framework", FRAMEWORKS)
@settings(derandomize=True, max_examples=8, deadline=None)
@given(values=strategies())
def test_recompute_never_saves_time_nor_keeps_more(framework: str, values: Strategy) -> None:
    made = contexts(framework)
    terms = asked(made, values)
    none, selective, full = (MODES.index(mode) for mode in ("none", "selective", "full"))
    backward = TimeTable.build(terms.time, 1).backward[0]
    assert backward[none] <= backward[selective] <= backward[full]
    saved = MemoryTable.build(terms.memory, 1).saved[0]
    assert saved[full] <= saved[selective] <= saved[none]
    assert saved[full] > 0


@QUICK
@given(values=strategies(), framework=st.sampled_from(FRAMEWORKS))
def test_terms_are_finite_and_not_negative(values: Strategy, framework: str) -> None:
    terms = asked(contexts(framework), values)
    for time in terms.time:
        assert np.isfinite(time.seconds).all(), time.name
        assert (time.seconds >= 0).all(), time.name
    for memory in terms.memory:
        assert memory.bytes.dtype == np.int64, memory.name
    seconds = step_seconds(contexts(framework), values)
    assert np.isfinite(seconds)
    assert seconds > 0
