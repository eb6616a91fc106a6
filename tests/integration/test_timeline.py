"""The timeline of a finished run: its end, its parts, its memory, its files."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest


if TYPE_CHECKING:
    from tests.integration.conftest import Answer, Kit

Found = tuple["Answer", dict[str, Any]]

TITAN = {"framework": {"name": "torchtitan"}}
STRATEGIES: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "1f1b": ({}, ("pp=4", "schedule=1f1b")),
    "exchanges": ({"framework": {"name": "megatron"}}, ("pp=4", "schedule=1f1b")),
    "gpipe": ({}, ("pp=2", "schedule=gpipe", "layer_recompute=selective")),
    "interleaved": ({}, ("pp=2", "schedule=interleaved", "vpp=4", "layer_recompute=full")),
    "zb-h1": ({}, ("pp=4", "schedule=zb-h1", "layer_recompute=full")),
    "zbv": (TITAN, ("pp=4", "schedule=zbv")),
    "dualpipev": ({}, ("pp=2", "schedule=dualpipev", "layer_recompute=full")),
    "one stage": ({}, ("pp=1", "dp=8")),
    "sharded": (TITAN, ("pp=2", "dp=4", "zero=3")),
    "host floor": ({"framework": {"name": "nanotron"}}, ("pp=2", "schedule=1f1b", "dp=4")),
    "calibrated": (
        {"framework": {"override": {"core": {"time_scale": {"default": 1.37}}}}},
        ("pp=4", "schedule=1f1b"),
    ),
    "long": ({"training": {"global_batch_size": 480}}, ("pp=4", "dp=2", "schedule=1f1b")),
    "every second layer": (TITAN, ("pp=2", "schedule=1f1b", "layer_recompute={every=2}")),
    "every third layer, two chunks": (TITAN, ("pp=2", "vpp=2", "layer_recompute={every=3}")),
    "fewer micro-batches than ranks": (
        {"model": {"vocab": 2048}, "training": {"global_batch_size": 4}},
        ("pp=8", "dp=1", "schedule=1f1b"),
    ),
    "range of offsets": ({"search": {"layer_offset": {"min": -1, "max": 1}}}, ("pp=4", "dp=2")),
}


@pytest.fixture(scope="module")
def shown(kit: Kit, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Found]:
    """The run and the timeline document of a strategy, made once."""
    made: dict[str, Found] = {}

    def get(name: str) -> Found:
        if name not in made:
            folder = tmp_path_factory.mktemp("timeline")
            sections, fields = STRATEGIES[name]
            path = kit.write(folder / "in.toml", **sections)
            fixes = [word for field in (*fields, "micro_batch_size=1") for word in ("--fix", field)]
            options = (*fixes, "--top-k", "1", "--no-charts")  # the first place alone is shown
            run = kit.run("search", path, *options, out=folder / "run")
            assert run.code == 0, run.err
            answer = kit.run("timeline", run.folder, "--json")
            assert (answer.code, answer.err) == (0, "")
            made[name] = run, json.loads(answer.out)
        return made[name]

    return get


@pytest.mark.parametrize("name", STRATEGIES)
def test_the_end_is_the_reported_step_time_to_the_last_digit(
    shown: Callable[[str], Found], name: str
) -> None:
    run, document = shown(name)
    told = run.best[0]["performance_cost"]
    assert document["step_seconds"] == told
    assert max(document["segments"]["end"]) == told
    assert max(rank["end_seconds"] for rank in document["by_rank"]) == told


@pytest.mark.parametrize("name", STRATEGIES)
def test_each_rank_is_told_without_gaps(shown: Callable[[str], Found], name: str) -> None:
    _, document = shown(name)
    found = {key: np.array(value) for key, value in document["segments"].items() if key != "parts"}
    for rank in document["by_rank"]:
        mine = found["rank"] == rank["rank"]
        start, end = found["start"][mine], found["end"][mine]
        assert start[0] == 0.0
        assert (start[1:] == end[:-1]).all()
        assert end[-1] == document["step_seconds"]
        total = sum(rank["seconds"].values())
        assert total == pytest.approx(document["step_seconds"], rel=1e-9)
        waits = rank["seconds"]["idle"] + rank["seconds"]["p2p"]
        assert rank["bubble_seconds"] == pytest.approx(waits)


@pytest.mark.parametrize("name", STRATEGIES)
def test_the_parts_of_the_last_rank_are_the_breakdown(
    shown: Callable[[str], Found], name: str
) -> None:
    """Device time, exposed communication and waiting sum to what the run reports by phase."""
    run, document = shown(name)
    told = run.document["performance_breakdown"][0]
    phases: dict[str, float] = {}
    for part in told["parts"]:
        phase = "idle" if part["name"] == "idle" else part["phase"]
        if part["name"] == "stage message":
            phase = "idle"
        phases[phase] = phases.get(phase, 0.0) + part["seconds"]
    rank = document["by_rank"][told["rank"]]["seconds"]
    tail = rank["exposed communication"] + rank["optimizer"] + rank["host"]
    assert rank["forward"] == pytest.approx(phases["forward"], rel=1e-9)
    backward = rank["backward"] + rank["weight gradient"] + rank["recompute"]
    wanted = phases["backward"] + phases.get("recompute", 0.0)
    assert backward == pytest.approx(wanted, rel=1e-9)
    assert tail == pytest.approx(phases["step"], rel=1e-9)
    waits = rank["idle"] + rank["p2p"]
    assert waits == pytest.approx(phases.get("idle", 0.0), rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("name", STRATEGIES)
def test_the_memory_peaks_where_the_run_says(shown: Callable[[str], Found], name: str) -> None:
    run, document = shown(name)
    told = run.document["memory_breakdown"][0]
    reserve = sum(part["bytes"] for part in told["reserves"])
    peaks = {stage["rank"]: stage["allocated_bytes"] + reserve for stage in told["stages"]}
    trace = {key: np.array(value) for key, value in document["memory"].items()}
    for rank in document["by_rank"]:
        mine = trace["rank"] == rank["rank"]
        assert rank["peak_bytes"] == trace["bytes"][mine].max() == peaks[rank["rank"]]
    assert max(peaks.values()) == run.best[0]["memory_cost"]


def test_every_micro_batch_of_every_chunk_runs_once(shown: Callable[[str], Found]) -> None:
    for name in ("1f1b", "interleaved", "zb-h1", "dualpipev"):
        _, document = shown(name)
        found = document["segments"]
        kinds = document["kinds"]
        for kind in ("forward", "backward"):
            number = kinds.index(kind)
            rows = zip(found["rank"], found["kind"], found["chunk"], found["micro_batch"],
                       strict=True)  # fmt: skip
            ran = [(rank, chunk, i) for rank, k, chunk, i in rows if k == number]
            size = document["ranks"] * document["chunks"] * document["micro_batches"]
            assert len(ran) == len(set(ran)) == size
        split = name in ("zb-h1", "dualpipev")
        assert (kinds.index("weight gradient") in found["kind"]) == split


def test_the_longest_path_is_the_whole_step(shown: Callable[[str], Found]) -> None:
    for name in STRATEGIES:
        _, document = shown(name)
        found = document["bottleneck"]
        total = sum(found["path_seconds"].values())
        assert total == pytest.approx(document["step_seconds"], rel=1e-9), name
        assert found["path_seconds"]["idle"] == 0.0
        assert 0 < found["share"] <= 1
        assert found["rank_seconds"][found["rank"]] == max(found["rank_seconds"])


def test_filling_and_draining_bound_a_step_of_few_micro_batches(
    shown: Callable[[str], Found],
) -> None:
    _, document = shown("fewer micro-batches than ranks")
    found = document["bottleneck"]
    waits = min(rank["bubble_share"] for rank in document["by_rank"])
    assert waits > 0.5
    assert found["sentence"].startswith(
        "filling and draining bound the step: with 4 micro-batches for 8 ranks every rank waits for "
        f"{waits:.0%} of it or more, and rank {found['rank']} holds {found['share']:.0%} of the longest "
    )


def test_commands_read_a_run_that_recomputes_every_second_layer(kit: Kit, tmp_path: Path) -> None:
    # torchtitan builds models of known shapes alone
    path = kit.write(tmp_path / "in.toml", model={"source": "llama-3-8b"},
                     cluster={"devices": 16}, framework={"name": "torchtitan"})  # fmt: skip
    same = ("dp=8", "pp=2", "tp=1", "cp=1", "mbs=1", "schedule=1f1b", "layer_recompute={every=2}")
    fixes = [word for field in (*same, "shard=8") for word in ("--fix", field)]
    run = kit.run("search", path, *fixes, "--top-k", "1", "--no-charts", out=tmp_path / "run")
    assert run.best[0]["recompute_plan"] == "every 2 layers"
    folder = run.folder
    told = kit.run("explain", folder, *same, "shard=8")
    assert told.out.startswith("it is the winner itself"), told.err
    assert "1 -> 1" in kit.run("diff", folder, folder).out
    assert kit.run("report", folder).code == 0
    written = kit.run("export", folder, "--to", "torchtitan-toml")
    assert 'selective_ac_option = "2"' in written.out, written.err
    shown = json.loads(kit.run("timeline", folder, "--json").out)
    assert shown["step_seconds"] == run.best[0]["performance_cost"]


def test_a_bottleneck_is_named(kit: Kit, tmp_path: Path) -> None:
    # 16 layers on four ranks with ten of them on rank 2.
    path = kit.write(tmp_path / "in.toml", model={"num_layers": 16},
                     search={"stage_partition": [[2, 2, 10, 2]]})  # fmt: skip
    run = kit.run("search", path, "--fix", "pp=4", "--fix", "schedule=1f1b", "--top-k", "1",
                  "--no-charts", out=tmp_path / "run")  # fmt: skip
    answer = kit.run("timeline", run.folder)
    assert "bottleneck: rank 2 holds" in answer.out
    document = json.loads(kit.run("timeline", run.folder, "--json").out)
    assert document["bottleneck"]["rank"] == 2
    bubbles = [rank["bubble_share"] for rank in document["by_rank"]]
    assert min(bubbles) == bubbles[2]


def test_files_are_whole_and_the_same_every_time(kit: Kit, tmp_path: Path) -> None:
    path = kit.write(tmp_path / "in.toml")
    run = kit.run("search", path, "--fix", "pp=4", "--fix", "schedule=zb-h1", "--top-k", "2",
                  "--no-charts", out=tmp_path / "run")  # fmt: skip
    made = []
    for name in ("a", "b"):
        if made:  # the second time over files that say something else
            shutil.copytree(tmp_path / "a", tmp_path / "b")
            for file in (tmp_path / "b").iterdir():
                file.write_bytes(file.read_bytes()[::2])
        answer = kit.run("timeline", run.folder, "--place", "2", out=tmp_path / name)
        assert (answer.code, answer.err) == (0, f"written to {tmp_path / name}\n")
        made.append(answer.files())
    assert made[0] == made[1]
    assert sorted(made[0]) == ["timeline.json", "timeline.png", "timeline.svg", "trace.json"]
    assert made[0]["timeline.png"].startswith(b"\x89PNG")
    document = json.loads(made[0]["timeline.json"])
    assert document["place"] == 2
    assert document["strategy"]["schedule"] == "zb-h1"
    assert document["step_seconds"] == run.best[1]["performance_cost"]
    check_trace(json.loads(made[0]["trace.json"]), document)


def check_trace(trace: dict[str, Any], document: dict[str, Any]) -> None:
    """Complete events are the segments that are not idle, counters are the memory."""
    events = trace["traceEvents"]
    spans = [event for event in events if event["ph"] == "X"]
    idle = document["kinds"].index("idle")
    found = document["segments"]
    rows = [row for row, kind in enumerate(found["kind"]) if kind != idle]
    assert len(spans) == len(rows)
    for event, row in zip(spans, rows, strict=True):
        assert event["pid"] == found["rank"][row]
        assert event["ts"] == found["start"][row] * 1e6
        assert event["dur"] >= 0
        assert event["cat"] == document["kinds"][found["kind"][row]]
    end = max(event["ts"] + event["dur"] for event in spans)
    assert end == pytest.approx(document["step_seconds"] * 1e6, rel=1e-12)
    assert trace["otherData"]["step_seconds"] == document["step_seconds"]
    memory = [event for event in events if event["ph"] == "C"]
    assert [event["args"]["GiB"] * 2**30 for event in memory] == document["memory"]["bytes"]
    named = {event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert named == {f"rank {rank}" for rank in range(document["ranks"])}


def test_without_the_pipeline_plugin_there_is_one_stage(kit: Kit, tmp_path: Path) -> None:
    path = kit.write(tmp_path / "in.toml")
    run = kit.run("search", path, "--disable", "pp", "--top-k", "1", "--no-charts",
                  out=tmp_path / "run")  # fmt: skip
    answer = kit.run("timeline", run.folder, "--json")
    document = json.loads(answer.out)
    assert (document["ranks"], document["schedule"]) == (1, "none")
    assert document["step_seconds"] == run.best[0]["performance_cost"]
    assert document["bottleneck"]["sentence"].startswith("one stage, no bubble")


@pytest.mark.parametrize("arguments", [("--place", "99"), ("--place", "0"), ("--place", "x")])
def test_a_wrong_place_is_one_sentence(
    kit: Kit, shown: Callable[[str], Found], arguments: tuple[str, ...]
) -> None:
    run, _ = shown("1f1b")
    answer = kit.run("timeline", run.folder, *arguments)
    assert answer.code == 2
    assert answer.out == ""
    assert answer.err.startswith("error: ")
    assert answer.err.count("\n") == 1
    if arguments[1] == "99":
        assert "the run has places 1 to" in answer.err


def test_wrong_folders_are_refused(kit: Kit, shown: Callable[[str], Found], tmp_path: Path) -> None:
    run, _ = shown("1f1b")
    assert run.folder is not None
    assert "no such folder" in kit.run("timeline", tmp_path / "nothing").err
    before = run.files()
    answer = kit.run("timeline", run.folder, "--out", run.folder)
    assert answer.code == 2
    assert "name a folder of its own" in answer.err
    assert run.files() == before


def test_a_run_that_says_something_else_is_refused(kit: Kit, tmp_path: Path) -> None:
    path = kit.write(tmp_path / "in.toml")
    run = kit.run("search", path, "--fix", "pp=2", "--top-k", "1", "--no-charts",
                  out=tmp_path / "run")  # fmt: skip
    assert run.folder is not None
    changed = json.loads((run.folder / "result.json").read_text())
    changed["top_k_strategies"][0]["performance_cost"] *= 1.5
    (run.folder / "result.json").write_text(json.dumps(changed))
    answer = kit.run("timeline", run.folder)
    assert answer.code == 2
    assert "search again" in answer.err


@pytest.mark.parametrize(
    ("key", "value", "sentence"),
    [
        ("stage_partition", "x", "stage_partition: expected the layers of each stage"),
        ("stage_partition", [1, 2], "stage_partition: [1, 2] places 3 layers, but the model has"),
        ("stage_partition", [1, "y"], "stage_partition: expected"),
        ("layer_recompute", None, "layer_recompute: expected layers by mode"),
        ("layer_recompute", {"full": "z"}, "layer_recompute.full: expected the layers of each"),
        ("performance_cost", None, "and the run says None s"),
    ],
)
def test_a_run_that_was_edited_is_refused_in_one_sentence(
    kit: Kit, shown: Callable[[str], Found], tmp_path: Path, key: str, value: Any, sentence: str
) -> None:
    run, _ = shown("1f1b")
    assert run.folder is not None
    changed = json.loads((run.folder / "result.json").read_text())
    changed["top_k_strategies"][0][key] = value
    (tmp_path / "result.json").write_text(json.dumps(changed))
    answer = kit.run("timeline", tmp_path)
    assert (answer.code, answer.err.count("\n")) == (2, 1)
    assert sentence in answer.err


@pytest.mark.parametrize(
    ("place", "value", "sentence"),
    [
        (("plugins", 0), 5, "plugins[0]: expected a table, got 5"),
        (("plugins", 0, "status"), None, "plugins[0].status: expected a text, got null"),
        (("top_k_strategies",), "x", "top_k_strategies: expected a list, got 'x'"),
        (("top_k_strategies", 0), [], "top_k_strategies[0]: expected a strategy, got []"),
        (
            ("top_k_strategies", 0, "dp_degree"),
            [1],
            "top_k_strategies[0].dp_degree: expected a num",
        ),
        (("top_k_strategies", 0, "mfu"), 10**400, "got a number far too large"),
        (
            ("memory_breakdown", 0, "stages", 0, "parts", 0, "bytes"),
            None,
            "bytes: expected a number",
        ),
        (("performance_breakdown", 0, "parts", 0, "owner"), 7, "owner: expected a text, got 7"),
        (("all_candidate_summary", "feasible"), "all", "expected a whole number, got 'all'"),
        (("inputs", "framework", "title"), 5, "inputs.framework.title: expected a text, got 5"),
    ],
)
@pytest.mark.parametrize("command", ["timeline", "report", "diff", "explain", "export"])
def test_no_command_reads_a_run_with_a_wrong_entry(
    kit: Kit, shown: Callable[[str], Found], tmp_path: Path, command: str,
    place: tuple[str | int, ...], value: Any, sentence: str,
) -> None:  # fmt: skip
    run, _ = shown("1f1b")
    assert run.folder is not None
    changed = json.loads((run.folder / "result.json").read_text())
    entry = changed
    for key in place[:-1]:
        entry = entry[key]
    entry[place[-1]] = value
    (tmp_path / "result.json").write_text(json.dumps(changed))
    more = {"diff": [run.folder], "explain": ["pp=4"], "export": ["--to", "megatron"]}
    answer = kit.run(command, tmp_path, *more.get(command, []))
    assert (answer.code, answer.out, answer.err.count("\n")) == (2, "", 1)
    assert sentence in answer.err


def test_a_result_that_is_no_sensible_json_is_refused(kit: Kit, tmp_path: Path) -> None:
    for text in ("[" * 100_000, "1" * 10_000, "{"):
        (tmp_path / "result.json").write_text(text)
        answer = kit.run("report", tmp_path)
        assert (answer.code, answer.err.count("\n")) == (2, 1)


def test_the_picture_says_whose_step_it_is(
    kit: Kit, shown: Callable[[str], Found], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []

    def draw(step: object, title: str, caption: str) -> tuple[bytes, bytes]:
        said.extend([title, *caption.splitlines()])
        return b"", b""

    monkeypatch.setattr("autopar_core.builtin.timeline_chart.draw", draw)
    run, _ = shown("interleaved")
    assert kit.run("timeline", run.folder, out=tmp_path / "shown").code == 0
    assert said[0].startswith("Place 1: ")
    assert said[1:] == [
        "8 layers on 8 x h100-sxm-80gb, generic: dp4 tp1 pp2 cp1 mbs1 m4 vpp4 interleaved zero1 shard4",
        "layers 2 x 4; recomputed full 8",
    ]


def test_a_run_without_answers_has_no_timeline(kit: Kit, tmp_path: Path) -> None:
    path = kit.write(tmp_path / "in.toml", cluster={"memory_limit": "1 GiB"})
    run = kit.run("search", path, "--no-charts", out=tmp_path / "run")
    assert run.code == 1
    answer = kit.run("timeline", run.folder)
    assert answer.code == 2
    assert "nothing that fits" in answer.err
