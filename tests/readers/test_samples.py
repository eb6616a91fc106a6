"""Every sample file reads to its exact parameter count, or is refused as the index says."""

from __future__ import annotations

import csv
import json
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from autopar_core.api import InputError
from autopar_core.cli.session import load_plugins
from autopar_core.config.model_section import model_of
from autopar_core.plugins import PluginManager


ROOT = Path(__file__).resolve().parents[2]
SAMPLES = ROOT / "tests" / "data" / "samples"


class Sample(NamedTuple):
    file: str
    model: str
    expected: str


def samples() -> list[Sample]:
    with (SAMPLES / "INDEX.tsv").open(encoding="utf-8", newline="") as file:
        return [
            Sample(row["file"], row["model"], row["expected_params"])
            for row in csv.DictReader(file, delimiter="\t")
        ]


# Folder of the samples, or one sample -> plugin that has their reader.
OWNERS = {
    "megatron": "megatron", "torchtitan": "torchtitan", "mindformers": "mindformers",
    "other/megatron_bridge_llama31_405b_overrides.txt": "megatron",
}  # fmt: skip


@cache
def manager() -> PluginManager:
    return load_plugins()


def needs_plugin(file: str) -> None:
    owner = OWNERS.get(file, OWNERS.get(file.split("/")[0]))
    if owner is not None and owner not in manager().active:
        pytest.skip(f"the plugin '{owner}' is not installed")


COUNTED = [one for one in samples() if one.expected.isdigit()]
REFUSED = [one for one in samples() if one.expected == "REFUSE"]
OTHERS = [one for one in samples() if one not in (*COUNTED, *REFUSED)]


def test_the_index_is_complete() -> None:
    there = {path.relative_to(SAMPLES).as_posix() for path in SAMPLES.rglob("*") if path.is_file()}
    assert {one.file for one in samples()} == there - {"INDEX.tsv"}
    assert (len(COUNTED), len(REFUSED), len(OTHERS)) == (64, 5, 4)


@pytest.mark.parametrize("sample", COUNTED, ids=lambda one: one.file)
def test_sample_has_its_exact_count(sample: Sample) -> None:
    needs_plugin(sample.file)
    config, sources, reading = model_of(str(SAMPLES / sample.file), manager())
    assert config.parameters == int(sample.expected)
    for field in ("num_layers", "hidden", "heads", "vocab"):
        assert sources[field] not in ("default", reading.label), f"{field} has no place"


# Words of the sentence: the key that shows it, and why that is no dense model.
REASONS = {
    "REFUSE-deepseek-v3": ("n_routed_experts", "mixture-of-experts"),
    "REFUSE-gemma-3-27b-multimodal": ("vision_config", "multimodal"),
    "REFUSE-mamba2-hybrid-jamba": ("mamba_d_state", "hybrid"),
    "REFUSE-mixtral-8x7b": ("num_local_experts", "mixture-of-experts"),
    "REFUSE-qwen3-30b-a3b": ("num_experts", "mixture-of-experts"),
}


@pytest.mark.parametrize("sample", REFUSED, ids=lambda one: one.file)
def test_what_is_no_dense_model_is_refused_by_its_key(sample: Sample) -> None:
    with pytest.raises(InputError) as caught:
        model_of(str(SAMPLES / sample.file), manager())
    said = str(caught.value)
    key, kind = REASONS[Path(sample.file).stem]
    assert said.startswith(f"{Path(sample.file).name}: key {key}: ")
    assert kind in said
    assert "\n" not in said


def test_the_language_model_of_a_multimodal_file_is_read_when_asked_for() -> None:
    file = SAMPLES / "hf" / "REFUSE-gemma-3-27b-multimodal.json"
    config, sources, reading = model_of(str(file), manager(), "huggingface-text")
    # Gemma 3 27B: 62 layers; two projections of 32 x 128 and two of 16 x 128 heads, three MLP
    # matrices, four norms and two head norms in each; one tied embedding; a final norm.
    layer = 5376 * 128 * (2 * 32 + 2 * 16) + 3 * 5376 * 21504 + 4 * 5376 + 2 * 128
    assert config.parameters == 62 * layer + 262208 * 5376 + 5376
    assert sources["hidden"].endswith("key text_config.hidden_size")
    assert "only the language model" in reading.notes[-1]


@pytest.mark.parametrize("sample", OTHERS, ids=lambda one: one.file)
def test_a_file_without_a_model_says_so(sample: Sample) -> None:
    with pytest.raises(InputError) as caught:
        model_of(str(SAMPLES / sample.file), manager())
    said = str(caught.value)
    if "deepspeed" in sample.file:
        assert "says nothing about the model; name it with --model" in said
    else:
        assert said.endswith(", which is not there")
        named = json.loads((SAMPLES / sample.file).read_text())
        assert any(str(path) in said for path in named.values())


def test_a_strategy_file_takes_its_model_from_elsewhere() -> None:
    file = str(SAMPLES / "other" / "deepspeed_zero3_dp32.json")
    config, sources, reading = model_of(file, manager(), "", "llama-2-7b")
    assert config.parameters == 6738415616
    assert sources["hidden"] == "preset llama-2-7b"
    assert reading.strategy["dp_degree"] == 32


def test_two_files_that_disagree_are_named_both() -> None:
    file = str(SAMPLES / "other" / "picotron_llama2-7b.json")
    with pytest.raises(InputError) as caught:
        model_of(file, manager(), "", "llama-3-70b")
    assert str(caught.value) == (
        "model.num_layers is 80 in preset llama-3-70b but 32 in picotron_llama2-7b.json (picotron): "
        "key model.num_hidden_layers; only one of them can hold"
    )
