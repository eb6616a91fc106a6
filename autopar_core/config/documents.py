"""Files of other programs, read with bounded time and memory: JSON, YAML and TOML as plain tables."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import tomli
from attrs import field, frozen

from autopar_core.config.tables import Table
from autopar_core.errors import InputError
from autopar_core.units import MIB


# The largest launch file in the samples has 9 KB; the largest published config.json has 0.2 MB.
MAX_BYTES = 4 * MIB
MAX_YAML_BYTES = MIB
MAX_DEPTH = 64
# Values after aliases are written out: what a reader may have to walk over.
MAX_VALUES = 100_000
_TYPES: dict[type, str] = {
    int: "a whole number", float: "a number", bool: "true or false", str: "a text",
    list: "a list", dict: "a table",
}  # fmt: skip


def read_source_text(path: Path, where: str) -> str:
    """Text of a file that some program wrote; never more than :data:`MAX_BYTES` of it in memory.

    Raises:
        InputError: When it cannot be read, is too large, or is no UTF-8 text.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise InputError(where, f"cannot be read: {error.strerror}") from None
    if len(data) > MAX_BYTES:
        raise InputError(
            where, f"is larger than {MAX_BYTES // MIB} MiB; no configuration or script is"
        )
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise InputError(where, "is UTF-16 text; save it as UTF-8")
    if b"\0" in data:
        raise InputError(where, "is a binary file, no text")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise InputError(where, f"line {line} is no UTF-8 text; save the file as UTF-8") from None


@frozen
class Document:
    """A parsed file.

    Attributes:
        label: Name of the file, for messages.
        table: Its top table.
        lines: Dotted key -> line, where the format tells.
    """

    label: str
    table: Mapping[str, Any]
    lines: Mapping[str, int] = field(factory=dict)

    def place(self, key: str) -> str:
        """Where a key stands: ``"line 12, parallelism.tp"``, or ``"key parallelism.tp"``."""
        return f"line {self.lines[key]}, {key}" if key in self.lines else f"key {key}"

    def wrong(self, key: str, what: str) -> InputError:
        """The error for a key."""
        return InputError(f"{self.label}: {self.place(key)}", what)

    def __contains__(self, key: str) -> bool:
        return self._find(key)[0]

    def get(self, key: str, otherwise: Any = None) -> Any:
        """The value of a dotted key; ``otherwise`` where it or a table around it is absent."""
        found, value = self._find(key)
        return value if found else otherwise

    def whole(self, key: str, *, least: int = 1) -> int:
        """A whole number.

        Raises:
            InputError: When it is missing, something else, or below ``least``.
        """
        value: int = self._typed(key, int)
        if value < least:
            raise self.wrong(key, f"must be {least} or more, got {value}")
        return value

    def flag(self, key: str) -> bool:
        """True or false.

        Raises:
            InputError: When it is missing or something else.
        """
        return bool(self._typed(key, bool))

    def text(self, key: str) -> str:
        """A text.

        Raises:
            InputError: When it is missing or something else.
        """
        return str(self._typed(key, str))

    def section(self, key: str) -> Mapping[str, Any]:
        """A table; an absent one is empty.

        Raises:
            InputError: When it is something else.
        """
        found: Mapping[str, Any] = self._typed(key, dict) if key in self else {}
        return found

    def _find(self, key: str) -> tuple[bool, Any]:
        at: Any = self.table
        for part in key.split("."):
            if not isinstance(at, Mapping) or part not in at:
                return False, None
            at = at[part]
        return True, at

    def _typed(self, key: str, cls: type) -> Any:
        found, value = self._find(key)
        if not found:
            raise InputError(self.label, f"has no key {key}; expected {_TYPES[cls]} there")
        if type(value) is not cls:
            raise self.wrong(key, f"expected {_TYPES[cls]}, got {_short(value)}")
        return value


def read_json(text: str, label: str) -> Document:
    """A JSON file whose top is a table.

    Raises:
        InputError: When it is none, is too deep or too large, or says one key twice.
    """

    def pairs(found: list[tuple[str, Any]]) -> Table:
        table = dict(found)
        if len(table) < len(found):
            names = [name for name, _ in found]
            twice = next(name for name in names if names.count(name) > 1)
            raise InputError(label, f"key {twice} is given twice in one table; keep one of them")
        return table

    try:
        value = json.loads(text, object_pairs_hook=pairs)
    except json.JSONDecodeError as error:
        raise InputError(label, f"is no valid JSON: {error}") from None
    except RecursionError:
        raise _too_deep(label) from None
    except ValueError:  # an integer of thousands of digits
        raise InputError(label, "has a number that is too long to be one") from None
    return _checked(label, value, {})


def read_toml_text(text: str, label: str) -> Document:
    """A TOML file.

    Raises:
        InputError: When it is none, or is too deep.
    """
    try:
        value = tomli.loads(text)
    except tomli.TOMLDecodeError as error:
        raise InputError(label, f"is no valid TOML: {error}") from None
    except RecursionError:
        raise _too_deep(label) from None
    except ValueError:
        raise InputError(label, "has a number that is too long to be one") from None
    return _checked(label, value, {})


def read_yaml(text: str, label: str) -> Document:
    """A YAML file whose top is a table, with the line of every key; nothing in it is executed.

    Aliases count as often as they are written out, so a small file cannot become a large table.

    Raises:
        InputError: When it is none, is too deep or too large, or says one key twice.
    """
    import yaml

    if len(text) > MAX_YAML_BYTES:
        raise InputError(label, f"is larger than {MAX_YAML_BYTES // MIB} MiB; no configuration is")
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        _weigh(yaml.parse(text, Loader=loader), label)
        node = yaml.compose(text, Loader=loader)
        lines: dict[str, int] = {}
        if node is not None:
            _number(node, (), lines, label)
        value = yaml.load(text, Loader=loader) if node is not None else {}  # a safe loader
    except yaml.YAMLError as error:
        said = str(error).replace("\n", " ").replace('in "<unicode string>", ', "")
        if "nesting depth" in said:  # the C parser's own limit
            raise _too_deep(label) from None
        raise InputError(label, f"is no valid YAML: {' '.join(said.split())[:200]}") from None
    except RecursionError:
        raise _too_deep(label) from None
    except (ValueError, TypeError, AttributeError):  # impossible dates, unhashable keys
        raise InputError(label, "is no valid YAML: a value has no meaning") from None
    return _checked(label, value, lines)


def _weigh(events: Iterator[Any], label: str) -> None:
    """Refuse a stream of YAML events that is too deep, or too large with its aliases written out."""
    import yaml

    sizes: dict[str, int] = {}
    opened: list[tuple[str | None, int]] = []
    total = 0
    for event in events:
        if isinstance(event, yaml.CollectionStartEvent):
            opened.append((event.anchor, total))
            if len(opened) > MAX_DEPTH:
                raise _too_deep(label)
            total += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = opened.pop()
            if anchor is not None:
                sizes[anchor] = total - before
        elif isinstance(event, yaml.AliasEvent):
            if any(anchor == event.anchor for anchor, _ in opened):
                raise InputError(label, f"alias *{event.anchor} stands inside its own anchor")
            total += sizes.get(event.anchor, 1)
        elif isinstance(event, yaml.ScalarEvent):
            total += 1
        if total > MAX_VALUES:
            raise InputError(
                label, f"is more than {MAX_VALUES:,} values with its aliases written out; "
                "no configuration is",
            )  # fmt: skip


def _number(node: Any, path: tuple[str, ...], lines: dict[str, int], label: str) -> None:
    """Note the line of every key, and refuse a table that says one key twice."""
    import yaml

    if isinstance(node, yaml.MappingNode):
        seen: dict[str, int] = {}
        for key, value in node.value:
            line = key.start_mark.line + 1
            name = str(key.value)
            if name == "<<":
                for each in value.value if isinstance(value, yaml.SequenceNode) else [value]:
                    _number(each, path, lines, label)
                continue
            if name in seen:
                both = f"lines {seen[name]} and {line}"
                raise InputError(label, f"key {name} is given twice, {both}; keep one of them")
            seen[name] = line
            lines[".".join((*path, name))] = line
            _number(value, (*path, name), lines, label)
    elif isinstance(node, yaml.SequenceNode):
        for place, value in enumerate(node.value):
            _number(value, (*path, str(place)), lines, label)


def _checked(label: str, value: Any, lines: Mapping[str, int]) -> Document:
    if not isinstance(value, dict):
        raise InputError(label, f"expected a table at the top, got {_short(value)}")
    if _deeper(value):
        raise _too_deep(label)
    return Document(label, value, lines)


def _deeper(value: Any) -> bool:
    """Whether tables and lists are nested deeper than :data:`MAX_DEPTH`; no recursion."""
    level: Sequence[Any] = [value]
    for _ in range(MAX_DEPTH + 1):
        if not level:
            return False
        level = [
            inner
            for each in level
            for inner in (each.values() if isinstance(each, Mapping) else each)
            if isinstance(inner, Mapping | list)
        ]
    return True


def _too_deep(label: str) -> InputError:
    return InputError(label, f"is nested deeper than {MAX_DEPTH} levels; no configuration is")


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
