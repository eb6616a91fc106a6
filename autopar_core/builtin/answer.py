"""What a person reads of a search: taken from its result, or read back from its result.json."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import field, frozen

from autopar_core.api import Detail, Dimension, Field, SearchResult
from autopar_core.builtin.diagnosis import advice
from autopar_core.builtin.tables import Reason, asked, reasons
from autopar_core.domain.result import Comparison, PluginView


@frozen(eq=False, kw_only=True)
class Answer:
    """Everything that is printed of a search.

    Attributes:
        asked: (name, text) of what was asked.
        space_size, judged, feasible: Candidates in the space, generated rows, feasible ones.
        fields, dimensions, top, misses, today, plugins, warnings: As in :class:`SearchResult`.
        rules: Why candidates fell, the rule that took most first.
        advice: Sentences for an empty answer.
        said: Notes on how the input was read.
    """

    asked: tuple[tuple[str, str], ...]
    space_size: int
    judged: int
    feasible: int
    fields: Mapping[str, Field]
    dimensions: tuple[Dimension, ...]
    top: tuple[Detail, ...]
    misses: tuple[Detail, ...]
    today: Comparison | None
    rules: tuple[Reason, ...]
    advice: tuple[str, ...]
    said: tuple[str, ...]
    plugins: tuple[PluginView, ...]
    warnings: Mapping[str, tuple[int, str]] = field(factory=dict)

    @classmethod
    def of(cls, result: SearchResult) -> Answer:
        """The answer of a search that just ended."""
        return cls(
            asked=tuple(asked(result)), space_size=result.space_size, judged=len(result.batch),
            feasible=result.feasible_count, fields=result.fields, dimensions=result.dimensions,
            top=result.top, misses=result.misses, today=result.today,
            rules=tuple(reasons(result)), advice=tuple(advice(result)),
            said=tuple(result.job.notes), plugins=result.plugins, warnings=result.warnings,
        )  # fmt: skip
