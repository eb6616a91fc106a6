"""TorchTitan's files: real samples, files of others, odd and broken ones."""

from __future__ import annotations

import contextlib
import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from titan_files import JOB, SAMPLES, python, read, refused

from autopar_core.api import InputError, ModelConfig
from autopar_torchtitan.readers import READERS
from autopar_torchtitan.settings import DEFAULTS


def sample(name: str) -> Mapping[str, Any]:
    return read((SAMPLES / "torchtitan" / name).read_text(), name)


def indexed() -> list[tuple[str, int]]:
    with (SAMPLES / "INDEX.tsv").open(encoding="utf-8") as file:
        rows = list(csv.reader(file, delimiter="\t"))
    return [(row[0], int(row[2])) for row in rows if row[0].startswith("torchtitan/")]


@pytest.mark.parametrize(("name", "parameters"), indexed())
def test_samples_have_their_exact_parameters(name: str, parameters: int) -> None:
    tables = sample(name.partition("/")[2])
    assert ModelConfig(**tables["model"]).parameters == parameters
    # every value has a place
    for section in ("model", "training", "strategy", "framework"):
        assert {f"{section}.{key}" for key in tables[section]} <= tables["sources"].keys()


def test_there_are_seven_samples() -> None:
    assert len(indexed()) == 7


def test_stages_of_a_toml_file() -> None:
    tables = sample("llama3_8b_pp4_uneven.toml")
    assert tables["strategy"] == {
        "tp_degree": 2, "pp_degree": 4, "cp_degree": 1, "micro_batch_size": 1, "vpp_degree": 1,
        "sequence_parallel": True, "schedule": "1f1b", "stage_partition": [7, 8, 8, 9],
        "layer_recompute": "selective", "zero_stage": 3, "replicate_degree": 1,
    }  # fmt: skip
    assert tables["training"] == {"seq_len": 8192, "global_batch_size": 64, "precision": "bf16"}
    assert tables["sources"]["strategy.tp_degree"] == "line 23, parallelism.tensor_parallel_degree"
    assert any("-1" in note and "cluster.devices" in note for note in tables["notes"])


def test_a_configuration_after_0_3_0_counts_tokens() -> None:
    tables = sample("llama3_70b_registry_head.py")
    # 128 sequences a step, 1 in a micro-batch, 2 replicas: 64 each, in 4 pipelines of 16.
    assert tables["training"] == {"seq_len": 8192, "global_batch_size": 128, "precision": "bf16"}
    strategy = tables["strategy"]
    assert (strategy["micro_batch_size"], strategy["micro_batch_num"]) == (1, 64)
    assert strategy["stage_partition"] == [19, 21, 21, 19]
    assert strategy["layer_recompute"] == "full"
    assert strategy["dp_degree"] == strategy["shard_degree"] == 2
    assert tables["cluster"] == {"devices": 64}
    assert any("fills and drains 4 times" in note for note in tables["notes"])


def test_a_configuration_of_0_3_0_starts_from_a_function_of_torchtitan() -> None:
    tables = sample("llama3_70b_registry_v0_3_0.py")
    assert tables["strategy"]["stage_partition"] == [20, 20, 20, 20]
    # FullAC comes from llama3_70b, not from the file
    assert tables["strategy"]["layer_recompute"] == "full"
    assert tables["sources"]["strategy.layer_recompute"].startswith(
        "default of the format: llama3_70b"
    )


def test_other_files_are_left_to_other_readers() -> None:
    ours = '[model]\nsource = "llama-3-8b"\n[training]\nseq_len = 1\n[cluster]\ndevices = 8\n'
    others = [
        ("run.toml", ours),
        ("pyproject.toml", "[project]\nname = 'x'\n"),
        ("a.py", "print(1)\n"),
    ]
    others += [
        ("recipe.py", "from megatron.bridge import x\ndef f():\n    return 1\n"),
        ("a.toml", "\x00["),
    ]
    for name, text in others:
        assert not any(reader.recognises(Path(name), text) for reader in READERS), name
    for path in sorted(SAMPLES.glob("*/*")):
        if path.parent.name != "torchtitan" and path.is_file():
            text = path.read_text(encoding="utf-8", errors="replace")
            assert not any(reader.recognises(path, text) for reader in READERS), path.name


ODD = ["-7", "0", "true", "1.5", '"x"', "[]", '["x"]', "[[1]]", "{x = 1}", "99999999999"]


@pytest.mark.parametrize("key", DEFAULTS)
def test_odd_values_are_read_or_refused_in_a_sentence(key: str) -> None:
    section, _, name = key.partition(".")
    opened = JOB if f"[{section}]" in JOB else f"{JOB}[{section}]\n"
    lines = [line for line in opened.split("\n") if not line.startswith(f"{name} =")]
    at = lines.index(f"[{section}]") + 1
    for value in ODD:
        text = "\n".join([*lines[:at], f"{name} = {value}", *lines[at:]])
        with contextlib.suppress(InputError):
            assert read(text)["strategy"]


@pytest.mark.parametrize("name", ["job.toml", "mine.py"])
def test_broken_files_are_refused_in_a_sentence(name: str) -> None:
    base = JOB if name.endswith("toml") else python()
    for end in (
        "\n[",
        "\nx = 'a",
        "\n" + "(" * 3000,
        "\n" + "[" * 3000 + "]" * 3000,
        "\nx = " + "9" * 6000,
    ):
        message = refused(base + end, name)
        assert message.startswith(name)
        assert len(message) < 400
