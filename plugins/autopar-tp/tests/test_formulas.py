"""Collectives and shards of tensor parallelism against arithmetic by hand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from autopar_core.api import Extent, StrategyBatch
from autopar_core.compose.time_table import TimeTable, compose_phase, mode_phases, select
from autopar_core.config.load import load_job
from autopar_core.config.overrides import Overrides
from autopar_core.config.tables import deep_merge
from autopar_core.search.contexts import Contexts
from autopar_core.search.terms import Terms, collect
from autopar_core.testing.bench import SMALL_JOB, load
from autopar_tp.config import TpProfile
from autopar_tp.performance import layer_terms


# 100 GB/s and 10 us per collective, nothing else; one node of 8.
LINK = {"bytes_per_second": 100e9, "latency_seconds": 10e-6, "half_bytes": 0.0}
JOB = {
    "cluster": {"override": {"links": {"intra": LINK}}},
    "framework": {"override": {"core": {"time_scale": {"default": 1.0}}}},
}
ONE = np.array([1e-3])
YES, NO = np.ones(1), np.zeros(1)


def terms(values: Mapping[str, Any], changes: Mapping[str, Any]) -> Terms:
    """Terms of one strategy of the small job (hidden 1024, 4096 tokens)."""
    manager = load()
    job = load_job(None, deep_merge(deep_merge(SMALL_JOB, JOB), changes), Overrides(), manager)
    contexts = Contexts.build(job, manager)
    fields = contexts.fields
    neutral = {"micro_batch_size": 1, "micro_batch_num": 8}
    columns = {n: [fields[n].encode(v)] for n, v in {**neutral, **values}.items()}
    return collect(StrategyBatch.of(fields, columns), contexts)


def overlap(**section: Any) -> dict[str, Any]:
    return {"framework": {"override": {"tp": section}}}


def totals(profile: TpProfile, sequence_parallel: np.ndarray) -> dict[str, dict[str, float]]:
    """Phase -> window -> multiples of one collective."""
    found: dict[str, dict[str, float]] = {}
    for _, phase, seconds, window in layer_terms(ONE, sequence_parallel, profile):
        name = window.name if window else "exposed"
        phases = found.setdefault(phase, {})
        phases[name] = phases.get(name, 0.0) + float(seconds[0] / ONE[0])
    return found


def test_no_overlap() -> None:
    # Forward: gather and scatter around attention and MLP = 4. Backward the same 4, and with
    # sequence parallelism the two saved inputs are gathered again: 6.
    with_sequence = totals(TpProfile(overlap="none"), YES)
    assert with_sequence["forward"] == {"exposed": 4}
    assert with_sequence["backward"] == {"exposed": 6}
    assert with_sequence["recompute_full"] == {"exposed": 4}
    assert "recompute_selective" not in with_sequence
    assert totals(TpProfile(overlap="none"), NO)["backward"] == {"exposed": 4}


def test_bulk_overlap() -> None:
    # Backward: 2 stay in front of their GEMM, the re-gathers and 2 scatters hide under GEMMs.
    found = totals(TpProfile(overlap="bulk"), YES)
    assert found["forward"] == {"exposed": 4}
    assert found["backward"] == {"exposed": 2, "linear": 4}
    assert totals(TpProfile(overlap="bulk"), NO)["backward"] == {"exposed": 2, "linear": 2}


def test_fraction_overlap() -> None:
    # 0.4 x 4 = 1.6 exposed each way; what is left, and the re-gathers, are hidden.
    found = totals(TpProfile(overlap="fraction", exposed=0.4), YES)
    assert found["forward"] == pytest.approx({"exposed": 1.6, "hidden": 2.4})
    assert found["backward"] == pytest.approx({"exposed": 1.6, "hidden": 4.4})
    assert found["recompute_full"] == pytest.approx({"exposed": 1.6, "hidden": 2.4})


def test_gathers_of_casts() -> None:
    # a gather of 1-byte casts takes 0.6 of the 2-byte one here. Forward two gathers and two
    # reduce-scatters: 3.2 instead of 4; backward as many and two re-gathers: 4.4 instead of 6.
    made = layer_terms(ONE, YES, TpProfile(overlap="none"), 0.6 * ONE)
    found = {phase: float(seconds[0] / ONE[0]) for _, phase, seconds, _ in made}
    assert found["forward"] == pytest.approx(3.2)
    assert found["backward"] == pytest.approx(4.4)
    assert found["recompute_full"] == pytest.approx(3.2)
    # all-reduces without sequence parallelism stay in 16 bits
    made = layer_terms(ONE, NO, TpProfile(overlap="none"), 0.6 * ONE)
    assert {float(seconds[0] / ONE[0]) for _, _, seconds, _ in made} == {4.0}


def test_selective_recompute_repeats_some_gathers() -> None:
    found = totals(TpProfile(overlap="none", selective_gathers=1), YES)
    assert found["recompute_selective"] == {"exposed": 1}


def test_seconds_of_a_collective() -> None:
    # tp 4: 2 B x 4096 tokens x 1024 x 3/4 = 6.291456 MB at 100 GB/s = 62.91456 us, + 10 us.
    one = 72.91456e-6
    found = terms(
        {"tp_degree": 4, "dp_degree": 2, "sequence_parallel": True}, overlap(overlap="none")
    )
    links = [t for t in found.time if t.owner == "tp" and t.resource == "link"]
    block = {
        t.phase: t.seconds[0] for t in links if t.segment == "block" and t.name == "collectives"
    }
    assert block["forward"] == pytest.approx(4 * one, rel=1e-12)
    assert block["backward"] == pytest.approx(6 * one, rel=1e-12)
    ends = {(t.segment, t.name): t.seconds[0] for t in links if t.segment != "block"}
    # scattered forward, gathered backward
    assert ends["embedding", "embedding reduce"] == pytest.approx(one, rel=1e-12)
    assert ends["embedding", "embedding gradient gather"] == pytest.approx(one, rel=1e-12)
    # gathered forward; backward gathered for the weight gradient, and scattered
    assert ends["head", "logits input gather"] == pytest.approx(one, rel=1e-12)
    assert ends["head", "logits input gradient"] == pytest.approx(2 * one, rel=1e-12)
    # 3 all-reduces of 4 B x 4096 tokens: 2 x (10 us + 16384 B x 3/4 / 100 GB/s = 0.12288 us)
    assert ends["head", "loss scalars"] == pytest.approx(6 * 10.12288e-6, rel=1e-12)


def test_ends_without_sequence_parallelism() -> None:
    # one all-reduce of two passes after the embedding, one for the gradient of the head's input
    found = terms({"tp_degree": 4, "dp_degree": 2}, overlap(overlap="none"))
    ends = {t.name: t.seconds[0] / 72.91456e-6 for t in found.time
            if t.owner == "tp" and t.segment in ("embedding", "head")}  # fmt: skip
    assert ends["embedding reduce"] == pytest.approx(2, rel=1e-12)
    assert ends["logits input gradient"] == pytest.approx(2, rel=1e-12)
    assert ends["embedding gradient gather"] == ends["logits input gather"] == 0


def test_one_rank_has_no_collective() -> None:
    found = terms({"dp_degree": 8}, overlap(overlap="bulk"))
    assert all(t.seconds[0] == 0 for t in found.time if t.owner == "tp")
    assert all(t.bytes[0] == 0 for t in found.memory if t.owner == "tp" and t.reserve)


def test_bulk_hides_under_half_of_the_linears() -> None:
    values = {"tp_degree": 4, "dp_degree": 2, "sequence_parallel": True}
    found = terms(values, overlap(overlap="bulk"))
    backward = select(found.time, "block", mode_phases("none"))
    linears = sum(t.seconds[0] for t in backward if t.kind == "linear" and t.resource == "device")
    use = next(u for u in compose_phase(backward, 1).windows if u.mark[0] == "linear")
    assert use.exposed[0] == pytest.approx(max(0.0, 4 * 72.91456e-6 - 0.5 * linears), rel=1e-12)


def test_overlap_modes_are_ordered() -> None:
    values = {"tp_degree": 8, "sequence_parallel": True}
    times = []
    for section in ({"overlap": "none"}, {"overlap": "bulk"},
                    {"overlap": "fraction", "exposed": 0.4}):  # fmt: skip
        table = TimeTable.build(terms(values, overlap(**section)).time, 1)
        times.append(float(table.forward[0] + table.backward[0, 0]))
    assert times == sorted(times, reverse=True)


def test_sequence_copies() -> None:
    # 4 B x hidden around each of 4 collectives, at 0.65 of 3.35 TB/s and 2 kernels of 3 us each:
    # 4 x (4 x 4 194 304 B / 2.1775 TB/s + 6 us) = 4 x 13.7048 us.
    values = {"tp_degree": 4, "dp_degree": 2, "sequence_parallel": True}
    found = terms(values, overlap(sequence_copy_bytes=4.0))
    copies = {t.phase: t.seconds[0] for t in found.time if t.name == "sequence copies"}
    assert copies["forward"] == pytest.approx(54.819e-6, rel=1e-4)
    assert copies["recompute_selective"] == pytest.approx(copies["forward"] / 2)


def test_shards() -> None:
    work = terms({"tp_degree": 4, "dp_degree": 2, "sequence_parallel": True}, {}).work
    assert work.extent(Extent.ATTENTION_HEADS)[0] == 4
    assert work.extent(Extent.KV_HEADS)[0] == 2
    assert work.extent(Extent.FFN_WIDTH)[0] == 1024
    assert work.extent(Extent.RESIDUAL_TOKENS)[0] == 1024
    assert work.extent(Extent.TOKENS)[0] == 4096
    # without sequence parallelism every rank has the whole residual stream
    work = terms({"tp_degree": 4, "dp_degree": 2}, {}).work
    assert work.extent(Extent.RESIDUAL_TOKENS)[0] == 4096


@pytest.mark.parametrize(("multiple", "rows"), [(128, 8320), (0, 8193)])
def test_vocabulary_rows(multiple: int, rows: int) -> None:
    # 32 770 rows on 4 ranks: padded to 65 x 512 = 33 280 they are 8 320 each; rounded up 8 193.
    changes = {"model": {"vocab": 32770}, **overlap(vocabulary_multiple=multiple)}
    work = terms({"tp_degree": 4, "dp_degree": 2}, changes).work
    assert work.extent(Extent.VOCABULARY_ROWS)[0] == rows


def test_scattered_messages_between_stages() -> None:
    # Narayanan et al.: without sequence parallelism each of 4 ranks sends a quarter of 2 B x 4096 x
    # 1024 and gathers the others' on arrival; with it a rank has no more than its share anyway.
    values = {"tp_degree": 4, "dp_degree": 1, "pp_degree": 2, "schedule": "1f1b"}
    whole = terms(values, {})
    shared = terms(values, overlap(scatter_gather_messages=True))
    assert whole.work.elements("message_hidden")[0] == 4096 * 1024
    assert shared.work.elements("message_hidden")[0] == 4096 * 1024 // 4
    hops = [t for t in shared.time if t.owner == "tp" and t.segment == "hop"]
    assert {t.phase for t in hops} == {"forward", "backward"}
    assert all(t.seconds[0] == pytest.approx(72.91456e-6, rel=1e-12) for t in hops)
    sequence = terms({**values, "sequence_parallel": True}, overlap(scatter_gather_messages=True))
    assert sequence.work.elements("message_hidden")[0] == 4096 * 1024 // 4
    assert all(t.seconds[0] == 0 for t in sequence.time if t.owner == "tp" and t.segment == "hop")


def test_host_cost_of_a_split_layer() -> None:
    # 1 + 2 ms where the degree is above one; in a pipeline over two nodes 4 x (0.1 + 0.2) ms more
    section = {
        "host": {"forward_seconds": 1e-3, "backward_seconds": 2e-3},
        "host_pipelined": {"forward_seconds": 1e-4, "backward_seconds": 2e-4},
    }

    def host(values: dict[str, Any], devices: int) -> float:
        changes = deep_merge(overlap(**section), {"cluster": {"devices": devices}})
        return sum(
            float(t.seconds[0])
            for t in terms(values, changes).time
            if t.owner == "tp" and t.resource == "host"
        )

    stages = {"pp_degree": 2, "schedule": "1f1b"}
    assert host({"tp_degree": 1, "dp_degree": 8}, 8) == 0
    assert host({"tp_degree": 4, "dp_degree": 2}, 8) == pytest.approx(3e-3)
    assert host({"tp_degree": 4, "dp_degree": 1, **stages}, 8) == pytest.approx(3e-3)
    assert host({"tp_degree": 4, "dp_degree": 2, **stages}, 16) == pytest.approx(4.2e-3)
