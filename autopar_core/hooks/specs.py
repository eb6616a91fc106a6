"""Every hook, in the order in which a search calls them.

Two kinds. *Everyone contributes*: a hook with arrays, whose answers the core combines (shards
multiply, terms add, rules all count). *The person picks one*: a hook that registers named objects.
An implementation names only the arguments it needs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from autopar_core.hooks.markers import hookspec


if TYPE_CHECKING:
    from autopar_core.domain.arrays import Ints
    from autopar_core.domain.fields import Level
    from autopar_core.domain.strategy import StrategyBatch
    from autopar_core.domain.terms import MemoryTerm, Partial, Shard, TimeTerm
    from autopar_core.domain.verdict import Broken
    from autopar_core.hooks.context import EvalContext
    from autopar_core.hooks.info import PluginInfo
    from autopar_core.hooks.named import Exporter, Generator, Ranker, Reader, Renderer
    from autopar_core.hooks.schedule import Composer
    from autopar_core.work.rank_work import RankWork


class AutoparSpec:
    """Hook specifications."""

    @hookspec
    def autopar_plugin_info(self) -> PluginInfo:  # type: ignore[empty-body]
        """Introduce the plugin. Required; called once, right after import."""

    @hookspec
    def autopar_field_values(  # type: ignore[empty-body]
        self, ctx: EvalContext[Any, Any]
    ) -> Mapping[str, Sequence[Any]]:
        """Values that the plugin's own fields may take when the person names none.

        Args:
            ctx: The job.

        Returns:
            Field name -> spelled values. A field that is absent keeps its neutral value; a degree
            field that is absent takes every divisor of the number of devices.
        """

    @hookspec
    def autopar_resolve(  # type: ignore[empty-body]
        self, batch: StrategyBatch, level: Level, ctx: EvalContext[Any, Any]
    ) -> Mapping[str, Ints]:
        """Columns that follow from the others once the fields of ``level`` are decided.

        Returns:
            Field name -> (N,) column, for fields that the plugin owns.
        """

    @hookspec
    def autopar_filter(  # type: ignore[empty-body]
        self, batch: StrategyBatch, level: Level, ctx: EvalContext[Any, Any]
    ) -> Sequence[Broken]:
        """Rules that rows break, as soon as the fields of ``level`` are decided.

        Fields of later levels read as neutral. Return every broken rule, not only the first; a rule
        is asked again at later levels only if it wants to be. Any plugin may filter.
        """

    @hookspec
    def autopar_partitions(  # type: ignore[empty-body]
        self, ctx: EvalContext[Any, Any]
    ) -> Sequence[Sequence[int]]:
        """Layers of each stage as the framework deals them, where nobody can choose otherwise.

        Returns:
            One partition for each number of stages and whatever else it depends on. ``auto`` and
            ``even`` then mean these; what does not fit a row is for ``autopar_filter`` to tell.
        """

    @hookspec
    def autopar_shard(  # type: ignore[empty-body]
        self, batch: StrategyBatch, ctx: EvalContext[Any, Any]
    ) -> Sequence[Shard] | Partial:
        """What the dimension divides; the core multiplies the divisors of all dimensions."""

    @hookspec
    def autopar_memory(  # type: ignore[empty-body]
        self, batch: StrategyBatch, work: RankWork, ctx: EvalContext[Any, Any]
    ) -> Sequence[MemoryTerm] | Partial:
        """Memory that the dimension adds on a rank; the core sums and takes the maxima."""

    @hookspec
    def autopar_performance(  # type: ignore[empty-body]
        self, batch: StrategyBatch, work: RankWork, ctx: EvalContext[Any, Any]
    ) -> Sequence[TimeTerm] | Partial:
        """Time that the dimension adds; the core hides link terms in their windows and sums."""

    @hookspec
    def autopar_schedule(self, ctx: EvalContext[Any, Any]) -> Composer:  # type: ignore[empty-body]
        """The schedule composer; at most one active plugin has one, without it there is one stage."""

    @hookspec
    def autopar_generators(self) -> Sequence[Generator]:  # type: ignore[empty-body]
        """Candidate generators, picked by ``search.generator``."""

    @hookspec
    def autopar_rankers(self) -> Sequence[Ranker]:  # type: ignore[empty-body]
        """Rankers, picked by ``--rank-by``."""

    @hookspec
    def autopar_renderers(self) -> Sequence[Renderer]:  # type: ignore[empty-body]
        """Renderers; every registered one writes its files into ``--out``."""

    @hookspec
    def autopar_readers(self) -> Sequence[Reader]:  # type: ignore[empty-body]
        """Readers of model and launch files, picked by content."""

    @hookspec
    def autopar_frameworks(self) -> Sequence[Mapping[str, Any]]:  # type: ignore[empty-body]
        """Framework profiles as tables, in the form of the catalogue's files."""

    @hookspec
    def autopar_systems(self) -> Sequence[Mapping[str, Any]]:  # type: ignore[empty-body]
        """System profiles as tables, in the form of the catalogue's files."""

    @hookspec
    def autopar_exporters(self) -> Sequence[Exporter]:  # type: ignore[empty-body]
        """Exporters, picked by ``autopar export --to``."""


BEHAVIOUR_HOOKS = ("autopar_shard", "autopar_memory", "autopar_performance")
"""Hooks that a dimension must implement for degrees above one."""
