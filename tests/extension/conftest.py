"""The command line in process, on a job of six devices that answers at once."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from autopar_core.cli.main import main


FILES = Path(__file__).with_name("files")
# Twelve heads and six devices: a degree of three divides the heads and not the FFN.
INPUT = """
[model]
num_layers = 8
hidden = 1024
ffn_hidden = 4096
heads = 12
head_dim = 64
kv_heads = 12
vocab = 32000
[training]
global_batch_size = 24
seq_len = 2048
[cluster]
system = "a100-sxm-80gb"
devices = 6
[search]
micro_batch_size = [1, 2]
stage_partition = "even"
top_k = 5
"""

Autopar = Callable[..., dict[str, Any]]


@pytest.fixture
def plugin_file() -> Callable[[str], str]:
    """Path of a one-file plugin by its name."""
    return lambda name: str(FILES / f"{name}.py")


@pytest.fixture(scope="session")
def job_text() -> str:
    """The job."""
    return INPUT


@pytest.fixture
def input_file(tmp_path: Path, job_text: str) -> Path:
    """The job in a file."""
    path = tmp_path / "job.toml"
    path.write_text(job_text)
    return path


@pytest.fixture
def autopar(input_file: Path, capsys: pytest.CaptureFixture[str]) -> Autopar:
    """Runs ``autopar search`` on the job; its JSON document."""

    def run(*arguments: str, code: int = 0) -> dict[str, Any]:
        capsys.readouterr()
        got = main(["search", str(input_file), "--json", "--no-charts", *arguments])
        out, err = capsys.readouterr()
        assert got == code, err
        document: dict[str, Any] = json.loads(out)
        return document

    return run


@pytest.fixture
def refused(input_file: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs a search that must be refused; its one sentence."""

    def run(*arguments: str) -> str:
        capsys.readouterr()
        assert main(["search", str(input_file), *arguments]) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert err.count("\n") == 1
        return err.removeprefix("error: ").rstrip("\n")

    return run


@pytest.fixture
def table() -> Callable[[Path], list[dict[str, str]]]:
    """Lines of a CSV file."""
    return lambda path: list(csv.DictReader(io.StringIO(path.read_text())))
