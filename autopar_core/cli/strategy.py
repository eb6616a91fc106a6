"""One strategy as the command line spells it: ``dp=8 tp=4 layer_recompute=full``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from attrs import evolve, frozen

from autopar_core.cli.session import Request, Session, open_session
from autopar_core.config.overrides import parse_assignments
from autopar_core.config.search_section import PLAN_KEYS, Keys, check_value
from autopar_core.domain.fields import Value
from autopar_core.errors import InputError


if TYPE_CHECKING:
    from autopar_core.domain.result import SearchResult

OPTION = "strategy"


@frozen
class Asked:
    """A strategy: scalar fields, and the plans for partition and recompute."""

    session: Session
    fields: Mapping[str, Value]


def open_strategy(request: Request, texts: Iterable[str]) -> Asked:
    """The job and the strategy of a command line.

    Raises:
        InputError: When a text is no assignment of a strategy field.
    """
    pairs = parse_assignments(texts, OPTION)
    if not pairs:
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


def reason_of(result: SearchResult) -> str:
    """Why a strategy was not estimated at all."""
    sentences = [sentence for cut in result.cuts for _, _, sentence in cut.reasons]
    said = "; ".join(dict.fromkeys(sentences))
    devices = result.job.cluster.devices
    return said or f"no product of these degrees with legal others gives {devices} devices"
