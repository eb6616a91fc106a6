"""The sections for a framework and for plugins."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from attrs import evolve, frozen

from autopar_core.config.catalogue import (
    FALLBACK_FRAMEWORK,
    Profiles,
    framework_profile,
    inherit,
    own_keys,
    standard_dimensions,
)
from autopar_core.config.converter import join, nearest, structure
from autopar_core.config.tables import Origins, Table, as_table, leaves
from autopar_core.domain.framework import FrameworkProfile
from autopar_core.errors import InputError


if TYPE_CHECKING:
    from autopar_core.plugins.manager import PluginManager

_SELECTION = ("disable", "only")
_FRAMEWORK = ("name", "override", "calibration")


@frozen(kw_only=True)
class FrameworkSection:
    """The framework of a job."""

    profile: FrameworkProfile
    sources: Mapping[str, str]
    notes: tuple[str, ...] = ()


def framework_section(tables: Table, origins: Origins, manager: PluginManager) -> FrameworkSection:
    """The framework that an input asks for; an unknown one falls back and says so.

    Raises:
        InputError: When the section is wrong.
    """
    section = as_table(tables.get("framework", {}), origins.where("framework"))
    for key in section:
        if key not in _FRAMEWORK:
            hint = nearest(key, _FRAMEWORK)
            raise InputError(origins.where("framework", key), f"unknown key{hint}")
    asked = section.get("name", FALLBACK_FRAMEWORK)
    if not isinstance(asked, str) or not asked:
        raise InputError(origins.where("framework", "name"), f"expected a name, got {asked!r}")
    profiles = Profiles("framework", manager)
    known = profiles.entry(asked) is not None
    table = profiles.table(asked if known else FALLBACK_FRAMEWORK, origins.where("framework"))
    profile = _overridden(table, section, origins, manager)
    profile = evolve(profile, bases=profiles.bases(asked if known else FALLBACK_FRAMEWORK))
    notes: tuple[str, ...] = ()
    if not known:
        profile = evolve(profile, fallback=asked)
        hint = nearest(asked, profiles.names(), noun="profiles", many=40)
        notes = (
            f"framework {asked!r} has no profile, {FALLBACK_FRAMEWORK!r} stands in for it{hint}",
        )
    given = origins.source("framework", "name") if "name" in section else "default"
    sources = {"framework.name": given}
    if "calibration" in section:
        sources["framework.calibration"] = origins.source("framework", "calibration")
    for path, _ in leaves(section.get("override", {})):
        sources[join("framework.override", *path)] = origins.source("framework", "override", *path)
    return FrameworkSection(profile=profile, sources=sources, notes=notes)


def _overridden(
    table: Table, section: Table, origins: Origins, manager: PluginManager
) -> FrameworkProfile:
    at = ("framework", "override")
    override = as_table(section.get("override", {}), origins.where(*at))
    legal = {*own_keys(), *table, *(each.name for each in manager.records), *standard_dimensions()}
    for key in override:
        if key not in legal:
            hint = nearest(key, sorted(legal), noun="sections", many=40)
            raise InputError(origins.where(*at, key), f"unknown section{hint}")
        if isinstance(table.get(key), Mapping):
            as_table(override[key], origins.where(*at, key))

    def place(path: tuple[str, ...]) -> str:
        if path and path[0] == "sections":
            path = path[1:]
        if path and path[0] in override:
            return origins.where(*at, *path)
        return join(f"{table['name']}.toml:", *path)

    full = inherit(table, override, lambda path: origins.source(*at, *path.split(".")))
    profile = framework_profile(full if override else table, place)
    for name in override:
        if name in profile.sections and name in manager.active:
            cls = manager.info(name).profile
            if cls is not None:
                structure(cls, profile.sections[name], origins.below(*at, name))
    return profile


def plugin_sections(
    tables: Table, origins: Origins, manager: PluginManager
) -> tuple[dict[str, Table], tuple[str, ...]]:
    """Tables of ``[plugins.NAME]`` by plugin, and notes on those that are not used.

    Raises:
        InputError: When there is no such plugin, or its table is wrong.
    """
    section = as_table(tables.get("plugins", {}), origins.where("plugins"))
    status = {record.name: record.status for record in manager.records}
    status |= dict.fromkeys(manager.active, "active")
    found: dict[str, Table] = {}
    notes = []
    for name in sorted(set(section) - set(_SELECTION)):
        where = origins.where("plugins", name)
        if name not in status:
            raise InputError(where, _unknown(name, list(status)))
        found[name] = as_table(section[name], where)
        if status[name] != "active":
            notes.append(f"the section plugins.{name} is not used: the plugin is {status[name]}")
            continue
        cls = manager.info(name).config
        if cls is None:
            raise InputError(where, "the plugin takes no settings")
        structure(cls, found[name], origins.below("plugins", name))
    return found, tuple(notes)


def _unknown(name: str, known: list[str]) -> str:
    package = standard_dimensions().get(name)
    if package:
        return f"plugin {name!r} is not installed; try: pip install {package}"
    return f"unknown plugin {name!r}{nearest(name, known, noun='installed plugins', many=40)}"
