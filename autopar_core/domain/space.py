"""What may be searched: wanted values per field, plans for partition and recompute, how many answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import field, frozen

from autopar_core.domain.fields import Value
from autopar_core.domain.training import Range


Wanted = tuple[Value, ...] | Range


@frozen(kw_only=True)
class Plan:
    """One way to choose layers per stage or recompute per stage.

    Attributes:
        kind: Partition: ``auto``, ``even`` or ``given``. Recompute: ``auto``, ``none``,
            ``selective``, ``full`` (every layer), ``every`` (every k-th layer of a rank, fully) or
            ``given``.
        given: Layers per stage, flat or ``[chunk][stage]``; for recompute a mapping mode -> the
            same shape, or k with ``every``.
        offset: Partition ``auto``: allowed difference to the even split of every stage.
        difference: Partition ``auto``: most layers by which two stages may differ; None is any.
        layers: Recompute ``auto``: allowed number of recomputed layers of every stage.
    """

    kind: str = "auto"
    given: Any = None
    offset: Range = field(factory=Range)
    difference: int | None = None
    layers: Range = field(factory=Range)

    @property
    def text(self) -> str:
        """Spelling for logs and files."""
        if self.kind == "every":
            return f"every {self.given} layers"
        return str(self.given) if self.kind == "given" else self.kind


@frozen(kw_only=True)
class SearchSpace:
    """The search section.

    Attributes:
        wanted: Field name -> values or range; a field that is absent gets every legal value.
        partitions: Plans tried for the layers of each stage.
        recomputes: Plans tried for recompute.
        uniform_recompute: Recompute is spelled once for all stages, also where the framework has a
            number of its own for each.
        habits: Codes of habit rules that prune here instead of warning.
        top_k: Answers wanted.
        rank_by: Name of the ranker.
        generator: Name of the candidate generator.
        weights: For the weighted ranker: cost name -> weight.
    """

    wanted: Mapping[str, Wanted] = field(factory=dict)
    partitions: tuple[Plan, ...] = (Plan(),)
    recomputes: tuple[Plan, ...] = (Plan(),)
    uniform_recompute: bool = False
    habits: tuple[str, ...] = ()
    top_k: int = 10
    rank_by: str = "step_time"
    generator: str = "grid"
    weights: Mapping[str, float] = field(factory=dict)
