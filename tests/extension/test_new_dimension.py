"""A dimension that the core has never heard of, from one file, in every output."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from autopar_core.cli.main import main
from autopar_core.testing import DimensionConformance, run_search


ROOT = Path(__file__).resolve().parents[2]
FILE = Path(__file__).with_name("files") / "new_dimension.py"
Autopar = Callable[..., dict[str, Any]]
Table = Callable[[Path], list[dict[str, str]]]
WITH = ("--plugin", str(FILE))
DEGREES = ("dp_degree", "tp_degree", "pp_degree", "cp_degree", "xp_degree")


class TestConformance(DimensionConformance):
    plugin = "xp"
    files = (str(FILE),)


class TestConformanceMegatron(DimensionConformance):
    plugin = "xp"
    files = (str(FILE),)
    framework = "megatron"


def test_the_core_does_not_know_it() -> None:
    texts = [
        path
        for path in (ROOT / "autopar_core").rglob("*")
        if path.suffix in (".py", ".toml", ".html", ".j2", ".css")
    ]
    assert len(texts) > 50
    name = re.compile(r"\bxp(\b|_)|\bXp[A-Z]|new_dimension")
    assert [path for path in texts if name.search(path.read_text())] == []


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, job_text: str) -> Path:
    """Files of a search of the whole space."""
    folder = tmp_path_factory.mktemp("run")
    (folder / "job.toml").write_text(job_text)
    arguments = ["search", str(folder / "job.toml"), *WITH, "--no-charts"]
    assert main([*arguments, "--out", str(folder / "out")]) == 0
    return folder / "out"


def test_generates(run: Path, table: Table) -> None:
    rows = table(run / "candidates.csv")
    assert {row["xp_degree"] for row in rows} == {"1", "2"}
    for row in rows:
        product = 1
        for name in DEGREES:
            product *= int(row[name])
        assert product == 6
        # its field means something only where its degree is above one
        assert row["xp_overlap"] == "false" or row["xp_degree"] == "2"
    assert {row["xp_overlap"] for row in rows if row["xp_degree"] == "2"} == {"true", "false"}


def test_filters(run: Path, table: Table) -> None:
    fallen = [row for row in table(run / "rejected.csv") if row["code"] == "xp-ffn"]
    assert {row["xp_degree"] for row in fallen} == {"3", "6"}
    assert {row["owner"] for row in fallen} == {"xp"}
    assert "FFN width 4096 is not divisible by xp 3" in {row["sentence"] for row in fallen}


def test_shards() -> None:
    """Its ranks hold their share of the FFN, and all of attention."""
    one, two = (
        run_search(
            {"cluster": {"devices": devices}, "search": {"xp": devices, "micro_batch_size": 1}},
            files=[FILE],
        ).top[0]
        for devices in (1, 2)
    )
    held = {}
    for devices, detail in ((1, one), (2, two)):
        assert detail.strategy.fields["xp_degree"] == devices
        parts = detail.memory.stages[0].parts
        held[devices] = sum(p.bytes for p in parts if p.name == "parameters (block)")
    layers, bytes_per_parameter, matrices = 16, 2, 3 * 1024 * 4096
    assert held[1] - held[2] == layers * bytes_per_parameter * matrices // 2
    assert two.memory.allocated_bytes < one.memory.allocated_bytes


def test_adds_terms(autopar: Autopar) -> None:
    document = autopar(*WITH, "--fix", "xp=2", "--fix", "xp_overlap=true")
    memory, time = document["memory_breakdown"][0], document["performance_breakdown"][0]
    assert memory["by_owner"]["xp"] > 0
    assert time["by_owner"]["xp"] >= 0
    reserves = [part["name"] for part in memory["reserves"] if part["owner"] == "xp"]
    assert reserves == ["communicator buffers"]
    parts = [part for part in time["parts"] if part["owner"] == "xp"]
    assert {part["name"] for part in parts} == {"FFN all-reduce under GEMMs"}
    assert sum(part["hidden_seconds"] for part in parts) > 0
    # overlap trades memory for time
    plain = autopar(*WITH, "--fix", "xp=2", "--fix", "xp_overlap=false")
    best, other = document["top_k_strategies"][0], plain["top_k_strategies"][0]
    assert best["performance_cost"] < other["performance_cost"]
    assert plain["performance_breakdown"][0]["by_owner"]["xp"] > time["by_owner"]["xp"]


def test_sections_are_its_own(autopar: Autopar, refused: Callable[..., str]) -> None:
    document = autopar(*WITH, "--set", "plugins.xp.max_degree=1")
    assert set(document["all_candidate_summary"]["trends"]["xp_degree"][0].values()) >= {1}
    assert len(document["all_candidate_summary"]["trends"]["xp_degree"]) == 1
    buffers = "framework.override.xp.communicator_bytes=300000000"
    document = autopar(*WITH, "--fix", "xp=2", "--set", buffers)
    reserves = document["memory_breakdown"][0]["reserves"]
    assert [p["bytes"] for p in reserves if p["owner"] == "xp"] == [300_000_000]
    assert "did you mean max_degree?" in refused(*WITH, "--set", "plugins.xp.max_degre=1")


def test_is_optional(autopar: Autopar, refused: Callable[..., str]) -> None:
    """Degree one of it is the search without it; without its plugin its key is unknown."""
    plain = autopar()
    fixed = autopar(*WITH, "--fix", "xp=1")
    columns = ("memory_cost", "performance_cost", *DEGREES[:4])
    for with_it, without in zip(fixed["top_k_strategies"], plain["top_k_strategies"], strict=True):
        assert [with_it[c] for c in columns] == [without[c] for c in columns]
    assert "unknown key" in refused("--fix", "xp=1")


def test_appears_in_every_output(
    input_file: Path, tmp_path: Path, table: Table, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    # communication in the open, so that it shows in tables and bars
    changes = ("--set", "search.xp=[2,3]", "--fix", "xp_overlap=false")
    assert main(["search", str(input_file), *WITH, *changes, "--out", str(out)]) == 0
    shown = capsys.readouterr().out
    assert "FFN all-reduce" in shown
    assert "xp2" in shown
    document = json.loads((out / "result.json").read_text())
    schema = json.loads((ROOT / "docs" / "result.schema.json").read_text())
    jsonschema.validate(document, schema)

    plugin = next(p for p in document["plugins"] if p["name"] == "xp")
    assert (plugin["status"], plugin["dimension"]) == ("active", "xp")
    assert {s["xp_degree"] for s in document["top_k_strategies"]} == {2}
    assert {type(s["xp_overlap"]) for s in document["top_k_strategies"]} == {bool}
    trend = document["all_candidate_summary"]["trends"]["xp_degree"]
    assert 2 in {point["value"] for point in trend}

    charts = {c["name"]: c["series"] for c in document["visualization_report"]["charts"]}
    assert any(panel["dimension"] == "xp" for panel in charts["trends"]["panels"])
    assert any("xp" in code for code in charts["reasons"]["codes"])
    assert all("xp2" in label for label in charts["step_time"]["labels"])
    assert any("xp" in bar["name"] for bar in charts["step_time"]["bars"])
    assert any("communicator" in bar["name"] for bar in charts["memory"]["bars"])

    assert "xp_degree" in table(out / "candidates.csv")[0]
    assert any(row["code"] == "xp-ffn" for row in table(out / "rejected.csv"))
    log = (out / "search.log").read_text()
    assert "plugin xp active" in log
    assert "xp-ffn took" in log
    page = (out / "report.html").read_text()
    for word in ("xp2", "xp-ffn", "FFN all-reduce"):
        assert word in page

    # the other commands on the same run
    assert main(["explain", str(out), *WITH, "xp=2", "dp=3"]) == 0
    assert "FFN all-reduce" in capsys.readouterr().out
    assert main(["estimate", str(input_file), *WITH, "xp=2", "dp=3", "xo=false"]) == 0
    assert "FFN all-reduce" in capsys.readouterr().out
