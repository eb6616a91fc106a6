"""What the entries of a result.json must be for the commands that read it again.

``docs/result.schema.json`` is the contract of what is written. Here stands what is read, so that a file
that a person has edited is refused at the entry that is wrong. Entries of plugins are free.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from attrs import field, frozen


# Larger numbers are no bytes, seconds or counts, and overflow where floats are made of them.
LARGEST = 1e30


@frozen
class Kind:
    """Values of one kind."""

    name: str
    holds: Callable[[Any], bool]


@frozen
class Several:
    """A list of one shape."""

    each: Shape


@frozen
class Entries:
    """A table.

    Attributes:
        known: Keys that must be there, and their shapes.
        rest: Shape of all other keys.
        maybe: Keys that may be there, and their shapes.
        name: What it is called where something else stands.
    """

    known: Mapping[str, Shape]
    rest: Shape
    maybe: Mapping[str, Shape] = field(factory=dict)
    name: str = "a table"


Shape = Kind | Several | Entries


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < LARGEST


def _is_number(value: Any) -> bool:
    return _is_whole(value) or (isinstance(value, float) and abs(value) < LARGEST)


def _is_scalar(value: Any) -> bool:
    return isinstance(value, str | bool) or _is_number(value)


def _is_layers(value: Any) -> bool:
    """``[stage]`` or ``[chunk][stage]``."""
    if not isinstance(value, list) or not value:
        return False
    rows = value if all(isinstance(each, list) for each in value) else [value]
    return all(row and len(row) == len(rows[0]) and all(map(_is_whole, row)) for row in rows)


def _is_free(value: Any) -> bool:
    """Any plain data whose numbers are of a sensible size."""
    if isinstance(value, Mapping):
        return all(map(_is_free, value.values()))
    if isinstance(value, list):
        return all(map(_is_free, value))
    return value is None or _is_scalar(value)


TEXT = Kind("a text", lambda value: isinstance(value, str))
FLAG = Kind("true or false", lambda value: isinstance(value, bool))
WHOLE = Kind("a whole number", _is_whole)
NUMBER = Kind("a number", _is_number)
PERHAPS = Kind("a number or null", lambda value: value is None or _is_number(value))
SCALAR = Kind("a number, a text, true or false", _is_scalar)
LAYERS = Kind("the layers of each stage", _is_layers)
FREE = Kind("plain data with numbers of a sensible size", _is_free)

_TABLE = Entries({}, FREE)
_SOURCED = Entries({}, FREE, maybe={"value": FREE, "source": TEXT})
_PROFILE = Entries(
    {}, FREE, maybe={"name": TEXT, "title": TEXT, "fallback_for": TEXT, "values": _TABLE}
)
_INPUTS = Entries(
    {}, FREE, maybe={
        "raw": _TABLE, "parameters": WHOLE, "notes": Several(TEXT),
        **{name: Entries({}, _SOURCED) for name in ("model", "training", "cluster")},
        "system": _PROFILE, "framework": _PROFILE,
        "search": Entries({}, _TABLE),
        "plugins": Entries({}, _TABLE),
    },
)  # fmt: skip
_STRATEGY = Entries(
    {
        "place": WHOLE, "row": WHOLE, "partition_plan": TEXT, "recompute_plan": TEXT,
        "stage_partition": LAYERS, "layer_offset": LAYERS,
        "layer_recompute": Entries({}, LAYERS, name="layers by mode"),
        "memory_cost": PERHAPS, "performance_cost": PERHAPS, "performance_low": PERHAPS,
        "performance_high": PERHAPS, "mfu": PERHAPS, "tokens_per_second_per_device": PERHAPS,
        "memory_low": PERHAPS, "memory_high": PERHAPS, "reserved_memory": PERHAPS,
        "memory_verdict": TEXT, "feasible": FLAG, "filter_reason": TEXT, "partition_gain": PERHAPS,
        "partition_gap": PERHAPS, "tie_with_best": FLAG, "warnings": Several(FREE),
    },
    SCALAR, name="a strategy",
)  # fmt: skip
_MEMORY_PARTS = Several(Entries({"owner": TEXT, "name": TEXT, "bytes": NUMBER}, FREE))
_MEMORY = Entries(
    {
        "worst_rank": WHOLE, "verdict": TEXT, "reserves": _MEMORY_PARTS,
        **{f"{size}_bytes": NUMBER for size in ("total", "allocated", "low", "high", "limit")},
        "stages": Several(Entries(
            {"rank": WHOLE, "allocated_bytes": NUMBER, "instant": TEXT,
             "in_flight": Several(NUMBER), "parts": _MEMORY_PARTS}, FREE,
        )),
    },
    FREE,
)  # fmt: skip
_PERFORMANCE = Entries(
    {
        "exact": FLAG, "rank": WHOLE,
        **dict.fromkeys(("seconds", "low_seconds", "high_seconds", "mfu"), PERHAPS),
        "parts": Several(Entries(
            {"owner": TEXT, "name": TEXT, "seconds": NUMBER, "hidden_seconds": NUMBER}, FREE
        )),
    },
    FREE,
)  # fmt: skip
_SUMMARY = Entries(
    {"space_size": WHOLE, "generated": WHOLE, "feasible": WHOLE, "ranked_by": TEXT,
     "ranked_by_sentence": TEXT}, FREE,
)  # fmt: skip
_FALLEN = Entries(
    {}, FREE, maybe={
        "advice": Several(TEXT),
        "rules": Several(Entries({"code": TEXT, "owner": TEXT, "example": TEXT}, FREE)),
        "habits": Several(Entries({"code": TEXT, "rows": WHOLE, "example": TEXT}, FREE)),
        "nearest_misses": Several(Entries(
            {"strategy": _STRATEGY, "memory": _MEMORY, "performance": _PERFORMANCE}, FREE
        )),
    },
)  # fmt: skip
RESULT_SHAPE = Entries(
    {
        "inputs": _INPUTS, "plugins": Several(Entries(
            {"name": TEXT, "status": TEXT}, FREE, maybe={"version": TEXT, "reason": TEXT}
        )),
        "top_k_strategies": Several(_STRATEGY), "memory_breakdown": Several(_MEMORY),
        "performance_breakdown": Several(_PERFORMANCE), "all_candidate_summary": _SUMMARY,
        "infeasible_summary": _FALLEN,
    },
    FREE,
)  # fmt: skip


def faults(value: Any, shape: Shape = RESULT_SHAPE, at: str = "") -> Iterator[tuple[str, str]]:
    """(Dotted place, what is wrong there) of every entry that is not what it must be."""
    if isinstance(shape, Kind):
        if not shape.holds(value):
            yield at, f"expected {shape.name}, got {_shown(value)}"
    elif isinstance(shape, Several):
        if not isinstance(value, list):
            yield at, f"expected a list, got {_shown(value)}"
            return
        for number, each in enumerate(value):
            yield from faults(each, shape.each, f"{at}[{number}]")
    elif not isinstance(value, Mapping):
        yield at, f"expected {shape.name}, got {_shown(value)}"
    else:
        yield from _of_entries(value, shape, at)


def _of_entries(value: Mapping[str, Any], shape: Entries, at: str) -> Iterator[tuple[str, str]]:
    dot = f"{at}." if at else ""
    for key in shape.known:
        if key not in value:
            yield f"{dot}{key}", "is missing"
    shapes = {**shape.maybe, **shape.known}
    for key, each in value.items():
        yield from faults(each, shapes.get(key, shape.rest), f"{dot}{key}")


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        return "a table"
    if isinstance(value, list):
        return "a list" if len(repr(value)) > 40 else repr(value)
    if isinstance(value, int) and abs(value) >= LARGEST:
        return "a number far too large"
    return "null" if value is None else f"{value!r:.40}"
