"""The readers: which text is whose, and from text to tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from autopar_core.api import Findings, Reader
from autopar_megatron.bridge_files import (
    looks_like_overrides,
    looks_like_recipe,
    read_overrides,
    read_recipe,
)
from autopar_megatron.launch import (
    Launch,
    has_signature,
    looks_like_arguments,
    read_arguments,
    read_script,
)
from autopar_megatron.read_job import read_job
from autopar_megatron.read_model import read_model
from autopar_megatron.refusals import refuse_other_models
from autopar_megatron.yaml_dialects import looks_like_yaml, read_yaml_settings


def is_launch(path: Path, text: str) -> bool:
    """A launch script, an argument file or a YAML file of Megatron-LM or MindSpeed-LLM."""
    if looks_like_arguments(text) or path.suffix in (".sh", ".bash", ".slurm", ".sbatch"):
        return has_signature(text)
    if text.startswith("#!") and "sh" in text[:30]:
        return has_signature(text)
    return path.suffix in (".yaml", ".yml") and _is_megatron_yaml(text)


def _is_megatron_yaml(text: str) -> bool:
    return looks_like_yaml(text) and not _is_bridge_yaml(text)


def _is_bridge_yaml(text: str) -> bool:
    return text.startswith("model:") or "\nmodel:" in text


def is_bridge(path: Path, text: str) -> bool:
    """A recipe, a YAML file or a list of overrides of Megatron-Bridge."""
    if path.suffix == ".py":
        return looks_like_recipe(text)
    if path.suffix in (".yaml", ".yml"):
        return looks_like_yaml(text) and _is_bridge_yaml(text)
    return looks_like_overrides(text)


def read_launch(path: Path, text: str) -> Mapping[str, Any]:
    """Tables of a script, an argument file or a YAML file."""
    label = path.name
    if looks_like_arguments(text):
        launch = read_arguments(label, text)
    elif path.suffix in (".yaml", ".yml"):
        launch = Launch(read_yaml_settings(label, text), 0, "", ())
    else:
        launch = read_script(label, text)
    return _tables(launch)


def read_bridge(path: Path, text: str) -> Mapping[str, Any]:
    """Tables of a Megatron-Bridge configuration."""
    label = path.name
    notes: tuple[str, ...] = ()
    devices = 0
    if path.suffix == ".py":
        settings, devices, notes = read_recipe(label, text)
    elif path.suffix in (".yaml", ".yml"):
        settings = read_yaml_settings(label, text)
    else:
        settings = read_overrides(label, text)
    if not devices:
        notes = (*notes, "the file does not say how many devices it runs on; give cluster.devices")
    return _tables(Launch(settings, devices, "constant DEVICES", notes))


def _tables(launch: Launch) -> Mapping[str, Any]:
    settings = launch.settings
    refuse_other_models(settings)
    found = Findings(settings.label)
    for note in launch.notes:
        found.note(note)
    shape = read_model(settings, found)
    if shape is None:
        found.put("model.source", Path(settings.label).stem, "inferred: name of the file")
    read_job(launch, shape, found)
    return found.tables()


Recogniser = Callable[[Path, str], bool]


def readers() -> tuple[Reader, ...]:
    """What this plugin reads."""
    return (
        Reader("megatron", "Megatron-LM and MindSpeed-LLM launch scripts, argument files and YAML.",
               is_launch, read_launch, framework="megatron"),
        Reader("megatron-bridge", "Megatron-Bridge recipes (literals), YAML and KEY=VALUE overrides.",
               is_bridge, read_bridge, framework="megatron-bridge"),
    )  # fmt: skip
