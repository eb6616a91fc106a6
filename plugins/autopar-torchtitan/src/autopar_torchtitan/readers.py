"""The readers: which text is whose, and from text to tables."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autopar_core.api import Findings, Reader
from autopar_torchtitan.read_job import read_job
from autopar_torchtitan.read_model import read_model
from autopar_torchtitan.read_pipeline import read_pipeline
from autopar_torchtitan.read_python import looks_like_python, read_python
from autopar_torchtitan.read_toml import looks_like_toml, read_toml
from autopar_torchtitan.settings import Settings


def is_toml(path: Path, text: str) -> bool:
    """A job configuration of releases up to 0.2.2."""
    return path.suffix in (".toml", "") and looks_like_toml(text)


def is_python(path: Path, text: str) -> bool:
    """A file with a configuration function."""
    return path.suffix in (".py", "") and looks_like_python(text)


def read_toml_file(path: Path, text: str) -> Mapping[str, Any]:
    """Tables of a job configuration."""
    return _tables(read_toml(path.name, text))


def read_python_file(path: Path, text: str) -> Mapping[str, Any]:
    """Tables of a configuration function."""
    return _tables(read_python(path.name, text))


def _tables(settings: Settings) -> Mapping[str, Any]:
    found = Findings(settings.label)
    flavor = read_model(settings, found)
    degrees = read_job(settings, found)
    read_pipeline(settings, flavor.model.num_layers, degrees, found)
    return found.tables()


READERS = (
    Reader("torchtitan-toml", "TorchTitan TOML, releases up to 0.2.2.", is_toml, read_toml_file,
           framework="torchtitan"),
    Reader("torchtitan", "TorchTitan Python configurations, releases from 0.3.0.", is_python,
           read_python_file, framework="torchtitan"),
)  # fmt: skip
