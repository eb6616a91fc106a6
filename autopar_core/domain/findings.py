"""What a reader found in a file: values with their places, contradictions told with both places."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autopar_core.errors import InputError


FORMAT_DEFAULT = "default of the format"


class Findings:
    """Collects the tables that a reader returns.

    Args:
        where: Label of the file for messages, usually ``path.name``.
    """

    def __init__(self, where: str) -> None:
        self.where = where
        self._values: dict[str, Any] = {}
        self._sources: dict[str, str] = {}
        self._notes: list[str] = []
        self._files: dict[str, str] = {}
        self._open: dict[str, str] = {}

    def put(self, key: str, value: Any, source: str) -> None:
        """Keep a value.

        Args:
            key: Dotted, ``"model.hidden"`` or ``"strategy.tp_degree"``.
            value: As the input file spells it.
            source: ``"line 12, --hidden-size"``, :data:`FORMAT_DEFAULT`, ``"inferred: ..."``.

        Raises:
            InputError: When another place said something else.
        """
        if key in self._values and self._values[key] != value:
            raise self.contradiction(key, self._values[key], self._sources[key], value, source)
        self._values.setdefault(key, value)
        self._sources.setdefault(key, source)

    def default(self, key: str, value: Any, source: str = FORMAT_DEFAULT) -> None:
        """Keep a value where nothing else said one."""
        if key not in self._values:
            self.put(key, value, source)

    def replace(self, key: str, value: Any, source: str) -> None:
        """Keep a value in place of what another reader helper found."""
        self._values[key] = value
        self._sources[key] = source

    def get(self, key: str, otherwise: Any = None) -> Any:
        """The value of a key."""
        return self._values.get(key, otherwise)

    def source(self, key: str) -> str:
        """Where the value of a key stands."""
        return self._sources[key]

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def contradiction(
        self, key: str, one: Any, place: str, other: Any, other_place: str
    ) -> InputError:
        """The error for two places that disagree."""
        return InputError(
            self.where,
            f"{key} is {one} ({place}) and {other} ({other_place}); only one of them can hold",
        )

    def name_file(self, place: str, path: str) -> None:
        """A file that this one names, relative to it; the core reads it too, with its own reader.

        Both must agree, except that a stated value replaces a default or an inferred one.
        """
        self._files[place] = path

    def leave_open(self, key: str, why: str) -> None:
        """A strategy field that the files named here state, and that this one decides otherwise.

        Args:
            key: ``"strategy.micro_batch_num"``.
            why: For the note about a value that is left out.
        """
        self._open[key] = why

    def note(self, sentence: str) -> None:
        """Tell the person something, once."""
        if sentence not in self._notes:
            self._notes.append(sentence)

    def tables(self) -> Mapping[str, Any]:
        """What :class:`~autopar_core.hooks.named.Reader` asks for."""
        made: dict[str, Any] = {}
        for key, value in self._values.items():
            *before, last = key.split(".")
            at = made
            for part in before:
                at = at.setdefault(part, {})
            at[last] = value
        beside = {"sources": dict(self._sources), "notes": list(self._notes)}
        return {**made, **beside, "files": dict(self._files), "open": dict(self._open)}
