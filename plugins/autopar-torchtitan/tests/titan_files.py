"""Small files of TorchTitan, read and refused."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from autopar_core.api import InputError
from autopar_torchtitan.readers import READERS


ROOT = Path(__file__).resolve().parents[3]
SAMPLES = ROOT / "tests" / "data" / "samples"


def read(text: str, name: str = "job.toml") -> Mapping[str, Any]:
    path = Path(name)
    (known,) = [reader for reader in READERS if reader.recognises(path, text)]
    return known.read(path, text)


def refused(text: str, name: str = "job.toml") -> str:
    with pytest.raises(InputError) as error:
        read(text, name)
    return str(error.value)


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
