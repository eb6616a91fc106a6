"""The search section: wanted values per field, plans, and how to rank."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from attrs import evolve, frozen

from autopar_core.config.converter import nearest
from autopar_core.config.plans import (
    as_count,
    as_flag,
    as_range,
    empty,
    offset_plans,
    partition_plans,
    recompute_plans,
)
from autopar_core.config.tables import Origins, Table, as_names, as_table
from autopar_core.domain.fields import Dimension, Field, Value
from autopar_core.domain.space import Plan, SearchSpace, Wanted
from autopar_core.errors import InputError
from autopar_core.plugins.fields import PLAN_FIELDS, all_dimensions, declared_fields


if TYPE_CHECKING:
    from autopar_core.plugins.manager import PluginManager

PARTITION, OFFSET, RECOMPUTE = "stage_partition", "layer_offset", "layer_recompute"
DIFFERENCE, UNIFORM = "max_layer_diff", "uniform_recompute"
_PLAIN = (
    PARTITION, OFFSET, RECOMPUTE, DIFFERENCE, UNIFORM, "top_k", "rank_by", "generator", "weights",
    "habits",
)  # fmt: skip
_SHORT = {"partition": PARTITION, "offset": OFFSET, "recompute": RECOMPUTE}
PLAN_KEYS = frozenset((PARTITION, OFFSET, RECOMPUTE, *_SHORT))
# Where a person picks one named object: key -> hook that registers them.
_PICKS = {"rank_by": "autopar_rankers", "generator": "autopar_generators"}


@frozen
class Keys:
    """Every key of the search section.

    Attributes:
        fields: Spelling (name, short form, dimension) -> field of a strategy.
        picks: Key of a named object -> names there are.
    """

    fields: Mapping[str, Field]
    picks: Mapping[str, tuple[str, ...]]

    @classmethod
    def of(cls, manager: PluginManager) -> Keys:
        """Keys that the loaded plugins make legal."""
        hidden = {field.name for field in PLAN_FIELDS}
        declared = {n: f for n, f in declared_fields(manager).items() if n not in hidden}
        dimensions: dict[str, Dimension] = {each.name: each for each in all_dimensions(manager)}
        spelled = {name: each.degree for name, each in dimensions.items()}
        spelled |= {field.short: field for field in declared.values()}
        picks = {
            key: tuple(each.name for _, many in manager.collect(hook) for each in many)
            for key, hook in _PICKS.items()
        }
        return cls({**spelled, **declared}, picks)

    def canonical(self, key: str) -> str:
        """The name behind a spelling; empty when it is no key."""
        if key in self.fields:
            return self.fields[key].name
        key = _SHORT.get(key, key)
        return key if key in _PLAIN else ""

    def legal(self) -> list[str]:
        """Every spelling, short forms first."""
        return list(dict.fromkeys([*self.fields, *_PLAIN, *_SHORT]))

    def unknown_field(self, key: str) -> str:
        """Sentence for what is no field of a strategy."""
        known = [*self.fields, *sorted(PLAN_KEYS)]
        return f"unknown field{nearest(key, known, noun='fields', many=60)}"

    def unknown(self, key: str) -> str:
        """Sentence for a key that is none."""
        return f"unknown key{nearest(key, self.legal(), many=60)}"


def fix(section: Table, keys: Keys, key: str, value: Any, option: str) -> str:
    """Set one field of a search section to a value, whatever spelling it had there.

    Returns:
        The key under which the value now is.

    Raises:
        InputError: When there is no such field.
    """
    name = keys.canonical(key.removeprefix("search."))
    if not name:
        raise InputError(f"{option} {key}", keys.unknown(key))
    # Partition and offset are two ways to say one thing, so a fixed one replaces the other.
    rivals = {PARTITION, OFFSET} if name in (PARTITION, OFFSET) else {name}
    for old in [each for each in section if keys.canonical(each) in rivals]:
        del section[old]
    section[key.removeprefix("search.")] = value
    return key.removeprefix("search.")


def search_space(section: Table, keys: Keys, layers: int, origins: Origins) -> SearchSpace:
    """The checked search section.

    Args:
        section: The table; spellings of a field that an override said replace other spellings.
        keys: Legal keys.
        layers: Layers of the model, which a given partition must place.
        origins: For messages.

    Raises:
        InputError: At the first key or value that is wrong.
    """
    spelled = spellings(section, keys, origins)
    wanted: dict[str, Wanted] = {}
    plain: dict[str, tuple[Any, str]] = {}
    for name, key in spelled.items():
        where = origins.where("search", key)
        if key in keys.fields:
            wanted[name] = wanted_values(keys.fields[key], section[key], where)
        else:
            plain[name] = (section[key], where)
    return SearchSpace(
        wanted=wanted,
        partitions=_partitions(plain, layers),
        recomputes=recompute_plans(*plain[RECOMPUTE]) if RECOMPUTE in plain else (Plan(),),
        uniform_recompute=as_flag(*plain[UNIFORM]) if UNIFORM in plain else False,
        habits=as_names(*plain["habits"]) if "habits" in plain else (),
        weights=_weights(*plain["weights"]) if "weights" in plain else {},
        **{key: _PLAIN_CHECKS[key](*plain[key], keys) for key in _PLAIN_CHECKS if key in plain},
    )


def spellings(section: Table, keys: Keys, origins: Origins) -> dict[str, str]:
    """Canonical name -> key of the section that says it.

    Raises:
        InputError: When a key is unknown, or one field is given under two spellings.
    """
    found: dict[str, str] = {}
    for key in section:
        name = keys.canonical(key)
        if not name:
            raise InputError(origins.where("search", key), keys.unknown(key))
        if name in found:
            pair = (found[name], key)
            strong = [each for each in pair if origins.of("search", each) != origins.label]
            if len(strong) != 1:
                where = origins.where("search", key)
                raise InputError(where, f"is also given as {found[name]}; keep one of them")
            found[name] = strong[0]
        else:
            found[name] = key
    return found


def wanted_values(field: Field, value: Any, where: str) -> Wanted:
    """A single value, a list of values, or a range, each checked against the field.

    Raises:
        InputError: When a value is not legal, or there is none.
    """
    if isinstance(value, Mapping):
        if field.choices or field.boolean:
            raise InputError(where, f"takes values, no range; {_legal(field)}")
        found = as_range(value, where)
        for bound in ("min", "max"):
            if getattr(found, bound) is not None:
                check_value(field, getattr(found, bound), f"{where}.{bound}")
        return found
    if not isinstance(value, list):
        return (check_value(field, value, where),)
    if not value:
        raise empty(where)
    return tuple(dict.fromkeys(check_value(field, each, where) for each in value))


def check_value(field: Field, value: Any, where: str) -> Value:
    """One value of a field.

    Raises:
        InputError: When the field does not take it.
    """
    try:
        code = field.encode(value)
    except (ValueError, TypeError):
        raise InputError(where, f"expected {_legal(field)}, got {value!r}") from None
    if not field.choices and not field.boolean and code < _least(field):
        raise InputError(where, f"must be {_legal(field)}, got {value}")
    return field.decode(code)


def _least(field: Field) -> int:
    return min(1, int(field.neutral))


def _legal(field: Field) -> str:
    if field.choices:
        return "one of " + ", ".join(field.choices)
    if field.boolean:
        return "true or false"
    return "a positive whole number" if _least(field) == 1 else "a whole number, 0 or more"


def _partitions(plain: Mapping[str, tuple[Any, str]], layers: int) -> tuple[Plan, ...]:
    """Plans of ``stage_partition``, ``layer_offset`` and ``max_layer_diff`` together."""
    plans = _partitions_of(plain, layers)
    if DIFFERENCE not in plain:
        return plans
    most = as_count(*plain[DIFFERENCE])
    if not any(plan.kind == "auto" for plan in plans):
        raise InputError(
            plain[DIFFERENCE][1], f'limits {PARTITION} = "auto", which is not asked for'
        )
    return tuple(evolve(plan, difference=most) if plan.kind == "auto" else plan for plan in plans)


def _partitions_of(plain: Mapping[str, tuple[Any, str]], layers: int) -> tuple[Plan, ...]:
    if OFFSET not in plain:
        return partition_plans_of(plain, layers)
    value, where = plain[OFFSET]
    offsets = offset_plans(value, layers, where)
    if PARTITION not in plain:
        return offsets
    if not isinstance(value, Mapping) or plain[PARTITION][0] != "auto":
        raise InputError(
            where, f"says the layers of each stage, and so does {PARTITION}; keep one of them"
        )
    return offsets


def partition_plans_of(plain: Mapping[str, tuple[Any, str]], layers: int) -> tuple[Plan, ...]:
    """Plans of ``stage_partition`` alone; ``auto`` when it is absent."""
    if PARTITION not in plain:
        return (Plan(),)
    value, where = plain[PARTITION]
    return partition_plans(value, layers, where)


def _count(value: Any, where: str, _: Keys) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InputError(where, f"expected a positive whole number, got {value!r}")
    return value


def _pick(key: str) -> Callable[[Any, str, Keys], str]:
    def check(value: Any, where: str, keys: Keys) -> str:
        names = keys.picks[key]
        if not isinstance(value, str):
            raise InputError(where, f"expected a name, got {value!r}")
        if names and value not in names:
            raise InputError(where, f"unknown name {value!r}{nearest(value, names, noun='known')}")
        return value

    return check


def _weights(value: Any, where: str) -> dict[str, float]:
    found = {}
    for name, weight in as_table(value, where).items():
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not weight >= 0:
            raise InputError(f"{where}.{name}", f"expected a number, 0 or more, got {weight!r}")
        found[name] = float(weight)
    return found


_PLAIN_CHECKS: Mapping[str, Callable[[Any, str, Keys], Any]] = {
    "top_k": _count,
    "rank_by": _pick("rank_by"),
    "generator": _pick("generator"),
}
