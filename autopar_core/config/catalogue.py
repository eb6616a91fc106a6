"""Presets and profiles by name: the shipped files, and what plugins and the person add."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import fields, frozen

from autopar_core.config.converter import nearest, structure
from autopar_core.config.tables import Table, deep_copy, deep_merge, leaves, read_toml
from autopar_core.domain.framework import FrameworkProfile
from autopar_core.domain.model import ModelConfig
from autopar_core.domain.system import SystemProfile
from autopar_core.errors import InputError, PluginError


if TYPE_CHECKING:
    from autopar_core.plugins.manager import PluginManager

# Path below a table -> its place in a message; dotted path -> the source of its value.
Place = Callable[[tuple[str, ...]], str]
Label = Callable[[str], str]

FALLBACK_FRAMEWORK = "generic"
_OWN_KEYS = {field.name for field in fields(FrameworkProfile)} - {"sections", "fallback", "bases"}


@frozen
class Entry:
    """A profile as a table, and who gives it (for sources and messages)."""

    table: Table
    label: str


def shipped(*parts: str) -> Path:
    """A file or folder of the shipped catalogue."""
    return Path(str(files("autopar_core").joinpath("catalogue", *parts)))


@cache
def _file(path: Path) -> Table:
    return read_toml(path)


@cache
def presets() -> Mapping[str, Table]:
    """Shipped models by name, as tables of ``ModelConfig`` fields."""
    return _file(shipped("models.toml"))


@cache
def standard_dimensions() -> Mapping[str, str]:
    """Standard dimension -> distribution that brings its plugin."""
    table = _file(shipped("dimensions.toml"))
    return {each["name"]: each.get("package", "") for each in table.get("dimension", ())}


class Profiles:
    """Profiles of one kind: shipped files, and tables from plugins, which win.

    Args:
        kind: ``"system"`` or ``"framework"``.
        manager: The loaded plugins.
    """

    def __init__(self, kind: str, manager: PluginManager) -> None:
        self.kind = kind
        self._folder = shipped(f"{kind}s")
        self._shipped = sorted(path.stem for path in self._folder.glob("*.toml"))
        self._added: dict[str, Entry] = {}
        for plugin, tables in manager.collect(f"autopar_{kind}s"):
            for table in tables:
                self._add(plugin, table)

    def _add(self, plugin: str, table: Mapping[str, Any]) -> None:
        name = table.get("name")
        if not isinstance(name, str) or not name:
            raise PluginError(f"plugin '{plugin}' gives a {self.kind} profile without a name")
        if name in self._added:
            raise PluginError(
                f"{self.kind} profile '{name}' comes from plugin '{plugin}' and "
                f"from {self._added[name].label}; disable one of them"
            )
        self._added[name] = Entry(deep_copy(table), f"plugin '{plugin}'")

    def names(self) -> tuple[str, ...]:
        """Every known name, sorted."""
        return tuple(sorted({*self._shipped, *self._added}))

    def entry(self, name: str) -> Entry | None:
        """The profile of a name or alias; None when it is unknown."""
        if name in self._added:
            return self._added[name]
        if name in self._shipped:
            return Entry(_file(self._folder / f"{name}.toml"), f"{name}.toml")
        wanted = name.casefold()
        for known in self.names():
            entry = self.entry(known)
            assert entry is not None
            spellings = [known, *entry.table.get("aliases", ())]
            if wanted in (each.casefold() for each in spellings):
                return entry
        return None

    def table(self, name: str, where: str) -> Table:
        """The profile of a name with everything that it inherits from its base.

        Raises:
            InputError: When the name is unknown.
        """
        entry = self.entry(name)
        if entry is None:
            hint = nearest(name, self.names(), noun=f"known {self.kind}s", many=40)
            raise InputError(where, f"unknown {self.kind} {name!r}{hint}")
        return self.grown(entry.table, where, (name,))

    def bases(self, name: str) -> tuple[str, ...]:
        """Names of the profiles that one grows out of, nearest first."""
        found: list[str] = []
        entry = self.entry(name)
        while entry is not None and entry.table.get("base") not in (None, *found):
            found.append(str(entry.table["base"]))
            entry = self.entry(found[-1])
        return tuple(found)

    def grown(
        self,
        table: Mapping[str, Any],
        where: str,
        line: tuple[str, ...] = (),
        label: Label | None = None,
    ) -> Table:
        """A table on top of the profile that its ``base`` names.

        Args:
            table: The profile.
            where: Place for messages.
            line: Names that grow out of this table, to see a circle.
            label: Source of a value of the table that names none.

        Raises:
            InputError: When the base is unknown or leads back to the table.
        """
        own = deep_copy(table)
        base = own.pop("base", None)
        if base is None:
            return inherit({}, own, label) if label else dict(own)
        if not isinstance(base, str):
            raise InputError(where, f"base must be the name of a {self.kind}, got {base!r}")
        if base in line:
            raise InputError(where, f"base: {' -> '.join([*line, base])} is a circle")
        entry = self.entry(base)
        if entry is None:
            hint = nearest(base, self.names(), noun=f"known {self.kind}s", many=40)
            raise InputError(where, f"base: unknown {self.kind} {base!r}{hint}")
        return inherit(self.grown(entry.table, where, (*line, base)), own, label)


def inherit(base: Mapping[str, Any], own: Mapping[str, Any], label: Label | None = None) -> Table:
    """``own`` over ``base``; a replaced value loses the base's source and its "unverified" mark.

    Args:
        base: Complete profile.
        own: Values that replace or add; tables merge, lists replace.
        label: Dotted path -> source of a value of ``own`` that names none.
    """
    book = ("sources", "unverified", "name", "title", "aliases")
    said = {".".join(keys) for keys, _ in leaves(own) if keys[0] not in book}
    merged = deep_merge(base, own)
    kept = {path: text for path, text in base.get("sources", {}).items() if path not in said}
    added = {path: label(path) for path in sorted(said)} if label else {}
    merged["sources"] = {**kept, **added, **own.get("sources", {})}
    doubtful = [path for path in base.get("unverified", ()) if path not in said]
    merged["unverified"] = list(dict.fromkeys([*doubtful, *own.get("unverified", ())]))
    return merged


def system_profile(table: Mapping[str, Any], place: Place) -> SystemProfile:
    """A system from its table, where ``[attention]`` holds the default kernel and the kernels.

    Raises:
        InputError: When the table is wrong or incomplete.
    """
    plain = dict(table)
    attention = plain.get("attention")
    if isinstance(attention, Mapping):
        kernels = dict(attention)
        chosen = kernels.pop("default", "flash")
        plain |= {"attention": kernels, "attention_default": chosen}
        if chosen not in kernels:
            known = nearest(str(chosen), kernels, noun="kernels")
            raise InputError(place(("attention", "default")), f"unknown kernel {chosen!r}{known}")
    return structure(SystemProfile, plain, place)


def framework_profile(table: Mapping[str, Any], place: Place) -> FrameworkProfile:
    """A framework from its table: every table that is not the core's is a plugin's section.

    Raises:
        InputError: When the table is wrong or incomplete.
    """
    own = {key: value for key, value in table.items() if key in _OWN_KEYS}
    sections = {key: value for key, value in table.items() if key not in _OWN_KEYS}
    for key, value in sections.items():
        if not isinstance(value, Mapping):
            hint = nearest(key, sorted(_OWN_KEYS), noun="keys")
            raise InputError(place((key,)), f"is neither a known key nor a table{hint}")
    return structure(FrameworkProfile, {**own, "sections": sections}, place)


def preset(name: str, where: str) -> Table:
    """A shipped model by name.

    Raises:
        InputError: When there is none of that name.
    """
    found = presets().get(name)
    if found is None:
        raise InputError(where, f"unknown model preset {name!r}{near_presets(name)}")
    return dict(found)


def preset_of(text: str) -> str:
    """The preset that a name on the hub or of a file means; empty when none, or no single one, does.

    Names are compared without hyphens, underscores and case, then also without dots; the longest
    preset inside the name counts. ``meta-llama/Llama-2-7b-hf`` means ``llama-2-7b``.
    """
    for left_out in ("-_", "-_."):
        dropped = str.maketrans("", "", left_out)
        wanted = text.lower().translate(dropped)
        inside = {name: name.lower().translate(dropped) for name in presets()}
        inside = {name: plain for name, plain in inside.items() if plain in wanted}
        longest = max(map(len, inside.values()), default=0)
        found = [name for name, plain in inside.items() if len(plain) == longest]
        if len(found) == 1:
            return found[0]
    return ""


def near_presets(name: str) -> str:
    """The preset that was probably meant, or all of them."""
    return nearest(name, presets(), noun="presets", many=60)


def model_fields() -> Iterable[str]:
    """Keys of a model section."""
    return [field.name for field in fields(ModelConfig)]


def own_keys() -> frozenset[str]:
    """Keys of a framework file that are no plugin's section."""
    return frozenset(_OWN_KEYS)
