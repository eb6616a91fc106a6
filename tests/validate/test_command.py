"""`autopar validate` from the command line: contract of the file, error bars, wrong input."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autopar_core.cli.main import main
from autopar_core.validate.statistics import spearman


DATA = Path(__file__).parents[1] / "data" / "measured"
H200 = DATA / "measured_h200.tsv"
ROW = [
    "id", "source", "tier", "predicted_step_time_s", "measured_step_time_s",
    "predicted_peak_mem_gib", "measured_peak_mem_gib", "predicted_reserved_mem_gib",
    "measured_reserved_mem_gib", "bound_by", "skipped",
]  # fmt: skip
STATISTICS = [
    "median_abs_pct", "p90_abs_pct", "p95_abs_pct", "max_abs_pct", "mean_pct", "spearman",
]  # fmt: skip


def published() -> list[dict[str, str]]:
    with (DATA / "measured_published.tsv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t"))


def write(path: Path, rows: list[dict[str, str]]) -> Path:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), delimiter="\t")
        writer.writeheader()
        writer.writerows(rows)
    return path


def one_of_each(rows: list[dict[str, str]]) -> list[dict[str, str]]:
    """The first row of every source, framework, precision and recompute."""
    seen: dict[tuple[str, ...], dict[str, str]] = {}
    for row in rows:
        mark = [row[c] for c in ("framework", "precision", "recompute", "micro_batch")]
        seen.setdefault((row["id"].partition("-")[0], *mark), row)
    return list(seen.values())


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The file for all runs of the sources with memory and some of every other source."""
    folder = tmp_path_factory.mktemp("validate")
    rows, memory = published(), ("simumax", "scaletorch", "titan")
    whole = [row for row in rows if row["id"].startswith(memory)]
    chosen = [row for row in one_of_each(rows) if not row["id"].startswith(memory)]
    second = write(folder / "some.tsv", [*whole, *chosen])
    out = folder / "out.json"
    assert main(["validate", str(H200), str(second), "--out", str(out)]) == 0
    document: dict[str, Any] = json.loads(out.read_text())
    return document


def errors(made: dict[str, Any], source: str, quantity: str) -> dict[str, float]:
    """Relative errors by run, from the rows and not from the summary."""
    return {
        row["id"]: abs(row[f"predicted_{quantity}"] / row[f"measured_{quantity}"] - 1)
        for row in made["rows"]
        if row["source"] == source and row[f"predicted_{quantity}"] and row[f"measured_{quantity}"]
    }


def test_contract(made: dict[str, Any]) -> None:
    assert list(made) == ["rows", "summary"]
    for row in made["rows"]:
        assert list(row) == ROW
        assert row["source"] == row["id"].partition("-")[0]
        if row["skipped"] is None:
            assert row["predicted_step_time_s"] > 0
            assert row["bound_by"] in ("device", "host", "link", "memory")
        else:
            assert row["skipped"]
            assert row["predicted_step_time_s"] is row["predicted_peak_mem_gib"] is None
    for source, entry in made["summary"].items():
        own = [row for row in made["rows"] if row["source"] == source]
        assert list(entry) == ["rows", "skipped", "time", "memory", "reserved"]
        assert entry["rows"] == len(own)
        assert entry["skipped"] == sum(row["skipped"] is not None for row in own)
        for quantity in ("time", "memory", "reserved"):
            assert list(entry[quantity]) == STATISTICS


def test_summary_agrees_with_the_rows(made: dict[str, Any]) -> None:
    found = errors(made, "h200", "peak_mem_gib")
    stated = made["summary"]["h200"]["memory"]
    assert stated["median_abs_pct"] == pytest.approx(100 * np.median(list(found.values())))
    assert stated["max_abs_pct"] == pytest.approx(100 * max(found.values()))


@pytest.mark.physics
def test_h200_memory(made: dict[str, Any]) -> None:
    # Bars: median 0.2 %, p95 1 %, worst 2 %. Measured with this release: median 0.002 %, p95 0.11 %,
    # worst 0.69 %.
    found = errors(made, "h200", "peak_mem_gib")
    size = np.array(list(found.values()))
    worst = max(found.items(), key=lambda item: item[1])
    assert len(size) == 87
    assert np.median(size) <= 0.002, worst
    assert np.percentile(size, 95) <= 0.01, worst
    assert size.max() <= 0.02, worst
    assert made["summary"]["h200"]["skipped"] == 0


@pytest.mark.physics
def test_simumax(made: dict[str, Any]) -> None:
    # Measured with this release: memory median 0.03 %, worst 0.04 %; time 2.7 % and 9.3 %.
    memory = np.array(list(errors(made, "simumax", "peak_mem_gib").values()))
    assert len(memory) == 16
    assert np.median(memory) <= 0.001
    assert memory.max() <= 0.005
    time = np.array(list(errors(made, "simumax", "step_time_s").values()))
    assert len(time) == 17
    assert np.median(time) <= 0.035
    assert time.max() <= 0.15


@pytest.mark.physics
def test_h200_step_time(made: dict[str, Any]) -> None:
    # Measured with this release, host constants of that machine included: median 11 %, rank 0.96;
    # rows with collectives of unwritten operands ran 10 to 30 % faster than any device-bound model.
    stated = made["summary"]["h200"]["time"]
    assert stated["median_abs_pct"] <= 12
    assert stated["spearman"] >= 0.95
    bounds = {row["bound_by"] for row in made["rows"] if row["source"] == "h200"}
    assert {"device", "host"} <= bounds <= {"device", "host", "memory"}


def test_only_missing_facts_are_skipped(made: dict[str, Any]) -> None:
    reasons = {row["skipped"] for row in made["rows"]} - {None}
    assert reasons == {"micro_batch is not stated"}


def test_reserved_is_compared_with_reserved(made: dict[str, Any]) -> None:
    row = next(row for row in made["rows"] if row["source"] == "scaletorch")
    assert row["measured_peak_mem_gib"] is None
    assert row["measured_reserved_mem_gib"] > 0
    assert row["predicted_reserved_mem_gib"] >= row["predicted_peak_mem_gib"] > 0


@pytest.mark.physics
@pytest.mark.parametrize(("source", "rows"), [("titan", 16), ("scaletorch", 18), ("simumax", 16)])
def test_reserved_memory(made: dict[str, Any], source: str, rows: int) -> None:
    # Bars: median 5 %, p90 12 %. Measured with this release: titan 4.0 % and 11.2 %, scaletorch 3.9 %
    # and 6.2 %, simumax 2.0 % and 2.4 %.
    size = np.array(list(errors(made, source, "reserved_mem_gib").values()))
    assert len(size) == rows
    assert np.median(size) <= 0.05
    assert np.percentile(size, 90) <= 0.12


def test_a_row_without_measurement_is_predicted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = next(row for row in published() if row["id"].startswith("simumax"))
    kept = {k: v for k, v in plain.items() if not k.startswith(("measured_", "step_time"))}
    file = write(tmp_path / "new.tsv", [{**kept, "id": "mine-1"}])
    assert main(["validate", str(file), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    (row,) = document["rows"]
    assert row["predicted_step_time_s"] > 0
    assert row["predicted_peak_mem_gib"] > 0
    assert row["measured_step_time_s"] is None
    assert document["summary"]["mine"]["time"] == dict.fromkeys(STATISTICS)


def test_terminal_and_pictures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    few = ("korth22", "libai", "llama3")  # step times only: one picture
    rows = [row for row in published() if row["id"].startswith(few)]
    file = write(tmp_path / "runs.tsv", rows)
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        assert main(["validate", str(file), "--plot", str(folder)]) == 0
    text = capsys.readouterr().out
    assert "Step time, tier A" in text
    assert "tiers B, C and unstated" in text
    assert "micro_batch is not stated" in text
    names = sorted(path.name for path in folders[0].iterdir())
    assert names == ["time.png", "time.svg"]
    for name in names:
        assert (folders[0] / name).read_bytes() == (folders[1] / name).read_bytes()


def test_nothing_can_be_predicted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    row = next(row for row in published() if row["phase"] == "LoRA")
    assert main(["validate", str(write(tmp_path / "lora.tsv", [row]))]) == 1
    assert "LoRA" in capsys.readouterr().out


def test_wrong_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def said(*arguments: object) -> str:
        assert main(["validate", *map(str, arguments)]) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.count("\n") == 1
        return captured.err

    row = published()[0]
    assert "there is no such file" in said(tmp_path / "none.tsv")
    short = write(tmp_path / "short.tsv", [{k: v for k, v in row.items() if k != "seq_len"}])
    assert "lacks the column seq_len" in said(short)
    wrong = write(tmp_path / "wrong.tsv", [{**row, "precision": "bf16", "hidden": "4k"}])
    assert "line 2, hidden: expected a number, got '4k'" in said(wrong)
    binary = tmp_path / "binary.tsv"
    binary.write_bytes(b"\xff\xfe\x00")
    assert "not UTF-8" in said(binary)
    assert "is a folder" in said(H200, "--out", tmp_path)
    assert "is a file" in said(H200, "--plot", short)
    assert "is a folder" in said(H200, "--out", tmp_path)
    assert "cannot be read" in said(tmp_path)


def test_rank_correlation() -> None:
    assert spearman(np.array([1.0, 2.0, 3.0]), np.array([10.0, 20.0, 30.0])) == pytest.approx(1)
    assert spearman(np.array([1.0, 2.0, 3.0]), np.array([3.0, 2.0, 1.0])) == pytest.approx(-1)
    assert spearman(np.array([1.0, 1.0, 1.0]), np.array([3.0, 2.0, 1.0])) is None
    assert spearman(np.array([1.0, 2.0]), np.array([1.0, 2.0])) is None
    # ties share their mean rank: 1, 2.5, 2.5, 4 against 1, 2, 3, 4
    tied = spearman(np.array([1.0, 2.0, 2.0, 3.0]), np.array([1.0, 2.0, 3.0, 4.0]))
    assert tied == pytest.approx(4.5 / np.sqrt(4.5 * 5))
