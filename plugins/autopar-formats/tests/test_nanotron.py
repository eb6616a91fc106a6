"""Nanotron: its split of layers, its silent traps, its rules."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from attrs import evolve

from autopar_core.api import CannotExpress, ModelConfig
from autopar_core.testing import Space, run_search
from autopar_core.validate.mapping import cost_split
from autopar_core.validate.rows import read_runs
from autopar_formats import nanotron_read, nanotron_write
from autopar_formats.nanotron_split import padded_vocab, split


BASE = """model:
  dtype: bfloat16
  make_vocab_size_divisible_by: 1
  model_config:
    is_llama_config: true
    hidden_size: 2048
    intermediate_size: 11008
    max_position_embeddings: 8192
    num_attention_heads: 16
    num_hidden_layers: 36
    num_key_value_heads: 4
    tie_word_embeddings: true
    vocab_size: 128256
optimizer:
  zero_stage: 0
parallelism:
  dp: 2
  pp: 1
  tp: 2
  pp_engine: 1f1b
  tp_mode: REDUCE_SCATTER
tokens:
  sequence_length: 4096
  micro_batch_size: 2
  batch_accumulation_per_replica: 3
"""
SHAPE = ModelConfig(
    num_layers=4, hidden=8, ffn_hidden=16, heads=2, kv_heads=2, vocab=48, head_dim=4
)


ROOT = Path(__file__).resolve().parents[3]


def test_measured_runs_are_mapped_with_the_split_that_a_search_takes() -> None:
    """The core maps runs without this plugin; both follow nanotron's build_model."""
    shapes = set()
    for run in read_runs([ROOT / "tests" / "data" / "measured" / "measured_sweeps.tsv"]):
        stages, tensor = run.whole("pp", 1), run.whole("tp", 1)
        if run.text("framework") != "nanotron" or stages == 1:
            continue
        heads, hidden, vocab = run.whole("heads"), run.whole("hidden"), run.whole("vocab")
        layers, ffn = run.whole("num_layers"), run.whole("ffn_hidden")
        shape = (layers, hidden, ffn, heads, vocab, stages, tensor)
        if shape in shapes:
            continue
        shapes.add(shape)
        model = ModelConfig(
            num_layers=layers, hidden=hidden, ffn_hidden=ffn, heads=heads, kv_heads=heads, vocab=vocab,
            head_dim=run.whole("head_dim") or hidden // heads,
        )  # fmt: skip
        theirs = split(model, stages, padded_vocab(vocab, 1, tensor))
        assert tuple(cost_split(run, layers, stages, tensor)) == theirs, shape
    assert len(shapes) > 50


def test_layers_are_dealt_by_cost() -> None:
    """A layer costs 4 x 8 x 8 + 3 x 16 x 8 = 640; a head of 80 rows costs 80 x 8 = 640 too.

    Total 4 x 640 + 640 = 3200, half of it 1600: a stage keeps the layer with which it passes its
    share, so the third layer (1920 > 1600) is the first stage's last one. A head of no rows leaves
    2560, half 1280: two layers do not pass it (1280 > 1280 is false), the third does.
    """
    assert split(SHAPE, 2, 80) == (3, 1)
    assert split(SHAPE, 2, 1) == (3, 1)
    assert split(SHAPE, 1, 80) == (4,)
    # Shares of 800, 1600, 2400 of 3200: passed at layers 2 (1280), 3 (1920) and 4 (2560).
    assert split(SHAPE, 4, 80) == (2, 1, 1, 0)


def test_layers_of_llama_3_8b_on_eight_stages() -> None:
    """A layer costs 4 x 4096^2 + 3 x 14336 x 4096 = 243.3 M, the head 128256 x 4096 = 525.3 M.

    With 32 layers that is 8310 M, a stage's share 1039 M: 4.27 layers. The block that passes a share
    is still its stage's: 5 layers, then what passes 8.54, 12.8, 17.1, 21.4, 25.6 and 29.9.
    """
    model = evolve(
        SHAPE, num_layers=32, hidden=4096, ffn_hidden=14336, heads=32, kv_heads=8, head_dim=128
    )
    assert split(model, 8, 128256) == (5, 4, 4, 5, 4, 4, 4, 2)


@pytest.mark.parametrize("stages", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("vocab", [1, 100, 100_000])
def test_every_layer_is_dealt_once(stages: int, vocab: int) -> None:
    model = evolve(SHAPE, num_layers=11)
    layers = split(model, stages, vocab)
    assert sum(layers) == 11
    assert len(layers) == stages


def test_the_vocabulary_is_padded_for_the_tensor_degree() -> None:
    assert padded_vocab(50257, 128, 8) == 51200
    assert padded_vocab(128256, 1, 2) == 128256


def test_batch_and_vocabulary_are_what_the_file_says(read: Any) -> None:
    """Field case D09: the global batch is not in the file, the vocabulary is not the family's."""
    text = BASE.replace("is_llama_config", "is_qwen2_config")
    tables = read(nanotron_read.READER, text)
    assert tables["training"]["global_batch_size"] == 2 * 3 * 2
    assert tables["model"]["vocab"] == 128256
    assert tables["model"]["qkv_bias"] is False  # nanotron's Qwen2 has biases only where it says so
    assert tables["strategy"]["zero_stage"] == 0
    assert tables["cluster"]["devices"] == 4
    assert tables["sources"]["strategy.tp_degree"] == "line 19, parallelism.tp"
    assert tables["sources"]["strategy.cp_degree"] == "default of the format"
    biased = read(
        nanotron_read.READER, text.replace("is_qwen2", "attention_bias: true\n    is_qwen2")
    )
    assert biased["model"]["qkv_bias"] is True


def test_stages_follow_from_costs(read: Any) -> None:
    tables = read(nanotron_read.READER, BASE.replace("pp: 1", "pp: 4"))
    layers = tables["strategy"]["stage_partition"]
    assert sum(layers) == 36
    assert layers != [9, 9, 9, 9]
    assert tables["sources"]["strategy.stage_partition"].startswith("inferred: ")
    assert tables["strategy"]["schedule"] == "1f1b"


def test_absent_keys_mean_nanotrons_defaults(read: Any) -> None:
    text = BASE.replace("pp: 1", "pp: 2").replace("  pp_engine: 1f1b\n", "")
    tables = read(nanotron_read.READER, text.replace("  tp_mode: REDUCE_SCATTER\n", ""))
    assert tables["strategy"]["schedule"] == "gpipe"
    assert tables["strategy"]["sequence_parallel"] is False
    assert tables["strategy"]["layer_recompute"] == "none"


def test_padding_is_told(read: Any) -> None:
    tables = read(nanotron_read.READER, BASE.replace("divisible_by: 1", "divisible_by: 1000"))
    assert tables["model"]["vocab"] == 128256
    assert "pads the vocabulary of 128,256 rows to 130,000 (line 3, " in tables["notes"][0]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("zero_stage: 0", "zero_stage: 3", "line 15, optimizer.zero_stage: nanotron accepts 3"),
        ("dp: 2", "dp: -1", "line 17, parallelism.dp: must be 1 or more, got -1"),
        ("dp: 2", "dp: auto", "line 17, parallelism.dp: expected a whole number, got 'auto'"),
        ("dp: 2", "context_parallel_size: 2\n  dp: 2", "nanotron's Llama ignores it"),
        ("dp: 2", "expert_parallel_size: 2\n  dp: 2", "autopar plans dense models only"),
        ("is_llama_config: true", "is_starcoder2_config: true", "must hold one of is_llama_config"),
        (
            "    hidden_size",
            "    moe_config: {num_experts: 4}\n    hidden_size",
            "a mixture-of-experts",
        ),
        ("num_key_value_heads: 4", "num_experts: 8", "8 experts: a mixture-of-experts model"),
        ("4096", "16384", "16384 tokens are more than the 8192 of max_position_embeddings"),
        ("bfloat16", "float64", "line 2, model.dtype: expected bfloat16 or float16"),
        ("REDUCE_SCATTER", "REDUCE", "expected REDUCE_SCATTER or ALL_REDUCE"),
        ("  micro_batch_size: 2\n", "", "has no key tokens.micro_batch_size"),
    ],
)
def test_traps_are_refused(refused: Any, old: str, new: str, said: str) -> None:
    assert old in BASE
    assert said in refused(nanotron_read.READER, BASE.replace(old, new))


def test_search_proposes_only_what_nanotron_accepts() -> None:
    result = run_search(
        {
            "framework": {"name": "nanotron"}, "model": {"kv_heads": 2, "vocab": 65536},
            "search": {"top_k": 1000, "micro_batch_size": 1},
        }
    )  # fmt: skip
    batch, feasible = result.batch, result.verdicts.feasible
    assert feasible.any()
    assert (batch["tp_degree"][feasible] <= 2).all()
    assert (batch["vpp_degree"] == 1).all()
    assert (batch["zero_stage"] <= 1).all()
    model = result.job.model
    for detail in result.top:
        stages = int(detail.strategy.fields["pp_degree"])
        tensor = int(detail.strategy.fields["tp_degree"])
        theirs = split(model, stages, padded_vocab(model.vocab, 1, tensor))
        assert tuple(detail.strategy.stage_partition) == theirs
        assert not any(detail.strategy.layer_recompute["selective"])
    reasons = {sentence.code for sentence in result.sentences}
    reasons |= {reason[0] for cut in result.cuts for reason in cut.reasons}
    assert {"nanotron-kv-heads", "nanotron-partition"} <= reasons


def test_search_takes_the_split_that_nanotron_deals() -> None:
    """A layer of 4 x 1024^2 + 3 x 4096 x 1024 = 16 x 1024^2, a head of 65,536 rows as much as four.

    Of 20 such shares the first of two stages passes ten with its eleventh layer, and keeps it.
    """
    model = {"vocab": 65536}
    changes = {"framework": {"name": "nanotron"}, "model": model}
    one = {"pp": 2, "cp": 1, "micro_batch_size": 1}
    result = run_search({**changes, "search": one})
    assert result.top
    assert {tuple(each.strategy.stage_partition) for each in result.top} == {(11, 5)}
    taken = run_search({**changes, "search": {**one, "stage_partition": [11, 5]}})
    assert taken.top
    assert run_search({**changes, "search": {**one, "stage_partition": [8, 8]}}).top == ()


def test_other_families_are_refused_whole() -> None:
    result = run_search({"framework": {"name": "nanotron"}, "model": {"norm": "layernorm"}})
    assert not result.top
    said = [sentence for cut in result.cuts for _, _, sentence in cut.reasons]
    assert any("builds Llama and Qwen2 only: model.norm is layernorm" in one for one in said)


def test_ring_needs_equal_parts() -> None:
    result = run_search({
        "framework": {"name": "nanotron"}, "training": {"seq_len": 4100}, "search": {"pp": [1, 2]},
    })  # fmt: skip
    context = result.batch["cp_degree"][result.verdicts.feasible]
    assert set(np.unique(context)) <= {1, 2}  # 4100 = 2 x 2 x 1025


@pytest.mark.parametrize(
    ("fields", "field", "near"),
    [
        ({"zero_stage": 2}, "zero_stage", {"zero_stage": 1}),
        ({"vpp_degree": 2, "schedule": "interleaved"}, "vpp_degree", {"vpp_degree": 1}),
        ({"cp_comm_type": "a2a", "cp_degree": 2}, "cp_comm_type", {"cp_comm_type": "p2p"}),
    ],
)
def test_what_nanotron_cannot_say(fields: dict[str, Any], field: str, near: dict[str, Any]) -> None:
    space = Space.of({"framework": {"name": "nanotron"}, "search": {"tp": 1, "pp": 1, "cp": 1}})
    request = space.request(0, None, -1, "none")
    strategy = evolve(request.strategy, fields={**request.strategy.fields, **fields})
    with pytest.raises(CannotExpress) as caught:
        nanotron_write.export(evolve(request, strategy=strategy))
    assert caught.value.where == field
    assert near.items() <= caught.value.nearest.items()


def test_partial_recompute_and_other_splits_are_refused() -> None:
    changes = {"framework": {"name": "nanotron"}, "search": {"pp": 2, "tp": 1}}
    space = Space.of({**changes, "model": {"vocab": 65536}})
    with pytest.raises(CannotExpress, match="recomputes all layers or none"):
        nanotron_write.export(space.request(0, [11, 5], 3, "full"))
    with pytest.raises(CannotExpress, match="takes no other split") as caught:
        nanotron_write.export(space.request(0, [10, 6], -1, "none"))
    assert caught.value.nearest["stage_partition"] == [11, 5]


def test_context_parallelism_takes_the_class_that_reads_it() -> None:
    space = Space.of({"framework": {"name": "nanotron"}, "search": {"cp": 2, "tp": 1, "pp": 1}})
    text = nanotron_write.export(space.request(0, None, -1, "none"))["config.yaml"]
    assert "is_qwen2_config: true" in text
    assert "_attn_implementation: ring_flash_triton" in text


@pytest.mark.parametrize("schedule", ["zb-h1", "zbv"])
def test_split_backwards_are_refused(schedule: str) -> None:
    space = Space.of({
        "framework": {"name": "generic"},
        "search": {"pp": 2, "tp": 1, "cp": 1, "zero": 1, "schedule": schedule},
    })  # fmt: skip
    with pytest.raises(CannotExpress, match=f"nanotron has no {schedule}") as caught:
        nanotron_write.export(space.request(0, None, -1, "none"))
    job = space.contexts.job
    nearest = caught.value.nearest
    assert nearest["schedule"] == "1f1b"
    theirs = split(job.model, 2, padded_vocab(job.model.vocab, 1, 1))
    assert nearest["stage_partition"] == list(theirs)
