"""TorchTitan's TOML files: what they mean, and what is refused."""

from __future__ import annotations

import pytest
from titan_files import job, read, refused

from autopar_core.api import ModelConfig


def test_the_default_split_gives_the_ends_fewer_layers() -> None:
    # 32 + 1 + 1 = 34 over 4 stages: 9, 9, 8, 8; minus 1 at both ends: 8, 9, 8, 7
    assert read(job())["strategy"]["stage_partition"] == [8, 9, 8, 7]
    less = "pipeline_parallel_first_stage_less_layers = 0\npipeline_parallel_last_stage_less_layers = 0"
    assert read(job(parallelism=less))["strategy"]["stage_partition"] == [8, 8, 8, 8]


def test_several_stages_on_a_rank() -> None:
    lines = 'pipeline_parallel_schedule = "interleaved1f1b"'
    strategy = read(job(parallelism=lines))["strategy"]
    # 34 over 8 stages: 5, 5, 4, 4, 4, 4, 4, 4; the ends one less
    assert strategy["stage_partition"] == [[4, 5, 4, 4], [4, 4, 4, 3]]
    assert (strategy["vpp_degree"], strategy["schedule"]) == (2, "interleaved")
    three = f"{lines}\npipeline_parallel_layers_per_stage = 3"  # 34 / 3 = 12 stages
    assert read(job(parallelism=three))["strategy"]["vpp_degree"] == 3


def test_each_nth_layer_is_the_default_recompute() -> None:
    text = job().replace('mode = "none"', 'mode = "selective"')
    tables = read(text)
    # every second layer of a rank: 8, 9, 8, 7 layers have 4, 4, 4, 3
    assert tables["strategy"]["layer_recompute"] == {
        "selective": [0, 0, 0, 0],
        "full": [4, 4, 4, 3],
    }
    assert any("op is the selective recompute" in note for note in tables["notes"])
    assert read(text.replace('"selective"', '"full"'))["strategy"]["layer_recompute"] == "full"


def test_compiled_and_quantised() -> None:
    lines = '[compile]\nenable = true\n[quantize.linear.float8]\nrecipe_name = "rowwise"\n'
    tables = read(job(model='converters = ["quantize.linear.float8"]') + lines)
    assert tables["framework"]["name"] == "torchtitan-compile"
    assert tables["training"]["precision"] == "fp8-rowwise"
    plain = read(job() + lines)
    assert plain["training"]["precision"] == "bf16"
    assert any("has no effect" in note for note in plain["notes"])
    assert read(job(model='converters = ["mx"]'))["training"]["precision"] == "mxfp8"
    only = read(job() + '[compile]\nenable = true\ncomponents = ["loss"]\n')
    assert only["framework"]["name"] == "torchtitan"


FLOAT8 = {"model": 'converters = ["quantize.linear.float8"]'}


@pytest.mark.parametrize(
    ("lines", "recipe"),
    [
        ("", "fp8-tensorwise"),  # torchao's own configuration
        ('recipe_name = "tensorwise"', "fp8-tensorwise"),
        ('recipe_name = "rowwise"', "fp8-rowwise"),
        ('recipe_name = "rowwise_with_gw_hp"', "fp8-rowwise_with_gw_hp"),
    ],
)
def test_recipes_of_toml_files(lines: str, recipe: str) -> None:
    text = job(**FLOAT8) + f"[quantize.linear.float8]\n{lines}\n"
    assert read(text)["training"]["precision"] == recipe


def test_gathers_in_fp8_are_told() -> None:
    text = job(**FLOAT8) + "[quantize.linear.float8]\nenable_fsdp_float8_all_gather = true\n"
    assert any("estimated in 16 bits" in note for note in read(text)["notes"])


def test_replicas_and_shards() -> None:
    tables = read(
        job(parallelism="data_parallel_replicate_degree = 4\ncontext_parallel_degree = 2")
    )
    strategy = tables["strategy"]
    assert (strategy["dp_degree"], strategy["replicate_degree"], strategy["shard_degree"]) == (
        8,
        4,
        2,
    )
    assert (strategy["zero_stage"], strategy["cp_comm_type"]) == (3, "all_gather")
    assert tables["cluster"]["devices"] == 4 * 2 * 2 * 4
    one = "pipeline_parallel_degree = 1"
    kept = read(job(parallelism=f'{one}\nfsdp_reshard_after_forward = "never"'))
    assert kept["strategy"]["zero_stage"] == 2
    ddp = read(job(parallelism=f"{one}\ndata_parallel_shard_degree = 1\n"
                   "data_parallel_replicate_degree = 8"))  # fmt: skip
    assert ddp["strategy"]["zero_stage"] == 0


def test_old_files_have_other_keys() -> None:
    """Issue 620 of 2024: 64 devices, the batch under its old name, a section for experiments."""
    tables = read(
        '[model]\nname = "llama3"\nflavor = "8B"\nnorm_type = "rmsnorm"\n[training]\nbatch_size = 1\n'
        "seq_len = 8192\nwarmup_steps = 200\ndata_parallel_replicate_degree = 1\n"
        "data_parallel_shard_degree = -1\ntensor_parallel_degree = 1\ncompile = false\n"
        "[experimental]\npipeline_parallel_degree = 1\n[activation_checkpoint]\nmode = 'selective'\n"
        "selective_ac_option = 'op'\n[float8]\nenable_float8_linear = false\n"
    )
    model = ModelConfig(**tables["model"])
    assert (model.num_layers, model.ffn_hidden, model.kv_heads, model.vocab) == (
        32,
        14336,
        8,
        128256,
    )
    assert tables["strategy"]["micro_batch_size"] == 1
    assert "dp_degree" not in tables["strategy"]  # -1: all devices, however many
    assert tables["strategy"]["layer_recompute"] == "selective"
    points = job(
        parallelism='pipeline_parallel_split_points = ["layers.7", "layers.15", "layers.23"]'
    )
    strategy = read(points)["strategy"]
    assert strategy["stage_partition"] == [7, 8, 8, 9]
    # as many micro-batches as stages, by default
    assert (strategy["micro_batch_num"], strategy["micro_batch_size"]) == (4, 2)


NAMES = '["tok_embeddings", "layers.0"], ["layers.1"], ["layers.2"], ["layers.3", "norm", "output"]'
WRONG = {
    "typing error": (job(parallelism="tensor_paralel_degree = 2"), "did you mean tensor_parallel_degree"),
    "text for a number": (job(parallelism='tensor_parallel_degree = "2"'), "expected a whole number"),
    "zero": (job(parallelism="context_parallel_degree = 0"), "must be 1 or more"),
    "minus one elsewhere": (job(parallelism="tensor_parallel_degree = -1"), "must be 1 or more"),
    "minus two": (job(parallelism="data_parallel_shard_degree = -2"), "or -1 for all ranks"),
    "lost layers": (job(parallelism=f"module_fqns_per_model_part = [{NAMES}]"), "leaves out layers.4"),
    "head of 0.3.0": (
        job(parallelism=f"module_fqns_per_model_part = [{NAMES}]".replace("output", "lm_head")),
        "TorchTitan ignores it",
    ),
    "two ways": (
        job(parallelism="pipeline_parallel_layers_per_stage = 5"), "7 stages"
    ),
    "one stage on a rank": (
        job(parallelism="pipeline_parallel_layers_per_stage = 3"), "the schedule Interleaved1F1B"
    ),
    "other schedule": (
        job(parallelism='pipeline_parallel_schedule = "LoopedBFS"'), "GPipe, ZBVZeroBubble, DualPipeV"
    ),
    "V of three": (
        job(parallelism='pipeline_parallel_schedule = "DualPipeV"\n'
            "pipeline_parallel_layers_per_stage = 3"), "takes two stages on each of 4 ranks, not 12"
    ),
    "micro-batches": (
        job(parallelism="pipeline_parallel_microbatch_size = 3"), "nearest legal"
    ),
    "global batch": (job(training="global_batch_size = 24"), "nearest legal: 16"),
    "budget": (job().replace('"none"', '"memory_budget"'), "none, selective and full"),
    "option": (
        job(activation_checkpoint='selective_ac_option = "ops"').replace('"none"', '"selective"'),
        "neither op nor a whole number",
    ),
    "DDP": (
        job(parallelism="data_parallel_shard_degree = 1\ndata_parallel_replicate_degree = 2"),
        "data_parallel_shard_degree = 2 instead",
    ),
    "sequence": (
        job(parallelism="context_parallel_degree = 8\ntensor_parallel_degree = 3"), "nearest legal: 8160"
    ),
    "offload": (job(training="enable_cpu_offload = true"), "write false"),
    "16-bit states": (job(training='dtype = "bfloat16"'), "write float32"),
    "old and new": (
        job(parallelism="tensor_parallel_degree = 4").replace(
            "[training]", "[training]\ntensor_parallel_degree = 2"
        ),
        "line 6, training.tensor_parallel_degree",
    ),
    "flavour": (job(model='flavor = "9B"'), "it has debugmodel, 1B, 3B, 8B, 70B, 405B"),
    "mixture": (job(model='name = "deepseek_v3"'), "line 3, model.name: deepseek_v3 is a mixture"),
    "mixture by flavour": (
        job(model='name = "qwen3"\nflavor = "30B-A3B"'), "model.flavor: qwen3 30B-A3B is a mixture"
    ),
    "expert parallel": (job(parallelism="expert_parallel_degree = 8"), "parallelism.expert_parallel"),
    "images": (job(model='name = "flux"'), "image generation"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_traps_of_toml_files(case: str) -> None:
    text, said = WRONG[case]
    message = refused(text)
    assert said in message
    assert message.startswith("job.toml: ")
    assert "\n" not in message


def test_a_contradiction_names_both_places() -> None:
    message = refused(WRONG["old and new"][0])
    assert "training.tensor_parallel_degree" in message
    assert "parallelism.tensor_parallel_degree" in message
    both = job(parallelism="pipeline_parallel_layers_per_stage = 2\nmodule_fqns_per_model_part = "
               + str(four_stages()).replace("'", '"'))  # fmt: skip
    message = refused(both)
    assert "line 9" in message
    assert "line 10" in message


def four_stages() -> list[list[str]]:
    parts = [[f"layers.{i}" for i in range(start, start + 8)] for start in (0, 8, 16, 24)]
    return [["tok_embeddings", *parts[0]], parts[1], parts[2], [*parts[3], "norm", "output"]]
