"""The folder of an earlier run, as its result.json describes it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from attrs import frozen

from autopar_core.cli.result_shape import faults
from autopar_core.config.tables import read_text
from autopar_core.errors import InputError


RESULT = "result.json"
_MAIN_KEYS = ("schema_version", "inputs", "top_k_strategies")
# Profile -> where the input may have changed its values.
_PROFILES = {
    "system": ("cluster.override", "cluster.system_profile", "cluster.system"),
    "framework": ("framework.override",),
}
_SECTIONS = ("model", "training", "cluster")


@frozen
class EarlierRun:
    """A run that was written with ``--out``.

    Attributes:
        folder: Where it is.
        document: Its result.json.
    """

    folder: Path
    document: Mapping[str, Any]

    @classmethod
    def read(cls, folder: Path, where: str) -> EarlierRun:
        """The run in a folder.

        Raises:
            InputError: When there is none, or an entry is not what it must be.
        """
        path = folder / RESULT
        if not folder.exists():
            raise InputError(f"{where} {folder}", "no such folder")
        if not path.is_file():
            raise InputError(f"{where} {folder}", f"no run of autopar: it has no {RESULT}")
        try:
            document = json.loads(read_text(path))
            wrong = list(islice(faults(document), 1)) if is_result(document) else []
        except (ValueError, RecursionError) as error:  # ValueError: also a number of many digits
            raise InputError(f"{where} {path}", f"is no valid JSON: {error}") from None
        if not is_result(document):
            raise InputError(f"{where} {path}", "is no result of autopar")
        for place, fault in wrong:
            raise InputError(f"{where} {path}: {place}", f"{fault}; search again")
        return cls(folder, document)

    @property
    def inputs(self) -> Mapping[str, Any]:
        """What was asked, each value with its source."""
        found: Mapping[str, Any] = self.document["inputs"]
        return found

    @property
    def raw(self) -> Mapping[str, Any]:
        """The input tables of the run."""
        found: Mapping[str, Any] = self.inputs["raw"]
        return found

    @property
    def sources(self) -> Mapping[str, str]:
        """Dotted key -> where that run had its value from."""
        return dict(self._sources())

    def _sources(self) -> Iterator[tuple[str, str]]:
        for section in _SECTIONS:
            yield from _said(section, self.inputs.get(section))
        search = self.inputs.get("search", {})
        for part in ("settings", "wanted"):
            yield from _said("search", search.get(part))
        for section, places in _PROFILES.items():
            values = self.inputs.get(section, {}).get("values")
            for place in places:
                for key, source in _said("", values):
                    yield f"{place}{key.removeprefix('.sections')}", source
        for name, table in self.inputs.get("plugins", {}).items():
            yield from _said(f"plugins.{name}", table)

    @property
    def active_plugins(self) -> tuple[str, ...]:
        """Names of the plugins that worked on the run."""
        plugins = self.document.get("plugins", ())
        return tuple(each["name"] for each in plugins if each.get("status") == "active")

    @property
    def strategies(self) -> list[Mapping[str, Any]]:
        """The answers, best first."""
        return list(self.document["top_k_strategies"])

    def at(self, place: int) -> Mapping[str, Any]:
        """The strategy on a place, 1 the best.

        Raises:
            InputError: When the run has no such place.
        """
        for strategy in self.strategies:
            if strategy.get("place") == place:
                return strategy
        many = len(self.strategies)
        has = f"the run has places 1 to {many}" if many else "the run found nothing that fits"
        raise InputError(f"--place {place}", f"no such place; {has}")

    def part(self, key: str, place: int) -> Mapping[str, Any]:
        """The entry of a breakdown for one place; empty when there is none."""
        for entry in self.document.get(key, ()):
            if entry.get("place") == place:
                found: Mapping[str, Any] = entry
                return found
        return {}


def is_result(document: object) -> bool:
    """Whether something read from JSON is a result that can be started from again."""
    if not isinstance(document, dict) or any(key not in document for key in _MAIN_KEYS):
        return False
    inputs = document["inputs"]
    return isinstance(inputs, dict) and isinstance(inputs.get("raw"), dict)


def _said(section: str, table: object) -> Iterator[tuple[str, str]]:
    if isinstance(table, Mapping):
        for key, entry in table.items():
            if isinstance(entry, Mapping) and isinstance(entry.get("source"), str):
                yield f"{section}.{key}", entry["source"]
