"""An input file, or plain tables, to a checked job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import evolve, fields, frozen

from autopar_core.config.bands import bands_of
from autopar_core.config.calibration import calibrated
from autopar_core.config.cluster_section import cluster_section
from autopar_core.config.converter import join, nearest, structure
from autopar_core.config.model_section import ModelSection, model_reading, model_section
from autopar_core.config.overrides import Overrides, apply
from autopar_core.config.precision import checked_precision
from autopar_core.config.search_section import Keys, fix, search_space, spellings
from autopar_core.config.sections import framework_section, plugin_sections
from autopar_core.config.source_file import Reading, agreed_all, filled
from autopar_core.config.tables import (
    NO_FILE,
    Origins,
    Table,
    as_table,
    deep_copy,
    leaves,
    read_toml,
)
from autopar_core.config.today_section import TODAY, TodaySection, today_of, today_section
from autopar_core.domain.job import Job
from autopar_core.domain.training import TrainingConfig
from autopar_core.errors import InputError


if TYPE_CHECKING:
    from autopar_core.plugins.manager import PluginManager

SECTIONS = ("model", "training", "cluster", "framework", "search", "plugins", TODAY)
# What a file of another program may say of a job besides the model; below the input's own values.
_FILLED = ("training", "cluster", "framework", "plugins")


@frozen
class _Prepared:
    """Tables after every change, with the model resolved."""

    tables: Table
    model: ModelSection
    keys: Keys
    today: TodaySection | None
    notes: tuple[str, ...]


def load_job(
    path: Path | None,
    tables: Mapping[str, Any] | None,
    overrides: Overrides,
    manager: PluginManager,
    earlier: Mapping[str, str] | None = None,
    configs: Sequence[Reading] = (),
) -> Job:
    """The job of an input.

    Args:
        path: The input file: its name is the source of values, its folder is where relative paths
            start. None for tables from elsewhere.
        tables: Its tables when they were read already.
        overrides: Changes from the command line.
        manager: Loaded plugins: they own fields, sections, readers and profiles.
        earlier: Sources of an earlier run whose inputs ``tables`` are.
        configs: Files whose job this is; the input's own values win.

    Raises:
        InputError: At the first thing that is wrong.
    """
    origins = Origins(path.name if path else NO_FILE, earlier=earlier or {})
    if tables is None:
        tables = read_toml(path) if path else {}
    folder = path.parent if path else Path()
    changed = apply(dict(tables), overrides, origins)
    ready = _prepare(changed, overrides, origins, folder, manager, configs)
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
    job = Job(
        model=model.config, training=training, cluster=cluster.cluster, system=cluster.system,
        framework=framework.profile.under(training.precision), space=space,
        bands=bands_of(
            cluster.system.name, framework.profile.name, fitted.residuals if fitted else None
        ),
        plugin_sections=sections, sources=sources,
        raw=deep_copy({name: raw[name] for name in SECTIONS if name in raw}),
        notes=(
            *ready.notes, *cluster.notes, *stand_in, *framework.notes,
            *((fitted.note,) if fitted else ()), *notes,
        ),
    )  # fmt: skip
    if ready.today is None:
        return job
    today, section = today_of(ready.today, job, origins, manager)
    return evolve(job, today=today, raw={**job.raw, TODAY: deep_copy(section)})


def _prepare(
    tables: Table, overrides: Overrides, origins: Origins, folder: Path, manager: PluginManager,
    configs: Sequence[Reading],
) -> _Prepared:  # fmt: skip
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
    named = model_reading(tables, origins, folder, manager)
    readings = [*([named] if named else []), *configs]
    reading = agreed_all(readings) if readings else None
    if reading is not None:
        tables = filled(tables, reading, origins, _FILLED)
    today = today_section(tables, origins, folder, manager)
    if today is not None and today.reading is not None:
        tables = filled(tables, today.reading, origins, _FILLED)
        if reading is None and "model" not in tables:
            reading = today.reading
    notes = (*_left_out(named), *(note for each in readings for note in each.notes))
    return _Prepared(tables, model_section(tables, origins, reading), keys, today, notes)


def _left_out(named: Reading | None) -> tuple[str, ...]:
    if named is None or not named.strategy:
        return ()
    return (
        f"{named.label} also has a strategy; the search is free to leave it, add [today] or "
        "--compare to see it beside the answers",
    )


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
