"""The model section: a preset, a file that a reader understands, or the fields themselves."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from attrs import frozen

from autopar_core.config.catalogue import model_fields, near_presets, preset, presets
from autopar_core.config.converter import nearest, structure
from autopar_core.config.source_file import (
    Reading,
    agreed_all,
    find_file,
    looks_like_path,
    read_file,
)
from autopar_core.config.tables import Origins, Table, as_table
from autopar_core.domain.model import ModelConfig
from autopar_core.errors import InputError


if TYPE_CHECKING:
    from autopar_core.plugins.manager import PluginManager

_SOURCE, _FORMAT = "source", "source_format"


@frozen(kw_only=True)
class ModelSection:
    """The model of a job.

    Attributes:
        raw: The section without references to files.
        sources: Field -> where its value comes from, for every field.
    """

    config: ModelConfig
    raw: Table
    sources: Mapping[str, str]


def model_reading(
    tables: Table, origins: Origins, folder: Path, manager: PluginManager
) -> Reading | None:
    """What ``model.source`` names, if it is there.

    Raises:
        InputError: When it names nothing that can be read.
    """
    section = as_table(tables.get("model", {}), origins.where("model"))
    _check_keys(section, origins)
    asked, reader = section.get(_SOURCE), section.get(_FORMAT, "")
    if not isinstance(reader, str):
        raise InputError(origins.where("model", _FORMAT), f"expected a name, got {reader!r}")
    if asked is None:
        if reader:
            raise InputError(origins.where("model", _FORMAT), "means nothing without a source")
        return None
    return read_source(asked, origins.where("model", _SOURCE), folder, manager, reader)


def model_section(tables: Table, origins: Origins, reading: Reading | None) -> ModelSection:
    """The model of an input whose other sections were filled from ``reading``.

    Raises:
        InputError: When the section is missing, wrong or incomplete.
    """
    where = origins.where("model")
    base = reading.of("model") if reading else {}
    if "model" not in tables and not base:
        raise InputError(where, "missing; give source = a preset or a file, or the fields")
    own = as_table(tables.get("model", {}), where)
    own = {key: value for key, value in own.items() if key not in (_SOURCE, _FORMAT)}
    merged = {**base, **own}
    config = structure(ModelConfig, merged, lambda path: _where(path, own, reading, origins))
    sources = {name: _source(name, own, reading, origins) for name in model_fields()}
    raw = (
        merged if reading is None or reading.from_file else as_table(tables.get("model", {}), where)
    )
    return ModelSection(config=config, raw=raw, sources=sources)


def _source(name: str, own: Table, reading: Reading | None, origins: Origins) -> str:
    if name in own:
        return origins.source("model", name)
    if reading is not None and name in reading.of("model"):
        return reading.source(f"model.{name}")
    return "default"


def model_of(
    asked: str, manager: PluginManager, reader: str = "", preset_name: str = ""
) -> tuple[ModelConfig, dict[str, str], Reading]:
    """A preset or file alone, with the source of every field.

    Args:
        asked: Preset or path.
        manager: Plugins.
        reader: Name of the reader; empty lets the content decide.
        preset_name: Preset or file with the model where ``asked`` is only a strategy.

    Raises:
        InputError: When it is neither, or not a model that autopar can plan.
    """
    reading = read_source(asked, "model", Path(), manager, reader)
    if preset_name:
        reading = agreed_all([read_source(preset_name, "--model", Path(), manager), reading])
    if not reading.of("model"):
        raise InputError(asked, "says nothing about the model; name it with --model")
    made = model_section({}, Origins(), reading)
    return made.config, dict(made.sources), reading


def _check_keys(section: Table, origins: Origins) -> None:
    legal = [_SOURCE, _FORMAT, *model_fields()]
    for key in section:
        if key not in legal:
            raise InputError(origins.where("model", key), f"unknown key{nearest(key, legal)}")


def _where(path: tuple[str, ...], own: Table, reading: Reading | None, origins: Origins) -> str:
    """Place of a model field: the input's key, or the file that says it."""
    if path and path[0] not in own and reading is not None:
        key = ".".join(("model", *path))
        if path[0] in reading.of("model"):
            return f"{reading.source(key)}: {key}"
        return f"{reading.label}: {key}"
    return origins.where("model", *path)


def read_source(
    asked: object, where: str, folder: Path, manager: PluginManager, reader: str = ""
) -> Reading:
    """A model by preset name or file.

    Args:
        asked: Preset, or path of a file or of a folder that holds a ``config.json``.
        where: Place for messages.
        folder: Where relative paths start; the current folder comes second.
        manager: Plugins, some of which bring readers.
        reader: Name of the reader; empty lets the content decide.

    Raises:
        InputError: When it is neither a preset nor a file that some reader knows.
    """
    if not isinstance(asked, str) or not asked:
        raise InputError(where, f"expected a preset or a path, got {asked!r}")
    if asked in presets() and not reader:
        table = {"name": asked, **preset(asked, where)}
        label = f"preset {asked}"
        said = {f"model.{name}": label for name in table}
        return Reading(label=label, tables={"model": table}, said=said)
    path = find_file(asked, folder)
    if path is not None:
        return read_file(path, where, manager, reader)
    if looks_like_path(asked):
        raise InputError(where, f"no such file: {asked}")
    raise InputError(where, f"{asked!r} is neither a file nor a known preset{near_presets(asked)}")
