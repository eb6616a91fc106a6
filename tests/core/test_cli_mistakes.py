"""Wrong input to the command line is one sentence; what needs no search answers at once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import cli_stub
import pytest
from cli_stub import ROOT, Search, fails

from autopar_core.api import Reader, hookimpl
from autopar_core.cli import session
from autopar_core.cli.main import COMMANDS, main


stub = cli_stub.stub
run_file = cli_stub.run_file


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
