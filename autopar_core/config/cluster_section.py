"""The cluster section: a system by name, file or fields, how many devices, and their limits."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import frozen

from autopar_core.config.catalogue import Place, Profiles, inherit, system_profile
from autopar_core.config.converter import join, nearest, structure
from autopar_core.config.source_file import find_file, looks_like_path
from autopar_core.config.tables import Origins, Table, as_table, deep_copy, leaves, read_toml
from autopar_core.domain.system import SystemProfile
from autopar_core.domain.training import ClusterConfig
from autopar_core.errors import InputError
from autopar_core.units import MIB, parse_bytes, show_bytes


if TYPE_CHECKING:
    from autopar_core.plugins.manager import PluginManager

_DOMAIN, _DOMAIN_ALIAS, _INLINE = "devices_per_domain", "devices_per_node", "system_profile"
_KEYS = ("system", "devices", "memory_limit", _DOMAIN, _DOMAIN_ALIAS, "override", _INLINE)


@frozen(kw_only=True)
class ClusterSection:
    """The cluster of a job; ``raw`` is the section without references to files."""

    cluster: ClusterConfig
    system: SystemProfile
    raw: Table
    sources: Mapping[str, str]
    notes: tuple[str, ...] = ()


def cluster_section(
    tables: Table, origins: Origins, folder: Path, manager: PluginManager
) -> ClusterSection:
    """The cluster that an input asks for.

    Raises:
        InputError: When the section is missing, wrong or incomplete.
    """
    if "cluster" not in tables:
        raise InputError(origins.where("cluster"), "missing; give at least system and devices")
    section = as_table(tables["cluster"], origins.where("cluster"))
    for key in section:
        if key not in _KEYS:
            hint = nearest(key, _KEYS)
            raise InputError(origins.where("cluster", key), f"unknown key{hint}")
    system, raw = _system(section, origins, folder, manager)
    domain = _domain_key(section, origins)
    values = {
        "devices": section.get("devices"),
        "memory_limit": _memory_limit(section, origins, system),
        _DOMAIN: section.get(domain, system.devices_per_domain),
    }
    if "devices" not in section:
        del values["devices"]
    cluster = structure(
        ClusterConfig,
        values,
        lambda path: origins.where("cluster", *(domain if key == _DOMAIN else key for key in path)),
    )
    full = {key: _DOMAIN if key == domain else key for key in section}
    sources = {
        f"cluster.{full[key]}": origins.source("cluster", key, name=full[key]) for key in full
    }
    for path, _ in leaves(section.get("override", {})):
        sources[join("cluster.override", *path)] = origins.source("cluster", "override", *path)
    for key, given in ((_DOMAIN, domain in section), ("memory_limit", "memory_limit" in section)):
        if not given:
            sources[f"cluster.{key}"] = f"system {system.name}"
    return ClusterSection(
        cluster=cluster, system=system, raw=raw, sources=sources, notes=_notes(cluster, system)
    )


def _domain_key(section: Table, origins: Origins) -> str:
    if _DOMAIN in section and _DOMAIN_ALIAS in section:
        strong = [
            key for key in (_DOMAIN, _DOMAIN_ALIAS) if origins.of("cluster", key) != origins.label
        ]
        if len(strong) == 1:
            return strong[0]
        where = origins.where("cluster", _DOMAIN_ALIAS)
        raise InputError(where, f"is also given as {_DOMAIN}; keep one of them")
    return _DOMAIN_ALIAS if _DOMAIN_ALIAS in section else _DOMAIN


def _memory_limit(section: Table, origins: Origins, system: SystemProfile) -> Any:
    if "memory_limit" not in section:
        return system.memory_bytes
    value, where = section["memory_limit"], origins.where("cluster", "memory_limit")
    if isinstance(value, str):
        try:
            value = parse_bytes(value)
        except ValueError as error:
            raise InputError(where, str(error)) from None
    if isinstance(value, bool) or not isinstance(value, int):
        raise InputError(where, f'expected a size, for instance "72 GiB", or bytes; got {value!r}')
    if 0 < value < MIB:
        raise InputError(where, f'{value} would be bytes; write for instance "{value} GiB"')
    return value


def _notes(cluster: ClusterConfig, system: SystemProfile) -> tuple[str, ...]:
    if cluster.memory_limit <= system.memory_bytes:
        return ()
    return (
        f"the memory limit of {show_bytes(cluster.memory_limit)} is more than the "
        f"{show_bytes(system.memory_bytes)} that {system.name} has",
    )


@frozen
class _Written:
    """A complete system table, where its keys are for messages, and the section without files."""

    table: Table
    place: Place
    raw: Table


def _system(
    section: Table, origins: Origins, folder: Path, manager: PluginManager
) -> tuple[SystemProfile, Table]:
    """The system with its overrides, and the section with its file (if any) put in."""
    written = _written(section, origins, folder, Profiles("system", manager))
    override = as_table(section.get("override", {}), origins.where("cluster", "override"))

    def place(path: tuple[str, ...]) -> str:
        if path and path[0] in override:
            return origins.where("cluster", "override", *path)
        return written.place(path)

    def label(path: str) -> str:
        return origins.source("cluster", "override", *path.split("."))

    full = inherit(written.table, override, label) if override else written.table
    return system_profile(full, place), written.raw


def _written(section: Table, origins: Origins, folder: Path, profiles: Profiles) -> _Written:
    asked = section.get("system")
    if _INLINE in section and asked is not None:
        where = origins.where("cluster", _INLINE)
        raise InputError(where, "system is also given; keep one, or write [cluster.override]")
    if _INLINE in section or isinstance(asked, Mapping):
        key = _INLINE if _INLINE in section else "system"
        return _inline(section, key, origins, profiles)
    where = origins.where("cluster", "system")
    if asked is None:
        raise InputError(where, f"missing{near_systems('', profiles)}")
    if not isinstance(asked, str):
        raise InputError(where, f"expected a name or a path, got {asked!r}")
    known = profiles.entry(asked)
    path = None if known else find_file(asked, folder)
    if path is not None:
        return _from_file(section, path, f"{where}: {asked}", profiles)
    if known is None and looks_like_path(asked):
        raise InputError(where, f"no such file: {asked}")
    table = profiles.table(asked, where)
    return _Written(table, lambda at: join(f"{table['name']}.toml:", *at), deep_copy(section))


def _inline(section: Table, key: str, origins: Origins, profiles: Profiles) -> _Written:
    where = origins.where("cluster", key)
    own = {"name": "inline", **as_table(section[key], where)}
    table = profiles.grown(
        own, where, label=lambda at: origins.source("cluster", key, *at.split("."))
    )
    return _Written(table, lambda at: origins.where("cluster", key, *at), deep_copy(section))


def _from_file(section: Table, path: Path, where: str, profiles: Profiles) -> _Written:
    own = {"name": path.stem, **read_toml(path, where)}
    table = profiles.grown(own, path.name, label=lambda _: path.name)
    raw = {key: value for key, value in deep_copy(section).items() if key != "system"}
    return _Written(table, lambda at: join(f"{path.name}:", *at), {**raw, _INLINE: own})


def near_systems(name: str, profiles: Profiles) -> str:
    """The system that was probably meant, or all of them."""
    return nearest(name, profiles.names(), noun="known systems", many=40)
