"""From a launch file to a price, a comparison, and back to a launch file, on the command line."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from autopar_core.cli.main import main


ROOT = Path(__file__).resolve().parents[2]
NANOTRON = """model:
  dtype: bfloat16
  model_config: {is_llama_config: true, hidden_size: 1024, intermediate_size: 4096,
    num_hidden_layers: 16, num_attention_heads: 16, num_key_value_heads: 8, vocab_size: 32768,
    max_position_embeddings: 4096}
optimizer: {zero_stage: 1}
parallelism: {dp: 2, tp: 4, pp: 1, tp_mode: ALL_REDUCE, recompute_layer: true}
tokens: {sequence_length: 4096, micro_batch_size: 1, batch_accumulation_per_replica: 32}
"""
DEEPSPEED = """{"train_batch_size": 64, "train_micro_batch_size_per_gpu": 1,
"gradient_accumulation_steps": 8, "bf16": {"enabled": true}, "zero_optimization": {"stage": 2}}
"""
REST = '[cluster]\nsystem = "h100-sxm-80gb"\n[search]\nmicro_batch_size = [1, 2]\n'


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Runs a command in a folder with the launch files; returns (code, output, errors)."""
    monkeypatch.chdir(tmp_path)
    Path("today.yaml").write_text(NANOTRON)
    Path("ds.json").write_text(DEEPSPEED)
    Path("rest.toml").write_text(REST)

    def command(*arguments: str) -> tuple[int, str, str]:
        code = main(list(arguments))
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return command


@cache
def validator() -> Draft202012Validator:
    return Draft202012Validator(json.loads((ROOT / "docs" / "result.schema.json").read_text()))


def document(run: Any, *arguments: str) -> dict[str, Any]:
    code, out, err = run(*arguments, "--json")
    assert code == 0, err
    made: dict[str, Any] = json.loads(out)
    validator().validate(made)
    return made


def test_estimate_prices_what_the_file_runs(run: Any) -> None:
    made = document(run, "estimate", "rest.toml", "--from-config", "today.yaml")
    (strategy,) = made["top_k_strategies"]
    said = {"dp_degree": 2, "tp_degree": 4, "pp_degree": 1, "cp_degree": 1, "micro_batch_num": 32}
    assert {key: strategy[key] for key in said} == said
    assert strategy["sequence_parallel"] is False
    assert strategy["layer_recompute"]["full"] == [16]
    inputs = made["inputs"]
    assert inputs["training"]["global_batch_size"] == {
        "value": 64,
        "source": "today.yaml (nanotron): inferred: micro_batch_size x batch_accumulation_per_replica"
        " x dp",
    }
    assert inputs["cluster"]["devices"]["value"] == 8
    assert inputs["framework"]["name"] == "nanotron"
    assert inputs["model"]["hidden"]["source"].endswith("line 3, model.model_config.hidden_size")


def test_estimate_needs_no_input_file(run: Any) -> None:
    made = document(
        run, "estimate", "--from-config", "today.yaml", "--set", "cluster.system=h100-sxm-80gb"
    )
    assert made["top_k_strategies"][0]["tp_degree"] == 4


def test_fields_on_the_command_line_win_over_the_file(run: Any) -> None:
    changes = ("sp=true", "m=16", "mbs=2")
    made = document(run, "estimate", "rest.toml", "--from-config", "today.yaml", *changes)
    strategy = made["top_k_strategies"][0]
    assert (strategy["sequence_parallel"], strategy["micro_batch_num"]) == (True, 16)


def test_a_file_without_a_model_takes_one_beside_it(run: Any) -> None:
    rest = ("--set", "cluster.devices=8", "--set", "training.seq_len=2048", "layer_recompute=full")
    made = document(
        run, "estimate", "rest.toml", "--from-config", "ds.json", "--model", "llama-3.2-1b", *rest
    )
    strategy = made["top_k_strategies"][0]
    assert (strategy["dp_degree"], strategy["zero_stage"]) == (8, 2)
    code, _, err = run("estimate", "rest.toml", "--from-config", "ds.json", *rest)
    assert code == 2
    assert "model: missing" in err


def test_two_files_of_one_job_must_agree(run: Any) -> None:
    Path("other.json").write_text(DEEPSPEED.replace('"stage": 2', '"stage": 3'))
    code, _, err = run(
        "estimate", "rest.toml", "--from-config", "ds.json", "--from-config", "other.json"
    )
    assert code == 2
    assert err == (
        "error: strategy.zero_stage is 2 in ds.json (deepspeed): key zero_optimization.stage but 3 in "
        "other.json (deepspeed): key zero_optimization.stage; only one of them can hold\n"
    )
    code, _, err = run(
        "estimate", "rest.toml", "--from-config", "today.yaml", "--from-config", "ds.json"
    )
    assert "framework.name is nanotron in today.yaml (nanotron)" in err


def test_search_shows_today_beside_the_answers(run: Any) -> None:
    made = document(run, "search", "rest.toml", "--compare", "today.yaml", "--fix", "cp=1")
    today, best = made["visualization_report"]["today"], made["top_k_strategies"][0]
    assert today["feasible"]
    assert today["source"] == "today.yaml (nanotron)"
    assert (today["strategy"]["place"], today["strategy"]["row"]) == (0, -1)
    ratio = best["performance_cost"] / today["strategy"]["performance_cost"]
    assert today["gain"] == pytest.approx(1 - ratio)
    assert today["gain"] > 0.1
    changed = {one["field"]: (one["today"], one["best"]) for one in today["changes"]}
    assert "tp_degree" in changed
    for field, (before, after) in changed.items():
        assert before == today["strategy"][field]
        assert after == best[field]
    assert f"takes {today['strategy']['performance_cost']:.3g} s a step" in today["sentence"]


def test_today_is_priced_as_estimate_prices_it(run: Any) -> None:
    alone = document(run, "estimate", "rest.toml", "--from-config", "today.yaml")
    beside = document(run, "search", "rest.toml", "--compare", "today.yaml", "--fix", "tp=4")
    cost = beside["visualization_report"]["today"]["strategy"]["performance_cost"]
    assert alone["top_k_strategies"][0]["performance_cost"] == cost


def test_the_table_has_a_row_for_today_and_the_folder_keeps_it(run: Any, tmp_path: Path) -> None:
    code, out, _ = run(
        "search",
        "rest.toml",
        "--compare",
        "today.yaml",
        "--fix",
        "tp=4",
        "--out",
        "run",
        "--no-charts",
    )
    assert code == 0
    assert "\n today " in out
    assert "today.yaml (nanotron) takes" in out
    Path("today.yaml").unlink()
    again = document(run, "search", "--from", "run")
    assert again["visualization_report"]["today"]["source"] == "today.yaml (nanotron)"
    first = json.loads(Path("run/result.json").read_text())
    assert first["visualization_report"]["today"] == again["visualization_report"]["today"]


def test_today_may_be_written_down_as_fields(run: Any) -> None:
    Path("rest.toml").write_text(
        '[model]\nsource = "today.yaml"\n' + REST + "tp = 4\n[today]\ntp = 8\nmbs = 2\n"
    )
    today = document(run, "search", "rest.toml")["visualization_report"]["today"]
    assert (today["source"], today["strategy"]["tp_degree"]) == ("today", 8)


def test_today_of_another_job_is_refused(run: Any) -> None:
    code, _, err = run(
        "search", "rest.toml", "--compare", "today.yaml", "--set", "training.seq_len=2048"
    )
    assert code == 2
    assert "training.seq_len is 4096 in today.yaml (nanotron): line 8" in err
    assert "but 2048 here (--set)" in err


def test_today_that_cannot_run_says_why(run: Any) -> None:
    Path("today.yaml").write_text(NANOTRON.replace("{dp: 2, tp: 4", "{dp: 1, tp: 16"))
    made = document(run, "search", "rest.toml", "--compare", "today.yaml")
    today = made["visualization_report"]["today"]
    assert not today["feasible"]
    assert "KV heads" in today["filter_reason"]
    assert today["sentence"].startswith("today.yaml (nanotron) cannot run here as it is: ")


def test_export_writes_what_the_run_found(run: Any) -> None:
    code, _, _ = run(
        "search", "rest.toml", "--set", "model.source=today.yaml", "--out", "run", "--no-charts"
    )
    assert code == 0
    code, out, _ = run("export", "run", "--to", "nanotron", "--out", "launch")
    assert code == 0
    assert out.split() == ["launch/config.yaml", "launch/launch.sh"]
    best = json.loads(Path("run/result.json").read_text())["top_k_strategies"][0]
    text = Path("launch/config.yaml").read_text()
    assert text.startswith("# autopar ")
    assert "estimated step time" in text.splitlines()[0]
    again = document(run, "estimate", "rest.toml", "--from-config", "launch/config.yaml")
    assert again["top_k_strategies"][0]["performance_cost"] == best["performance_cost"]
    # An earlier export is replaced; files of someone else are not.
    assert run("export", "run", "--to", "nanotron", "--place", "2", "--out", "launch")[0] == 0
    Path("launch/notes.txt").write_text("mine")
    code, _, err = run("export", "run", "--to", "nanotron", "--out", "launch")
    assert (code, err.count("\n")) == (2, 1)
    assert "holds other files (notes.txt)" in err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--to", "nanotorn"), "--to nanotorn: unknown format; did you mean nanotron?"),
        (("--to", "nanotron", "--place", "99"), "no such place; the run has places 1 to 10"),
    ],
)
def test_export_says_what_is_wrong(run: Any, arguments: tuple[str, ...], said: str) -> None:
    run("search", "rest.toml", "--set", "model.source=today.yaml", "--out", "run", "--no-charts")
    code, out, err = run("export", "run", *arguments, "--out", "launch")
    assert (code, out) == (2, "")
    assert said in err
    assert not Path("launch").exists()


def test_what_cannot_be_said_is_refused_with_the_nearest(run: Any) -> None:
    fixed = [part for one in ("zero=3", "tp=1", "pp=1", "cp=1") for part in ("--fix", one)]
    changes = ("--set", "model.source=today.yaml", "--set", "framework.name=generic")
    run("search", "rest.toml", *changes, *fixed, "--out", "run", "--no-charts")
    code, _, err = run("export", "run", "--to", "nanotron", "--out", "launch")
    assert code == 2
    assert err == (
        "error: zero_stage: nanotron accepts stage 3 and runs it as 1; the nearest it can express: "
        "zero_stage = 1\n"
    )
    assert not Path("launch").exists()


def test_several_readers_may_know_a_file(run: Any) -> None:
    Path("odd.py").write_text(
        "from autopar_core.api import PluginInfo, Reader, hookimpl\n"
        "@hookimpl\ndef autopar_plugin_info():\n    return PluginInfo(api=(1, 0), summary='Odd.')\n"
        "@hookimpl\ndef autopar_readers():\n"
        "    return (Reader('odd', 'Odd', lambda path, text: True, lambda path, text: {}),)\n"
    )
    code, _, err = run("model", "today.yaml", "--plugin", "odd.py")
    assert code == 2
    assert "today.yaml looks like several formats (nanotron, odd)" in err
    assert run("model", "today.yaml", "--plugin", "odd.py", "--reader", "nanotron")[0] == 0
    code, _, err = run("model", "today.yaml", "--reader", "nanotrom")
    assert "no reader is named 'nanotrom'; did you mean nanotron?" in err


def test_model_shows_the_whole_file_with_places(run: Any) -> None:
    code, out, _ = run("model", "today.yaml", "--json")
    made = json.loads(out)
    assert code == 0
    assert (
        made["parameters"]
        == made["fields"]["num_layers"]["value"]
        * (4 * 1024 * 1024 - 1024 * 1024 + 3 * 1024 * 4096 + 2 * 1024)
        + 2 * 32768 * 1024
        + 1024
    )
    assert made["strategy"]["tp_degree"] == {
        "value": 4,
        "source": "today.yaml (nanotron): line 7, parallelism.tp",
    }
    code, out, _ = run("model", "today.yaml")
    assert "Strategy" in out
    assert "line 7, parallelism.tp" in out


MINDFORMERS = """runner_config: {batch_size: 1}
use_parallel: True
parallel: {parallel_mode: 1, full_batch: True, enable_parallel_optimizer: True}
parallel_config: {data_parallel: 2, model_parallel: 4, pipeline_stage: 2, micro_batch_num: 8}
recompute_config: {recompute: True}
model:
  model_config: {type: LlamaConfig, seq_length: 4096, hidden_size: 1024, num_layers: 16,
    num_heads: 16, n_kv_heads: 8, intermediate_size: 4096, vocab_size: 32000, compute_dtype: bfloat16}
"""


def test_a_tuner_request_replaces_the_batch_of_the_file_that_it_names(run: Any) -> None:
    """64 sequences over dp 2 in micro-batches of 1 are 32 of them, whatever 8 the YAML says."""
    Path("base.yaml").write_text(MINDFORMERS)
    Path("tuner.json").write_text('{"rank_num": 16, "gbs": 64, "yaml_path": "./base.yaml"}')
    system = ("--set", "cluster.system=ascend-910b")
    made = document(run, "estimate", "--from-config", "tuner.json", *system)
    (strategy,) = made["top_k_strategies"]
    assert (strategy["dp_degree"], strategy["micro_batch_num"]) == (2, 32)
    _, out, _ = run("model", "tuner.json")
    assert "micro_batch_num 8 is left open" in " ".join(out.split())


MEGATRON = """torchrun --nproc_per_node 8 --nnodes 1 pretrain_gpt.py \\
  --num-layers 16 --hidden-size 1024 --ffn-hidden-size 4096 --num-attention-heads 16 \\
  --seq-length 4096 --max-position-embeddings 4096 --vocab-size 32000 --swiglu \\
  --position-embedding-type rope --normalization RMSNorm --disable-bias-linear --bf16 \\
  --untie-embeddings-and-output-weights --pipeline-model-parallel-size 4 \\
  --num-virtual-stages-per-pipeline-rank 2 --micro-batch-size 1 --global-batch-size 32 \\
  --use-distributed-optimizer --microbatch-group-size-per-virtual-pipeline-stage {group} {more}
"""


def test_groups_of_interleaving_come_in_and_go_out(run: Any, tmp_path: Path) -> None:
    """Groups of 8 keep more micro-batches in flight than groups of the 4 ranks."""
    held = {}
    for group in (4, 8):
        Path("run.sh").write_text(MEGATRON.format(group=group, more=""))
        made = document(run, "estimate", "--from-config", "run.sh", "--set",
                        "cluster.system=h100-sxm-80gb")  # fmt: skip
        held[group] = made["top_k_strategies"][0]["memory_cost"]
    assert held[8] > held[4]
    out = tmp_path / "out"
    fixed = ("--fix", "schedule=interleaved", "--fix", "pp=4", "--fix", "vpp=2", "--fix", "tp=1")
    code, _, err = run("search", "rest.toml", "--compare", "run.sh", *fixed, "--top-k", "1",
                       "--no-charts", "--out", str(out))  # fmt: skip
    assert code == 0, err
    code, text, err = run("export", str(out), "--to", "megatron")
    assert code == 0, err
    assert "--microbatch-group-size-per-virtual-pipeline-stage 8\n" in text
    code, text, err = run("export", str(out), "--to", "megatron-bridge")
    assert code == 0, err
    assert "microbatch_group_size_per_vp_stage=8," in text


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--fp8-format hybrid --fp8-recipe blockwise", "no precision 'fp8-blockwise'"),
        ("--fp8-format hybrid --fp8-recipe custom", "no precision 'fp8-custom'"),
    ],
)
def test_a_recipe_that_the_profile_lacks_is_refused_by_its_name(
    run: Any, flags: str, said: str
) -> None:
    Path("run.sh").write_text(MEGATRON.format(group=4, more=flags))
    code, _, err = run(
        "estimate", "--from-config", "run.sh", "--set", "cluster.system=h100-sxm-80gb"
    )
    assert code == 2
    assert said in err
    assert err.count("\n") == 1
