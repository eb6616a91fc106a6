"""TorchTitan's Python configurations: what they mean, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from titan_files import HEADER, python, read, refused


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
