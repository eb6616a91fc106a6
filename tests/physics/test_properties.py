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
from autopar_core.search.detail import Describer
from autopar_core.search.evaluate import Effort, Estimator
from autopar_core.search.terms import Terms, collect


PLUGINS = PluginManager.load(extra=(("builtin", builtin),))
FRAMEWORKS = sorted(path.stem for path in shipped("frameworks").glob("*.toml"))
COPIES = {
    Extent.PARAMETER_COPIES: "parameters",
    Extent.GRADIENT_COPIES: "gradients",
    Extent.OPTIMIZER_COPIES: "optimizer",
}
QUICK = settings(derandomize=True, max_examples=15, deadline=None)
FEW = settings(derandomize=True, max_examples=8, deadline=None)
Strategy = Mapping[str, Any]


@cache
def contexts(
    framework: str = "generic",
    seq_len: int = 8192,
    faster: tuple[str, float] = ("", 1.0),
    recompute: str = "none",
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
        # nothing may be traded for something else
        "search": {"layer_recompute": recompute, "stage_partition": "even"},
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


STATES = ("parameters (", "gradients (", "optimizer states (")


def state_bytes(made: Contexts, values: Strategy) -> int:
    """Bytes of parameters, gradients and optimizer states at the peak of the fullest rank."""
    detail = Describer(Estimator(made)).describe(batch(made, values), 0, 1, (), "")
    (stage,) = (s for s in detail.memory.stages if s.rank == detail.memory.worst_rank)
    return sum(part.bytes for part in stage.parts if part.name.startswith(STATES))


@FEW
@given(values=strategies(), framework=st.sampled_from(["megatron", "generic", "nanotron"]))
def test_more_sharding_never_shows_more_state(values: Strategy, framework: str) -> None:
    # frameworks whose states live through the whole step, so that no other instant hides some of them
    made = contexts(framework)
    whole = state_bytes(made, {**values, "zero_stage": 0, "shard_degree": 1})
    sharded = {**values, "zero_stage": 1, "shard_degree": values["dp_degree"]}
    assert state_bytes(made, sharded) <= whole


@FEW
@given(
    values=strategies(), framework=st.sampled_from(FRAMEWORKS),
    recompute=st.sampled_from(["none", "full"]),
)  # fmt: skip
def test_parts_sum_and_the_largest_stage_is_the_cost(
    values: Strategy, framework: str, recompute: str
) -> None:
    made = contexts(framework, recompute=recompute)
    one = batch(made, values)
    memory = Describer(Estimator(made)).describe(one, 0, 1, (), "").memory
    assert [stage.rank for stage in memory.stages] == list(range(values["pp_degree"]))
    for stage in memory.stages:
        assert stage.allocated_bytes == sum(part.bytes for part in stage.parts)
    largest = max(stage.allocated_bytes for stage in memory.stages)
    assert memory.allocated_bytes == largest
    estimates = Estimator(made).rows(one)
    assert int(estimates.allocated[0]) == largest
    assert memory.total_bytes == largest + sum(part.bytes for part in memory.reserves)
    assert int(estimates.memory[0]) == memory.total_bytes


@FEW
@given(values=strategies(), framework=st.sampled_from(FRAMEWORKS))
def test_recompute_never_needs_more_in_flight(values: Strategy, framework: str) -> None:
    # what other micro-batches hold while one works; the block at work holds everything again
    held = []
    for recompute in ("none", "full"):
        made = contexts(framework, recompute=recompute)
        memory = Describer(Estimator(made)).describe(batch(made, values), 0, 1, (), "").memory
        held.append([
            sum(part.bytes for part in stage.parts
                if part.source == "framework profile: saved tensors")
            for stage in memory.stages
        ])  # fmt: skip
    if values["pp_degree"] > 1:
        assert all(full <= none for none, full in zip(*held, strict=True))


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
    has = made.job.framework.core.recompute_modes
    order = [MODES.index(mode) for mode in MODES if mode == "none" or mode in has]
    backward = TimeTable.build(terms.time, 1).backward[0][order].tolist()
    assert backward == sorted(backward)
    saved = MemoryTable.build(terms.memory, 1).saved[0][order].tolist()
    assert saved == sorted(saved, reverse=True)
    assert saved[-1] > 0


@QUICK
@given(values=strategies(), framework=st.sampled_from(FRAMEWORKS))
def test_a_longer_sequence_never_takes_less_time(values: Strategy, framework: str) -> None:
    steps = [step_seconds(contexts(framework, length), values) for length in (4096, 8192, 16384)]
    assert steps[0] <= steps[1] * (1 + 1e-12)
    assert steps[1] <= steps[2] * (1 + 1e-12)


@QUICK
@given(values=strategies(), framework=st.sampled_from(FRAMEWORKS))
def test_more_micro_batches_never_take_less_time(values: Strategy, framework: str) -> None:
    # whole rounds more, so that interleaving stays legal
    made = contexts(framework)
    more = {**values, "micro_batch_num": 2 * values["micro_batch_num"]}
    assert step_seconds(made, values) <= step_seconds(made, more) * (1 + 1e-12)


@QUICK
@given(values=strategies(), framework=st.sampled_from(FRAMEWORKS))
def test_more_replicas_at_the_same_work_are_never_faster(values: Strategy, framework: str) -> None:
    # a replica does the same micro-batches; only its reductions meet more ranks. States that are
    # sharded get smaller with more ranks (a shorter optimizer step), so nothing is sharded here.
    fewer = {**values, "zero_stage": 0, "shard_degree": 1}
    if fewer["dp_degree"] < 16:
        return
    one = {**fewer, "dp_degree": fewer["dp_degree"] // 8}
    made = contexts(framework)
    assert step_seconds(made, one) <= step_seconds(made, fewer) * (1 + 1e-12)


@QUICK
@given(values=strategies(), framework=st.sampled_from(FRAMEWORKS))
def test_parts_sum_to_the_step(values: Strategy, framework: str) -> None:
    made = contexts(framework)
    seconds = step_seconds(made, values)
    detail = Describer(Estimator(made)).describe(batch(made, values), 0, 0, (), "")
    parts = detail.performance.parts
    assert detail.performance.seconds == pytest.approx(seconds, rel=1e-12)
    assert sum(part.seconds for part in parts) == pytest.approx(seconds, rel=1e-9)
    assert all(part.seconds >= -1e-9 * seconds for part in parts)


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
