"""The command line end to end with a stub for the search: output, exit codes, files."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from attrs import evolve

import autopar_core.search
from autopar_core.api import Reader, SearchResult, hookimpl
from autopar_core.cli import session
from autopar_core.cli.main import COMMANDS, main
from autopar_core.cli.words import brief
from autopar_core.domain.job import Job


ROOT = Path(__file__).resolve().parents[2]
INPUT = """
[model]
source = "llama-3-70b"
[training]
global_batch_size = 1024
seq_len = 8192
[cluster]
system = "h100-sxm-80gb"
devices = 256
memory_limit = "72 GiB"
[search]
tp = [1, 2, 4, 8]
"""


def _factory() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "result_factory", Path(__file__).with_name("result_factory.py")
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


make_result = _factory().make_result


class Search:
    """Stands in for ``autopar_core.search.run``; remembers what it was asked."""

    def __init__(self) -> None:
        self.jobs: list[Job] = []
        self.fields: Mapping[str, Any] = {}
        self.feasible = True
        self.chatter = ""
        self.error: Exception | None = None

    def search(self, job: Job, manager: Any, **options: Any) -> SearchResult:
        self.jobs.append(job)
        if self.error:
            raise self.error
        options["progress"](1, 2)
        if self.chatter:
            sys.stdout.write(self.chatter)
        result: SearchResult = make_result(60, feasible=self.feasible)
        return evolve(result, job=job)

    def estimate(self, job: Job, manager: Any, fields: Mapping[str, Any]) -> SearchResult:
        self.jobs.append(job)
        self.fields = fields
        result: SearchResult = make_result(60, feasible=self.feasible, top=1)
        shown = result.top or result.misses
        spelled = {**shown[0].strategy.fields, **fields}
        detail = evolve(shown[0], strategy=evolve(shown[0].strategy, fields=spelled))
        top, misses = ((detail,), ()) if self.feasible else ((), (detail,))
        return evolve(result, job=job, top=top, misses=misses)


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> Search:
    search = Search()
    name = "autopar_core.search.run"
    module: Any = SimpleNamespace(search=search.search, estimate=search.estimate)
    monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(autopar_core.search, "run", module, raising=False)
    return search


@pytest.fixture
def run_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "run.toml"
    path.write_text(INPUT)
    return path


def fails(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one sentence of a command that must be refused."""
    capsys.readouterr()
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert "Traceback" not in err
    assert err.count("\n") == 1
    return err.removeprefix("error: ").rstrip("\n")


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


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["search", "absent.toml"], "absent.toml: no such file"),
        (["search"], "give an input file or --from DIR, one of them"),
        (["search", "--from", "absent"], "--from absent: no such folder"),
        (["search", "--from", "."], "--from .: no run of autopar: it has no result.json"),
        (["search", "run.toml", "--set", "training.seqlen=4"],
         "--set: training.seqlen: unknown key; did you mean seq_len?"),
        (["search", "run.toml", "--set", "training.seq_len=abc"],
         "--set: training.seq_len: expected a whole number, got 'abc'"),
        (["search", "run.toml", "--set", "training"],
         "--set: 'training' is no assignment; write KEY=VALUE"),
        (["search", "run.toml", "--set", "model.experts=8"],
         "--set: model.experts = 8: mixture-of-experts is not supported; autopar plans dense "
         "models only"),
        (["search", "run.toml", "--set", "model.source=llama-3-71b"],
         "--set: model.source: 'llama-3-71b' is neither a file nor a known preset; "
         "did you mean llama-3-70b?"),
        (["search", "run.toml", "--set", "cluster.system=h100-sxm-80"],
         "--set: cluster.system: unknown system 'h100-sxm-80'; did you mean h100-sxm-80gb?"),
        (["search", "run.toml", "--set", "search.tp=[]"],
         "--set: search.tp: empty search space: the list has no value; leave the key out for every "
         "legal value"),
        (["search", "run.toml", "--fix", "tp=0"],
         "--fix: search.tp: must be a positive whole number, got 0"),
        (["search", "run.toml", "--fix", "tp=-4"],
         "--fix: search.tp: must be a positive whole number, got -4"),
        (["search", "run.toml", "--top-k", "0"],
         "--top-k: search.top_k: expected a positive whole number, got 0"),
        (["search", "run.toml", "--rank-by", "speed"],
         "--rank-by: search.rank_by: unknown name 'speed'; known: step_time, memory_headroom, "
         "weighted, time_then_memory"),
        (["search", "run.toml", "--workers", "-1"],
         "Invalid value for '--workers': -1 is not in the range x>=0; see autopar search --help"),
        (["search", "run.toml", "--ranked"],
         "No such option: --ranked Did you mean --rank-by?; see autopar search --help"),
        (["estimate", "run.toml"], "strategy: name at least one field, FIELD=VALUE"),
        (["estimate", "run.toml", "tpp=3"], "strategy: tpp: unknown field; did you mean tp?"),
        (["estimate", "run.toml", "tp=0"],
         "strategy: tp: must be a positive whole number, got 0"),
        (["estimate", "run.toml", "tp=2", "tp_degree=2"],
         "strategy: tp_degree: tp_degree is given twice"),
        (["estimate", "run.toml", "stage_partition=[1, 2]"],
         "strategy: search.stage_partition: [1, 2] places 3 layers, but the model has 80"),
        (["model", "llama-3-71b"],
         "model: 'llama-3-71b' is neither a file nor a known preset; did you mean llama-3-70b?"),
        (["model", "no/config.json"], "model: no such file: no/config.json"),
        (["report", "nowhere"], "report nowhere: no such folder"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_sentence_and_exit_two(
    arguments: list[str],
    expected: str,
    stub: Search,
    run_file: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    said = fails(capsys, *arguments)
    if said.startswith(("No such option", "Invalid value")):  # words of click, which may change
        said, expected = said[:14], expected[:14]
    assert said == expected


def test_unknown_plugins(stub: Search, run_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for option in ("--disable", "--only"):
        said = fails(capsys, "search", "run.toml", option, "builtinn")
        assert "'builtinn'" in said
        assert "no such plugin" in said
    said = fails(capsys, "search", "run.toml", "--set", "plugins.bultin={a = 1}")
    assert said == "--set: plugins.bultin: unknown plugin 'bultin'; did you mean builtin?"
    assert "absent.py" in fails(capsys, "search", "run.toml", "--plugin", "absent.py")
    Path("broken.py").write_text("import nothing_of_that_name\n")
    said = fails(capsys, "search", "run.toml", "--plugin", "broken.py")
    assert said.startswith("--plugin broken.py: ModuleNotFoundError")


def test_not_json_and_no_result(run_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("bad").mkdir()
    Path("bad/result.json").write_text("{")
    assert "is no valid JSON" in fails(capsys, "report", "bad")
    Path("bad/result.json").write_text('{"inputs": 1}')
    assert fails(capsys, "diff", "bad", "bad").endswith("is no result of autopar")


def test_faults_of_autopar_are_told_apart(
    stub: Search,
    run_file: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stub.error = ZeroDivisionError("x")
    assert main(["search", "run.toml"]) == 3
    err = capsys.readouterr().err
    assert "autopar itself failed (ZeroDivisionError: x); please report it" in err
    assert "Traceback" not in err
    monkeypatch.setenv("AUTOPAR_DEBUG", "1")
    assert main(["search", "run.toml"]) == 3
    assert "Traceback" in capsys.readouterr().err
    stub.error = KeyboardInterrupt()  # type: ignore[assignment]
    assert main(["search", "run.toml"]) == 130


def test_model_counts_exactly(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["model", "llama-3-70b", "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert set(made) == {"parameters", "fields"}
    assert made["parameters"] == 70553706496
    assert made["fields"]["vocab"] == {"value": 128256, "source": "preset llama-3-70b"}
    assert made["fields"]["norm"]["source"] == "default"
    assert main(["model", "llama-3-70b"]) == 0
    assert "70,553,706,496 parameters" in capsys.readouterr().out


class Kit:
    """A plugin with a reader that names the key of each field."""

    @hookimpl
    def autopar_plugin_info(self) -> Any:
        from autopar_core.api import API_VERSION, PluginInfo

        return PluginInfo(api=API_VERSION, summary="Kit.")

    @hookimpl
    def autopar_readers(self) -> list[Reader]:
        table: dict[str, Any] = {
            "num_layers": 2, "hidden": 64, "ffn_hidden": 128, "heads": 8, "kv_heads": 2, "vocab": 9,
        }  # fmt: skip
        read: dict[str, dict[str, Any]] = {
            "model": table,
            "sources": {"model.hidden": "hidden_size"},
        }
        return [Reader("kit", "Kit.", lambda path, text: True, lambda path, text: read)]


def test_model_of_a_file_names_its_keys(
    run_file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from autopar_core.plugins.manager import PluginManager

    kit = PluginManager.load(extra=[("kit", Kit())], entry_points=False)
    monkeypatch.setattr("autopar_core.cli.model.load_plugins", lambda *_: kit)
    Path("checkpoint").mkdir()
    Path("checkpoint/config.json").write_text("{}")
    assert main(["model", "checkpoint", "--json"]) == 0
    fields = json.loads(capsys.readouterr().out)["fields"]
    assert fields["name"]["value"] == "checkpoint"
    assert fields["hidden"]["source"] == "config.json (kit): hidden_size"
    assert fields["heads"]["source"] == "config.json (kit)"


@pytest.mark.parametrize("command", ["plugins", "systems", "frameworks"])
def test_listings(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command]) == 0
    assert capsys.readouterr().out
    assert main([command, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)


def test_help_of_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    for name in COMMANDS:
        assert name in shown
        assert main([name, "--help"]) == 0
        assert "Usage: autopar" in capsys.readouterr().out
    assert main(["serch"]) == 2


def test_shipped_plugins_can_be_imported() -> None:
    assert {record.name for record in session.load_plugins().records} >= set(session.SHIPPED)


def test_start_is_fast_and_imports_little() -> None:
    code = (
        "import sys; from autopar_core.cli.main import main; main(['--help']);"
        "sys.exit(int(bool({'numpy', 'rich', 'matplotlib', 'cattrs'} & set(sys.modules))))"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, check=False
    )
    assert done.returncode == 0
    assert time.perf_counter() - start < 2  # 0.1 s on an idle machine
