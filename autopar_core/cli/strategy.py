"""One strategy as the command line spells it: ``dp=8 tp=4 layer_recompute=full``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from attrs import evolve, frozen

from autopar_core.cli.session import Request, Session, open_session
from autopar_core.config.overrides import parse_assignments
from autopar_core.config.search_section import (
    OFFSET,
    PARTITION,
    PLAN_KEYS,
    Keys,
    check_value,
    fix,
    search_space,
)
from autopar_core.config.source_file import STRATEGY
from autopar_core.config.tables import Origins, Table
from autopar_core.domain.fields import Value
from autopar_core.errors import InputError
from autopar_core.units import counted


if TYPE_CHECKING:
    from autopar_core.domain.job import Job
    from autopar_core.domain.result import SearchResult

OPTION = "strategy"


@frozen
class Asked:
    """A strategy: scalar fields, and the plans for partition and recompute."""

    session: Session
    fields: Mapping[str, Value]


def open_strategy(request: Request, texts: Iterable[str]) -> Asked:
    """The job and the strategy of a command line.

    Fields that the launch files of the request state count where no text names them.

    Raises:
        InputError: When a text is no assignment of a strategy field.
    """
    pairs = parse_assignments(texts, OPTION)
    if not pairs and not request.configs:
        raise InputError(OPTION, "name at least one field, FIELD=VALUE")
    fixes = tuple((OPTION, key, value) for key, value in pairs if key in PLAN_KEYS)
    overrides = evolve(request.overrides, fixes=(*request.overrides.fixes, *fixes))
    session = open_session(evolve(request, overrides=overrides))
    keys = Keys.of(session.manager)
    fields: dict[str, Value] = {}
    for key, value in pairs:
        if key in PLAN_KEYS:
            continue
        if key not in keys.fields:
            raise InputError(f"{OPTION}: {key}", keys.unknown_field(key))
        field = keys.fields[key]
        if field.name in fields:
            raise InputError(f"{OPTION}: {key}", f"{field.name} is given twice")
        fields[field.name] = check_value(field, value, f"{OPTION}: {key}")
    if session.config is not None:
        session = evolve(session, job=_configured(session, keys, {key for key, _ in pairs}))
    return Asked(session, fields)


def open_found(request: Request, strategy: Mapping[str, Value]) -> Asked:
    """The job of a run and the scalar fields of a strategy that it found.

    Raises:
        InputError: When a value is none that the field may have.
    """
    session = open_session(request)
    known = Keys.of(session.manager).fields
    fields = {
        name: check_value(known[name], value, f"{OPTION}: {name}")
        for name, value in strategy.items()
        if name in known
    }
    return Asked(session, fields)


def _configured(session: Session, keys: Keys, named: set[str]) -> Job:
    """The job with the strategy of its launch files as the only one wanted.

    Raises:
        InputError: When the files state no strategy, or a field is wrong.
    """
    reading, job = session.config, session.job
    assert reading is not None
    known = {keys.canonical(key) for key in named}
    plans = {PARTITION, OFFSET}
    stated = {
        name: value
        for name, value in reading.strategy.items()
        if name not in known and not (name in plans and known & plans)
    }
    if not reading.strategy and not named:
        raise InputError(reading.label, "says no strategy; name at least one field, FIELD=VALUE")
    section: Table = dict(job.raw.get("search", {}))
    origins = Origins()
    for name, value in stated.items():
        place = reading.source(f"{STRATEGY}.{name}")
        origins.said["search", fix(section, keys, name, value, place)] = place
    space = search_space(section, keys, job.model.num_layers, origins)
    sources = {f"search.{name}": reading.source(f"{STRATEGY}.{name}") for name in stated}
    raw = {**job.raw, "search": section}
    return evolve(job, space=space, sources={**job.sources, **sources}, raw=raw)


def reason_of(result: SearchResult) -> str:
    """Why a strategy was not estimated at all."""
    sentences = [sentence for cut in result.cuts for _, _, sentence in cut.reasons]
    said = "; ".join(dict.fromkeys(sentences))
    devices = result.job.cluster.devices
    return (
        said or f"no product of these degrees with legal others gives {counted(devices, 'device')}"
    )
