"""Refusals, damaged files and junk."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripts import GROUP, INTERLEAVED, RECIPE, YAML, script

from autopar_core.api import InputError
from autopar_megatron.readers import readers


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"num-query-groups": "8"}, "no effect without --group-query-attention"),
        ({"group-query-attention": "", "num-query-groups": "5"}, "nearest legal is 4"),
        ({"group-query-attention": "", "num-query-groups": "0"}, "at least 1"),
        ({"hidden-size": "1000"}, "give --kv-channels"),
        ({"seq-length": "4096"}, "must be at least"),
        ({"context-parallel-size": "4", "seq-length": "2044"}, "nearest legal lengths: 2040 and 2048"),
        ({"tensor-model-parallel-size": "8", "sequence-parallel": "", "seq-length": "2047"},
         r"tp 8 \(sequence parallelism\)"),
        ({"global-batch-size": "60"}, "nearest legal: 56 and 64"),
        ({"tensor-model-parallel-size": "3"}, "8 devices .* cannot be divided by tp 3"),
        ({"fp16": ""}, "exclude each other"),
        ({"fp8-format": "hybrid", "fp4-format": "e2m1"}, "exclude each other"),
        ({"step-batch-size-schedule": "'0:384'"}, "given by .*--global-batch-size and by"),
        ({"eval-global-batch-size": "12"}, "evaluation batch 12"),
        ({"squared-relu": ""}, "excludes a gated MLP"),
        ({"recompute-granularity": "full"}, "needs --recompute-method"),
        ({"recompute-granularity": "some"}, "neither full nor selective"),
        ({"num-virtual-stages-per-pipeline-rank": "2"}, "pipeline size above 1"),
        ({"pipeline-model-parallel-size": "4", "num-virtual-stages-per-pipeline-rank": "2",
          "global-batch-size": "12"}, "rounds of 4 .* nearest legal global batch: 8 or 16"),
        ({"pipeline-model-parallel-size": "2", "num-virtual-stages-per-pipeline-rank": "2",
          "no-overlap-p2p-communication": ""}, "overlapped p2p"),
        ({"context-parallel-size": "2", "cp-comm-type": "a2a+p2p"}, "one exchange for all layers"),
        ({"context-parallel-size": "2", "cp-comm-type": "p2p a2a"}, "one exchange for all layers"),
        ({"use-torch-fsdp2": ""}, "tied embeddings"),
        ({"num-layers": "8x"}, "whole number"),
        ({"num-layers": "absent"}, "has no num-layers"),
        ({"num-layers": "$LAYERS"}, r"\$LAYERS has no value in this file; give it one"),
        ({"num-layers": "$(cat n)"}, "only an execution could tell"),
        ({"schedules-method": "dualpipev"}, "DualPipe-V"),
        ({**INTERLEAVED, GROUP: "3"}, "3 must be at least pipeline size 4 .* nearest legal: 4"),
        ({**INTERLEAVED, GROUP: "64"}, "at most all 32 micro-batches; nearest legal: 32"),
        ({**INTERLEAVED, GROUP: "15"}, "groups of 15 leave 2, fewer than pipeline size 4"),
        ({"fp8-format": "hybrid", "recompute-granularity": "selective",
          "recompute-modules": "layernorm mlp"}, "no norms with delayed scaling"),
        ({"position-embedding-type": "relative"}, "none of rope"),
        ({"normalization": "GroupNorm"}, "LayerNorm or RMSNorm"),
        ({"num-distributed-optimizer-instances": "3", "use-distributed-optimizer": ""}, "divide dp 8"),
    ],
)  # fmt: skip
def test_what_is_refused_names_place_and_remedy(
    changes: dict[str, str], said: str, read: Any
) -> None:
    with pytest.raises(InputError, match=said):
        read(script(changes))


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"num-experts": "8"}, "--num-experts 8 is a mixture of experts"),
        ({"expert-model-parallel-size": "2"}, "--expert-model-parallel-size 2 is expert"),
        ({"multi-latent-attention": ""}, "--multi-latent-attention is multi-head latent"),
        ({"hybrid-layer-pattern": "'M*M*'"}, "--hybrid-layer-pattern .* hybrid state-space"),
        ({"mtp-num-layers": "1"}, "multi-token-prediction"),
        ({"lora-r": "16"}, "--lora-r 16 is LoRA"),
        ({"heterogeneous-layers-config-path": "x.json"}, "layers of different shapes"),
    ],
)
def test_models_that_are_not_dense_are_refused_by_the_flag(
    changes: dict[str, str], what: str, read: Any
) -> None:
    with pytest.raises(InputError, match=what):
        read(script(changes))


def test_other_programs_are_refused_where_they_are_launched(read: Any) -> None:
    text = "# unlike pretrain_bert.py\n" + script()
    assert read(text)["model"]["num_layers"] == 8
    with pytest.raises(InputError, match=r"line 2: launches pretrain_t5.py: T5"):
        read(text.replace("pretrain_gpt.py", "megatron/pretrain_t5.py"))


WORDS = re.findall(r"\S+|\s+", script() + YAML + RECIPE)
TEXTS = st.one_of(st.text(max_size=400), st.lists(st.sampled_from(WORDS), max_size=60).map("".join))


def sentence(name: str, text: str) -> str:
    """What the readers say against a text; empty when it reads or is none of theirs."""
    for reader in readers():
        if reader.recognises(Path(name), text):
            try:
                reader.read(Path(name), text)
            except InputError as error:
                return str(error)
    return ""


@settings(max_examples=40, deadline=None)
@given(text=TEXTS, suffix=st.sampled_from([".sh", ".args", ".yaml", ".py", ".txt", ""]))
def test_no_text_makes_a_reader_fail_without_a_sentence(text: str, suffix: str) -> None:
    assert "\n" not in sentence(f"file{suffix}", text)


JUNK = st.sampled_from(["'", '"', "(", "${", "$((", "`", "\\", "if ", "{ "])


@settings(max_examples=40, deadline=None)
@given(cut=st.integers(0, 2000), junk=JUNK)
def test_a_damaged_script_is_refused_in_one_sentence(cut: int, junk: str, samples: Path) -> None:
    for name in ("llama3_8b_tp1_cp2_array.sh", "mindspeed_gemma2_27b_tied.sh"):
        text = (samples / "megatron" / name).read_text()
        said = sentence(name, text[:cut] + junk + text[cut:])
        assert not said or said.startswith(name)


def test_recognising_large_junk_is_quick() -> None:
    for text in ("a" * 1_000_000, "--x 1\n" * 150_000, "model:\n" * 150_000, " " * 1_000_000):
        for reader in readers():
            for name in ("a.sh", "a.yaml", "a.py", "a.txt"):
                reader.recognises(Path(name), text)
