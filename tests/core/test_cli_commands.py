"""The command line end to end with a stub for the search: output, exit codes, files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import cli_stub
import pytest
from cli_stub import INPUT, Search, fails

from autopar_core.cli.main import main
from autopar_core.cli.words import brief


stub = cli_stub.stub
run_file = cli_stub.run_file


def test_search_prints_tables(
    stub: Search, run_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["search", "run.toml", "--fix", "tp=4", "--top-k", "3"]) == 0
    out, err = capsys.readouterr()
    assert "Best strategies" in out
    assert err == ""
    assert stub.jobs[0].space.wanted == {"tp_degree": (4,)}
    assert stub.jobs[0].space.top_k == 3
    assert stub.jobs[0].sources["search.top_k"] == "--top-k"


def test_json_is_the_content_of_the_file_and_nothing_else(
    stub: Search, run_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["search", "run.toml", "--json", "--out", "out", "--no-charts"]) == 0
    out, _ = capsys.readouterr()
    assert out == Path("out/result.json").read_text()
    document = json.loads(out)
    assert document["inputs"]["raw"]["search"] == {"tp": [1, 2, 4, 8]}
    assert str(run_file.parent) not in out
    names = {path.name for path in Path("out").iterdir()}
    assert {"result.json", "candidates.csv", "rejected.csv", "search.log"} <= names
    assert not {"charts", "report.html"} & names


def test_what_plugins_print_stays_out_of_the_answer(
    stub: Search, run_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stub.chatter = "look at me"
    assert main(["search", "run.toml", "--json"]) == 0
    out, err = capsys.readouterr()
    assert "look at me" in err
    assert json.loads(out)["schema_version"]


def test_nothing_fits_is_exit_one(
    stub: Search, run_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stub.feasible = False
    assert main(["search", "run.toml"]) == 1
    assert "No feasible strategy" in capsys.readouterr().out


def test_an_earlier_run_starts_again_with_changes(
    stub: Search, run_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["search", "run.toml", "--out", "one", "--no-charts"])
    run_file.unlink()
    more = ["--fix", "tp=8", "--set", "training.seq_len=4096", "--out", "two", "--no-charts"]
    assert main(["search", "--from", "one", *more]) == 0
    first, second = stub.jobs
    assert (first.training.seq_len, second.training.seq_len) == (8192, 4096)
    assert second.space.wanted == {"tp_degree": (8,)}
    assert second.sources["training.global_batch_size"] == "run.toml"
    assert second.sources["model.hidden"] == "preset llama-3-70b"
    capsys.readouterr()

    assert main(["diff", "one", "two", "--json"]) == 0
    changes = {each["key"]: each for each in json.loads(capsys.readouterr().out)["inputs"]}
    assert changes["training.seq_len"] == {"key": "training.seq_len", "before": 8192, "after": 4096}
    assert main(["diff", "one", "two"]) == 0
    assert "training.seq_len" in capsys.readouterr().out


def test_a_plugin_of_the_earlier_run_is_missed(
    stub: Search, run_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("extra.py").write_text(
        "from autopar_core.api import API_VERSION, PluginInfo, hookimpl\n"
        "@hookimpl\n"
        "def autopar_plugin_info():\n"
        "    return PluginInfo(api=API_VERSION, summary='Extra.')\n"
    )
    main(["search", "run.toml", "--plugin", "extra.py", "--out", "one", "--no-charts"])
    document = json.loads(Path("one/result.json").read_text())
    document["plugins"] = [{"name": "extra", "status": "active"}]
    Path("one/result.json").write_text(json.dumps(document))
    main(["search", "--from", "one", "--json"])
    main(["search", "--from", "one", "--json", "--plugin", "extra.py"])
    missed = "the earlier run also used the plugin 'extra', which is not here"
    assert [missed in job.notes for job in stub.jobs] == [False, True, False]


OVERRIDES = """
devices_per_node = 4
[cluster.override.gemm]
efficiency = 0.5
[framework.override.core]
workspace_bytes = 5
"""


@pytest.mark.parametrize("kind", ["plain", "overrides", "file"])
def test_the_same_input_gives_the_same_bytes_from_an_earlier_run(
    kind: str, stub: Search, run_file: Path
) -> None:
    if kind == "overrides":
        run_file.write_text(INPUT.replace("[search]", f"{OVERRIDES}[search]"))
    if kind == "file":
        Path("ours.toml").write_text('base = "h100-sxm-80gb"\nmemory_bytes = 85899345920\n')
        run_file.write_text(INPUT.replace("h100-sxm-80gb", "ours.toml"))
    main(["search", "run.toml", "--out", "one", "--no-charts"])
    main(["search", "--from", "one", "--out", "two", "--no-charts"])
    for path in Path("one").iterdir():
        assert path.read_bytes() == (Path("two") / path.name).read_bytes(), path.name


def test_estimate_takes_fields_short_forms_and_plans(
    stub: Search, run_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fields = ["dp=8", "tp_degree=4", "pp=8", "sp=true", "mbs=1", "layer_recompute=full"]
    assert main(["estimate", "run.toml", *fields, "--json"]) == 0
    assert stub.fields == {
        "dp_degree": 8, "tp_degree": 4, "pp_degree": 8, "sequence_parallel": True,
        "micro_batch_size": 1,
    }  # fmt: skip
    assert [plan.kind for plan in stub.jobs[0].space.recomputes] == ["full"]
    strategy = json.loads(capsys.readouterr().out)["top_k_strategies"][0]
    assert (strategy["dp_degree"], strategy["tp_degree"]) == (8, 4)
    stub.feasible = False
    assert main(["estimate", "run.toml", "dp=8"]) == 1


def test_explain_compares_part_by_part(
    stub: Search, run_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["search", "run.toml", "--out", "one", "--no-charts"])
    capsys.readouterr()
    assert main(["explain", "one", "dp=2", "tp=2", "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert made["sentence"].startswith("it is feasible but not the best by step_time")
    assert made["winner"]["place"] == 1
    assert {"owner", "name", "winner", "this", "difference"} == set(made["time"][0])
    stub.feasible = False
    assert main(["explain", "one", "dp=2", "tp=2"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("it is not feasible: ")
    assert "optimizer states" in out


def _edit(folder: Path, **changes: Any) -> None:
    """The best strategy of a run, changed in place."""
    path = folder / "result.json"
    document = json.loads(path.read_text())
    document["top_k_strategies"][0].update(changes)
    path.write_text(json.dumps(document))


def test_a_strategy_that_beats_the_winner_is_said_to(
    stub: Search, run_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["search", "run.toml", "--out", "one", "--no-charts"])
    _edit(run_file.parent / "one", performance_cost=1e6)
    capsys.readouterr()
    assert main(["explain", "one", "dp=2", "tp=2"]) == 0
    said = capsys.readouterr().out.splitlines()[0]
    assert said.startswith("it is feasible and better than the winner, so the run did not try it: ")
    assert "% faster than the winner" in said


def test_a_strategy_is_the_same_whatever_its_search_saved(
    stub: Search, run_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for folder, gap in (("one", 0.01), ("two", 0.02)):
        main(["search", "run.toml", "--out", folder, "--no-charts"])
        _edit(run_file.parent / folder, partition_gap=gap, partition_gain=2 * gap)
    capsys.readouterr()
    assert main(["diff", "one", "two", "--json"]) == 0
    first = json.loads(capsys.readouterr().out)["strategies"][0]
    assert (first["place_before"], first["place_after"]) == (1, 1)
    assert not {"partition_gap", "partition_gain"} & set(first["strategy"])


def test_a_strategy_in_two_lines() -> None:
    strategy = {
        "place": 1, "dp_degree": 1, "tp_degree": 8, "micro_batch_size": 2, "vpp_degree": 2,
        "schedule": "interleaved", "sequence_parallel": True, "zero_stage": 0,
        "stage_partition": [[3, 4, 4], [4, 4, 3]],
        "layer_recompute": {"selective": [[0, 0, 0], [0, 0, 0]], "full": [[2, 1, 0], [0, 0, 0]]},
        "partition_gap": 0.1,
    }  # fmt: skip
    assert brief(strategy) == (
        "dp1 tp8 mbs2 vpp2 interleaved sp\nlayers 7, 8, 7; recomputed full 3"
    )


def test_report_prints_a_run_again(
    stub: Search, run_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["search", "run.toml", "--out", "one", "--no-charts"])
    capsys.readouterr()
    assert main(["report", "one"]) == 0
    assert "Best strategies" in capsys.readouterr().out
    assert main(["report", "one", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(Path("one/result.json").read_text())


def test_a_run_is_replaced_but_nothing_else_is(
    stub: Search, run_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["search", "run.toml", "--no-charts", "--out"]
    Path("out").mkdir()
    assert main([*arguments, "out"]) == 0
    assert main([*arguments, "out"]) == 0
    Path("out/thesis.tex").write_text("mine")
    assert "(thesis.tex)" in fails(capsys, *arguments, "out")
    assert Path("out/thesis.tex").read_text() == "mine"
    assert fails(capsys, *arguments, ".").startswith("--out .: is the current folder")
    Path("full").mkdir()
    Path("full/a").touch()
    assert "is neither empty nor an earlier run" in fails(capsys, *arguments, "full")
    assert "is a file" in fails(capsys, *arguments, "run.toml")
    assert sorted(path.name for path in Path().iterdir()) == ["full", "out", "run.toml"]


def test_a_failure_leaves_no_half_folder(
    stub: Search,
    run_file: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def full(self: Path, content: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    assert main(["search", "run.toml", "--no-charts", "--out", "out"]) == 2
    assert (
        capsys.readouterr().err == "error: --out out: cannot be written: No space left on device\n"
    )
    assert [path.name for path in Path().iterdir()] == ["run.toml"]
