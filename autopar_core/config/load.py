"""An input file, or plain tables, to a checked job."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import fields, frozen

from autopar_core.config.bands import bands_of
from autopar_core.config.calibration import calibrated
from autopar_core.config.cluster_section import cluster_section
from autopar_core.config.converter import join, nearest, structure
from autopar_core.config.model_section import ModelSection, model_section
from autopar_core.config.overrides import Overrides, apply
from autopar_core.config.precision import checked_precision
from autopar_core.config.search_section import Keys, fix, search_space, spellings
from autopar_core.config.sections import framework_section, plugin_sections
from autopar_core.config.tables import (
    NO_FILE,
    Origins,
    Table,
    as_table,
    deep_copy,
    deep_merge,
    leaves,
    read_toml,
)
from autopar_core.domain.job import Job
from autopar_core.domain.training import TrainingConfig
from autopar_core.errors import InputError


if TYPE_CHECKING:
    from autopar_core.plugins.manager import PluginManager

SECTIONS = ("model", "training", "cluster", "framework", "search", "plugins")


@frozen
class _Prepared:
    """Tables after every change, with the model resolved."""

    tables: Table
    model: ModelSection
    keys: Keys


def load_job(
    path: Path | None,
    tables: Mapping[str, Any] | None,
    overrides: Overrides,
    manager: PluginManager,
    earlier: Mapping[str, str] | None = None,
) -> Job:
    """The job of an input.

    Args:
        path: The input file: its name is the source of values, its folder is where relative paths
            start. None for tables from elsewhere.
        tables: Its tables when they were read already.
        overrides: Changes from the command line.
        manager: Loaded plugins: they own fields, sections, readers and profiles.
        earlier: Sources of an earlier run whose inputs ``tables`` are.

    Raises:
        InputError: At the first thing that is wrong.
    """
    origins = Origins(path.name if path else NO_FILE, earlier=earlier or {})
    if tables is None:
        tables = read_toml(path) if path else {}
    folder = path.parent if path else Path()
    ready = _prepare(apply(dict(tables), overrides, origins), overrides, origins, folder, manager)
    given, fitted = calibrated(ready.tables, origins, folder)
    model = ready.model
    training = structure(TrainingConfig, given.get("training", {}), origins.below("training"))
    cluster = cluster_section(given, origins, folder, manager)
    framework = framework_section(given, origins, manager)
    training, stand_in = checked_precision(training, cluster.system, framework.profile, origins)
    if fitted is not None:
        fitted.check(cluster.system.name, framework.profile.name, origins)
    search = as_table(given.get("search", {}), origins.where("search"))
    space = search_space(search, ready.keys, model.config.num_layers, origins)
    sections, notes = plugin_sections(given, origins, manager)
    raw = {**given, "model": model.raw, "cluster": cluster.raw}
    sources = {
        **{f"model.{name}": source for name, source in model.sources.items()},
        **_training_sources(given, origins),
        **cluster.sources,
        **framework.sources,
        **_search_sources(search, ready.keys, origins),
        **_plugin_sources(given, origins),
    }
    return Job(
        model=model.config, training=training, cluster=cluster.cluster, system=cluster.system,
        framework=framework.profile, space=space,
        bands=bands_of(
            cluster.system.name, framework.profile.name, fitted.residuals if fitted else None
        ),
        plugin_sections=sections, sources=sources,
        raw=deep_copy({name: raw[name] for name in SECTIONS if name in raw}),
        notes=(
            *model.notes, *cluster.notes, *stand_in, *framework.notes,
            *((fitted.note,) if fitted else ()), *notes,
        ),
    )  # fmt: skip


def _prepare(
    tables: Table, overrides: Overrides, origins: Origins, folder: Path, manager: PluginManager
) -> _Prepared:
    for name in tables:
        if name not in SECTIONS:
            hint = nearest(name, SECTIONS, noun="sections")
            said = next((keys for keys in origins.said if keys[0] == name), (name,))
            raise InputError(join(f"{origins.of(*said)}:", name), f"unknown section{hint}")
    keys = Keys.of(manager)
    if overrides.fixes:
        search = as_table(tables.get("search", {}), origins.where("search"))
        for option, key, value in overrides.fixes:
            origins.said["search", fix(search, keys, key, value, option)] = option
        tables = {**tables, "search": search}
    model = model_section(tables, origins, folder, manager)
    for name, table in model.others.items():
        own = as_table(tables.get(name, {}), origins.where(name))
        for path, _ in leaves(table):
            if path[0] not in own:
                origins.said[(name, *path)] = model.label
        tables = {**tables, name: deep_merge(table, own)}
    return _Prepared(tables, model, keys)


def _training_sources(tables: Table, origins: Origins) -> dict[str, str]:
    given = tables.get("training", {})
    return {
        f"training.{each.name}": origins.source("training", each.name)
        if each.name in given
        else "default"
        for each in fields(TrainingConfig)
    }


def _search_sources(section: Table, keys: Keys, origins: Origins) -> dict[str, str]:
    """Sources by the full name of each key, whatever spelling the person chose."""
    spelled = spellings(section, keys, origins)
    found = {
        f"search.{name}": origins.source("search", key, name=name) for name, key in spelled.items()
    }
    for name in ("top_k", "rank_by", "generator"):
        found.setdefault(f"search.{name}", "default")
    return found


def _plugin_sources(tables: Table, origins: Origins) -> dict[str, str]:
    return {
        ".".join(("plugins", *path)): origins.source("plugins", *path)
        for path, _ in leaves(tables.get("plugins", {}))
    }
