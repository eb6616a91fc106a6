"""The model section: a preset, a file that a reader understands, or the fields themselves."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import field, fields, frozen

from autopar_core.config.catalogue import model_fields, near_presets, preset, presets
from autopar_core.config.converter import nearest, structure
from autopar_core.config.tables import Origins, Table, as_table, read_text
from autopar_core.domain.model import ModelConfig
from autopar_core.errors import InputError


if TYPE_CHECKING:
    from autopar_core.plugins.manager import PluginManager

_SUFFIX = re.compile(r"\.[A-Za-z]{2,5}")
# Sections of a launch script that describe the job; its strategy is left to the search.
_TAKEN = ("training",)


@frozen(kw_only=True)
class Source:
    """What a preset or a file says.

    Attributes:
        table: Fields of the model.
        said: Field -> where its value comes from.
        others: Further sections that the file has (``training``, ...).
        from_file: The table must be kept with the inputs, as the file may be gone later.
    """

    table: Table
    said: Mapping[str, str]
    others: Table = field(factory=dict)
    from_file: bool = False


@frozen(kw_only=True)
class ModelSection:
    """The model of a job, and what else the section brought along.

    Attributes:
        raw: The section without references to files.
        sources: Field -> where its value comes from, for every field.
        others: Sections to be put below those of the input.
        label: Where ``others`` come from.
    """

    config: ModelConfig
    raw: Table
    sources: Mapping[str, str]
    others: Table = field(factory=dict)
    label: str = ""
    notes: tuple[str, ...] = ()


def model_section(
    tables: Table, origins: Origins, folder: Path, manager: PluginManager
) -> ModelSection:
    """The model that an input asks for.

    Raises:
        InputError: When the section is missing, wrong or incomplete.
    """
    where = origins.where("model")
    if "model" not in tables:
        raise InputError(where, "missing; give source = a preset or a file, or the fields")
    own = as_table(tables["model"], where)
    asked = own.pop("source", None)
    _check_keys(own, origins)
    if asked is None:
        source = Source(table={}, said={})
    else:
        source = read_source(asked, origins.where("model", "source"), folder, manager)
    merged = {**source.table, **own}
    config = structure(ModelConfig, merged, lambda path: _where(path, own, source, origins))
    sources = {
        name: origins.source("model", name) if name in own else source.said.get(name, "default")
        for name in model_fields()
    }
    raw = merged if source.from_file else tables["model"]
    others = {key: value for key, value in source.others.items() if key in _TAKEN}
    label = str(asked).rsplit("/", 1)[-1] if asked is not None else ""
    return ModelSection(
        config=config, raw=dict(raw), sources=sources, others=others, label=label,
        notes=_left_out(source, label),
    )  # fmt: skip


def model_of(asked: str, manager: PluginManager) -> tuple[ModelConfig, dict[str, str]]:
    """A preset or file alone, with the source of every field.

    Raises:
        InputError: When it is neither, or not a model that autopar can plan.
    """
    source = read_source(asked, "model", Path(), manager)
    origins = Origins()
    config = structure(ModelConfig, source.table, lambda path: _where(path, {}, source, origins))
    return config, {name: source.said.get(name, "default") for name in model_fields()}


def _check_keys(own: Table, origins: Origins) -> None:
    legal = ["source", *model_fields()]
    for key in own:
        if key not in legal:
            raise InputError(origins.where("model", key), f"unknown key{nearest(key, legal)}")


def _where(path: tuple[str, ...], own: Table, source: Source, origins: Origins) -> str:
    """Place of a model field: the input's key, or the file that says it."""
    if path and path[0] not in own and path[0] in source.said:
        return f"{source.said[path[0]]}: model.{'.'.join(path)}"
    return origins.where("model", *path)


def _left_out(source: Source, label: str) -> tuple[str, ...]:
    left = sorted(set(source.others) - set(_TAKEN))
    if not left:
        return ()
    return (
        f"{label} also has {', '.join(left)}; only its model and training sections are used, "
        "fix a strategy with --fix",
    )


def read_source(asked: object, where: str, folder: Path, manager: PluginManager) -> Source:
    """A model by preset name or file.

    Args:
        asked: Preset, or path of a file or of a folder that holds a ``config.json``.
        where: Place for messages.
        folder: Where relative paths start; the current folder comes second.
        manager: Plugins, some of which bring readers.

    Raises:
        InputError: When it is neither a preset nor a file that some reader knows.
    """
    if not isinstance(asked, str) or not asked:
        raise InputError(where, f"expected a preset or a path, got {asked!r}")
    if asked in presets():
        table = preset(asked, where)
        return Source(
            table={"name": asked, **table}, said=_all(["name", *table], f"preset {asked}")
        )
    path = find_file(asked, folder)
    if path is not None:
        return _read_file(path, where, manager)
    if looks_like_path(asked):
        raise InputError(where, f"no such file: {asked}")
    raise InputError(where, f"{asked!r} is neither a file nor a known preset{near_presets(asked)}")


def looks_like_path(text: str) -> bool:
    """Whether a text is meant as a path; ``qwen2.5-7b`` is not, ``config.json`` is."""
    return "/" in text or "\\" in text or bool(_SUFFIX.fullmatch(Path(text).suffix))


def find_file(asked: str, folder: Path) -> Path | None:
    """The file that a path names, relative to ``folder`` or to the current folder."""
    for start in (folder, Path()):
        path = start / Path(asked).expanduser()
        if path.is_dir():
            path = path / "config.json"
        if path.is_file():
            return path
    return None


def _read_file(path: Path, where: str, manager: PluginManager) -> Source:
    text = read_text(path, f"{where}: {path.name}")
    readers = [
        (plugin, each) for plugin, many in manager.collect("autopar_readers") for each in many
    ]
    for plugin, reader in readers:
        try:
            if not reader.recognises(path, text):
                continue
            read = reader.read(path, text)
        except InputError:
            raise
        except ValueError as error:
            raise InputError(path.name, f"{error} (reader '{reader.name}')") from error
        return _understood(read, path, f"{path.name} ({reader.name})", plugin)
    known = ", ".join(f"{reader.name} ({reader.doc.rstrip('.')})" for _, reader in readers)
    raise InputError(
        where,
        f"no reader knows the content of {path.name}; readers: {known or 'none is active'}",
    )


def _understood(read: Mapping[str, Any], path: Path, label: str, plugin: str) -> Source:
    """What a reader returned; it may say the source of each field in a table ``sources``."""
    table = read.get("model")
    if not isinstance(table, Mapping):
        raise InputError(path.name, f"plugin '{plugin}' read no model from it")
    legal = {each.name for each in fields(ModelConfig)}
    exact = read.get("sources", {})
    said = {
        name: f"{label}: {exact[f'model.{name}']}" if f"model.{name}" in exact else label
        for name in table
        if name in legal
    }
    filled = {"name": path.parent.name if path.stem == "config" else path.stem, **table}
    others = {key: value for key, value in read.items() if key not in ("model", "sources")}
    return Source(table=filled, said={"name": label, **said}, others=others, from_file=True)


def _all(names: list[str], source: str) -> dict[str, str]:
    return dict.fromkeys(names, source)
