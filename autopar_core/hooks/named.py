"""Named things a person picks one of: generators, rankers, renderers, readers, exporters."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from attrs import frozen

from autopar_core.domain.arrays import Floats, Ints
from autopar_core.domain.result import SearchResult
from autopar_core.domain.strategy import StrategyBatch


class GenerationContext(Protocol):
    """What a generator may ask for; see :mod:`autopar_core.search.generate`."""

    @property
    def fields(self) -> Mapping[str, Any]:
        """Declared fields by name, in the order in which they are decided."""

    def values(self, field: str) -> Sequence[int]:
        """Wanted (or every legal) column values of a field."""

    def degree_tuples(self) -> StrategyBatch:
        """Every tuple of wanted degrees whose product is the number of devices."""

    def batch(self, columns: Mapping[str, Any]) -> StrategyBatch:
        """Rows from columns of field name -> values."""

    def sift(self, rows: StrategyBatch, level: Any) -> StrategyBatch:
        """Rows that pass every rule of a level; the others are recorded with their reasons."""

    def grow(self, rows: StrategyBatch) -> StrategyBatch:
        """Degree tuples expanded and sifted level by level into whole candidates."""


@frozen
class Generator:
    """Makes candidates. Rows it has not sifted are sifted by the core afterwards.

    ``generate(ctx)`` returns the rows; ``sifted`` says that every level was sifted already.
    """

    name: str
    doc: str
    generate: Callable[[Any], StrategyBatch]
    sifted: bool = False


@frozen
class Ranker:
    """Orders feasible rows.

    ``key(seconds, memory_bytes, ctx)`` returns (N,) floats, smaller is better, ties broken by step
    time, memory and row. ``monotone``: the key never falls when time or memory grows, which lets
    the core rank by lower bounds first; a ranker that is not monotone gets exact rows everywhere.
    """

    name: str
    doc: str
    key: Callable[[Floats, Ints, Any], Floats]
    monotone: bool = True


@frozen
class Renderer:
    """Writes one kind of output of a result: returns file name -> bytes, nothing on disk itself."""

    name: str
    doc: str
    render: Callable[[SearchResult], Mapping[str, bytes]]


@frozen
class Reader:
    """Reads a model (and more) from a file of some framework.

    ``recognises(path, text)`` says whether the content is of this kind; ``read(path, text)``
    returns tables as in an input file: ``{"model": {...}}``.
    """

    name: str
    doc: str
    recognises: Callable[[Path, str], bool]
    read: Callable[[Path, str], Mapping[str, Mapping[str, Any]]]


@frozen
class Exporter:
    """Writes a strategy for a framework: ``export(result, detail)`` returns file name -> text."""

    name: str
    doc: str
    export: Callable[[SearchResult, Any], Mapping[str, str]]
