"""What the framework promises for dense models: some dimensions, charts, and runs that change."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest


GIB = 2**30
SEARCH = {"micro_batch_size": [1, 2], "layer_recompute": "none", "top_k": 6}


def flat(values: list[Any]) -> list[Any]:
    """One list of a plan that may be ``[chunk][stage]``."""
    return [one for each in values for one in (each if isinstance(each, list) else [each])]


def degrees(row: dict[str, Any]) -> tuple[int, ...]:
    return tuple(int(row[f"{name}_degree"]) for name in ("dp", "tp", "pp", "cp"))


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


FIRST = {**SEARCH, "tp": [1, 2, 4], "layer_recompute": ["none", "full"], "zero_stage": [0, 1],
         "vpp_degree": 1, "top_k": 3}  # fmt: skip


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
    fewer = {"cp": 1, "tp": [1, 2], "vpp_degree": 1}
    path = kit.write(tmp_path / "in.toml", search={**SEARCH, **fewer})
    run = search(path)
    again = search("--from", run.folder)
    assert again.files() == run.files()
    on = search("--from", run.folder, "--set", "search.cp=[1, 2, 4]")
    assert {row["cp_degree"] for row in on.table("candidates.csv")} == {"1", "2", "4"}
    assert {row["tp_degree"] for row in on.table("candidates.csv")} == {"1", "2"}
