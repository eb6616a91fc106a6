"""The same input gives the same bytes, however plugins were found and work was cut up."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from importlib import metadata
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

from autopar_core.hooks.markers import ENTRY_POINT_GROUP
from autopar_core.search import evaluate


# Pipelines, virtual stages, context parallelism, both plans, rows that fit, that do not, that are cut
# and that nobody can estimate.
SECTIONS: Mapping[str, Mapping[str, Any]] = {
    "model": {"num_layers": 12},
    "training": {"global_batch_size": 24, "seq_len": 4096},
    "cluster": {"memory_limit": "7 GiB"},
    "search": {
        "dp": [1, 2, 8], "tp": [1, 2], "pp": [1, 2, 4], "cp": [1, 2], "micro_batch_size": 1,
        "vpp_degree": [2, 3], "zero_stage": [0, 1, 3], "stage_partition": ["auto", "even"],
        "layer_recompute": ["none", "auto"], "top_k": 5,
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def reference(kit: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The run that all others must equal; without charts."""
    folder = tmp_path_factory.mktemp("reference")
    path = kit.write(folder / "in.toml", **SECTIONS)
    answer = kit.run("search", path, "--no-charts", out=folder / "out")
    assert answer.code == 0
    rows = answer.table("candidates.csv")
    assert len(rows) > 200
    for column, wanted in (
        ("schedule", {"none", "1f1b", "interleaved", "gpipe"}),
        ("cp_comm_type", {"none", "p2p", "all_gather", "a2a"}),
        ("cost_kind", {"exact", "bound"}),
        ("feasible", {"true", "false"}),
    ):
        assert wanted <= {row[column] for row in rows}
    return answer


def same(answer: Any, reference: Any) -> None:
    """Byte by byte, with the first difference in the message."""
    made, wanted = answer.files(), reference.files()
    assert set(made) == set(wanted)
    for name in sorted(made):
        if made[name] != wanted[name]:
            lines = zip(made[name].splitlines(), wanted[name].splitlines(), strict=False)
            assert next((pair for pair in lines if pair[0] != pair[1]), name) is None
    assert answer.files() == reference.files()


@pytest.fixture
def again(kit: Any, reference: Any, tmp_path: Path) -> Callable[..., Any]:
    """The same input from another folder."""

    def run(*options: object) -> Any:
        path = tmp_path / "elsewhere" / "in.toml"
        kit.write(path, **SECTIONS)
        return kit.run("search", path, "--no-charts", *options, out=tmp_path / "result")

    return run


def test_a_second_run(again: Callable[..., Any], reference: Any) -> None:
    same(again(), reference)


@pytest.mark.parametrize(
    ("workers", "rows"),
    [
        (1, 64),
        (2, 50),
        (3, 0),
        *(
            pytest.param(w, rows, marks=pytest.mark.slow)
            for w in (1, 2, 3)
            for rows in (7, 64, 1000)
        ),
    ],
)
def test_workers_and_chunks(
    again: Callable[..., Any],
    reference: Any,
    monkeypatch: pytest.MonkeyPatch,
    workers: int,
    rows: int,
) -> None:
    if rows:
        monkeypatch.setattr(evaluate, "CHUNK_ROWS", rows)
    answer = again("--workers", workers)
    same(answer, reference)
    assert answer.out == reference.out


def orders() -> list[tuple[int, ...]]:
    """Two of the orders of four plugins: backwards and shuffled."""
    every = list(permutations(range(4)))
    return [every[-1], every[9]]


@pytest.mark.parametrize("order", orders(), ids=str)
def test_order_of_entry_points(
    again: Callable[..., Any],
    reference: Any,
    monkeypatch: pytest.MonkeyPatch,
    order: tuple[int, ...],
) -> None:
    found = list(metadata.entry_points(group=ENTRY_POINT_GROUP))
    four = [point for point in found if point.name in ("dp", "tp", "pp", "cp")]
    rest = [point for point in found if point not in four]
    shuffled = [*(four[place] for place in order), *reversed(rest)]
    assert len(four) == 4
    monkeypatch.setattr(metadata, "entry_points", lambda **_: shuffled)
    same(again(), reference)


def test_order_of_plugin_files(kit: Any, tmp_path: Path) -> None:
    """One-file plugins named in either order, with names that sort otherwise than their files."""
    text = """
from autopar_core.api import MemoryTerm, PluginInfo, TimeTerm, hookimpl
import numpy as np

AUTOPAR_NAME = "{name}"

@hookimpl
def autopar_plugin_info():
    return PluginInfo(api=(1, 0), summary="{name}")

@hookimpl
def autopar_memory(batch):
    return [MemoryTerm(name="{name}", bytes=np.full(len(batch), {value} * 1000))]

@hookimpl
def autopar_performance(batch):
    return [TimeTerm(name="{name}", seconds=np.full(len(batch), {value} / 3e5))]
"""
    files = [tmp_path / "a.py", tmp_path / "b.py", tmp_path / "c.py"]
    names = ("zeta", "alpha", "mid")
    for file, name, value in zip(files, names, (1, 7, 13), strict=True):
        file.write_text(text.format(name=name, value=value))
    # the terms of the files are in every row: a part of the space tells it all
    part = {"cp": 1, "vpp_degree": 2, "zero_stage": [0, 1], "stage_partition": "even"}
    search = {**SECTIONS["search"], **part}
    path = kit.write(tmp_path / "in.toml", **{**SECTIONS, "search": search})
    answers = []
    for number, order in enumerate((files, files[::-1], [files[1], files[2], files[0]])):
        options = [text for file in order for text in ("--plugin", file)]
        out = tmp_path / f"out{number}"
        answers.append(kit.run("search", path, "--no-charts", *options, out=out))
        assert answers[-1].code == 0
    same(answers[1], answers[0])
    same(answers[2], answers[0])
    for kind in ("memory_breakdown", "performance_breakdown"):
        assert all(set(names) <= set(each["by_owner"]) for each in answers[0].document[kind])


@pytest.mark.parametrize("seed", ["77", pytest.param("1", marks=pytest.mark.slow)])
def test_another_process(kit: Any, reference: Any, tmp_path: Path, seed: str) -> None:
    """Sets and dictionaries of texts have another order in each process."""
    path = kit.write(tmp_path / "in.toml", **SECTIONS)
    answer = process(kit, path, tmp_path / "result", "--no-charts", seed=seed)
    same(answer, reference)


def process(kit: Any, path: Path, out: Path, *options: str, seed: str) -> Any:
    environment = {**os.environ, "PYTHONHASHSEED": seed, "TZ": "Asia/Tokyo", "LC_ALL": "C"}
    done = subprocess.run(
        [sys.executable, "-m", "autopar_core", "search", str(path), "--out", str(out), *options],
        env=environment, capture_output=True, text=True, check=False, cwd=path.parent,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return kit.Answer(done.returncode, done.stdout, done.stderr, out)


@pytest.mark.slow
def test_charts_and_report(kit: Any, drawn: Any, tmp_path: Path) -> None:
    """With charts: in another process, with other workers and from another folder."""
    copy = tmp_path / "else" / "in.toml"
    copy.parent.mkdir()
    shutil.copy(drawn.folder.parent / "in.toml", copy)
    names = {name.split("/")[0] for name in drawn.files()}
    assert names == {
        "result.json", "candidates.csv", "rejected.csv", "search.log", "report.html", "charts",
    }  # fmt: skip
    same(process(kit, copy, tmp_path / "out", "--workers", "3", seed="5"), drawn)
