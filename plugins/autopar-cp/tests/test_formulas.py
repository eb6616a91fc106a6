"""Attention calls and exchanged bytes of context parallelism against arithmetic by hand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autopar_core.api import Extent, StrategyBatch
from autopar_core.config.load import load_job
from autopar_core.config.overrides import Overrides
from autopar_core.config.tables import deep_merge
from autopar_core.search.contexts import Contexts
from autopar_core.search.terms import Terms, collect
from autopar_core.testing.bench import SMALL_JOB, load
from autopar_cp.config import CpProfile
from autopar_cp.exchange import attention_calls


# 100 GB/s and 10 us per message; 32 768 tokens, heads of 64, 8 key/value heads: width 512.
LINK = {"bytes_per_second": 100e9, "latency_seconds": 10e-6, "half_bytes": 0.0}
JOB = {
    "training": {"seq_len": 32768},
    "cluster": {"override": {"links": {"intra": LINK}}},
    "framework": {"override": {"core": {"time_scale": {"default": 1.0}}}},
}
SEQUENCE, HEADS = 32768, 16


def build(changes: Mapping[str, Any]) -> Contexts:
    manager = load()
    job = load_job(None, deep_merge(deep_merge(SMALL_JOB, JOB), changes), Overrides(), manager)
    return Contexts.build(job, manager)


CONTEXTS = build({})


def rows(contexts: Contexts, values: Mapping[str, Any]) -> StrategyBatch:
    fields = contexts.fields
    neutral = {"micro_batch_size": 1, "micro_batch_num": 8}
    columns = {n: [fields[n].encode(v)] for n, v in {**neutral, **values}.items()}
    return StrategyBatch.of(fields, columns)


def terms(values: Mapping[str, Any], changes: Mapping[str, Any] | None = None) -> Terms:
    contexts = build(changes) if changes else CONTEXTS
    return collect(rows(contexts, values), contexts)


def call_work(cp: int, comm: str, profile: CpProfile) -> float:
    """Score elements that one rank computes: sum of queries x keys x share x heads over calls."""
    batch = rows(CONTEXTS, {"cp_degree": cp, "cp_comm_type": comm})
    total = 0.0
    for answer in attention_calls(batch, profile):
        for call in answer.calls if answer.rows[0] else ():
            queries, keys = SEQUENCE / call.query_divisor[0], SEQUENCE / call.key_divisor[0]
            heads = HEADS / call.heads_divisor[0]
            total += call.count[0] * queries * keys * heads * call.work_share[0]
    return total


@settings(derandomize=True, max_examples=60, deadline=None)
@given(
    cp=st.sampled_from([2, 4, 8]), comm=st.sampled_from(["p2p", "all_gather", "a2a"]),
    as_ring=st.booleans(),
)  # fmt: skip
def test_balanced_calls_conserve_work(cp: int, comm: str, as_ring: bool) -> None:
    # Ring: (s/c)^2 / 2 + (c-1) (s/2c)(s/c) = s^2 / 2c. Gathered: (s/c) s / 2. All-to-all: s^2/2 of
    # 1/c of the heads. Each is 1/c of the unsplit causal work.
    unsplit = HEADS * SEQUENCE**2 * 0.5
    assert call_work(cp, comm, CpProfile(gathered_as_ring=as_ring)) == unsplit / cp


def test_unbalanced_ranks_do_the_work_of_the_last() -> None:
    # The last of 4 ranks meets 3 blocks whole and its own causal one: 3.5 blocks of (s/4)^2 scores,
    # against 2 in balanced order.
    block = HEADS * (SEQUENCE / 4) ** 2
    profile = CpProfile(balanced=False)
    assert call_work(4, "p2p", profile) == 3.5 * block
    assert call_work(4, "all_gather", profile) == pytest.approx(3.5 * block, rel=1e-12)
    assert call_work(4, "p2p", CpProfile()) == 2 * block


def test_calls_of_a_ring() -> None:
    batch = rows(CONTEXTS, {"cp_degree": 4, "cp_comm_type": "p2p"})
    ring, gathered, exchanged = attention_calls(batch, CpProfile())
    assert (ring.rows[0], gathered.rows[0], exchanged.rows[0]) == (True, False, False)
    own, other = ring.calls
    # once 8 192 x 8 192 causal, three times 4 096 queries against 8 192 keys
    assert (own.count[0], own.query_divisor[0], own.key_divisor[0]) == (1, 4, 4)
    assert (other.count[0], other.query_divisor[0], other.key_divisor[0]) == (3, 8, 4)


def link(found: Terms, name: str) -> dict[str, float]:
    return {t.phase: float(t.seconds[0]) for t in found.time if t.owner == "cp" and t.name == name}


def test_ring_exchange() -> None:
    # cp 4: keys and values of 8 192 tokens x 512 in bf16: 4 B x 4 194 304 = 16.777216 MB.
    # Forward 3 x (10 us + 167.77216 us); backward with their gradients 3 x (10 + 335.54432) us.
    seconds = link(terms({"cp_degree": 4, "dp_degree": 2, "cp_comm_type": "p2p"}), "ring exchange")
    assert seconds["forward"] == pytest.approx(533.31648e-6, rel=1e-12)
    assert seconds["backward"] == pytest.approx(1036.63296e-6, rel=1e-12)
    assert seconds["recompute_full"] == seconds["forward"]


def test_ring_hides_behind_all_steps_but_one() -> None:
    found = terms({"cp_degree": 4, "dp_degree": 2, "cp_comm_type": "p2p"})
    window = next(t.window for t in found.time if t.name == "ring exchange")
    assert window is not None
    assert window.name == "attention"
    assert window.share[0] == 0.75


def test_gathered_keys_and_values() -> None:
    # All ranks' keys and values: 67.108864 MB x 3/4 = 50.331648 MB at 100 GB/s + 10 us, not hidden;
    # backward gathers again and scatters the gradients.
    found = terms({"cp_degree": 4, "dp_degree": 2, "cp_comm_type": "all_gather"})
    seconds = link(found, "key/value all-gather")
    assert seconds["forward"] == pytest.approx(513.31648e-6, rel=1e-12)
    assert seconds["backward"] == pytest.approx(2 * 513.31648e-6, rel=1e-12)
    assert all(t.window is None for t in found.time if t.name == "key/value all-gather")


def test_head_exchange() -> None:
    # Queries, keys, values in and output out: 2 B x 8 192 x (2 x 1 024 + 2 x 512) = 50.331648 MB,
    # 3/4 of it moves: 377.48736 us; 4 calls of 10 us. The same backward.
    found = terms({"cp_degree": 4, "dp_degree": 2, "cp_comm_type": "a2a"})
    seconds = link(found, "head all-to-all")
    assert seconds["forward"] == pytest.approx(417.48736e-6, rel=1e-12)
    assert seconds["backward"] == seconds["forward"]


@pytest.mark.parametrize("comm", ["p2p", "all_gather", "a2a"])
def test_only_the_chosen_exchange_costs(comm: str) -> None:
    names = {"p2p": "ring exchange", "all_gather": "key/value all-gather", "a2a": "head all-to-all"}
    found = terms({"cp_degree": 2, "dp_degree": 4, "cp_comm_type": comm})
    used = {t.name for t in found.time if t.owner == "cp" and t.resource == "link" and t.seconds[0]}
    assert used == {names[comm]}


def test_one_rank_exchanges_nothing() -> None:
    found = terms({"dp_degree": 8})
    assert all(t.seconds[0] == 0 for t in found.time if t.owner == "cp")
    assert all(t.bytes[0] == 0 for t in found.memory if t.owner == "cp")


def test_merging() -> None:
    # 3 further steps, each merges half of 8 192 x 1 024 query elements: 10 B forward, 6 B and 8 B
    # per key/value element backward, at 0.65 of 3.35 TB/s = 2.1775 TB/s; 2 kernels of 3 us.
    # Forward 3 x (41.943040 MB / 2.1775 TB/s + 6 us) = 3 x 25.26203 us.
    # Backward 3 x ((25.165824 + 33.554432) MB / 2.1775 TB/s + 6 us) = 3 x 32.96682 us.
    seconds = link(
        terms({"cp_degree": 4, "dp_degree": 2, "cp_comm_type": "p2p"}), "merge of ring steps"
    )
    assert seconds["forward"] == pytest.approx(75.7861e-6, rel=1e-5)
    assert seconds["backward"] == pytest.approx(98.9005e-6, rel=1e-5)
    assert not link(
        terms({"cp_degree": 4, "dp_degree": 2, "cp_comm_type": "a2a"}), "merge of ring steps"
    )["forward"]


def test_shards() -> None:
    work = terms({"cp_degree": 4, "tp_degree": 2, "sequence_parallel": True,
                  "cp_comm_type": "p2p"}).work  # fmt: skip
    assert work.extent(Extent.TOKENS)[0] == 8192
    assert work.extent(Extent.RESIDUAL_TOKENS)[0] == 4096
    assert work.seq_len == SEQUENCE


def test_gathered_memory() -> None:
    # All keys and values during attention: 4 B x 4 ranks x 8 192 x 512.
    found = terms({"cp_degree": 4, "dp_degree": 2, "cp_comm_type": "all_gather"})
    term = next(t for t in found.memory if t.name == "gathered keys and values")
    assert term.bytes[0] == 67_108_864
    assert term.live == {"attention"}
    assert np.issubdtype(term.bytes.dtype, np.integer)


def test_host_cost_of_a_ring() -> None:
    # 1 ms for a split layer, 0.5 ms for each of the three further steps of a ring of 4
    section = {"host": {"forward_seconds": 1e-3}, "host_ring": {"forward_seconds": 5e-4}}
    changes = {"framework": {"override": {"cp": section}}}

    def host(values: dict[str, Any]) -> float:
        found = terms({"dp_degree": 8 // values["cp_degree"], **values}, changes)
        return sum(
            float(t.seconds[0]) for t in found.time if t.owner == "cp" and t.resource == "host"
        )

    assert host({"cp_degree": 4, "cp_comm_type": "p2p"}) == pytest.approx(2.5e-3)
    assert host({"cp_degree": 4, "cp_comm_type": "a2a"}) == pytest.approx(1e-3)
    assert host({"cp_degree": 1}) == 0
