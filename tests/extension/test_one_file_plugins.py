"""What a person adds with one file: generator, renderer, rival, framework, system, reader."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


FILES = sorted(Path(__file__).with_name("files").glob("*.py"))
Autopar = Callable[..., dict[str, Any]]
Table = Callable[[Path], list[dict[str, str]]]
DEGREES = ("dp_degree", "tp_degree", "pp_degree", "cp_degree")


def owners(document: dict[str, Any], what: str) -> set[str]:
    return {owner for cost in document[what] for owner in cost["by_owner"]}


@pytest.mark.parametrize("file", FILES, ids=[file.stem for file in FILES])
def test_imports_nothing_of_the_core_but_the_api(file: Path) -> None:
    nodes = list(ast.walk(ast.parse(file.read_text())))
    names = {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    names |= {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    assert {name for name in names if name.startswith("autopar")} == {"autopar_core.api"}


def test_generator_is_picked_by_name(
    autopar: Autopar, plugin_file: Callable[[str], str], tmp_path: Path, table: Table
) -> None:
    arguments = ("--plugin", plugin_file("corners"), "--set", "search.generator=corners")
    document = autopar(*arguments, "--out", str(tmp_path / "out"))
    rows = table(tmp_path / "out" / "candidates.csv")
    # four dimensions x two sizes; heads and FFN forbid six tensor- and context-parallel ranks
    assert document["all_candidate_summary"]["space_size"] == 8
    assert document["all_candidate_summary"]["generated"] == len(rows) < 8
    for row in rows:
        assert sorted(row[name] for name in DEGREES) == ["1", "1", "1", "6"]
    codes = {rule["code"] for rule in document["infeasible_summary"]["rules"]}
    assert "tp-ffn" in codes


def test_unpicked_generator_changes_nothing(
    autopar: Autopar, plugin_file: Callable[[str], str]
) -> None:
    with_it = autopar("--plugin", plugin_file("corners"))
    assert with_it["top_k_strategies"] == autopar()["top_k_strategies"]


def test_unknown_generator_is_refused(
    refused: Callable[..., str], plugin_file: Callable[[str], str]
) -> None:
    sentence = refused("--plugin", plugin_file("corners"), "--set", "search.generator=corner")
    assert "did you mean corners?" in sentence


def test_renderer_writes_its_file(
    autopar: Autopar, plugin_file: Callable[[str], str], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    document = autopar("--plugin", plugin_file("markdown"), "--out", str(out))
    lines = (out / "wiki" / "best.md").read_text().splitlines()
    assert lines[0] == "| place | dp | tp | pp | cp | seconds | bytes |"
    assert len(lines) == 2 + len(document["top_k_strategies"])
    best = document["top_k_strategies"][0]
    assert lines[2].endswith(f"| {best['performance_cost']:.6g} | {best['memory_cost']} |")
    assert (out / "result.json").is_file()


def test_rival_takes_the_place(autopar: Autopar, plugin_file: Callable[[str], str]) -> None:
    rival = autopar("--disable", "tp", "--plugin", plugin_file("rival_tp"), "--fix", "tp=2")
    shipped = autopar("--fix", "tp=2")
    for document, owner, other in ((rival, "rival_tp", "tp"), (shipped, "tp", "rival_tp")):
        assert document["top_k_strategies"][0]["tp_degree"] == 2
        assert owner in owners(document, "performance_breakdown")
        assert other not in owners(document, "performance_breakdown")
        assert other not in owners(document, "memory_breakdown")
    costs = [d["top_k_strategies"][0]["performance_cost"] for d in (rival, shipped)]
    assert costs[0] != costs[1]
    status = {plugin["name"]: plugin["status"] for plugin in rival["plugins"]}
    assert (status["rival_tp"], status["tp"]) == ("active", "disabled")
    names = {part["name"] for part in rival["performance_breakdown"][0]["parts"]}
    assert "textbook all-reduces" in names


def test_rival_with_its_own_rule_and_section(
    autopar: Autopar, plugin_file: Callable[[str], str]
) -> None:
    start = ("--disable", "tp", "--plugin", plugin_file("rival_tp"), "--set", "model.heads=8")
    start = (*start, "--set", "model.kv_heads=8")
    document = autopar(*start)
    rules = {rule["code"]: rule["owner"] for rule in document["infeasible_summary"]["rules"]}
    assert rules["rival-heads"] == "rival_tp"
    slow, fast = (
        autopar(*start, "--fix", "tp=2", "--set", f"plugins.rival_tp.bytes_per_second={rate}")
        for rate in (1e9, 1e12)
    )
    costs = [d["top_k_strategies"][0]["performance_cost"] for d in (slow, fast)]
    assert costs[0] > costs[1]


def test_rival_beside_the_shipped_plugin_is_refused(
    refused: Callable[..., str], plugin_file: Callable[[str], str]
) -> None:
    sentence = refused("--plugin", plugin_file("rival_tp"))
    assert sentence.startswith("dimension 'tp' is claimed by 'rival_tp' (rival_tp.py) and 'tp' (")
    assert sentence.endswith("run with --disable rival_tp or --disable tp")


def test_fourth_framework(
    autopar: Autopar, plugin_file: Callable[[str], str], tmp_path: Path, table: Table
) -> None:
    out = tmp_path / "out"
    start = ("--plugin", plugin_file("fourth_framework"))
    document = autopar(*start, "--set", "framework.name=lumen", "--out", str(out))
    fallen = [row for row in table(out / "rejected.csv") if row["code"] == "lumen-even"]
    assert fallen
    assert {row["owner"] for row in fallen} == {"fourth_framework"}
    assert fallen[0]["sentence"] == "lumen packs sequences in pairs: micro_batch_size 1 is odd"
    for strategy in document["top_k_strategies"]:
        assert strategy["micro_batch_size"] == 2
        assert strategy["zero_stage"] in (0, 1)
    context = [
        part["bytes"]
        for part in document["memory_breakdown"][0]["reserves"]
        if part["name"] == "runtime context"
    ]
    assert context == [1_500_000_000]
    # the same plugin under another framework: no rule of its own
    other = autopar(*start)
    codes = {rule["code"] for rule in other["infeasible_summary"]["rules"]}
    assert "lumen-even" not in codes


def test_framework_is_unknown_without_its_plugin(autopar: Autopar) -> None:
    document = autopar("--set", "framework.name=lumen")
    assert any("'lumen' has no profile" in line for line in document["search_log"])


def test_system(autopar: Autopar, plugin_file: Callable[[str], str]) -> None:
    start = ("--plugin", plugin_file("lab_system"), "--set", "cluster.system=lab-a100")
    document = autopar(*start)
    assert document["memory_breakdown"][0]["limit_bytes"] == 48 * 2**30
    # tp 6 leaves the domain of four devices, which is told, not forbidden
    document = autopar(*start, "--fix", "tp=6", "--set", "model.ffn_hidden=4608")
    assert document["top_k_strategies"][0]["warnings"] == [
        "tp 6 leaves the scale-up domain of 4 devices"
    ]


CARD = "card\nlayers=8\nwidth=1024\nffn=4096\nheads=16\nkv=8\nwords=32000\ntokens=1024\n"
SOURCE = """
[model]
source = "small.card"
[training]
global_batch_size = 24
[cluster]
system = "a100-sxm-80gb"
devices = 6
"""


def test_reader(
    autopar: Autopar, plugin_file: Callable[[str], str], input_file: Path, tmp_path: Path
) -> None:
    input_file.write_text(SOURCE)
    (tmp_path / "small.card").write_text(CARD)
    document = autopar("--plugin", plugin_file("card_reader"))
    line = next(line for line in document["search_log"] if line.startswith("model"))
    assert "small, " in line
    assert "8 layers, hidden 1024" in line
    line = next(line for line in document["search_log"] if line.startswith("training"))
    assert "24 sequences of 1,024 tokens" in line


def test_reader_says_what_is_wrong(
    refused: Callable[..., str],
    plugin_file: Callable[[str], str],
    input_file: Path,
    tmp_path: Path,
) -> None:
    input_file.write_text(SOURCE)
    (tmp_path / "small.card").write_text(CARD + "depth=3\n")
    sentence = refused("--plugin", plugin_file("card_reader"))
    assert sentence == "small.card: a card has no line 'depth' (reader 'card')"
    (tmp_path / "small.card").write_text("nothing\n")
    assert "no reader knows the content" in refused("--plugin", plugin_file("card_reader"))
