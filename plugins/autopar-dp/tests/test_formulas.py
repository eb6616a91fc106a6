"""State sharding and reductions of data parallelism against arithmetic by hand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from autopar_core.api import Extent, StrategyBatch
from autopar_core.config.load import load_job
from autopar_core.config.overrides import Overrides
from autopar_core.config.tables import deep_merge
from autopar_core.search.contexts import Contexts
from autopar_core.search.terms import Terms, collect
from autopar_core.testing.bench import SMALL_JOB, load
from autopar_dp.groups import Sharing, sharing


# Inside a node of 8: 100 GB/s, 10 us. Across: 10 GB/s per device, 50 us. No half-bandwidth bytes.
INTRA = {"bytes_per_second": 100e9, "latency_seconds": 10e-6, "half_bytes": 0.0}
INTER = {"bytes_per_second": 10e9, "latency_seconds": 50e-6, "half_bytes": 0.0}
JOB = {
    "cluster": {"override": {"links": {"intra": INTRA, "inter": INTER}}},
    "framework": {"override": {"core": {"time_scale": {"default": 1.0}}}},
}
# Query, output 1024 x 1024; key, value 512 x 1024; three of 4096 x 1024; two norms.
BLOCK = 2 * 1_048_576 + 2 * 524_288 + 3 * 4_194_304 + 2_048
TABLE = 32_768 * 1_024
COPIES = (Extent.PARAMETER_COPIES, Extent.GRADIENT_COPIES, Extent.OPTIMIZER_COPIES)


def build(values: Mapping[str, Any], changes: Mapping[str, Any]) -> tuple[Contexts, StrategyBatch]:
    manager = load()
    job = load_job(None, deep_merge(deep_merge(SMALL_JOB, JOB), changes), Overrides(), manager)
    contexts = Contexts.build(job, manager)
    fields = contexts.fields
    given = {"micro_batch_size": 1, "micro_batch_num": 8, **values}
    given.setdefault("shard_degree", given["dp_degree"] if given.get("zero_stage") else 1)
    columns = {n: [fields[n].encode(v)] for n, v in given.items()}
    return contexts, StrategyBatch.of(fields, columns)


def terms(values: Mapping[str, Any], changes: Mapping[str, Any] | None = None) -> Terms:
    contexts, batch = build(values, changes or {})
    return collect(batch, contexts)


def groups(values: Mapping[str, Any], devices: int) -> Sharing:
    contexts, batch = build(values, {"cluster": {"devices": devices}})
    return sharing(batch, contexts.by_plugin["dp"])


def seconds(found: Terms, name: str, **where: str) -> float:
    """Sum of a term's seconds in some segment, scale, phase."""
    return sum(
        float(t.seconds[0])
        for t in found.time
        if t.owner == "dp"
        and t.name == name
        and all(getattr(t, key) == value for key, value in where.items())
    )


# --- who holds what -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stage", "divisors"), [(0, (1, 1, 1)), (1, (1, 1, 8)), (2, (1, 8, 8)), (3, (8, 8, 8))]
)
def test_stages_divide(stage: int, divisors: tuple[int, int, int]) -> None:
    # Parameters, gradients, optimizer states of one block: 15 730 688 or an eighth, 1 966 336.
    assert BLOCK == 15_730_688
    work = terms({"dp_degree": 8, "zero_stage": stage}).work
    held = tuple(int(work.held(copy, "block")[0]) for copy in COPIES)
    assert held == tuple(BLOCK // divisor for divisor in divisors)


def test_context_parallel_ranks_share_states() -> None:
    # dp 4 x cp 2: eight ranks hold the same parameters.
    values = {"dp_degree": 4, "cp_degree": 2, "cp_comm_type": "p2p", "zero_stage": 1}
    work = terms(values).work
    assert work.held(Extent.OPTIMIZER_COPIES, "block")[0] == BLOCK // 8


def test_hybrid_divides_by_the_shard_group() -> None:
    # dp 8 as 2 replicas of 4 shards; with cp 2 a shard group has 8 ranks.
    values = {"dp_degree": 8, "zero_stage": 3, "shard_degree": 4, "replicate_degree": 2}
    assert terms(values).work.held(Extent.PARAMETER_COPIES, "block")[0] == BLOCK // 4
    more = {**values, "cp_degree": 2, "cp_comm_type": "p2p"}
    work = terms(more, {"cluster": {"devices": 16}}).work
    assert work.held(Extent.PARAMETER_COPIES, "block")[0] == BLOCK // 8


def test_groups_of_hybrid_sharding() -> None:
    # 16 ranks on two nodes: 4 shards are on one node, of the 4 replicas two are.
    found = groups({"dp_degree": 16, "zero_stage": 3, "shard_degree": 4, "replicate_degree": 4}, 16)
    assert (found.everyone.size[0], found.everyone.per_domain[0]) == (16, 8)
    assert (found.shard.size[0], found.shard.per_domain[0]) == (4, 4)
    assert (found.replicas.size[0], found.replicas.per_domain[0]) == (4, 2)
    assert found.hybrid[0]


def test_tensor_parallel_ranks_come_first_on_a_node() -> None:
    # tp 4 leaves two of the eight data-parallel ranks per node.
    found = groups({"dp_degree": 8, "tp_degree": 4, "zero_stage": 1}, 32)
    assert (found.shard.size[0], found.shard.per_domain[0]) == (8, 2)
    assert not found.hybrid[0]


def test_replicas_without_sharding_are_one_group() -> None:
    found = groups({"dp_degree": 8, "replicate_degree": 8}, 8)
    assert found.shard.size[0] == 8
    assert found.replicas.size[0] == 1


# --- once per step ------------------------------------------------------------------------------


def test_plain_replicas_all_reduce() -> None:
    # Two passes of 4 B x 15 730 688 x 7/8 at 100 GB/s: 2 x 550.57408 us per layer; fixed 2 x 10 us.
    found = terms({"dp_degree": 8})
    where = {"segment": "step", "scale": "layer"}
    assert seconds(found, "gradient reduction", **where) == pytest.approx(1101.14816e-6, rel=1e-12)
    fixed = seconds(found, "gradient reduction", segment="step", scale="one", on="any")
    assert fixed == pytest.approx(20e-6, rel=1e-12)
    assert seconds(found, "parameter gather") == 0


def test_sharded_optimizer_scatters_and_gathers() -> None:
    # One pass of 4 B per gradient, one of 2 B per parameter.
    found = terms({"dp_degree": 8, "zero_stage": 1})
    where = {"segment": "step", "scale": "layer"}
    assert seconds(found, "gradient reduction", **where) == pytest.approx(550.57408e-6, rel=1e-12)
    assert seconds(found, "parameter gather", **where) == pytest.approx(275.28704e-6, rel=1e-12)
    # the embedding on the first rank: 4 B x 32 768 x 1 024 x 7/8 / 100 GB/s = 1.17440512 ms
    table = seconds(found, "gradient reduction", segment="step", on="first")
    assert table == pytest.approx(1174.40512e-6, rel=1e-12)


def test_what_hides_the_reduction() -> None:
    found = terms({"dp_degree": 8, "zero_stage": 1})
    windows = {t.name: t.window for t in found.time if t.owner == "dp" and t.segment == "step"}
    reduction, gather = windows["gradient reduction"], windows["parameter gather"]
    assert reduction is not None
    assert gather is not None
    assert (reduction.name, reduction.share, reduction.floor) == ("last_backward", 0.9, 0.125)
    assert gather.name == "first_forward"
    exposed = {"framework": {"override": {"dp": {"overlap_gradients": False}}}}
    found = terms({"dp_degree": 8, "zero_stage": 1}, exposed)
    steps = [t for t in found.time if t.name == "gradient reduction" and t.segment == "step"]
    assert all(t.window is None for t in steps)


def test_what_a_pipeline_defers_is_reduced_in_the_open() -> None:
    # torch reduces once, after a rank's last backward: no backward is left to hide it
    titan = {"framework": {"name": "torchtitan"}, "cluster": {"devices": 16}}
    values = {"dp_degree": 8, "pp_degree": 2, "schedule": "1f1b", "zero_stage": 3}
    found = terms(values, titan)
    shares = {
        float(t.window.share[0])
        for t in found.time
        if t.segment == "step" and t.window and t.window.name == "last_backward" and t.seconds[0]
    }
    assert shares == {0.0}
    generic = terms({**values, "zero_stage": 1}, {"cluster": {"devices": 16}})
    windows = [t.window for t in generic.time if t.name == "gradient reduction"]
    assert {float(w.share[0]) for w in windows if w and w.name == "last_backward"} == {0.9}


def test_gradient_bytes() -> None:
    half = {"framework": {"override": {"dp": {"gradient_reduce_bytes": 2.0}}}}
    found = terms({"dp_degree": 8, "zero_stage": 1}, half)
    layer = seconds(found, "gradient reduction", segment="step", scale="layer")
    assert layer == pytest.approx(275.28704e-6, rel=1e-12)


def test_replicas_across_nodes() -> None:
    # tp 8 fills the node: each of 4 data-parallel ranks has one network share of 10 GB/s.
    # A rank's block: (15 730 688 - 2 048) / 8 + 2 048 = 1 968 128; 4 B x it x 3/4 / 10 GB/s.
    found = terms({"dp_degree": 4, "tp_degree": 8, "zero_stage": 1}, {"cluster": {"devices": 32}})
    layer = seconds(found, "gradient reduction", segment="step", scale="layer")
    assert layer == pytest.approx(590.4384e-6, rel=1e-12)
    fixed = seconds(found, "gradient reduction", segment="step", scale="one", on="any")
    assert fixed == pytest.approx(50e-6, rel=1e-12)


def test_one_rank_reduces_nothing() -> None:
    found = terms({"dp_degree": 1, "tp_degree": 8})
    assert all(t.seconds[0] == 0 for t in found.time if t.owner == "dp")


def test_gradient_norm() -> None:
    # Two passes over one number: 2 x (10 us + 4 B x 7/8 / 100 GB/s).
    found = terms({"dp_degree": 8})
    assert seconds(found, "gradient norm") == pytest.approx(2 * (10e-6 + 3.5 / 100e9), rel=1e-12)


# --- per layer ----------------------------------------------------------------------------------


def test_sharded_parameters_are_gathered_per_layer() -> None:
    # 2 B x 15 730 688 x 7/8 at 100 GB/s + 10 us = 285.28704 us, forward and again backward;
    # gradients 4 B: 560.57408 us. All under the block.
    found = terms({"dp_degree": 8, "zero_stage": 3})
    where = {"segment": "block", "phase": "forward"}
    assert seconds(found, "parameter gather", **where) == pytest.approx(285.28704e-6, rel=1e-12)
    where = {"segment": "block", "phase": "backward"}
    assert seconds(found, "parameter gather", **where) == pytest.approx(285.28704e-6, rel=1e-12)
    assert seconds(found, "gradient reduction", **where) == pytest.approx(560.57408e-6, rel=1e-12)
    windows = {
        (t.window.name, t.window.contention)
        for t in found.time
        if t.owner == "dp" and t.segment == "block" and t.window
    }
    assert windows == {("block", 0.1)}
    # the last layer's reduction has nothing left to hide behind
    assert seconds(found, "last reduction") == pytest.approx(560.57408e-6, rel=1e-12)
    # the embedding once with every micro-batch: 2 B x 32 768 x 1 024 x 7/8 at 100 GB/s + 10 us
    where = {"segment": "embedding", "phase": "forward"}
    first = seconds(found, "embedding parameter gather", **where)
    assert first == pytest.approx(587.20256e-6 + 10e-6, rel=1e-12)
    assert seconds(found, "embedding parameter gather", phase="backward") == 0
    # nothing of the step's collectives besides
    assert seconds(found, "parameter gather", segment="step") == 0
    assert seconds(found, "gradient reduction", segment="step") == 0


def test_sharded_gradients_are_reduced_with_every_backward() -> None:
    # ZeRO-2: a block as above; embedding 4 B x 32 768 x 1 024 x 7/8 at 100 GB/s + 10 us, and the
    # head with its norm of 1 024 as much and 35.84 ns.
    found = terms({"dp_degree": 8, "zero_stage": 2})
    where = {"segment": "block", "phase": "backward"}
    assert seconds(found, "gradient reduction", **where) == pytest.approx(560.57408e-6, rel=1e-12)
    table = 1174.40512e-6 + 10e-6
    first = seconds(found, "embedding gradient reduction", segment="embedding", phase="backward")
    assert first == pytest.approx(table, rel=1e-12)
    last = seconds(found, "head gradient reduction", segment="head", phase="backward")
    assert last == pytest.approx(table + 35.84e-9, rel=1e-12)
    # ZeRO-3 reduces as much, ZeRO-1 once per step
    found = terms({"dp_degree": 8, "zero_stage": 3})
    assert seconds(found, "head gradient reduction") == pytest.approx(last, rel=1e-12)
    found = terms({"dp_degree": 8, "zero_stage": 1})
    assert seconds(found, "head gradient reduction") == 0


def test_gradients_are_whole_until_they_are_reduced() -> None:
    # ZeRO-2 keeps an eighth of the gradients, but a block's are whole when it is reduced: 2 B as they
    # come and 4 B in the reduction, and 4 B of the block before while the next one runs.
    def held(stage: int) -> dict[str, int]:
        made = [t for t in terms({"dp_degree": 8, "zero_stage": stage}).memory if t.owner == "dp"]
        found: dict[str, int] = {}
        for term in (t for t in made if not t.reserve):
            found[term.name] = found.get(term.name, 0) + int(term.bytes[0])
        return found

    found = held(2)
    assert found["reduction buffer (this block)"] == 6 * BLOCK
    assert found["reduction buffer"] == 4 * BLOCK
    assert found["embedding gradient and its reduction"] == 6 * TABLE
    assert not any(held(1).values())


def test_hybrid_reduces_over_replicas() -> None:
    # dp 8 = 2 replicas x 4 shards on one node. Per layer the shard group of 4 reduces:
    # 4 B x 15 730 688 x 3/4 / 100 GB/s + 10 us. With every backward a shard of 4 B x 3 932 672 is
    # all-reduced over 2 replicas: two passes of 1/2 at 100 GB/s, 10 us each.
    found = terms({"dp_degree": 8, "zero_stage": 3, "shard_degree": 4, "replicate_degree": 2})
    reduced = seconds(found, "gradient reduction", segment="block", phase="backward")
    assert reduced == pytest.approx(471.92064e-6 + 10e-6, rel=1e-12)
    over = seconds(found, "gradient all-reduce over replicas", segment="block", phase="backward")
    assert over == pytest.approx(157.30688e-6 + 20e-6, rel=1e-12)
    assert seconds(found, "gradient all-reduce over replicas", segment="step") == 0
    # a sharded optimizer does it once per step
    found = terms({"dp_degree": 8, "zero_stage": 1, "shard_degree": 4, "replicate_degree": 2})
    assert seconds(found, "gradient all-reduce over replicas", segment="block") == 0
    over = seconds(found, "gradient all-reduce over replicas", segment="step", scale="layer")
    assert over == pytest.approx(157.30688e-6, rel=1e-12)


def test_stages_whose_reductions_run_afterwards() -> None:
    late = {"framework": {"override": {"dp": {"exposed_stages": [1]}}}}
    for stage, share in ((0, 0.9), (1, 0.0)):
        found = terms({"dp_degree": 8, "zero_stage": stage}, late)
        windows = [t.window for t in found.time if t.owner == "dp" and t.segment == "step"]
        assert {float(w.share[0]) for w in windows if w is not None} == {share}


def test_buckets_pay_a_hop_per_further_rank() -> None:
    # 16 ranks on two nodes; two buckets of 31 461 376 B in a block's 4 B x 15 730 688, one pass,
    # 15 hops of 2 us: 60 us more.
    hops = {"cluster": {"devices": 16, "override": {"links": {"inter": {"hop_seconds": 2e-6}}}}}
    bucket = {"framework": {"override": {"dp": {"bucket_bytes": 31_461_376}}}}
    where = {"segment": "step", "scale": "layer"}
    values = {"dp_degree": 16, "zero_stage": 1, "micro_batch_num": 4}
    plain = seconds(terms(values, hops), "gradient reduction", **where)
    cut = seconds(terms(values, deep_merge(hops, bucket)), "gradient reduction", **where)
    assert cut - plain == pytest.approx(60e-6, rel=1e-9)


def test_slow_gathers_across_nodes() -> None:
    # half the rate across nodes doubles what the bytes cost, not the 50 us; inside nothing changes
    half = {"framework": {"override": {"dp": {"gather_efficiency": 0.5}}}}
    across = {"cluster": {"devices": 16}}
    values = {"dp_degree": 16, "zero_stage": 3, "micro_batch_num": 4}
    where = {"segment": "block", "phase": "forward"}
    plain = seconds(terms(values, across), "parameter gather", **where)
    slow = seconds(terms(values, deep_merge(across, half)), "parameter gather", **where)
    assert slow - 50e-6 == pytest.approx(2 * (plain - 50e-6), rel=1e-12)
    inside = {"dp_degree": 8, "zero_stage": 3}
    same = [seconds(terms(inside, c), "parameter gather", **where) for c in ({}, half)]
    assert same[0] == same[1]


def test_host_cost_of_a_sharded_pass() -> None:
    # 1 + 2 ms per pass over a layer: with every micro-batch of 16, or once in a torch pipeline
    cost = {"dp": {"host_sharded": {"forward_seconds": 1e-3, "backward_seconds": 2e-3}}}
    titan = {"framework": {"name": "torchtitan", "override": cost}}
    values = {"dp_degree": 4, "zero_stage": 3, "micro_batch_num": 16}
    found = terms(values, deep_merge(titan, {"cluster": {"devices": 4}}))
    assert seconds(found, "host launches") == pytest.approx(3e-3, rel=1e-12)
    found = terms({**values, "pp_degree": 2, "schedule": "1f1b"}, titan)
    assert seconds(found, "host launches") == pytest.approx(3e-3 / 16, rel=1e-12)


def test_sharding_is_deferred_in_torch_pipelines() -> None:
    # torchtitan with two stages: gathers and reductions once per step, and gradients of whole
    # layers added up in every micro-batch but one.
    values = {
        "dp_degree": 4, "pp_degree": 2, "zero_stage": 3, "schedule": "1f1b", "micro_batch_num": 16
    }  # fmt: skip
    found = terms(values, {"framework": {"name": "torchtitan"}})
    assert seconds(found, "parameter gather", segment="block") == 0
    assert seconds(found, "gradient reduction", segment="block") == 0
    assert seconds(found, "gradient reduction", segment="step") > 0
    # 10 B x 15 730 688 x 15/16 at 0.65 of 3.35 TB/s
    added = seconds(found, "gradient accumulation", segment="block")
    assert added == pytest.approx(157.30688e6 * 15 / 16 / 2.1775e12, rel=1e-9)
