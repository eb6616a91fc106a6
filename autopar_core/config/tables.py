"""Plain input tables: reading, merging, and where each key was said."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import tomli
from attrs import field, frozen

from autopar_core.config.converter import join
from autopar_core.errors import InputError


Table = dict[str, Any]
NO_FILE = "input"


def read_text(path: Path, shown: str = "") -> str:
    """Text of a file.

    Raises:
        InputError: When there is none, or when it is no text.
    """
    try:
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise InputError(shown or str(path), "no such file") from None
    except IsADirectoryError:
        raise InputError(shown or str(path), "is a folder; name a file in it") from None
    except UnicodeDecodeError:
        raise InputError(shown or str(path), "is no text file") from None
    except OSError as error:
        raise InputError(shown or str(path), f"cannot be read: {error.strerror}") from None


def read_toml(path: Path, shown: str = "") -> Table:
    """Tables of a TOML file.

    Raises:
        InputError: When there is no such file or it is no TOML.
    """
    text = read_text(path, shown)
    try:
        tables = tomli.loads(text)
    except tomli.TOMLDecodeError as error:
        raise InputError(path.name, f"is no valid TOML: {error}") from None
    for keys, value in leaves(tables):
        if isinstance(value, datetime.date | datetime.time):
            raise InputError(join(f"{path.name}:", *keys), f"{value} is a date; no key takes one")
    return tables


def leaves(table: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every value that is no table, with its keys; an empty table counts as a value."""
    for key, value in table.items():
        if isinstance(value, Mapping) and value:
            for keys, leaf in leaves(value):
                yield (key, *keys), leaf
        else:
            yield (key,), value


def deep_merge(base: Mapping[str, Any], top: Mapping[str, Any]) -> Table:
    """``base`` with the values of ``top``: tables merge, anything else replaces."""
    merged = dict(base)
    for key, value in top.items():
        below = merged.get(key)
        if isinstance(value, Mapping) and isinstance(below, Mapping):
            merged[key] = deep_merge(below, value)
        else:
            merged[key] = value
    return merged


def deep_copy(value: Any) -> Any:
    """The same tables and lists, so that a change cannot reach the original."""
    if isinstance(value, Mapping):
        return {key: deep_copy(each) for key, each in value.items()}
    return [deep_copy(each) for each in value] if isinstance(value, list | tuple) else value


@frozen
class Origins:
    """Where each key of the merged tables was said.

    Attributes:
        label: The input file's name, which holds for keys without an entry.
        said: Keys -> label of another origin (``--set``), also for all keys below.
        earlier: Dotted key -> source in the earlier run that ``label`` stands for.
    """

    label: str = NO_FILE
    said: dict[tuple[str, ...], str] = field(factory=dict)
    earlier: Mapping[str, str] = field(factory=dict)

    def of(self, *keys: str) -> str:
        """Who said this key."""
        for size in range(len(keys), 0, -1):
            if keys[:size] in self.said:
                return self.said[keys[:size]]
        return self.label

    def source(self, *keys: str, name: str = "") -> str:
        """As :meth:`of`, seen through an earlier run to what that run was given.

        ``name`` is the full name of the last key where ``keys`` spells it otherwise.
        """
        label = self.of(*keys)
        known = ".".join((*keys[:-1], name or keys[-1]))
        return self.earlier.get(known, label) if label == self.label else label

    def where(self, *keys: str) -> str:
        """Place of a key in a message: ``run.toml: training.seq_len``."""
        return join(f"{self.of(*keys)}:", *keys)

    def below(self, *keys: str) -> Callable[[tuple[str, ...]], str]:
        """:meth:`where` for paths below a key."""
        return lambda path: self.where(*keys, *path)


def as_table(value: object, where: str) -> Table:
    """The value, which must be a table.

    Raises:
        InputError: When it is none.
    """
    if not isinstance(value, Mapping):
        raise InputError(where, f"expected a table, got {value!r}")
    return dict(value)


def as_names(value: object, where: str) -> tuple[str, ...]:
    """The value, which must be a list of texts (one text stands for a list of it).

    Raises:
        InputError: When it is none.
    """
    found = [value] if isinstance(value, str) else value
    if not isinstance(found, Sequence) or not all(isinstance(each, str) for each in found):
        raise InputError(where, f"expected a list of names, got {value!r}")
    return tuple(dict.fromkeys(found))
