"""Named things a person picks one of: generators, rankers, renderers, readers, exporters."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from attrs import frozen

from autopar_core.domain.arrays import Floats, Ints
from autopar_core.domain.export import ExportRequest
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
    """Reads a model, a launch configuration, or both, from a file of some framework.

    ``recognises(path, text)`` says whether the content is of this kind; it is called on any text and
    must be quick and never raise. ``read(path, text)`` returns tables as in an input file, every one
    of them optional:

    - ``model``, ``training``, ``cluster`` (``devices``, ...), ``framework`` (``name``, overrides),
      ``plugins`` (settings by plugin);
    - ``model.source``: a name (on the hub, of the file) whose preset gives what the file leaves open;
    - ``strategy``: strategy field or short form -> value, ``stage_partition``, ``layer_offset`` and
      ``layer_recompute`` included; what the file leaves open is absent;
    - ``sources``: dotted key (``"model.hidden"``, ``"strategy.tp_degree"``) -> where the value stands,
      ``"line 12, --hidden-size"``, ``"default of the format"`` or ``"inferred: ..."``;
    - ``notes``: sentences that the person should see;
    - ``files``: place -> path of a further file that this one names, relative to it, which the core
      reads with its own reader; both must agree;
    - ``open``: dotted key (``"strategy.NAME"``) -> why: fields of those files that do not hold here.

    :class:`~autopar_core.domain.findings.Findings` collects them. A file that is of this kind but
    wrong, or not a dense model, raises :class:`~autopar_core.errors.InputError` (where, what); a
    contradiction names both places.

    ``framework`` labels the framework whose files these are; empty for plain model files.
    """

    name: str
    doc: str
    recognises: Callable[[Path, str], bool]
    read: Callable[[Path, str], Mapping[str, Any]]
    framework: str = ""


@frozen
class Exporter:
    """Writes a strategy in the form of a framework, picked by ``autopar export --to NAME``.

    ``export(request)`` returns file name -> text; no clock time, no path of this machine. What the
    framework has no way to say raises :class:`~autopar_core.errors.CannotExpress`. ``frameworks``
    are the profiles whose estimates hold for these files; others get a note.
    """

    name: str
    doc: str
    frameworks: tuple[str, ...]
    export: Callable[[ExportRequest], Mapping[str, str]]
