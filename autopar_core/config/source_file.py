"""Files of other programs through the readers of plugins: what they say, and where they say it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import evolve, field, frozen

from autopar_core.config.catalogue import preset, preset_of
from autopar_core.config.converter import nearest
from autopar_core.config.documents import read_source_text
from autopar_core.config.search_section import Keys
from autopar_core.config.tables import Origins, Table, as_table, deep_merge, leaves
from autopar_core.errors import InputError, PluginError


if TYPE_CHECKING:
    from autopar_core.hooks.named import Reader
    from autopar_core.plugins.manager import PluginManager

SECTIONS = ("model", "training", "cluster", "framework", "plugins")
STRATEGY, FILES, OPEN = "strategy", "files", "open"
# Key of a reader's model table: a name that a preset may stand for.
MODEL_NAME = "source"
_BESIDE = ("sources", "notes", STRATEGY, FILES, OPEN)
_SUFFIX = re.compile(r"\.[A-Za-z]{2,5}")
# Files that name files that name files: a chain of inherited configurations has four in practice.
_LONGEST_CHAIN = 8
# What two files may call differently without meaning different things.
_LABEL = "model.name"
# How the place of a value begins that no line states.
_WEAK = ("default", "inferred")


@frozen(kw_only=True)
class Reading:
    """What one file, or several that agree, say.

    Attributes:
        label: ``"run.sh (megatron)"``.
        tables: Sections of an input file.
        strategy: Full name of a strategy field -> value.
        said: Dotted key (``"model.hidden"``, ``"strategy.tp_degree"``) -> where its value stands.
        weak: Keys whose value is a default of the format or inferred; a stated one replaces it.
        notes: Sentences for the person.
        from_file: The content must be kept with the inputs, as a file may be gone later.
    """

    label: str
    tables: Mapping[str, Table] = field(factory=dict)
    strategy: Table = field(factory=dict)
    said: Mapping[str, str] = field(factory=dict)
    weak: frozenset[str] = frozenset()
    notes: tuple[str, ...] = ()
    from_file: bool = False

    def of(self, section: str) -> Table:
        """A section; empty when the file has none."""
        return self.tables.get(section, {})

    def source(self, key: str) -> str:
        """Where a dotted key stands, by the key itself or by a table around it."""
        at = key
        while at:
            if at in self.said:
                return self.said[at]
            at = at.rpartition(".")[0]
        return self.label


def looks_like_path(text: str) -> bool:
    """Whether a text is meant as a path; ``qwen2.5-7b`` is not, ``config.json`` is."""
    return "/" in text or "\\" in text or bool(_SUFFIX.fullmatch(Path(text).suffix))


def find_file(asked: str, folder: Path) -> Path | None:
    """The file that a path names, relative to ``folder`` or to the current folder."""
    for start in (folder, Path()):
        try:
            path = start / Path(asked).expanduser()
            if path.is_dir():
                path = path / "config.json"
            if path.is_file():
                return path
        except (OSError, ValueError, RuntimeError):  # too long, NUL inside, no such home
            return None
    return None


def read_file(path: Path, where: str, manager: PluginManager, reader: str = "") -> Reading:
    """A file, and the files that it names.

    Args:
        path: The file.
        where: Place for messages, for instance ``"run.toml: model.source"``.
        manager: Plugins, some of which bring readers.
        reader: Name of the reader; empty lets the content decide.

    Raises:
        InputError: When no reader, or more than one, knows it, or when it is wrong.
    """
    return _read(path, where, manager, reader, (path.resolve(),))


def _read(
    path: Path, where: str, manager: PluginManager, reader: str, chain: tuple[Path, ...]
) -> Reading:
    text = read_source_text(path, f"{where}: {path.name}" if where else path.name)
    plugin, chosen = _reader_of(path, text, where, manager, reader)
    try:
        read = chosen.read(path, text)
    except InputError:
        raise
    except (ValueError, RecursionError) as error:
        what = "is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise InputError(path.name, f"{what} (reader '{chosen.name}')") from error
    found = _with_model(_understood(read, path, plugin, chosen, manager))
    for key, name in dict(read.get(FILES, {})).items():
        inner = path.parent / name
        if not inner.is_file():
            raise InputError(f"{path.name}: {key}", f"names {name}, which is not there")
        if inner.resolve() in chain or len(chain) > _LONGEST_CHAIN:
            raise InputError(f"{path.name}: {key}", f"{name} leads back to a file that names it")
        more = _read(inner, path.name, manager, "", (*chain, inner.resolve()))
        found = agreed(found, _opened(more, read.get(OPEN, {})))
    return found


def _opened(reading: Reading, keys: Mapping[str, str]) -> Reading:
    """A reading without the strategy fields that the file naming it decides otherwise."""
    fields = {key.partition(".")[2]: why for key, why in keys.items()}
    gone = [name for name in reading.strategy if name in fields]
    notes = [
        f"{reading.source(f'{STRATEGY}.{name}')}: {name} {reading.strategy[name]} is left open: "
        f"{fields[name]}"
        for name in gone
    ]
    kept = {name: value for name, value in reading.strategy.items() if name not in fields}
    return evolve(reading, strategy=kept, notes=(*reading.notes, *notes))


def _with_model(found: Reading) -> Reading:
    """The reading with the fields of the preset that the file means by a name, if it names one.

    What the file states of the model replaces fields of the preset.
    """
    model = dict(found.of("model"))
    named = model.pop(MODEL_NAME, None)
    if named is None:
        return found
    tables = {key: table for key, table in found.tables.items() if key != "model"}
    found = evolve(found, tables={**tables, "model": model} if model else tables)
    name = preset_of(str(named))
    if not name:
        note = f"{found.label} names the model {named}, which is no preset; say it with --model"
        if f"model.{MODEL_NAME}" in found.weak:
            note = f"{found.label} says nothing about the model; say it with --model"
        return evolve(found, notes=(*found.notes, note))
    place = found.source(f"model.{MODEL_NAME}")
    table = {"name": name, **preset(name, found.label)}
    said = {f"model.{key}": f"{place}: preset {name}" for key in table}
    base = Reading(
        label=f"preset {name}", tables={"model": table}, said=said,
        weak=frozenset(said) - {"model.name"}, from_file=True,
    )  # fmt: skip
    return evolve(agreed(found, base), label=found.label)


def _reader_of(
    path: Path, text: str, where: str, manager: PluginManager, asked: str
) -> tuple[str, Reader]:
    readers = [
        (plugin, each) for plugin, many in manager.collect("autopar_readers") for each in many
    ]
    if asked:
        named = [pair for pair in readers if pair[1].name == asked]
        if not named:
            hint = nearest(asked, [each.name for _, each in readers], noun="readers", many=40)
            raise InputError(where, f"no reader is named {asked!r}{hint}")
        return named[0]
    known = [pair for pair in readers if _recognises(pair, path, text)]
    if len(known) > 1:
        names = ", ".join(reader.name for _, reader in known)
        raise InputError(
            where,
            f"{path.name} looks like several formats ({names}); name one of them with --reader or "
            "source_format",
        )
    if not known:
        listed = ", ".join(f"{reader.name} ({reader.doc.rstrip('.')})" for _, reader in readers)
        raise InputError(
            where,
            f"no reader knows the content of {path.name}; readers: {listed or 'none is active'}",
        )
    return known[0]


def _recognises(pair: tuple[str, Reader], path: Path, text: str) -> bool:
    try:
        return bool(pair[1].recognises(path, text))
    except InputError:
        raise
    except Exception as error:
        raise PluginError(
            f"plugin '{pair[0]}': reader '{pair[1].name}' failed to look at {path.name}: {error}"
        ) from error


def _understood(
    read: Mapping[str, Any], path: Path, plugin: str, reader: Reader, manager: PluginManager
) -> Reading:
    """What a reader returned, with full field names and full sources.

    Raises:
        PluginError: When it returned something that the contract does not have.
    """
    label = f"{path.name} ({reader.name})"
    for key, table in read.items():
        if key not in (*SECTIONS, *_BESIDE):
            hint = nearest(key, (*SECTIONS, *_BESIDE), noun="tables")
            raise PluginError(f"plugin '{plugin}': reader '{reader.name}' gives {key!r}{hint}")
        if key != "notes" and not isinstance(table, Mapping):
            raise PluginError(f"plugin '{plugin}': reader '{reader.name}' gives no table {key!r}")
    keys = Keys.of(manager)
    strategy: Table = {}
    for key, value in read.get(STRATEGY, {}).items():
        name = keys.canonical(key)
        if not name:
            raise PluginError(
                f"plugin '{plugin}': reader '{reader.name}': {keys.unknown_field(key)}"
            )
        strategy[name] = value
    tables = {name: dict(read[name]) for name in SECTIONS if read.get(name)}
    if "model" in tables:
        stem = path.resolve().parent.name if path.stem == "config" else path.stem
        tables["model"] = {"name": stem, **tables["model"]}
    said, weak = {}, set()
    for key, place in read.get("sources", {}).items():
        section, _, rest = key.partition(".")
        full = f"{STRATEGY}.{keys.canonical(rest) or rest}" if section == STRATEGY else key
        said[full] = f"{label}: {place}"
        if place.startswith(_WEAK):
            weak.add(full)
    for section, table in (*tables.items(), (STRATEGY, strategy)):
        for keys_below, _ in leaves(table):
            said.setdefault(".".join((section, *keys_below)), label)
    if "model" in tables and "name" not in read["model"]:
        weak.add("model.name")
    return Reading(
        label=label, tables=tables, strategy=strategy, said=said, weak=frozenset(weak),
        notes=tuple(read.get("notes", ())), from_file=True,
    )  # fmt: skip


def agreed(one: Reading, other: Reading) -> Reading:
    """Two readings as one; a stated value replaces a default or an inferred one.

    Raises:
        InputError: When both state a value and they differ, naming both places.
    """
    tables: dict[str, Table] = {name: dict(table) for name, table in one.tables.items()}
    said = dict(other.said)
    for name in (*SECTIONS, STRATEGY):
        ours = one.strategy if name == STRATEGY else one.of(name)
        theirs = other.strategy if name == STRATEGY else other.of(name)
        kept = dict(theirs)
        mine: Table = {}
        for keys, value in leaves(ours):
            key = ".".join((name, *keys))
            found, their_value = _at(theirs, keys)
            if found and their_value != value:
                if key in one.weak and key not in other.weak:
                    continue
                if key not in other.weak and key != _LABEL:
                    raise InputError(
                        "", f"{key} is {value} in {one.source(key)} but {their_value} in "
                        f"{other.source(key)}; only one of them can hold",
                    )  # fmt: skip
            said[key] = one.source(key)
            _put(mine, keys, value)
        tables[name] = deep_merge(kept, mine)
    strategy = tables.pop(STRATEGY)
    weak = {key for key in one.weak if said.get(key) == one.source(key)}
    weak |= {key for key in other.weak if said.get(key) == other.source(key)}
    notes = tuple(dict.fromkeys([*one.notes, *other.notes]))
    return Reading(
        label=f"{one.label}, {other.label}", tables={k: v for k, v in tables.items() if v},
        strategy=strategy, said=said, weak=frozenset(weak), notes=notes,
        from_file=one.from_file or other.from_file,
    )  # fmt: skip


def filled(tables: Table, reading: Reading, origins: Origins, sections: Iterable[str]) -> Table:
    """Sections of an input with what a reading says put below them, each value with its place."""
    made = dict(tables)
    for name in sections:
        table = reading.of(name)
        if not table:
            continue
        own = as_table(made.get(name, {}), origins.where(name))
        for keys, _ in leaves(table):
            if keys[0] not in own:
                origins.said[(name, *keys)] = reading.source(".".join((name, *keys)))
        made[name] = deep_merge(table, own)
    return made


def agreed_all(readings: Iterable[Reading]) -> Reading:
    """Several readings as one; there is at least one.

    Raises:
        InputError: When two of them disagree.
    """
    first, *others = readings
    for each in others:
        first = agreed(first, each)
    return first


def _at(table: Mapping[str, Any], keys: tuple[str, ...]) -> tuple[bool, Any]:
    at: Any = table
    for key in keys:
        if not isinstance(at, Mapping) or key not in at:
            return False, None
        at = at[key]
    return True, at


def _put(table: Table, keys: tuple[str, ...], value: Any) -> None:
    for key in keys[:-1]:
        table = table.setdefault(key, {})
    table[keys[-1]] = value
