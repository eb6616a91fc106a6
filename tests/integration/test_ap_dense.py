"""What the framework promises for dense models, through the command line where that is the way."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autopar_core.api import MemoryTerm, PluginInfo, StrategyBatch, hookimpl
from autopar_core.search.run import search as search_job


GIB = 2**30
SEARCH = {"micro_batch_size": [1, 2], "layer_recompute": "none", "top_k": 6}
# Fields of a strategy that are a contract.
STRATEGY_FIELDS = (
    "dp_degree", "tp_degree", "pp_degree", "cp_degree", "micro_batch_num", "stage_partition",
    "layer_offset", "layer_recompute", "memory_cost", "performance_cost", "feasible",
    "filter_reason", "micro_batch_size", "vpp_degree", "schedule", "sequence_parallel",
    "zero_stage", "shard_degree", "replicate_degree", "cp_comm_type", "tie_with_best",
)  # fmt: skip
MAIN_KEYS = {
    "schema_version", "inputs", "plugins", "top_k_strategies", "all_candidate_summary",
    "infeasible_summary", "memory_breakdown", "performance_breakdown", "stage_summary",
    "visualization_report", "search_log",
}  # fmt: skip


def flat(values: list[Any]) -> list[Any]:
    """One list of a plan that may be ``[chunk][stage]``."""
    return [one for each in values for one in (each if isinstance(each, list) else [each])]


def degrees(row: dict[str, Any]) -> tuple[int, ...]:
    return tuple(int(row[f"{name}_degree"]) for name in ("dp", "tp", "pp", "cp"))


def test_AP_DENSE_01_data_and_tensor_parallel_space(kit: Any, search: Any, tmp_path: Path) -> None:
    """AP-DENSE-01: a small DP/TP space gives candidates and the top-k."""
    path = kit.write(tmp_path / "in.toml", search={**SEARCH, "pp": 1, "cp": 1})
    answer = search(path)
    assert answer.code == 0
    assert "Best strategies" in answer.out
    rows = answer.table("candidates.csv")
    # 12 heads, 4 key/value heads that a framework may copy: tp 8 does not divide the heads
    assert {degrees(row) for row in rows} == {(8, 1, 1, 1), (4, 2, 1, 1), (2, 4, 1, 1)}
    assert {row["micro_batch_size"] for row in rows} == {"1", "2"}
    assert all(row["memory_cost"] and row["performance_cost"] for row in rows)
    assert len(answer.best) == 6
    assert all(degrees(each) in {degrees(row) for row in rows} for each in answer.best)
    shards = {(row["tp_degree"], row["sequence_parallel"]) for row in rows}
    assert shards == {("1", "false"), *((tp, on) for tp in "24" for on in ("true", "false"))}


@pytest.mark.parametrize("layers", [8, 13])
def test_AP_DENSE_02_pipeline_gives_a_stage_summary(
    kit: Any, search: Any, tmp_path: Path, layers: int
) -> None:
    """AP-DENSE-02: PP and micro-batches give a stage summary that adds up, uneven stages too."""
    path = kit.write(
        tmp_path / "in.toml",
        model={"num_layers": layers},
        search={**SEARCH, "tp": 1, "cp": 1, "pp": [2, 4], "zero_stage": 1, "top_k": 100},
    )
    answer = search(path)
    assert answer.code == 0
    summaries = answer.document["stage_summary"]
    assert {each["schedule"] for each in answer.best} == {"1f1b", "interleaved", "gpipe"}
    assert len({each["micro_batch_num"] for each in answer.best}) > 1
    for chosen, summary in zip(answer.best, summaries, strict=True):
        assert summary["place"] == chosen["place"]
        check_stages(chosen, summary["stages"], layers)
    uneven = [each for each in answer.best if len(set(flat(each["stage_partition"]))) > 1]
    assert uneven or layers == 8


def check_stages(chosen: dict[str, Any], stages: list[dict[str, Any]], layers: int) -> None:
    """The stages of one strategy against its fields."""
    ranks, chunks, m = (chosen[k] for k in ("pp_degree", "vpp_degree", "micro_batch_num"))
    assert chosen["dp_degree"] * chosen["micro_batch_size"] * m == 16
    assert [stage["rank"] for stage in stages] == list(range(ranks))
    # [chunk][stage] read row by row is the order of the layers
    by_stage = [stages[i % ranks]["layers"][i // ranks] for i in range(ranks * chunks)]
    assert by_stage == flat(chosen["stage_partition"])
    assert sum(by_stage) == layers
    assert flat(chosen["layer_offset"]) == [n - layers // (ranks * chunks) for n in by_stage]
    ranges = [stages[i % ranks]["layer_ranges"][i // ranks] for i in range(ranks * chunks)]
    held = [layer for both in ranges if both for layer in range(both[0], both[1] + 1)]
    assert held == list(range(layers))
    assert [(s["embedding"], s["head"]) for s in stages] == [
        (rank == 0, rank == ranks - 1) for rank in range(ranks)
    ]
    assert max(stage["memory_bytes"] for stage in stages) == chosen["memory_cost"]
    for stage in stages:
        work = stage["forward_seconds"] + stage["backward_seconds"]
        assert 0 < stage["forward_seconds"] < stage["backward_seconds"]
        assert m * work <= stage["end_seconds"] * (1 + 1e-9)
        assert stage["idle_seconds"] == pytest.approx(stage["end_seconds"] - m * work, abs=1e-9)
        assert stage["end_seconds"] <= chosen["performance_cost"]
    flights = [stage["in_flight"] for stage in stages]
    if chosen["schedule"] == "1f1b":
        assert flights == [min(m, ranks - rank) for rank in range(ranks)]
    if chosen["schedule"] == "gpipe":
        assert flights == [m] * ranks
    middle = {
        s["layers"][0]: s["forward_seconds"] / s["layers"][0] for s in stages[1:-1] if chunks == 1
    }
    assert all(value == pytest.approx(min(middle.values())) for value in middle.values())


@pytest.mark.parametrize(
    ("way", "term"),
    [("p2p", "ring exchange"), ("all_gather", "key/value all-gather"), ("a2a", "head all-to-all")],
)
def test_AP_DENSE_03_context_parallel_terms(
    kit: Any, search: Any, tmp_path: Path, way: str, term: str
) -> None:
    """AP-DENSE-03: CP divides the tokens and brings its own terms into memory and time."""
    path = kit.write(
        tmp_path / "in.toml",
        training={"seq_len": 8192},
        search={"tp": 1, "pp": 1, "micro_batch_size": 1, "layer_recompute": "none",
                "zero_stage": 1, "top_k": 50},
        plugins={"cp": {"comm_type": way}},
    )  # fmt: skip
    answer = search(path)
    assert answer.code == 0
    place = {each["cp_degree"]: each["place"] - 1 for each in answer.best}
    # 4 key/value heads cannot be exchanged among eight ranks
    assert set(place) == ({1, 2, 4} if way == "a2a" else {1, 2, 4, 8})
    for cp, at in place.items():
        assert answer.best[at]["cp_comm_type"] == (way if cp > 1 else "none")
        time = answer.document["performance_breakdown"][at]
        memory = answer.document["memory_breakdown"][at]
        assert ("cp" in time["by_owner"]) == ("cp" in memory["by_owner"]) == (cp > 1)
        names = {part["name"] for part in time["parts"] if part["owner"] == "cp"}
        assert (term in names) == (cp > 1)
    saved = {cp: part_bytes(answer, at, "query, key, value") for cp, at in place.items()}
    assert all(saved[1] == cp * nbytes for cp, nbytes in saved.items())


def part_bytes(answer: Any, at: int, name: str) -> int:
    parts = answer.document["memory_breakdown"][at]["stages"][0]["parts"]
    return sum(part["bytes"] for part in parts if part["name"] == name)


def test_AP_DENSE_04_over_the_limit(
    kit: Any, search: Any, tmp_path: Path, check_schema: Callable[[Any], None]
) -> None:
    """AP-DENSE-04: strategies over the memory limit fall, and the reason says by how much."""
    path = kit.write(tmp_path / "in.toml", cluster={"memory_limit": "9 GiB"}, search=SEARCH)
    answer = search(path)
    assert answer.code == 0
    rows = [row for row in answer.table("candidates.csv") if row["memory_cost"]]
    limit = 9 * GIB
    for row in rows:
        assert (row["feasible"] == "true") == (int(row["memory_cost"]) <= limit)
        assert row["verdict"] == ("feasible" if row["feasible"] == "true" else "memory-limit")
    fallen = {row["row"]: row for row in rows if row["feasible"] == "false"}
    assert 0 < len(fallen) < len(rows)
    said = [line for line in answer.table("rejected.csv") if line["code"] == "memory-limit"]
    assert {line["scope"] for line in said} == set(fallen)
    for line in said:
        need = int(fallen[line["scope"]]["memory_cost"])
        assert f"needs {need / GIB:.2f} GiB on stage " in line["sentence"]
        assert f"{need / GIB - 9:.2f} GiB over the limit of 9.00 GiB" in line["sentence"]
    rules = {rule["code"]: rule for rule in answer.document["infeasible_summary"]["rules"]}
    assert rules["memory-limit"]["rows"] == len(fallen)
    assert all(each["memory_cost"] <= limit for each in answer.best)

    nothing = search(path, "--set", "cluster.memory_limit=2 GiB")
    assert nothing.code == 1
    check_schema(nothing.document)
    assert nothing.best == []
    misses = nothing.document["infeasible_summary"]["nearest_misses"]
    table = nothing.table("candidates.csv")
    least = min(int(row["memory_cost"]) for row in table if row["memory_cost"])
    assert misses[0]["strategy"]["memory_cost"] == least
    for miss in misses:
        cost = miss["strategy"]["memory_cost"]
        assert miss["excess_memory"] == cost - 2 * GIB
        assert not miss["strategy"]["feasible"]
        assert f"{cost / GIB - 2:.2f} GiB over the limit" in miss["strategy"]["filter_reason"]
    assert f"{(least - 2 * GIB) / GIB:,.2f} GiB over the limit" in nothing.out


class Spy:
    """Sees every row that anybody is asked to estimate."""

    def __init__(self) -> None:
        self.seen: list[StrategyBatch] = []

    @hookimpl
    def autopar_plugin_info(self) -> PluginInfo:
        return PluginInfo(api=(1, 0), summary="Remembers the rows that are estimated.")

    @hookimpl
    def autopar_shard(self, batch: StrategyBatch) -> list[Any]:
        self.seen.append(batch)
        return []

    @hookimpl
    def autopar_memory(self, batch: StrategyBatch) -> list[MemoryTerm]:
        self.seen.append(batch)
        return []


def test_AP_DENSE_05_illegal_divisions_fall_before_any_estimate(kit: Any) -> None:
    """AP-DENSE-05: what does not divide is cut with its reason; no estimator ever sees it."""
    spy = Spy()
    manager = kit.manager(("spy", spy))
    job = kit.job(
        manager,
        # 6 layers; 10 heads and a batch that 3 does not divide; 4098 tokens, not whole in 4 pieces
        model={"num_layers": 6, "hidden": 1280, "ffn_hidden": 3840, "heads": 10, "kv_heads": 10},
        training={"global_batch_size": 16, "seq_len": 4098},
        cluster={"devices": 24},
        search={"micro_batch_size": [1, 3], "layer_recompute": "none"},
    )
    result = search_job(job, manager)
    assert spy.seen
    for batch in (*spy.seen, result.batch):
        assert np.isin(batch["tp_degree"], (1, 2)).all()
        assert (batch["pp_degree"] <= 6).all()
        assert (batch["cp_degree"] == 1).all() or (4098 % (2 * batch["cp_degree"]) == 0).all()
        replicas = batch["dp_degree"]
        assert (16 % (replicas * batch["micro_batch_size"]) == 0).all()
        assert (batch["micro_batch_size"] == 1).all()
    assert len(result.batch)
    cuts = list(result.cuts)
    codes = {code for cut in cuts for code, _, _ in cut.reasons}
    assert codes >= {"tp-heads", "pp-layers", "cp-sequence", "batch"}
    assert all(cut.reasons and all(said for _, _, said in cut.reasons) for cut in cuts)
    sentences = {said for cut in cuts for _, _, said in cut.reasons}
    assert "10 attention heads are not divisible by tp 3" in sentences
    assert "pp 24 is more stages than the 6 layers can fill" in sentences
    assert "4098 tokens are not divisible into 4 chunks for cp 2" in sentences
    assert result.counts[0].before == result.space_size
    assert all(left.after == right.before for left, right in pairwise(result.counts))
    assert result.cuts.stands_for + result.counts[-1].after == result.space_size
    # every broken rule of a branch is told, not only the first
    assert any(len(cut.reasons) > 1 for cut in cuts)


def test_AP_DENSE_06_top_k(kit: Any, search: Any, tmp_path: Path, check_schema: Any) -> None:
    """AP-DENSE-06: as many answers as asked for, in order, with every field of the contract."""
    few = {"tp": [1, 2], "pp": [1, 2], "cp": 1, "zero_stage": 1, "vpp_degree": [1, 2]}
    path = kit.write(tmp_path / "in.toml", search={**SEARCH, **few})
    wide = search(path, "--top-k", "100000")
    narrow = search(path, "--top-k", "4")
    check_schema(narrow.document)
    assert set(narrow.document) == MAIN_KEYS
    assert len(narrow.best) == 4
    assert [each["place"] for each in narrow.best] == [1, 2, 3, 4]
    for each in narrow.best:
        assert set(STRATEGY_FIELDS) <= set(each)
        assert each["feasible"] is True
        assert each["filter_reason"] == ""
        assert math.prod(degrees(each)) == 8
    rows = wide.table("candidates.csv")
    feasible = [row for row in rows if row["feasible"] == "true"]
    assert len(wide.best) == len(feasible)
    order = [(e["performance_cost"], e["memory_cost"], e["row"]) for e in wide.best]
    assert order == sorted(order)
    assert [each["row"] for each in narrow.best] == [each["row"] for each in wide.best[:4]]
    for each in wide.best:
        row = rows[each["row"]]
        assert row["cost_kind"] == "exact"
        assert float(row["performance_cost"]) == each["performance_cost"]
        assert int(row["memory_cost"]) == each["memory_cost"]
    headroom = search(path, "--rank-by", "memory_headroom", "--top-k", "4")
    memory = [each["memory_cost"] for each in headroom.best]
    assert memory == sorted(int(row["memory_cost"]) for row in feasible)[:4]
    best = narrow.best[0]["performance_cost"]
    assert narrow.best[0]["tie_with_best"] is True
    ties = [each["tie_with_best"] for each in wide.best]
    assert ties == sorted(ties, reverse=True)
    assert wide.best[-1]["performance_cost"] > 1.1 * best
    assert not ties[-1]
