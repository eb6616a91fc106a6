"""Fields and dimensions of a run: the standard table, filled in by the active plugins."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import tomli
from attrs import frozen

from autopar_core.domain.fields import Dimension, Field, Level
from autopar_core.plugins.record import PluginRecord


if TYPE_CHECKING:
    from autopar_core.plugins.manager import PluginManager

CORE = "core"
BATCH_FIELDS = (
    Field(
        name="micro_batch_size",
        short="mbs",
        level=Level.BATCH,
        neutral=1,
        owner=CORE,
        doc="Sequences in one micro-batch of one replica.",
    ),
    Field(
        name="micro_batch_num",
        short="m",
        level=Level.BATCH,
        neutral=1,
        owner=CORE,
        doc="Micro-batches that one replica works through in a step.",
    ),
)
PLAN_FIELDS = (
    Field(
        name="partition_plan",
        short="partition",
        level=Level.RECOMPUTE,
        neutral=0,
        owner=CORE,
        doc="Index of the partition plan.",
    ),
    Field(
        name="recompute_plan",
        short="recompute",
        level=Level.RECOMPUTE,
        neutral=0,
        owner=CORE,
        doc="Index of the recompute plan.",
    ),
)


@frozen(kw_only=True)
class Standard:
    """The standard dimensions and fields, in output order.

    Attributes:
        dimensions: By name; owner of a degree is the plugin that usually has it.
        packages: Dimension name -> distribution that this project publishes for it.
        fields: Fields besides the degrees, by name.
    """

    dimensions: Mapping[str, Dimension]
    packages: Mapping[str, str]
    fields: Mapping[str, Field]


@cache
def standard() -> Standard:
    """The table ``dimensions.toml`` of the catalogue."""
    text = files("autopar_core").joinpath("catalogue", "dimensions.toml").read_text("utf-8")
    table = tomli.loads(text)
    return Standard(
        dimensions={entry["name"]: _dimension(entry) for entry in table["dimension"]},
        packages={entry["name"]: entry["package"] for entry in table["dimension"]},
        fields={entry["name"]: _field(entry) for entry in table["field"]},
    )


def _dimension(entry: Mapping[str, Any]) -> Dimension:
    name = entry["name"]
    return Dimension(
        name=name,
        degree=Field(
            name=entry["degree"],
            short=name,
            level=Level.DEGREE,
            neutral=1,
            owner=name,
            doc=f"Degree of the dimension {name}.",
        ),
        splits_batch=entry.get("splits_batch", False),
        replicates=tuple(entry.get("replicates", ())),
        splits_layers=entry.get("splits_layers", False),
    )


def _field(entry: Mapping[str, Any]) -> Field:
    changes = {"level": Level[entry["level"]], "choices": tuple(entry.get("choices", ()))}
    return Field(**{**entry, **changes})


def all_dimensions(manager: PluginManager) -> tuple[Dimension, ...]:
    """Dimensions in output order: standard ones with or without a plugin, then others by name."""
    return tuple({**standard().dimensions, **manager.dimensions}.values())


def declared_fields(manager: PluginManager) -> dict[str, Field]:
    """Every field of a strategy by name, in output order.

    Degrees, the micro-batch, standard fields, fields of other plugins by name, plans. What an
    active plugin declares replaces the entry of the standard table.
    """
    degrees = [dimension.degree for dimension in all_dimensions(manager)]
    own = {f.name: f for r in manager.records if r.status == "active" for f in r.fields}
    table = {name: own.get(name, field) for name, field in standard().fields.items()}
    others = [own[name] for name in sorted(own) if name not in table]
    found = [*degrees, *BATCH_FIELDS, *table.values(), *others, *PLAN_FIELDS]
    return {field.name: field for field in found}


def fault_of(record: PluginRecord) -> str:
    """What is wrong with the names that one plugin declares; empty if nothing is."""
    dimension = record.dimension
    if dimension is not None and dimension.name in standard().dimensions:
        degree = standard().dimensions[dimension.name].degree.name
        if dimension.degree.name != degree:
            return (
                f"the degree field of dimension '{dimension.name}' must be named '{degree}', "
                f"not '{dimension.degree.name}'"
            )
    seen: dict[str, str] = {}
    for name, spellings in _spellings(record):
        for spelling in spellings:
            if spelling in seen:
                return f"fields '{seen[spelling]}' and '{name}' share the name '{spelling}'"
        seen.update(dict.fromkeys(spellings, name))
    return ""


def _spellings(record: PluginRecord) -> list[tuple[str, set[str]]]:
    """(field name, everything that a person may write for it) of each field of a plugin."""
    found = [(f.name, {f.name, f.short}) for f in record.fields]
    if record.dimension is not None:
        degree = record.dimension.degree
        found.append((degree.name, {degree.name, degree.short, record.dimension.name}))
    return found


def clashes(
    active: Sequence[PluginRecord], objects: Mapping[str, object]
) -> list[tuple[str, frozenset[str]]]:
    """(sentence, plugins concerned) for everything that can belong to one plugin only.

    A pair of plugins is named once, for the first thing that both claim.
    """
    claims: dict[tuple[str, str], dict[str, str]] = {}  # thing -> who in words -> plugin or ""

    def claim(kind: str, what: str, who: str, plugin: str) -> None:
        claims.setdefault((kind, what), {})[who] = plugin

    for record in active:
        if record.dimension is not None:
            claim("dimension", f"'{record.dimension.name}'", record.label, record.name)
    names = [(r.label, r.name, *named) for r in active for named in _spellings(r)]
    declared = {name for _, _, name, _ in names}
    names += [("the core", "", f.name, {f.name, f.short}) for f in (*BATCH_FIELDS, *PLAN_FIELDS)]
    for field in (*(d.degree for d in standard().dimensions.values()), *standard().fields.values()):
        if field.name not in declared:
            who = f"the standard field '{field.name}'"
            names.append((who, "", field.name, {field.name, field.short}))
    long_names = {name for _, _, name, _ in names}
    for who, plugin, _, spellings in names:
        for spelling in spellings:
            kind = "field" if spelling in long_names else "short form"
            claim(kind, f"'{spelling}'", who, plugin)
    same: dict[object, str] = {}
    for record in active:
        if "autopar_schedule" in record.hooks:
            claim("hook", "autopar_schedule", record.label, record.name)
        first = same.setdefault(objects[record.name], record.name)
        claim("module", f"of '{first}'", record.label, record.name)

    found: list[tuple[str, frozenset[str]]] = []
    told: set[frozenset[str]] = set()
    kinds = ("dimension", "field", "short form", "hook", "module")
    for kind, what in sorted(claims, key=lambda thing: (kinds.index(thing[0]), thing[1])):
        claimants = claims[kind, what]
        plugins = frozenset(filter(None, claimants.values()))
        if len(claimants) > 1 and plugins and frozenset(claimants) not in told:
            told.add(frozenset(claimants))
            hint = _way_out(sorted(plugins), len(claimants) > len(plugins))
            found.append((f"{kind} {what} is claimed by {_listed(claimants)}; {hint}", plugins))
    return found


def _listed(words: Iterable[str]) -> str:
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last


def _way_out(plugins: Sequence[str], with_core: bool) -> str:
    options = [f"--disable {name}" for name in plugins]
    if with_core:
        return f"run with {' '.join(options)}"
    if len(options) > 2:
        return f"run with all but one of {_listed(options)}"
    return f"run with {' or '.join(options)}"
