"""Silent traps, contradictions, refusals and junk."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autopar_core.api import InputError, ModelConfig
from autopar_megatron.readers import readers


BASE = {
    "num-layers": "8", "hidden-size": "1024", "num-attention-heads": "16", "seq-length": "2048",
    "max-position-embeddings": "2048", "micro-batch-size": "1", "global-batch-size": "64",
    "vocab-size": "32000", "bf16": "", "swiglu": "", "position-embedding-type": "rope",
}  # fmt: skip


GROUP = "microbatch-group-size-per-virtual-pipeline-stage"
INTERLEAVED = {
    "pipeline-model-parallel-size": "4", "num-virtual-stages-per-pipeline-rank": "2",
}  # fmt: skip


def script(changes: dict[str, str] | None = None, launcher: str = "--nproc_per_node 8") -> str:
    flags = {**BASE, **(changes or {})}
    lines = [f"  --{name} {value} \\" for name, value in flags.items() if value != "absent"]
    return f"torchrun {launcher} --nnodes 1 pretrain_gpt.py \\\n" + "\n".join(lines) + "\n\n"


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
        ({"tensor-model-parallel-size": "3"}, "8 devices .* are not divisible by tp 3"),
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
        ({**INTERLEAVED, GROUP: "64"}, "at most the 32 micro-batches; nearest legal: 32"),
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


YAML = """
language_model:
  num_layers: 24
  hidden_size: 1024
  num_attention_heads: 16
  num_query_groups: 4
  activation_func: swiglu
  ffn_hidden_size: 2816
  add_bias_linear: False
  normalization: RMSNorm
model_parallel:
  tensor_model_parallel_size: 2
  pipeline_model_parallel_size: 4
  virtual_pipeline_model_parallel_size: 2
  sequence_parallel: True
  bf16: True
micro_batch_size: 2
global_batch_size: 128
untie_embeddings_and_output_weights: True
position_embedding_type: rope
max_position_embeddings: 4096
seq_length: 4096
vocab_size: 32000
use_distributed_optimizer: True
"""


def test_megatrons_own_yaml(read: Any) -> None:
    tables = read(YAML, "gpt.yaml")
    model = ModelConfig(**tables["model"])
    assert (model.num_layers, model.kv_heads, model.gated_mlp, model.mlp_bias) == (
        24,
        4,
        True,
        False,
    )
    assert tables["strategy"]["stage_partition"] == [[3] * 4, [3] * 4]
    assert tables["sources"]["model.hidden"] == "line 4, language_model.hidden_size"
    with pytest.raises(InputError, match="nearest legal is"):
        read(YAML.replace("num_layers: 24", "num_layers: 20"), "gpt.yaml")
    with pytest.raises(InputError, match="num_layers is given twice, lines 3 and"):
        read(YAML.replace("  hidden_size", "  num_layers: 25\n  hidden_size"), "gpt.yaml")


PRIMUS = """
modules:
  pre_trainer:
    framework: megatron
    overrides:
      num_layers: 80
      hidden_size: 8192
      ffn_hidden_size: 28672
      num_attention_heads: 64
      group_query_attention: true
      num_query_groups: 8
      swiglu: true
      disable_bias_linear: true
      normalization: RMSNorm
      untie_embeddings_and_output_weights: true
      position_embedding_type: rope
      vocab_size: 128256
      seq_length: ${SEQ:8192}
      max_position_embeddings: 8192
      micro_batch_size: 3
      global_batch_size: 24
      tensor_model_parallel_size: ${TP:1}
      sequence_parallel: 1
      use_torch_fsdp2: true
      use_distributed_optimizer: false
      recompute_granularity: full
      recompute_method: block
      recompute_num_layers: 80
      bf16: true
"""


def test_primus_yaml_with_defaults_of_the_environment(read: Any) -> None:
    tables = read(PRIMUS, "llama.yaml")
    assert ModelConfig(**tables["model"]).parameters == 70553706496
    strategy = tables["strategy"]
    assert (strategy["tp_degree"], strategy["zero_stage"], strategy["sequence_parallel"]) == (
        1,
        3,
        False,
    )
    assert strategy["layer_recompute"]["full"] == [80]
    assert tables["training"]["seq_len"] == 8192
    with pytest.raises(InputError, match="takes values from other files"):
        read(PRIMUS.replace("    overrides:", "    extends: [a.yaml]\n    overrides:"), "x.yaml")
    with pytest.raises(InputError, match=r"\$TP has no value"):
        read(PRIMUS.replace("${TP:1}", "${TP}"), "x.yaml")


BRIDGE_YAML = """
model:
  _target_: megatron.bridge.models.gpt_provider.GPTModelProvider
  num_layers: 16
  hidden_size: 1024
  num_attention_heads: 16
  num_query_groups: 8
  gated_linear_unit: true
  ffn_hidden_size: 2816
  position_embedding_type: rope
  share_embeddings_and_output_weights: false
  add_bias_linear: false
  vocab_size: 32000
  seq_length: 4096
  tensor_model_parallel_size: 2
  pipeline_model_parallel_size: 2
  virtual_pipeline_model_parallel_size: 2
  num_layers_in_first_pipeline_stage: 6
train:
  micro_batch_size: 1
  global_batch_size: 64
dataset:
  seq_length: 4096
ddp:
  use_distributed_optimizer: true
  grad_reduce_in_fp32: true
mixed_precision: bf16_with_mxfp8_mixed
"""


def test_bridge_yaml(read: Any) -> None:
    """First stage 6, so 10 on the other; two chunks of each: 3 and 5."""
    tables = read(BRIDGE_YAML, "bridge.yaml")
    assert tables["strategy"]["stage_partition"] == [[3, 5], [3, 5]]
    assert tables["training"]["precision"] == "mxfp8"
    model = ModelConfig(**tables["model"])
    assert (model.kv_heads, model.tied_embeddings, model.mlp_bias) == (8, False, False)
    assert tables["framework"]["override"]["dp"]["gradient_reduce_bytes"] == 4.0
    with pytest.raises(InputError, match=r"is 4096 \(line \d+, model.seq_length.* and 2048"):
        read(
            BRIDGE_YAML.replace("dataset:\n  seq_length: 4096", "dataset:\n  seq_length: 2048"),
            "b.yaml",
        )


RECIPE = """
from megatron.bridge.models.gpt_provider import GPTModelProvider
from megatron.bridge.training.config import ConfigContainer, TrainingConfig

TP = 2 * 2

def config():
    model = GPTModelProvider(
        num_layers=8, hidden_size=1024, num_attention_heads=16, seq_length=2048, vocab_size=32000,
        gated_linear_unit=True, position_embedding_type="rope", tensor_model_parallel_size=TP,
    )
    model.pipeline_model_parallel_size = 2
    cfg = ConfigContainer(model=model, train=TrainingConfig(micro_batch_size=1, global_batch_size=16))
    cfg.model.sequence_parallel = True
    cfg.ddp.use_distributed_optimizer = True
    cfg.train.train_iters = compute()
    return cfg
"""


def test_a_recipe_is_read_by_its_literals(read: Any) -> None:
    tables = read(RECIPE, "recipe.py")
    strategy = tables["strategy"]
    assert (strategy["tp_degree"], strategy["pp_degree"], strategy["zero_stage"]) == (4, 2, 1)
    assert strategy["sequence_parallel"] is True
    assert tables["model"]["ffn_hidden"] == 4096  # 4 x hidden, whatever the activation
    assert tables["sources"]["strategy.tp_degree"] == "line 10, model.tensor_model_parallel_size"
    assert any("train.train_iters is computed" in note for note in tables["notes"])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("TP = 2 * 2", "TP = size()"), "model.tensor_model_parallel_size is computed"),
        (("    cfg.model.seq", "    if x:\n        cfg.model.seq"), "under a condition"),
        (
            ("def config", "def other():\n    cfg.model.num_layers = 4\n\ndef config"),
            "several recipes",
        ),
        (("def config():", "def config(:"), "no valid Python"),
        (
            ("    return cfg", "    cfg.dataset.seq_length = 1024\n    return cfg"),
            "is 2048 .* and 1024",
        ),
    ],
)
def test_what_a_recipe_hides_is_refused(change: tuple[str, str], said: str, read: Any) -> None:
    with pytest.raises(InputError, match=said):
        read(RECIPE.replace(*change), "recipe.py")


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
