"""The section for what the person runs today: a launch file, or the fields of a strategy."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import asdict, evolve, frozen

from autopar_core.config.model_section import read_source
from autopar_core.config.search_section import Keys, search_space
from autopar_core.config.sections import framework_section
from autopar_core.config.source_file import STRATEGY, Reading
from autopar_core.config.tables import Origins, Table, as_table, leaves
from autopar_core.domain.job import Job, Today
from autopar_core.errors import InputError


if TYPE_CHECKING:
    from autopar_core.plugins.manager import PluginManager

TODAY = "today"
_SOURCE, _FORMAT, _NAME, _FRAMEWORK = "source", "source_format", "name", "framework"
_OWN_KEYS = (_SOURCE, _FORMAT, _NAME, _FRAMEWORK)
# Facts of a job that must be the same for a comparison to mean something; the longest sequence of a
# model card and its name are labels.
_LABELS = ("model.name", "model.max_position_embeddings")


@frozen(kw_only=True)
class TodaySection:
    """What the section says before the job is known."""

    label: str
    strategy: Table
    framework: Table
    reading: Reading | None


def today_section(
    tables: Table, origins: Origins, folder: Path, manager: PluginManager
) -> TodaySection | None:
    """The section with its file read; None when there is none.

    Raises:
        InputError: When it is wrong, or its file says no strategy.
    """
    if TODAY not in tables:
        return None
    section = as_table(tables[TODAY], origins.where(TODAY))
    own = {key: value for key, value in section.items() if key not in _OWN_KEYS}
    framework = section.get(_FRAMEWORK, {})
    framework = {_NAME: framework} if isinstance(framework, str) else framework
    framework = as_table(framework, origins.where(TODAY, _FRAMEWORK))
    reading = None
    if _SOURCE in section:
        where = origins.where(TODAY, _SOURCE)
        reading = read_source(
            section[_SOURCE], where, folder, manager, str(section.get(_FORMAT, ""))
        )
        if not reading.strategy and not own:
            raise InputError(where, f"{reading.label} says no strategy")
    if reading is None and not own:
        raise InputError(
            origins.where(TODAY), "give source = a launch file, or the fields of a strategy"
        )
    keys = Keys.of(manager)
    strategy = dict(reading.strategy) if reading else {}
    for key, value in own.items():
        name = keys.canonical(key)
        if not name:
            raise InputError(origins.where(TODAY, key), keys.unknown_field(key))
        strategy[name] = value
        origins.said[TODAY, name] = origins.of(TODAY, key)
    for name in strategy:
        if reading is not None and name in reading.strategy:
            origins.said.setdefault((TODAY, name), reading.source(f"{STRATEGY}.{name}"))
    label = reading.label if reading else str(section.get(_NAME, "today"))
    return TodaySection(
        label=label, strategy=strategy,
        framework=framework or (dict(reading.of(_FRAMEWORK)) if reading else {}), reading=reading,
    )  # fmt: skip


def today_of(
    section: TodaySection, job: Job, origins: Origins, manager: PluginManager
) -> tuple[Today, Table]:
    """The strategy of today for a job, and the section without its file.

    Raises:
        InputError: When the file is about another job, or a field is wrong.
    """
    if section.reading is not None:
        _same_job(section.reading, job, origins)
    sources = {
        f"search.{name}": origins.source(TODAY, name, name=name) for name in section.strategy
    }
    inner = Origins(
        section.label, {("search", name): origins.of(TODAY, name) for name in section.strategy}
    )
    space = search_space(section.strategy, Keys.of(manager), job.model.num_layers, inner)
    framework = job.framework
    if section.framework and section.framework.get(_NAME) != job.framework.name:
        place = Origins(section.label)
        theirs = framework_section({_FRAMEWORK: section.framework}, place, manager).profile
        framework = theirs.under(job.training.precision)
    raw: Table = {_NAME: section.label, **section.strategy}
    if section.framework:
        raw[_FRAMEWORK] = section.framework
    space = evolve(space, top_k=1, rank_by="step_time")
    return Today(label=section.label, space=space, framework=framework, sources=sources), raw


def _same_job(reading: Reading, job: Job, origins: Origins) -> None:
    """Refuse a comparison of two different jobs."""
    effective: dict[str, Any] = {
        "model": asdict(job.model), "training": asdict(job.training), "cluster": asdict(job.cluster)
    }  # fmt: skip
    for name, table in effective.items():
        for keys, value in leaves(reading.of(name)):
            key = ".".join((name, *keys))
            known = len(keys) == 1 and keys[0] in table and key not in _LABELS
            if not known or key in reading.weak or table[keys[0]] == value:
                continue
            raise InputError(
                origins.where(TODAY, _SOURCE),
                f"is another job: {key} is {value} in {reading.source(key)}, but "
                f"{table[keys[0]]} here ({job.sources.get(key, 'default')}); change one of them, or "
                "price it alone with estimate --from-config",
            )
