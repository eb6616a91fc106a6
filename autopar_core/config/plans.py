"""Plans for the layers of each stage and for recompute, as the search section spells them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import frozen

from autopar_core.config.converter import structure
from autopar_core.domain.space import Plan
from autopar_core.domain.training import Range
from autopar_core.errors import InputError
from autopar_core.units import counted


PARTITIONS = ("auto", "even")
RECOMPUTES = ("auto", "none", "selective", "full")
MODES = ("selective", "full")
_GIVEN_PARTITION = "a list of layers per stage, or [chunk][stage]"


@frozen
class Counts:
    """Whole numbers per stage: ``values`` is flat, or ``[chunk][stage]`` when ``nested``."""

    values: list[Any]
    nested: bool

    @property
    def total(self) -> int:
        """Sum over all stages and chunks."""
        return sum(map(sum, self.values)) if self.nested else sum(self.values)

    @property
    def entries(self) -> int:
        """Virtual stages."""
        return sum(map(len, self.values)) if self.nested else len(self.values)

    def plus(self, base: int) -> list[Any]:
        """The same shape with a number added everywhere."""
        if self.nested:
            return [[base + one for one in chunk] for chunk in self.values]
        return [base + one for one in self.values]


def partition_plans(value: Any, layers: int, where: str) -> tuple[Plan, ...]:
    """Plans of ``stage_partition``.

    A flat list of numbers is one partition. A list of lists is one interleaved partition
    ``[chunk][stage]`` when everything together sums to the model's layers, and several flat
    partitions when each inner list does. Texts and deeper lists make it a list of plans.

    Raises:
        InputError: When a partition does not place every layer exactly once.
    """
    if isinstance(value, str):
        return (_word(value, PARTITIONS, _GIVEN_PARTITION, where),)
    plans = [
        each if isinstance(each, str) else _layers(each, layers, where)
        for each in _several(value, layers, where)
    ]
    return _unique(
        _word(each, PARTITIONS, _GIVEN_PARTITION, where)
        if isinstance(each, str)
        else Plan(kind="given", given=each)
        for each in plans
    )


def offset_plans(value: Any, layers: int, where: str) -> tuple[Plan, ...]:
    """Plans of ``layer_offset``: a range around the even split, or offsets as MindFormers has them.

    Offset o of a stage means ``layers // stages + o`` layers there; over all stages the offsets sum
    to ``layers % stages``. A list of lists is one ``[chunk][stage]``, as there; a list of those is
    several.

    Raises:
        InputError: When offsets do not place every layer exactly once.
    """
    if isinstance(value, Mapping):
        return (Plan(offset=as_range(value, where)),)
    if value == []:
        raise empty(where)
    every = value if _depth(value) == 3 else [value]
    return _unique(Plan(kind="given", given=_offset(each, layers, where)) for each in every)


def recompute_plans(value: Any, where: str) -> tuple[Plan, ...]:
    """Plans of ``layer_recompute``: a word, a range, ``{mode = layers}``, ``{every = k}``, or a list.

    Raises:
        InputError: When it is something else.
    """
    if isinstance(value, list):
        if not value:
            raise empty(where)
        return _unique(
            plan
            for place, each in enumerate(value)
            for plan in (_recompute(each, f"{where}[{place}]"),)
        )
    return (_recompute(value, where),)


def as_range(value: Mapping[str, Any], where: str) -> Range:
    """``{min, max}``.

    Raises:
        InputError: When it has other keys, or no number lies inside.
    """
    found = structure(Range, value, where)
    if found.min is not None and found.max is not None and found.min > found.max:
        raise InputError(where, f"empty search space: min = {found.min} is above max = {found.max}")
    return found


def as_count(value: Any, where: str) -> int:
    """A number of layers.

    Raises:
        InputError: When it is none.
    """
    if not _is_count(value) or value < 0:
        raise InputError(where, f"expected a whole number of layers, 0 or more, got {value!r}")
    return int(value)


def as_flag(value: Any, where: str) -> bool:
    """``true`` or ``false``.

    Raises:
        InputError: When it is neither.
    """
    if not isinstance(value, bool):
        raise InputError(where, f"expected true or false, got {value!r}")
    return value


def empty(where: str) -> InputError:
    """The error for a list without values."""
    return InputError(
        where, "empty search space: the list has no value; leave the key out for every legal value"
    )


def _recompute(value: Any, where: str) -> Plan:
    hint = (
        "{min, max} layers, {full = [...], selective = [...]} layers of each stage, or {every = k}: "
        "every k-th layer of a rank fully"
    )
    if isinstance(value, str):
        return _word(value, RECOMPUTES, hint, where)
    if not isinstance(value, Mapping):
        raise InputError(
            where, f"expected {', '.join(RECOMPUTES)}, {hint}, or a list of those; got {value!r}"
        )
    if set(value) & set(MODES):
        return Plan(kind="given", given=_modes(value, where))
    if "every" in value:
        return _every(value, where)
    found = as_range(value, where)
    if (found.min or 0) < 0 or (found.max or 0) < 0:
        raise InputError(where, "must not be negative: these are numbers of layers")
    return Plan(layers=found)


def _every(value: Mapping[str, Any], where: str) -> Plan:
    if len(value) > 1:
        raise InputError(where, "every stands alone: the other layers keep everything")
    distance = value["every"]
    if not _is_count(distance) or distance < 2:
        raise InputError(f"{where}.every", f"expected a whole number from 2 on, got {distance!r}")
    return Plan(kind="every", given=distance)


def _modes(value: Mapping[str, Any], where: str) -> dict[str, list[Any]]:
    for key in value:
        if key not in MODES:
            raise InputError(f"{where}.{key}", f"unknown mode; modes: {', '.join(MODES)}")
    read = {mode: _counts(value[mode], f"{where}.{mode}") for mode in MODES if mode in value}
    shapes = {mode: _shape(counts) for mode, counts in read.items()}
    if len(set(map(str, shapes.values()))) > 1:
        raise InputError(where, "selective and full must list the same stages")
    return {mode: counts.values for mode, counts in read.items()}


def _shape(counts: Counts) -> list[int]:
    return [len(chunk) for chunk in counts.values] if counts.nested else [-len(counts.values)]


def _word(value: str, legal: tuple[str, ...], other: str, where: str) -> Plan:
    if value not in legal:
        raise InputError(where, f"{value!r} is none of {', '.join(legal)}; or give {other}")
    return Plan(kind=value)


def _several(value: Any, layers: int, where: str) -> list[Any]:
    """The partitions in a value; the choice for lists of lists is explained above."""
    if not isinstance(value, list):
        raise InputError(
            where, f"expected {', '.join(PARTITIONS)} or {_GIVEN_PARTITION}; got {value!r}"
        )
    if not value:
        raise empty(where)
    if any(isinstance(each, str) for each in value) or _depth(value) == 3:
        return value
    if _depth(value) == 2 and all(_is_partition(each, layers) for each in value):
        return value
    return [value]


def _is_partition(value: Any, layers: int) -> bool:
    return isinstance(value, list) and all(map(_is_count, value)) and sum(value) == layers


def _layers(value: Any, layers: int, where: str) -> list[Any]:
    counts = _counts(value, where)
    if counts.total != layers:
        raise InputError(
            where,
            f"{counts.values} places {counted(counts.total, 'layer')}, but the model has {layers}",
        )
    return counts.values


def _offset(value: Any, layers: int, where: str) -> list[Any]:
    counts = _counts(value, where, signed=True)
    base = layers // counts.entries
    if _rest(counts, layers):
        raise InputError(
            where,
            f"{counts.values} sums to {counts.total}; over {counted(counts.entries, 'stage')} "
            f"the offsets of "
            f"{counted(layers, 'layer')} must sum to {layers % counts.entries}",
        )
    made = Counts(counts.plus(base), counts.nested)
    return _counts(made.values, where).values


def _rest(offsets: Counts, layers: int) -> int:
    return offsets.total - layers % offsets.entries


def _counts(value: Any, where: str, *, signed: bool = False) -> Counts:
    """Whole numbers, flat or ``[chunk][stage]`` with rows of one length."""
    nested = isinstance(value, list) and bool(value) and all(isinstance(e, list) for e in value)
    rows = value if nested else [value]
    for row in rows:
        if not isinstance(row, list) or not row:
            raise InputError(where, f"expected a list of whole numbers per stage, got {value!r}")
        for one in row:
            if not _is_count(one) or (one < 0 and not signed):
                kind = "a whole number" if signed else "a whole number of layers, 0 or more"
                raise InputError(where, f"expected {kind} for each stage, got {one!r}")
    if len({len(row) for row in rows}) > 1:
        raise InputError(where, f"every chunk must list the same stages, got {value!r}")
    if len(rows) == 1:  # one chunk is no interleaving
        return Counts(list(rows[0]), False)
    return Counts([list(row) for row in rows], True)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _depth(value: Any) -> int:
    if not isinstance(value, list):
        return 0
    return 1 + max(map(_depth, value), default=0)


def _unique(plans: Any) -> tuple[Plan, ...]:
    """Plans without repetition, in order (plans are not hashable)."""
    found: list[Plan] = []
    for plan in plans:
        if plan not in found:
            found.append(plan)
    return tuple(found)
