"""Files of both families: what they say, where they say it, and what is refused."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from autopar_core.api import InputError, ModelConfig
from autopar_mindformers.readers import READER


SAMPLES = Path(__file__).resolve().parents[3] / "tests" / "data" / "samples"
CONFIG = "model.model_config"
# Sample -> what it says of the strategy, worked out from the file by hand.
STRATEGIES: Mapping[str, Mapping[str, Any]] = {
    "qwen3_32b_pretrain_offset": {
        "tp_degree": 4, "pp_degree": 4, "micro_batch_num": 4, "schedule": "1f1b",
        "stage_partition": [15, 15, 17, 17], "layer_recompute": "full", "sequence_parallel": False,
    },
    "llama3_1_70b_select_recompute": {
        "tp_degree": 8, "pp_degree": 8, "micro_batch_num": 256, "stage_partition": [10] * 8,
        "layer_recompute": {"full": [0] * 8, "selective": [10, 8, 6, 4, 2, 0, 0, 0]},
    },
    "telechat2_115b_vpp3_offset2d": {
        "dp_degree": 8, "vpp_degree": 3, "schedule": "interleaved", "zero_stage": 1,
        "shard_degree": 8, "layer_recompute": "selective",
        "stage_partition": [[3, 3, 4, 4, 4, 4, 4, 4], [3, 4, 4, 4, 4, 4, 4, 4],
                            [4, 4, 4, 5, 5, 5, 5, 3]],
    },
    "telechat3_36b_vpp2_recompute2d": {
        "vpp_degree": 2, "stage_partition": [[16, 16], [16, 16]],
        "layer_recompute": {"full": [[14, 14], [14, 14]], "selective": [[0, 0], [0, 0]]},
    },
    "pynative_llama_dense": {
        "dp_degree": 4, "micro_batch_size": 4, "micro_batch_num": 8, "zero_stage": 2,
        "stage_partition": [7, 8, 8, 9], "layer_recompute": "none", "sequence_parallel": True,
    },
}  # fmt: skip


def index() -> dict[str, int]:
    rows = (SAMPLES / "INDEX.tsv").read_text(encoding="utf-8").splitlines()[1:]
    cells = [row.split("\t") for row in rows if row.startswith("mindformers/")]
    return {Path(cell[0]).stem: int(cell[2]) for cell in cells}


@pytest.mark.parametrize("name", STRATEGIES)
def test_samples(name: str) -> None:
    path = SAMPLES / "mindformers" / f"{name}.yaml"
    text = path.read_text(encoding="utf-8")
    assert READER.recognises(path, text)
    tables = READER.read(path, text)
    assert ModelConfig(**tables["model"]).parameters == index()[name]
    strategy = tables["strategy"]
    assert {key: strategy[key] for key in STRATEGIES[name]} == STRATEGIES[name]
    degrees = [strategy[f"{d}_degree"] for d in ("dp", "tp", "pp", "cp")]
    assert tables["cluster"]["devices"] == degrees[0] * degrees[1] * degrees[2] * degrees[3]
    batch = strategy["micro_batch_size"] * strategy["micro_batch_num"] * strategy["dp_degree"]
    assert tables["training"]["global_batch_size"] == batch
    assert tables["framework"]["name"] == "mindformers"


def test_every_sample_is_judged() -> None:
    assert index().keys() == STRATEGIES.keys()


@pytest.mark.parametrize(
    "text",
    ["", "a: 1\n", "parallelism:\n  dp: 8\ntokens: {}\nmodel: {}\n", "parallel_config: {}\n",
     "parallel:\n  x: 1\nlanguage_model:\n  a: 1\n", "parallel_config:\n\tdata_parallel"],
)  # fmt: skip
def test_other_files_are_not_recognised(text: str) -> None:
    assert not READER.recognises(Path("x.yaml"), text)


def test_every_value_has_its_place(read: Any) -> None:
    for name in ("older", "newer", "pynative"):
        tables = read(name)
        for section in ("model", "training", "cluster", "strategy", "framework"):
            for key, value in tables[section].items():
                inner = list(value) if isinstance(value, dict) else []
                keys = [f"{section}.{key}.{each}" for each in inner] or [f"{section}.{key}"]
                assert any(each in tables["sources"] for each in keys) or key == "override", keys
    sources = read("older")["sources"]
    assert sources["strategy.tp_degree"].startswith("line ")
    assert "parallel_config.model_parallel" in sources["strategy.tp_degree"]
    assert sources["strategy.cp_degree"] == "default of the format"
    assert sources["training.global_batch_size"].startswith("inferred")


def test_older(read: Any) -> None:
    tables = read("older")
    assert tables["strategy"] == {
        "dp_degree": 2, "tp_degree": 2, "pp_degree": 4, "cp_degree": 1, "micro_batch_size": 2,
        "micro_batch_num": 8, "sequence_parallel": False, "zero_stage": 1, "shard_degree": 2,
        "schedule": "1f1b", "stage_partition": [4, 5, 5, 4], "layer_recompute": "none",
    }  # fmt: skip
    assert tables["training"] == {"global_batch_size": 32, "seq_len": 4096, "precision": "bf16"}


def test_newer(read: Any) -> None:
    """18 layers over 4 x 2 stages: 2 each and two more; one layer of rank 0 in full, all in part."""
    strategy = read("newer")["strategy"]
    assert strategy["stage_partition"] == [[2, 3, 2, 2], [2, 2, 3, 2]]
    assert strategy["layer_recompute"] == {
        "full": [[1, 0, 0, 0], [0, 0, 0, 0]],
        "selective": [[1, 3, 2, 2], [2, 2, 3, 2]],
    }
    assert strategy["sequence_parallel"] is True
    assert strategy["vpp_degree"] == 2


def test_pynative(read: Any) -> None:
    """Layers 0, 1 and 8 of stages 0-4 and 5-8; 32 sequences over 2 replicas of 2."""
    tables = read("pynative")
    strategy = tables["strategy"]
    assert strategy["stage_partition"] == [5, 4]
    assert strategy["layer_recompute"] == {"full": [2, 1], "selective": [0, 0]}
    assert (strategy["micro_batch_size"], strategy["micro_batch_num"]) == (2, 8)
    assert strategy["zero_stage"] == 2
    assert read("pynative", {"parallelism.reshard_after_forward_policy": "always"})["strategy"][
        "zero_stage"
    ] == 3  # fmt: skip
    assert tables["framework"]["override"]["dp"]["zero_stages"] == [2, 3]


def test_without_a_pipeline_the_other_key_counts(read: Any) -> None:
    changes = {
        "parallel_config.pipeline_stage": 1, "runner_config.gradient_accumulation_steps": 4,
        "micro_batch_interleave_num": 2,
    }  # fmt: skip
    tables = read("older", changes)
    assert tables["strategy"]["micro_batch_num"] == 4
    assert tables["strategy"]["micro_batch_size"] == 4
    assert tables["training"]["global_batch_size"] == 32
    notes = " ".join(tables["notes"])
    assert "micro_batch_num has no effect without pipeline parallelism" in notes
    assert "micro_batch_interleave_num" in notes
    assert "offset has no effect" in notes


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "all_gather"),
        ({f"{CONFIG}.use_ring_attention": True}, "p2p"),
        ({"parallel_config.context_parallel_algo": "ulysses_cp"}, "a2a"),
        ({"parallel_config.context_parallel_algo": "hybrid_cp",
          "parallel_config.ulysses_degree_in_cp": 4}, "a2a"),
        ({"parallel_config.context_parallel_algo": "hybrid_cp",
          "parallel_config.ulysses_degree_in_cp": 2}, None),
    ],
)  # fmt: skip
def test_exchanges(read: Any, changes: dict[str, Any], expected: str | None) -> None:
    context = {"parallel_config.context_parallel": 4, f"{CONFIG}.use_flash_attention": True}
    tables = read("older", {**context, **changes})
    assert tables["strategy"].get("cp_comm_type") == expected
    assert bool(tables["notes"]) == (expected is None)


def test_shard_size_counts_context_ranks(read: Any) -> None:
    changes = {
        "parallel_config.data_parallel": 4, "parallel_config.context_parallel": 2,
        f"{CONFIG}.use_flash_attention": True,
        "parallel.parallel_optimizer_config": {"optimizer_weight_shard_size": 4},
    }  # fmt: skip
    assert read("older", changes)["strategy"]["shard_degree"] == 2
    changes["parallel.parallel_optimizer_config"] = {"optimizer_weight_shard_size": 3}
    with pytest.raises(InputError, match=r"expected -1 \(all\) or one of 2, 4, 8"):
        read("older", changes)


# (file, changes, parts of the sentence): both places of a contradiction are named.
REFUSED: tuple[tuple[str, dict[str, Any], tuple[str, ...]], ...] = (
    ("older", {f"{CONFIG}.offset": [0, 1, 0, 0]},
     ("model_config.offset", "places 17 of 18 layers", "model_config.num_layers", "pipeline_stage")),
    ("older", {f"{CONFIG}.offset": None}, ("offset 0 (default", "places 16 of 18")),
    ("newer", {f"{CONFIG}.offset": [1, 1, 0, 0]},
     ("offset", "one dimension", "write 2 rows of 4", "pp_interleave_num")),
    ("newer", {f"{CONFIG}.pp_interleave_num": 3},
     ("has 2 rows, but a rank has 3 virtual stages", "pp_interleave_num")),
    ("newer", {"parallel.pipeline_config.pipeline_interleave": False},
     ("pp_interleave_num is 2", "pipeline_interleave", "does not say so")),
    ("newer", {"parallel.pipeline_config": None}, ("no key parallel.pipeline_config",)),
    ("newer", {f"{CONFIG}.pp_interleave_num": 8, f"{CONFIG}.offset": 0},
     ("32 stages, more than the 18 layers",)),
    ("newer", {"parallel.pipeline_config.pipeline_scheduler": "magic"}, ("none of 1f1b",)),
    ("newer", {"parallel.pipeline_config.pipeline_scheduler": "zero_bubble_v",
               f"{CONFIG}.pp_interleave_num": 1, f"{CONFIG}.offset": [0, 1, 1, 0]},
     ("needs two virtual stages on every rank, not 1", "pp_interleave_num: 2")),
    ("newer", {"parallel.pipeline_config.pipeline_scheduler": "zero_bubble_v"},
     ("recompute_config.recompute", "or 2 rows of 4")),
    ("newer", {"parallel_config.model_parallel": 1},
     ("use_seq_parallel is True", "model_parallel is 1")),
    ("newer", {"parallel.dataset_strategy": [[4, 1], [4, 1]]},
     ("dataset_strategy splits the batch by [4, 1]", "data_parallel is 2")),
    ("newer", {"parallel.dataset_strategy": None}, ("full_batch is False, which needs",)),
    ("newer", {"parallel_config.context_parallel": 2,
               "parallel_config.context_parallel_algo": "ulysses_cp"},
     ("ulysses_cp", "ulysses_degree_in_cp 1", "write ulysses_degree_in_cp: 2")),
    ("newer", {"recompute_config.recompute_slice_activation": True}, ("write False",)),
    ("newer", {"recompute_config.recompute": [1, 2]}, ("4 whole numbers", "pipeline_stage")),
    ("newer", {f"{CONFIG}.tie_word_embeddings": True,
               f"{CONFIG}.untie_embeddings_and_output_weights": True},
     ("tie_word_embeddings is True", "untie_embeddings_and_output_weights is True")),
    ("newer", {f"{CONFIG}.untie_embeddings_and_output_weights": False},
     ("write tie_word_embeddings: True",)),
    ("newer", {f"{CONFIG}.compute_dtype": "float8"}, ("none of bf16",)),
    ("newer", {"train_dataset.data_loader.config.seq_length": 2048},
     ("training.seq_len is 4096", "model_config.seq_length", "2048", "train_dataset")),
    ("older", {"parallel.parallel_mode": 0}, ("resets every degree", "write 1")),
    ("older", {"use_parallel": False}, ("use_parallel is False", "multiply to 16")),
    ("older", {"parallel_config.context_parallel": 2},
     ("context_parallel is 2", "use_flash_attention is False")),
    ("older", {f"{CONFIG}.num_heads": None, f"{CONFIG}.num_attention_heads": 16},
     ("LlamaConfig ignores it without a word", "write num_heads")),
    ("older", {f"{CONFIG}.type": "BloomConfig"}, ("'BloomConfig' cannot be read",)),
    ("older", {"moe_config": {"expert_num": 8}}, ("moe_config.expert_num", "mixture-of-experts")),
    ("older", {"parallel_config.expert_parallel": 4},
     ("parallel_config.expert_parallel", "mixture-of-experts")),
    ("newer", {f"{CONFIG}.num_experts": 128}, ("num_experts", "mixture-of-experts")),
    ("newer", {f"{CONFIG}.multi_latent_attention": True}, ("multi_latent_attention", "MLA")),
    ("newer", {f"{CONFIG}.mtp_num_layers": 1}, ("mtp_num_layers", "MTP")),
    ("newer", {f"{CONFIG}.model_type": "qwen3_moe"}, ("model_type", "mixture-of-experts")),
    ("older", {"parallel_config.model_parallel": "two"}, ("expected a whole number, got 'two'",)),
    ("older", {"parallel_config.data_parallel": 0}, ("must be 1 or more",)),
    ("older", {"runner_config": None}, ("has no key runner_config.batch_size",)),
    ("pynative", {"parallelism.sequence_parallel": False},
     ("tensor_parallel is 2", "needs sequence_parallel: true")),
    ("pynative", {"parallelism.pipeline_parallel_layers_per_stage": ["0-4", "6-8"]},
     ("layer 5 is lost",)),
    ("pynative", {"parallelism.pipeline_parallel_layers_per_stage": ["0-4", "4-8"]},
     ("layer 4 is given twice",)),
    ("pynative", {"parallelism.pipeline_parallel_layers_per_stage": ["0-4", "5-7"]},
     ("places 8 of 9 layers",)),
    ("pynative", {"parallelism.pipeline_parallel_layers_per_stage": ["0-8"]},
     ("has 1 entries, but pipeline_parallel is 2",)),
    ("pynative", {"parallelism.pipeline_parallel_layers_per_stage": ["4-0", "5-8"]},
     ("no range of layers",)),
    ("pynative", {"parallelism.pipeline_parallel_layers_per_stage": None},
     ("auto deals 9 layers", "uneven")),
    ("pynative", {"parallelism.pipeline_parallel_interleave_num": 2},
     ("has 1 range, but a rank has 2 virtual stages",)),
    ("pynative", {"parallelism.pipeline_parallel_schedule": "interleaved_1f1b"},
     ("is interleaved_1f1b, but the virtual stages of a rank are 1",)),
    ("pynative", {"training.global_batch_size": 30}, ("no multiple of local_batch_size 2",)),
    ("pynative", {"recompute.full_recompute_layer": None}, ("needs a list",)),
    ("pynative", {"recompute.full_recompute_layer": ["0-9"]}, ("layer 9 is past the last, 8",)),
    ("pynative", {"parallelism.pipeline_parallel": 10**6}, ("use at most 4,096",)),
    ("older", {f"{CONFIG}.num_layers": 10**9, "parallel_config.pipeline_stage": 10**8},
     ("100000000 stages",)),
    ("pynative", {"parallelism.expert_parallel": 2}, ("mixture-of-experts",)),
)  # fmt: skip


@pytest.mark.parametrize(("name", "changes", "parts"), REFUSED)
def test_refused(read: Any, name: str, changes: dict[str, Any], parts: tuple[str, ...]) -> None:
    with pytest.raises(InputError) as error:
        read(name, changes)
    sentence = str(error.value)
    assert sentence.startswith("run.yaml")
    for part in parts:
        assert part in sentence, sentence
    assert "\n" not in sentence


@pytest.mark.parametrize(
    ("value", "selective", "noted"),
    [
        (False, 0, False),
        ([r"mlp\.mul", r"mlp\.activation_func\.silu"], 18, False),
        ({r"mlp\.mul": True, r"mlp\.activation_func\.silu": True}, 18, False),
        ({r"mlp\.mul": True}, 0, True),
        ({r"mlp\.mul": True, r"mlp\.activation_func\.silu": [1, 1, 1, 1]}, 0, True),
        ({r"mlp\.mul": True, r"mlp\.activation_func\.silu": True, r"x\.y": True}, 18, True),
        ({r".*\.flash_attention": True}, 0, True),
    ],
)
def test_selected_operators(read: Any, value: Any, selective: int, noted: bool) -> None:
    changes = {"recompute_config": {"recompute": False, "select_recompute": value}}
    tables = read("newer", changes)
    word = tables["strategy"]["layer_recompute"]
    assert word == ("selective" if selective else "none")
    assert bool(tables["notes"]) == noted


def test_swiglu_is_told(read: Any) -> None:
    notes = read("newer", {f"{CONFIG}.hidden_act": "swiglu"})["notes"]
    assert any("repeats silu alone" in note for note in notes)


def test_what_is_left_open_is_told(read: Any) -> None:
    swapped = read("newer", {"swap_config": {"swap": True}})
    assert "layer_recompute" not in swapped["strategy"]
    seqpipe = read("newer", {"parallel.pipeline_config.pipeline_scheduler": "seqpipe"})
    assert seqpipe["strategy"]["schedule"] == "interleaved"
    every = read("pynative", {"parallelism.data_parallel_shard": -1})
    assert "dp_degree" not in every["strategy"]
    for tables in (swapped, seqpipe, every):
        assert tables["notes"]


def test_biases_of_the_newer_classes(read: Any) -> None:
    """attention_bias is of query, key and value; add_bias_linear of every matrix."""
    some = read("newer", {f"{CONFIG}.attention_bias": True})["model"]
    assert (some["qkv_bias"], some["attention_out_bias"], some["mlp_bias"]) == (True, False, False)
    every = read("newer", {f"{CONFIG}.add_bias_linear": True})["model"]
    assert (every["qkv_bias"], every["attention_out_bias"], every["mlp_bias"]) == (True,) * 3


def test_width_worked_out(read: Any) -> None:
    """hidden 1024: 2/3 of 4096 is 2730, up to a multiple of 256: 2816; with 1.3: 5365, 3576, 3584."""
    none = {f"{CONFIG}.intermediate_size": None}
    assert read("older", none)["model"]["ffn_hidden"] == 2816
    some = {**none, f"{CONFIG}.ffn_dim_multiplier": 1.3}
    assert read("older", some)["model"]["ffn_hidden"] == 3584


def test_model_elsewhere(tmp_path: Path) -> None:
    """The template names a folder of a Hugging Face model; it is read when it is there."""
    text = (
        "pretrained_model_dir: model\nrunner_config: {batch_size: 1}\n"
        "parallel_config:\n  data_parallel: 1\n  pipeline_stage: 2\n  micro_batch_num: 2\n"
        "model:\n  model_config:\n    offset: [1, 0]\n"
    )
    path = tmp_path / "run.yaml"
    tables = READER.read(path, text)
    assert "model" not in tables
    assert tables["strategy"]["layer_offset"] == [1, 0]
    assert any("--model" in note for note in tables["notes"])
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    assert READER.read(path, text)["files"] == {"line 1, pretrained_model_dir": "model/config.json"}


def keys_of(text: str) -> list[str]:
    """Every dotted key of a file, and some that it lacks."""
    found = [
        "swap_config.swap", "moe_config", "use_parallel", "micro_batch_interleave_num",
        "parallel_config.context_parallel", "parallel.parallel_optimizer_config",
        "parallelism.context_parallel", "parallelism.dense_fsdp_shard_size", "pretrained_model_dir",
        f"{CONFIG}.hidden_act", f"{CONFIG}.use_ring_attention", "train_dataset.data_loader",
    ]  # fmt: skip
    tables: list[tuple[str, Any]] = [("", yaml.safe_load(text))]
    while tables:
        before, table = tables.pop()
        for key, value in table.items():
            found.append(f"{before}{key}")
            if isinstance(value, dict):
                tables.append((f"{before}{key}.", value))
    return found


JUNK = st.one_of(
    st.none(), st.booleans(), st.integers(-2, 9), st.sampled_from([10**9, -(10**9)]), st.floats(),
    st.sampled_from(["", "auto", "1f1b", "0-3", "0-3,4-7", "-1", "\u597d"]),
    st.lists(st.one_of(st.integers(-2, 9), st.booleans(), st.none()), max_size=5),
    st.lists(st.lists(st.integers(-1, 3), max_size=4), max_size=3),
    st.dictionaries(st.sampled_from(["recompute", "type", r"mlp\.mul"]), st.integers(0, 3), max_size=2),
)  # fmt: skip


@pytest.mark.parametrize("name", ["older", "newer", "pynative"])
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_any_value_is_read_or_refused_in_a_sentence(
    name: str, data: Any, files: Any, with_changes: Any
) -> None:
    """Whatever stands at a key or two, the answer is tables or one sentence."""
    keys = st.sampled_from(keys_of(files[name]))
    changes = data.draw(st.dictionaries(keys, JUNK, min_size=1, max_size=3))
    try:
        text = with_changes(files[name], changes)
    except (AttributeError, TypeError):  # a key below a value that another change put there
        reject()
    said = ""
    try:
        name = READER.read(Path("run.yaml"), text)["framework"]["name"]
        assert name == "mindformers"
    except InputError as error:
        said = str(error)
    assert "\n" not in said
    assert len(said) < 600


def test_overlapping_ranges_count_once(read: Any) -> None:
    """Layers 0 to 3 and 6 of stages 0-4 and 5-8, said four times over."""
    ranges = {"recompute.full_recompute_layer": ["0-2", "1-3", "2", 6, "6-6"]}
    assert read("pynative", ranges)["strategy"]["layer_recompute"]["full"] == [4, 1]
