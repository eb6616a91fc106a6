"""TorchTitan's TOML files and Python configurations: what they mean, and what is refused."""

from __future__ import annotations

import contextlib
import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from autopar_core.api import InputError, ModelConfig
from autopar_torchtitan.readers import READERS
from autopar_torchtitan.settings import DEFAULTS


ROOT = Path(__file__).resolve().parents[3]
SAMPLES = ROOT / "tests" / "data" / "samples"


def read(text: str, name: str = "job.toml") -> Mapping[str, Any]:
    path = Path(name)
    (known,) = [reader for reader in READERS if reader.recognises(path, text)]
    return known.read(path, text)


def sample(name: str) -> Mapping[str, Any]:
    return read((SAMPLES / "torchtitan" / name).read_text(), name)


def refused(text: str, name: str = "job.toml") -> str:
    with pytest.raises(InputError) as error:
        read(text, name)
    return str(error.value)


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


JOB = """
[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 8
seq_len = 8192
[parallelism]
data_parallel_shard_degree = 2
pipeline_parallel_degree = 4
[activation_checkpoint]
mode = "none"
"""


def job(**changes: str) -> str:
    """The job with lines put into its sections."""
    text = JOB
    for section, lines in changes.items():
        text = text.replace(f"[{section}]\n", f"[{section}]\n{lines}\n")
    for line in (each for lines in changes.values() for each in lines.split("\n")):
        key = line.partition("=")[0].strip()
        if text.count(f"\n{key} =") > 1:
            at = text.rindex(f"\n{key} =")
            text = text[:at] + text[text.index("\n", at + 1) :]
    return text


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


@pytest.mark.parametrize(
    ("recipe", "converter"),
    [
        ("mxfp8", 'MXFP8LinearConverter.Config(fqns=["layers"])'),
        ("nvfp4", "NVFP4LinearConverter.Config()"),
        ("fp8-rowwise", "Float8LinearConverter.Config()"),
        ("fp8-rowwise_with_gw_hp",
         'Float8LinearConverter.Config(recipe_name="rowwise_with_gw_hp")'),
        ("fp8-tensorwise", 'Float8LinearConverter.Config(recipe_name="tensorwise")'),
    ],
)  # fmt: skip
def test_recipes_of_python_files(recipe: str, converter: str) -> None:
    text = (
        "from torchtitan.models.llama3 import model_registry\n"
        "from torchtitan.models.llama3.config_registry import llama3_8b\n"
        "from torchtitan.trainer import Trainer\n\n\n"
        "def mine() -> Trainer.Config:\n"
        "    config = llama3_8b()\n"
        f'    config.model_spec = model_registry("8B", converters=[{converter}])\n'
        "    return config\n"
    )
    assert read(text, "mine.py")["training"]["precision"] == recipe


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


HEADER = """
from torchtitan.config import CompileConfig, ParallelismConfig, TrainingConfig
from torchtitan.distributed.activation_checkpoint import FullAC, SelectiveAC
from torchtitan.models.llama3 import model_registry
from torchtitan.models.llama3.config_registry import llama3_8b as base
from torchtitan.trainer import Trainer

"""


def python(*lines: str) -> str:
    body = "".join(f"    {line}\n" for line in lines)
    return f"{HEADER}def mine() -> Trainer.Config:\n    config = base()\n{body}    return config\n"


def test_python_values_that_are_made_of_literals() -> None:
    tables = read(
        HEADER + "SIZE = 2\nHALF = 16\n\n\ndef shape():\n    return model_registry('8B')\n\n\n"
        "def mine(steps: int = 5) -> Trainer.Config:\n"
        "    spec = shape()\n"
        "    parts = [['tok_embeddings', *[f'layers.{i}' for i in range(HALF)]]]\n"
        "    parts += [[f'layers.{i}' for i in range(HALF, 2 * HALF)] + ['norm', 'lm_head']]\n"
        "    return Trainer.Config(\n        model_spec=spec,\n"
        "        training=TrainingConfig(local_batch_size=4 * SIZE, global_batch_size=8 * SIZE,\n"
        "            seq_len=4096, steps=steps, disable_cuda_graphs=True),\n"
        "        parallelism=ParallelismConfig(data_parallel_shard_degree=SIZE,\n"
        "            pipeline_parallel_degree=len(parts), pipeline_parallel_microbatch_size=SIZE,\n"
        "            module_fqns_per_model_part=parts),\n"
        "        activation_checkpoint=None,\n    )\n",
        "mine.py",
    )
    strategy = tables["strategy"]
    assert strategy["stage_partition"] == [16, 16]
    assert (strategy["micro_batch_size"], strategy["micro_batch_num"]) == (2, 4)
    assert strategy["layer_recompute"] == "none"
    assert tables["training"]["global_batch_size"] == 16
    assert tables["sources"]["training.seq_len"] == "line 23, training.seq_len"


def test_python_assignments_change_what_a_function_of_torchtitan_set() -> None:
    tables = read(
        python("config.training.seq_len = 16384", "config.parallelism.tensor_parallel_degree = 2",
               "config.parallelism.data_parallel_shard_degree = 4",
               "config.compile = CompileConfig(enable=True)", "config.activation_checkpoint = None"),
        "mine.py",
    )  # fmt: skip
    assert tables["training"]["seq_len"] == 16384
    assert tables["strategy"]["tp_degree"] == 2
    assert tables["framework"]["name"] == "torchtitan-compile"
    assert tables["sources"]["strategy.micro_batch_size"].startswith(
        "default of the format: llama3_8b"
    )
    assert tables["sources"]["strategy.layer_recompute"] == "line 14, activation_checkpoint"


WRONG_PYTHON = {
    "computed": (python("config.training.seq_len = int(os.environ['S'])"), "write its value as a "
    "literal"),
    "condition": (
        python("if True:", "    config.training.seq_len = 1"), "under a condition or in a loop"
    ),
    "graphs": (python("config.parallelism.pipeline_parallel_degree = 4"), "disable_cuda_graphs = True"),
    "async": (
        python("config.compile = CompileConfig(enable_async_tensor_parallel=True)"), "leave async out"
    ),
    "context": (
        python("config.parallelism.context_parallel_degree = 2",
               "config.parallelism.spmd_backend = 'partial_dtensor'"), "needs spmd_types"),
    "kernel": (
        python("config.parallelism.context_parallel_degree = 2",
               "config.model_spec = model_registry('8B', attn_backend='sdpa')"), "use flex"),
    "too long": (python("config.training.seq_len = 262144"), "at most 131072"),
    "devices": (
        python("config.parallelism.tensor_parallel_degree = 3").replace("\ndef", "\nDEVICES = 8\n\ndef"),
        "legal is 6 devices",
    ),
    "own model": (
        python("config.model_spec = ModelSpec(name='x', flavor='y')"), "builds a model by itself"
    ),
    "two": (python() + python().replace("mine", "yours"), "several configurations, mine (line 8)"),
    "mixture": (
        python().replace("llama3.config_registry import llama3_8b as base",
                         "deepseek_v3.config_registry import deepseek_v3_16b as base"),
        "deepseek_v3_16b configures a mixture-of-experts",
    ),
    "no Python": (HEADER + "def mine(:\nTrainer.Config", "is no valid Python"),
    "large": (
        python("config.parallelism.module_fqns_per_model_part = [f'{i}' for i in range(10 ** 9)]")
        .replace("10 ** 9", "1000000000"), "makes more values"),
    "endless": (
        HEADER + "def mine() -> Trainer.Config:\n    return mine()\ndef other() -> Trainer.Config:\n"
        "    return mine()\n", "makes more values"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG_PYTHON)
def test_traps_of_python_configurations(case: str) -> None:
    text, said = WRONG_PYTHON[case]
    message = refused(text, "mine.py")
    assert said in message
    assert message.startswith("mine.py")
    assert "\n" not in message


def test_nothing_of_a_python_file_runs(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    text = python(f"open({str(mark)!r}, 'w')") + f"open({str(mark)!r}, 'w')\n"
    read(text, "mine.py")
    assert not mark.exists()


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
