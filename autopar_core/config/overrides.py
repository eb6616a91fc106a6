"""Changes from the command line: ``--set KEY=VALUE``, ``--fix tp=4``, ``--disable``, ``--only``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tomli
from attrs import frozen

from autopar_core.config.tables import Origins, Table, as_names, as_table, deep_copy
from autopar_core.errors import InputError


@frozen(kw_only=True)
class Overrides:
    """What the command line changes, strongest last.

    Attributes:
        sets: (option, dotted key, value) in the order given.
        fixes: (option, field or short form, value) of the search section, after all sets.
        disable: Plugins switched off beside those of the input.
        only: Dimensions kept; replaces those of the input when not empty.
    """

    sets: tuple[tuple[str, str, Any], ...] = ()
    fixes: tuple[tuple[str, str, Any], ...] = ()
    disable: tuple[str, ...] = ()
    only: tuple[str, ...] = ()


def parse_value(text: str) -> Any:
    """A value as TOML spells it; anything that is no TOML value is a text."""
    if text in ("True", "False"):
        return text == "True"
    try:
        read = tomli.loads(f"value = {text}")
    except tomli.TOMLDecodeError:
        return text
    value = read["value"]
    # A second line could smuggle in other keys, and a date is no value of any key.
    plain = isinstance(value, bool | int | float | str | list | dict)
    return value if set(read) == {"value"} and plain else text


def parse_assignments(texts: Iterable[str], option: str) -> tuple[tuple[str, Any], ...]:
    """Pairs of ``KEY=VALUE`` texts.

    Raises:
        InputError: When one is no assignment.
    """
    pairs = []
    for text in texts:
        key, equals, value = text.partition("=")
        if not (equals and key.strip() and value.strip()):
            raise InputError(option, f"{text!r} is no assignment; write KEY=VALUE")
        pairs.append((key.strip(), parse_value(value.strip())))
    return tuple(pairs)


def apply(tables: Table, overrides: Overrides, origins: Origins) -> Table:
    """Tables after ``--set``, ``--disable`` and ``--only``; remembers the origin of each key.

    Raises:
        InputError: When a key leads through something that is no table.
    """
    changed: Table = deep_copy(tables)
    for option, dotted, value in overrides.sets:
        _put(changed, tuple(dotted.split(".")), value, option)
        origins.said[tuple(dotted.split("."))] = option
    if overrides.disable:
        before, _ = plugin_selection(changed, origins)
        _put(changed, ("plugins", "disable"), _merged(before, overrides.disable), "--disable")
        origins.said["plugins", "disable"] = "--disable"
    if overrides.only:
        _put(changed, ("plugins", "only"), _merged((), overrides.only), "--only")
        origins.said["plugins", "only"] = "--only"
    return changed


def plugin_selection(tables: Table, origins: Origins) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names in ``[plugins] disable`` and ``only``: needed before any plugin is loaded.

    Raises:
        InputError: When they are no lists of names.
    """
    section = as_table(tables.get("plugins", {}), origins.where("plugins"))
    disable, only = (
        as_names(section.get(key, ()), origins.where("plugins", key)) for key in ("disable", "only")
    )
    return disable, only


def _merged(first: tuple[str, ...], second: tuple[str, ...]) -> list[str]:
    return list(dict.fromkeys([*first, *second]))


def _put(tables: Table, keys: tuple[str, ...], value: Any, option: str) -> None:
    if not all(keys):
        raise InputError(option, f"{'.'.join(keys)!r} is no key; write SECTION.KEY=VALUE")
    at = tables
    for count, key in enumerate(keys[:-1], 1):
        at = at.setdefault(key, {})
        if not isinstance(at, dict):
            through = ".".join(keys[:count])
            raise InputError(f"{option}: {'.'.join(keys)}", f"{through} is a value, not a table")
    at[keys[-1]] = value
