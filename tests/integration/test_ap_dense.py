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
    few = {"tp": [1, 2], "pp": [1, 2], "cp": 1, "zero_stage": 1}
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


def test_AP_DENSE_07_some_dimensions_only(
    kit: Any, search: Any, tmp_path: Path, check_schema: Any
) -> None:
    """AP-DENSE-07: with some dimensions only, the others stay at one and in the output."""
    path = kit.write(tmp_path / "in.toml", search=SEARCH)
    only = search(path, "--only", "dp,tp")
    without = search(path, "--disable", "pp", "--disable", "cp")
    filed = kit.write(tmp_path / "other" / "in.toml", search=SEARCH, plugins={"only": ["dp", "tp"]})
    for answer in (only, without, search(filed)):
        assert answer.code == 0
        check_schema(answer.document)
        status = {plugin["name"]: plugin["status"] for plugin in answer.document["plugins"]}
        assert (status["dp"], status["tp"]) == ("active", "active")
        assert (status["pp"], status["cp"]) == ("disabled", "disabled")
        assert answer.best == only.best
        for each in answer.best:
            assert (each["pp_degree"], each["cp_degree"]) == (1, 1)
            assert (each["schedule"], each["cp_comm_type"], each["vpp_degree"]) == (
                "none",
                "none",
                1,
            )
            assert sum(each["stage_partition"]) == kit.tiny["num_layers"]
    assert search(path, "--only", "tp").code == 1  # 12 heads do not divide by 8


def test_AP_DENSE_08_charts_agree_with_the_data(drawn: Any) -> None:
    """AP-DENSE-08: charts are there, and what they draw is what the tables say."""
    assert drawn.code == 0
    charts = {chart["name"]: chart for chart in drawn.document["visualization_report"]["charts"]}
    assert set(charts) == {"step_time", "memory", "stages", "distribution", "reasons", "trends"}
    files = drawn.files()
    for chart in charts.values():
        png, svg = (files[name] for name in chart["files"])
        assert png.startswith(b"\x89PNG\r\n\x1a\n")
        assert len(png) > 5000
        assert b"<svg" in svg[:1000]
        assert svg.rstrip().endswith(b"</svg>")
        assert len(svg) > 3000
    assert {name for name in files if name.startswith("charts/")} == {
        name for chart in charts.values() for name in chart["files"]
    }
    assert b"<svg" in files["report.html"] or b"data:image" in files["report.html"]
    series = {name: chart["series"] for name, chart in charts.items()}
    check_bars(drawn, series)
    check_points(drawn, series)


def check_bars(drawn: Any, series: dict[str, Any]) -> None:
    document, best = drawn.document, drawn.best
    time, memory, stages = series["step_time"], series["memory"], series["stages"]
    assert time["total_seconds"] == [each["performance_cost"] for each in best]
    assert time["low_seconds"] == [each["performance_low"] for each in best]
    assert time["high_seconds"] == [each["performance_high"] for each in best]
    stacked = np.sum([bar["seconds"] for bar in time["bars"]], axis=0)
    assert stacked == pytest.approx(time["total_seconds"], rel=1e-9)
    assert memory["total_bytes"] == [each["memory_cost"] for each in best]
    assert memory["reserved_bytes"] == [each["reserved_memory"] for each in best]
    assert memory["limit_bytes"] == 9 * GIB
    assert (
        np.sum([bar["bytes"] for bar in memory["bars"]], axis=0).tolist() == memory["total_bytes"]
    )
    first = document["stage_summary"][0]["stages"]
    assert stages["ranks"] == [stage["rank"] for stage in first]
    assert stages["layers"] == [sum(stage["layers"]) for stage in first]
    assert stages["forward_seconds"] == [stage["forward_seconds"] for stage in first]
    assert stages["backward_seconds"] == [stage["backward_seconds"] for stage in first]
    on_stage = np.sum([bar["bytes"] for bar in stages["bars"]], axis=0).tolist()
    assert on_stage == [stage["memory_bytes"] for stage in first]


def check_points(drawn: Any, series: dict[str, Any]) -> None:
    document = drawn.document
    rows = [row for row in drawn.table("candidates.csv") if row["memory_cost"]]
    points, summary = series["distribution"], document["all_candidate_summary"]
    assert points["rows"] == [int(row["row"]) for row in rows]
    assert points["memory_bytes"] == [int(row["memory_cost"]) for row in rows]
    assert points["seconds"] == [float(row["performance_cost"]) for row in rows]
    assert points["row_feasible"] == [row["feasible"] == "true" for row in rows]
    assert points["row_exact"] == [row["cost_kind"] == "exact" for row in rows]
    assert sum(points["row_feasible"]) == summary["feasible"]
    front = summary["pareto_front"]
    assert points["front_memory_bytes"] == [each["memory_cost"] for each in front]
    assert points["front_seconds"] == [each["performance_cost"] for each in front]
    assert points["best_seconds"] == drawn.best[0]["performance_cost"]
    rules = document["infeasible_summary"]["rules"]
    assert series["reasons"]["codes"] == [f"{rule['code']} ({rule['owner']})" for rule in rules]
    assert series["reasons"]["candidates"] == [rule["rows"] + rule["stands_for"] for rule in rules]
    for panel in series["trends"]["panels"]:
        told = summary["trends"][panel["field"]]
        assert panel["values"] == [each["value"] for each in told]
        assert panel["best_seconds"] == [each["best_step_time"] for each in told]
        for each in told:
            here = [row for row in rows if int(row[panel["field"]]) == each["value"]]
            fits = [row for row in here if row["feasible"] == "true"]
            assert each["feasible"] == len(fits)
            assert each["least_memory"] == min(int(row["memory_cost"]) for row in here)
            known = [float(r["performance_cost"]) for r in fits if r["cost_kind"] == "exact"]
            assert each["best_step_time"] == (min(known) if known else None)


FIRST = {**SEARCH, "tp": [1, 2, 4], "layer_recompute": ["none", "full"], "zero_stage": [0, 1]}


@pytest.fixture(scope="module")
def first(kit: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The run that people start from."""
    folder = tmp_path_factory.mktemp("first")
    path = kit.write(folder / "in.toml", search=FIRST)
    answer = kit.run("search", path, "--no-charts", out=folder / "out")
    assert answer.code == 0
    path.unlink()  # the folder alone is enough
    return answer


def layers_of(each: dict[str, Any]) -> list[int]:
    return [int(n) for n in flat(each["stage_partition"])]


CHANGES: list[tuple[list[str], Callable[[dict[str, Any]], bool]]] = [
    (["--fix", "tp=4"], lambda e: e["tp_degree"] == 4),
    (["--fix", "pp=2", "--fix", "tp=2"], lambda e: degrees(e)[1:3] == (2, 2)),
    (["--set", "cluster.memory_limit=8 GiB"], lambda e: e["memory_cost"] <= 8 * GIB),
    (["--set", "search.micro_batch_size={min = 2, max = 4}"],
     lambda e: e["micro_batch_size"] in (2, 4)),
    (["--fix", "micro_batch_num=4"], lambda e: e["micro_batch_num"] == 4),
    (["--fix", "cp=1"], lambda e: e["cp_degree"] == 1),
    (["--disable", "cp"], lambda e: e["cp_degree"] == 1),
    (["--fix", "pp=4", "--set", "search.layer_offset={min = 0, max = 0}"],
     lambda e: len(set(layers_of(e))) == 1),
    (["--fix", "pp=4", "--set", "search.layer_offset={min = -1, max = 1}"],
     lambda e: max(layers_of(e)) - min(layers_of(e)) <= 2),
    (["--set", "search.layer_recompute={min = 1, max = 2}"],
     lambda e: min(recomputed(e)) >= 1 and max(recomputed(e)) <= 2),
    (["--set", "search.layer_recompute=full"],
     lambda e: flat(e["layer_recompute"]["full"]) == layers_of(e)),
]  # fmt: skip


def recomputed(each: dict[str, Any]) -> list[int]:
    """Recomputed layers of every pipeline rank."""
    modes = [flat(each["layer_recompute"][mode]) for mode in ("selective", "full")]
    per_stage = np.sum(modes, axis=0).reshape(-1, each["pp_degree"])
    return [int(number) for number in per_stage.sum(axis=0)]


@pytest.mark.parametrize(
    ("change", "holds"), CHANGES, ids=[" ".join(change) for change, _ in CHANGES]
)
def test_AP_DENSE_09_changed_constraints(
    first: Any, search: Any, check_schema: Any, change: list[str], holds: Callable[..., bool]
) -> None:
    """AP-DENSE-09: an earlier run searched again under changed constraints gives a new answer."""
    answer = search("--from", first.folder, *change)
    assert answer.code == 0
    check_schema(answer.document)
    assert all(holds(each) for each in answer.best)
    assert answer.best != first.best
    assert answer.document["inputs"]["raw"] != first.document["inputs"]["raw"]
    new, old = ({key(row): row for row in run.table("candidates.csv")} for run in (answer, first))
    if "cluster.memory_limit" in change[1]:
        assert set(new) == set(old)
        counts = [run.document["all_candidate_summary"]["feasible"] for run in (answer, first)]
        assert counts[0] < counts[1]
    else:
        assert set(new) != set(old)
    # what is in both spaces costs what it did; automatic stages also depend on range and limit
    both = [row for row in set(new) & set(old) if old[row]["pp_degree"] == "1"]
    assert all(new[row]["memory_cost"] == old[row]["memory_cost"] for row in both)


def key(row: dict[str, str]) -> tuple[str, ...]:
    costs = ("row", "memory_cost", "performance_cost", "cost_kind", "feasible")
    costs += ("verdict", "memory_verdict")
    return tuple(value for name, value in row.items() if name not in costs)


def test_AP_DENSE_09_the_same_again_and_context_parallel_back_on(
    kit: Any, search: Any, tmp_path: Path
) -> None:
    """AP-DENSE-09: no change gives the same run; what was off can be turned on."""
    path = kit.write(tmp_path / "in.toml", search={**SEARCH, "cp": 1, "tp": [1, 2]})
    run = search(path)
    again = search("--from", run.folder)
    assert again.files() == run.files()
    on = search("--from", run.folder, "--set", "search.cp=[1, 2, 4]")
    assert {row["cp_degree"] for row in on.table("candidates.csv")} == {"1", "2", "4"}
    assert {row["tp_degree"] for row in on.table("candidates.csv")} == {"1", "2"}
