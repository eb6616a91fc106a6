"""What people see when something is wrong, with the real search behind the command line."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest


GIB = 2**30
SEARCH = {"micro_batch_size": 1, "layer_recompute": "none", "pp": 1, "cp": 1, "top_k": 2}
RENDERER = '''
"""A renderer of a third party that fails."""
from autopar_core.api import PluginInfo, Renderer, hookimpl

AUTOPAR_NAME = "printer"

def render(result):
    {body}

@hookimpl
def autopar_plugin_info():
    return PluginInfo(api=(1, 0), summary="prints")

@hookimpl
def autopar_renderers():
    return [Renderer("printer", "Prints.", render)]
'''


@pytest.fixture
def place(kit: Any, tmp_path: Path) -> Path:
    """A folder with nothing but an input."""
    path: Path = kit.write(tmp_path / "work" / "in.toml", search=SEARCH)
    return path


@pytest.fixture(scope="module")
def earlier(kit: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of that input."""
    folder = tmp_path_factory.mktemp("earlier")
    path = kit.write(folder / "in.toml", search=SEARCH)
    answer = kit.run("search", path, "--no-charts", out=folder / "out")
    assert answer.code == 0
    return folder / "out"


@pytest.mark.parametrize(
    "body",
    [
        "raise RuntimeError('out of ink')",
        "raise KeyboardInterrupt",
        "return {'../outside.txt': b'x'}",
        "return {'result.json': b'mine'}",
        "return {'ink.txt': 'text, not bytes'}",
        "return None",
    ],
)
@pytest.mark.parametrize("before", [False, True], ids=["fresh", "over an earlier run"])
def test_a_failing_renderer_leaves_no_half_folder(
    kit: Any, place: Path, tmp_path: Path, earlier: Path, body: str, before: bool
) -> None:
    plugin = tmp_path / "printer.py"
    plugin.write_text(RENDERER.replace("{body}", body))
    out = place.parent / "out"
    if before:
        shutil.copytree(earlier, out)
    answer = kit.run("search", place, "--no-charts", "--plugin", plugin, out=out)
    assert answer.code not in (0, 1)
    assert "Traceback" not in answer.err
    assert sorted(p.name for p in place.parent.iterdir()) == ["in.toml"] + ["out"] * before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["printer.py", "work"]
    if before:
        assert answer.files() == kit.Answer(0, "", "", earlier).files()


@pytest.mark.parametrize(
    ("body", "code", "said"),
    [
        ("raise RuntimeError('out of ink')", 2, "out of ink"),
        ("return {'../outside.txt': b'x'}", 2, "'../outside.txt'"),
        ("return {'result.json': b'mine'}", 2, "both write result.json"),
    ],
)
def test_a_failing_renderer_is_named(
    kit: Any, place: Path, tmp_path: Path, body: str, code: int, said: str
) -> None:
    plugin = tmp_path / "printer.py"
    plugin.write_text(RENDERER.replace("{body}", body))
    answer = kit.run("search", place, "--no-charts", "--plugin", plugin, out=tmp_path / "out")
    assert answer.code == code, answer.err
    assert said in answer.err
    assert "printer" in answer.err
    assert answer.err.count("\n") == 1


def test_nothing_fits_names_the_nearest_misses(
    kit: Any, place: Path, tmp_path: Path, check_schema: Any
) -> None:
    out = tmp_path / "out"
    answer = kit.run("search", place, "--set", "cluster.memory_limit=3 GiB", "--no-charts", out=out)
    assert answer.code == 1
    check_schema(answer.document)
    summary = answer.document["infeasible_summary"]
    misses = summary["nearest_misses"]
    costs = sorted(
        int(r["memory_cost"]) for r in answer.table("candidates.csv") if r["memory_cost"]
    )
    assert [m["strategy"]["memory_cost"] for m in misses] == costs[: len(misses)]
    assert len(misses) == 3
    assert [m["excess_memory"] for m in misses] == [cost - 3 * GIB for cost in costs[:3]]
    said = " ".join(answer.out.split())
    assert f"Nearest miss: dp2 tp4 pp1 cp1 mbs1 m8 needs {costs[0] / GIB:,.2f} GiB" in said
    assert f"{(costs[0] - 3 * GIB) / GIB:,.2f} GiB over the limit of 3.00 GiB" in said
    assert f"a memory_limit of {costs[0] / GIB:,.2f} GiB admits it" in said
    # and it does
    enough = kit.run("search", place, "--set", f"cluster.memory_limit={costs[0]}")
    assert enough.code == 0
    almost = kit.run("search", place, "--set", f"cluster.memory_limit={costs[0] - 1}")
    assert almost.code == 1


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (["--set", "search.tp=[3, -1]"], "search.tp"),
        (["--set", "search.micro_batch_size={min = 5, max = 7}"], "empty search space"),
        (["--set", "search.micro_batch_size={min = 3, max = 2}"], "is above max = 2"),
        (["--set", "search.cp={min = 3, max = 3}"], "empty search space"),
        (["--set", "training.global_batch_size=0"], "training.global_batch_size"),
        (["--set", "cluster.devices=-8"], "cluster.devices"),
        (["--set", "cluster.memory_limit=0"], "cluster.memory_limit"),
        (["--set", "cluster.memory_limit=ten"], "cluster.memory_limit"),
        (["--set", "model.experts=8"], "mixture-of-experts"),
        (["--set", "model.heads=7"], "model"),
        (["--set", "search.stage_partition=[4, 5]"], "the model has 8"),
        (["--set", "search.layer_recompute=some"], "layer_recompute"),
        (["--fix", "zero_stage=7x"], "zero_stage"),
        (["--set", "search.schedule=zigzag"], "schedule"),
        (["--set", "plugins.cp.comm_type=ring"], "comm_type"),
        (["--set", "search.weights={time = 1}", "--rank-by", "weighted"], "search.weights.time"),
    ],
    ids=" ".join,
)
def test_wrong_input_is_one_sentence_and_no_folder(
    kit: Any, place: Path, tmp_path: Path, change: list[str], said: str
) -> None:
    answer = kit.run("search", place, *change, "--no-charts", out=tmp_path / "out")
    assert answer.code == 2, answer.err
    assert answer.err.startswith("error: ")
    assert answer.err.count("\n") == 1
    assert said in answer.err
    assert answer.out == ""
    assert sorted(path.name for path in tmp_path.iterdir()) == ["work"]
