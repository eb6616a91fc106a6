"""What flags of a launch script mean, alone and together."""

from __future__ import annotations

from typing import Any

import pytest
from scripts import GROUP, INTERLEAVED, script

from autopar_core.api import InputError


def test_flags_without_meaning_in_a_dense_model_are_let_pass(read: Any) -> None:
    tables = read(
        script({"num-experts": "1", "expert-model-parallel-size": "1", "mtp-num-layers": "0"})
    )
    assert tables["model"]["num_layers"] == 8


def test_a_flag_said_twice_names_both_places(read: Any) -> None:
    text = script().replace("  --num-layers 8 \\", "  --num-layers 8 \\\n  --num-layers 9 \\")
    with pytest.raises(InputError, match=r"is 8 \(line 2, .*\) and 9 \(line 3, "):
        read(text)
    same = text.replace("--num-layers 9", "--num-layers 8")
    assert read(same)["model"]["num_layers"] == 8


def test_world_size_of_ranks_of_nodes_and_of_neither(read: Any) -> None:
    launcher = "--nproc_per_node 8 --nnodes 2"
    text = script(launcher=launcher).replace(" --nnodes 1", "")
    assert read("WORLD_SIZE=16\n" + text)["cluster"]["devices"] == 16
    notes = read("WORLD_SIZE=2\n" + text)["notes"]
    assert "WORLD_SIZE = 2 means nodes here, not ranks: 16 devices in all" in notes
    with pytest.raises(InputError, match=r"WORLD_SIZE is 12 \(line 1\) and the launcher starts 16"):
        read("WORLD_SIZE=12\n" + text)


def test_devices_of_a_batch_system(read: Any) -> None:
    text = "#!/bin/bash\n#SBATCH --nodes=4\n#SBATCH --gres=gpu:h100:8\n" + script().replace(
        "torchrun --nproc_per_node 8 --nnodes 1 ", "srun python "
    )
    tables = read(text)
    assert tables["cluster"]["devices"] == 32
    assert (
        tables["sources"]["cluster.devices"] == "line 3, #SBATCH --gres x line 2, #SBATCH --nodes"
    )


def test_unknown_devices_leave_data_parallelism_open(read: Any) -> None:
    tables = read(script(launcher="--nproc_per_node $N"))
    assert "cluster" not in tables
    assert "dp_degree" not in tables["strategy"]
    assert any("give cluster.devices" in note for note in tables["notes"])


def test_a_comment_ends_the_command(read: Any) -> None:
    text = script().replace("  --swiglu  \\", "  # --swiglu \\")
    with pytest.raises(InputError, match=r"line \d+: --position-embedding-type is not passed"):
        read(text)


def test_groups_of_micro_batches(read: Any) -> None:
    """32 micro-batches (64 over dp 2): groups of 8; groups of the 4 ranks are the default."""
    tables = read(script({**INTERLEAVED, GROUP: "8"}))
    assert tables["plugins"] == {"pp": {"group_size": 8}}
    assert "--microbatch-group-size" in tables["sources"]["plugins.pp.group_size"]
    assert "plugins" not in read(script({**INTERLEAVED, GROUP: "4"}))
    # 28 micro-batches: groups of 12 leave 4, as many as there are ranks
    whole = read(script({**INTERLEAVED, GROUP: "12", "global-batch-size": "56"}))
    assert whole["plugins"]["pp"]["group_size"] == 12


@pytest.mark.parametrize(
    ("recipe", "name"),
    [
        ("delayed", "fp8-delayed"), ("tensorwise", "fp8-current"), ("mxfp8", "mxfp8"),
        ("blockwise", "fp8-blockwise"), ("custom", "fp8-custom"),
    ],
)  # fmt: skip
def test_recipes_keep_their_names(recipe: str, name: str, read: Any) -> None:
    text = script({"fp8-format": "hybrid", "fp8-recipe": recipe})
    assert read(text)["training"]["precision"] == name


def test_layers_kept_in_half_precision_are_told(read: Any) -> None:
    text = script(
        {"fp8-format": "hybrid", "fp8-recipe": "tensorwise", "first-last-layers-bf16": ""}
    )
    assert any("keeps the first and the last layer in bf16" in note for note in read(text)["notes"])


def test_a_comment_inside_a_string_is_none(read: Any) -> None:
    text = 'ARGS="\n  --bf16\n  # --swiglu\n"\n' + script().replace("--bf16  \\", "$ARGS \\")
    with pytest.raises(InputError, match="line 3: '#' inside a quoted string"):
        read(text)


def test_a_quoted_flag_with_its_value_is_one_word(read: Any) -> None:
    with pytest.raises(InputError, match="reaches Megatron as one word"):
        read(script({"bf16": "'--fp8-format hybrid'"}))


def test_an_unquoted_layout_is_told(read: Any) -> None:
    text = script({"pipeline-model-parallel-layout": "Et*2|(t*2|)*2t*2L"})
    with pytest.raises(InputError, match="needs quotes"):
        read(text)


def test_two_launches_are_told(read: Any) -> None:
    with pytest.raises(InputError, match="two different jobs, on lines 1 and"):
        read(script() + script({"num-layers": "16"}))
    assert read(script() + script())["model"]["num_layers"] == 8


def test_sequence_parallelism_at_one_rank_is_off(read: Any) -> None:
    tables = read(script({"sequence-parallel": ""}))
    assert tables["strategy"]["sequence_parallel"] is False
    assert tables["sources"]["strategy.sequence_parallel"].startswith("inferred: off at tp 1")


def test_padding_of_the_vocabulary(read: Any) -> None:
    tables = read(script({
        "vocab-size": "50257", "make-vocab-size-divisible-by": "1", "tensor-model-parallel-size": "2",
    }))  # fmt: skip
    assert tables["model"]["vocab"] == 50257
    assert tables["framework"]["override"]["tp"] == {"vocabulary_multiple": 1}
    assert any("from 50257 to 50258 rows" in note for note in tables["notes"])
    # 151936 = 128 x 1187: an odd divisor that pads nothing at tp 1, 2, 4, ...
    odd = read(script({"vocab-size": "151936", "make-vocab-size-divisible-by": "1187"}))
    assert not any("pads" in note for note in odd["notes"])


@pytest.mark.parametrize(
    ("flags", "ffn"),
    # 8/3 of 1024 is 2730.67, rounded down to a multiple of 64: 2688
    [({"swiglu": ""}, 2688), ({"swiglu": "absent"}, 4096), ({"ffn-hidden-size": "2816"}, 2816)],
)  # fmt: skip
def test_width_of_the_mlp(flags: dict[str, str], ffn: int, read: Any) -> None:
    assert read(script(flags))["model"]["ffn_hidden"] == ffn


def test_biases(read: Any) -> None:
    model = read(script())["model"]
    assert (model["qkv_bias"], model["attention_out_bias"], model["mlp_bias"]) == (True, True, True)
    model = read(script({"disable-bias-linear": "", "add-qkv-bias": ""}))["model"]
    assert (model["qkv_bias"], model["attention_out_bias"], model["mlp_bias"]) == (
        True,
        False,
        False,
    )


def test_learned_positions_are_the_default(read: Any) -> None:
    tables = read(script({"position-embedding-type": "absent", "max-position-embeddings": "4096"}))
    assert (tables["model"]["position"], tables["model"]["position_rows"]) == ("learned", 4096)
    assert tables["sources"]["model.position"] == "default of the format"


def test_recompute(read: Any) -> None:
    pipeline = {"pipeline-model-parallel-size": "4"}
    full = {
        "recompute-granularity": "full",
        "recompute-method": "block",
        "recompute-num-layers": "1",
    }
    recompute = read(script({**pipeline, **full}))["strategy"]["layer_recompute"]
    assert recompute["full"] == [1, 1, 1, 1]
    uniform = {**full, "recompute-method": "uniform", "recompute-num-layers": "2"}
    tables = read(script({**pipeline, **uniform}))
    assert tables["strategy"]["layer_recompute"]["full"] == [2, 2, 2, 2]
    assert any("not modelled" in note for note in tables["notes"])
    many = read(script({**pipeline, **full, "recompute-num-layers": "40"}))
    assert many["strategy"]["layer_recompute"]["full"] == [2, 2, 2, 2]
    assert any("no virtual stage has 40 layers" in note for note in many["notes"])
    attention = read(script({"recompute-activations": ""}))
    assert attention["strategy"]["layer_recompute"]["selective"] == [0]
    assert any("core_attn" in note for note in attention["notes"])
    both = {"recompute-granularity": "selective", "recompute-modules": "mlp layernorm"}
    assert read(script(both))["strategy"]["layer_recompute"]["selective"] == [8]


def test_recompute_per_rank_is_dealt_to_chunks(read: Any) -> None:
    """MindSpeed: layer i of chunk v recomputes while i x vpp + v < N; 3 over 2 chunks is 2 and 1."""
    tables = read(script({
        "num-layers": "16", "pipeline-model-parallel-size": "4",
        "num-layers-per-virtual-pipeline-stage": "2", "recompute-granularity": "full",
        "recompute-method": "block", "recompute-num-layers": "3",
        "enable-recompute-layers-per-pp-rank": "",
    }))  # fmt: skip
    assert tables["strategy"]["layer_recompute"]["full"] == [[2] * 4, [1] * 4]
    assert tables["framework"]["name"] == "mindspeed"


def test_noop_layers_are_subtracted(read: Any) -> None:
    tables = read(script({"pipeline-model-parallel-size": "4", "noop-layers": "0,7"}))
    assert tables["model"]["num_layers"] == 6
    assert tables["strategy"]["stage_partition"] == [1, 2, 2, 1]


@pytest.mark.parametrize(
    ("flags", "stage", "shard"),
    [
        ({}, 0, 1), ({"use-distributed-optimizer": ""}, 1, 8),
        ({"use-megatron-fsdp": ""}, 3, 8),
        ({"use-megatron-fsdp": "", "data-parallel-sharding-strategy": "optim_grads"}, 2, 8),
        ({"use-torch-fsdp2": "", "untie-embeddings-and-output-weights": ""}, 3, 8),
        ({"use-distributed-optimizer": "", "num-distributed-optimizer-instances": "2"}, 1, 4),
    ],
)  # fmt: skip
def test_sharding(flags: dict[str, str], stage: int, shard: int, read: Any) -> None:
    strategy = read(script(flags))["strategy"]
    assert (strategy["zero_stage"], strategy["shard_degree"]) == (stage, shard)


def test_an_absent_batch_is_one_micro_batch_a_rank(read: Any) -> None:
    tables = read(script({"global-batch-size": "absent", "micro-batch-size": "4"}))
    assert tables["training"]["global_batch_size"] == 32


def test_a_growing_batch_ends_where_the_run_ends(read: Any) -> None:
    steps = {"global-batch-size": "absent", "step-batch-size-schedule": '"0:64 1B:128 100B:256"'}
    assert read(script(steps))["training"]["global_batch_size"] == 256
    # 1,000,000 samples x 2048 tokens = 2.05 B tokens: the third step is never reached
    ended = read(script({**steps, "train-samples": "1000000"}))
    assert ended["training"]["global_batch_size"] == 128
