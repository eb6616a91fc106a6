"""What a search found, as arrays for all rows and as details for the rows that matter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import field, frozen

from autopar_core.domain.arrays import Bools, Floats, Ints
from autopar_core.domain.cost import MemoryCost, PerformanceCost, StageSummary
from autopar_core.domain.fields import Dimension, Field
from autopar_core.domain.job import Job
from autopar_core.domain.strategy import Strategy, StrategyBatch
from autopar_core.domain.verdict import Cuts, Verdicts


@frozen(kw_only=True)
class Detail:
    """One candidate in full.

    Attributes:
        place: 1 for the best, 0 when it is not ranked.
        row: Row of the batch.
        feasible, filter_reason: Verdict; the reason is empty when feasible.
        warnings: Habits it goes against.
        tie_with_best: Its exact step time is nearer to the best one's than predictions of the class are
            to measured runs once its scalar is taken out.
        partition_plan, recompute_plan: How partition and recompute were chosen.
        partition_gain: Share by which the step is shorter than with the even split of the layers
            and its own recompute; None where the partition is given, or the even split does not fit.
        partition_gap: Share by which any other partition can be faster at the most, by a proven
            bound; None where the partition is given.
    """

    place: int
    row: int
    strategy: Strategy
    feasible: bool
    filter_reason: str
    memory: MemoryCost
    performance: PerformanceCost
    stages: tuple[StageSummary, ...]
    warnings: tuple[str, ...] = ()
    tie_with_best: bool = False
    partition_plan: str = "auto"
    recompute_plan: str = "auto"
    partition_gain: float | None = None
    partition_gap: float | None = None


@frozen(kw_only=True)
class Change:
    """One field of a strategy that differs between today and the best."""

    field: str
    today: Any
    best: Any


@frozen(kw_only=True)
class Comparison:
    """What the person runs today, beside the answers.

    Attributes:
        label: Where it comes from, ``"run.sh (megatron)"``.
        detail: It in full, ``place`` and ``row`` being 0 and -1; None when it cannot be estimated.
        reason: Why it cannot run as it is; empty when it can.
        gain: Share of today's step time that the best saves; NaN when there is nothing to compare.
        changes: Fields to change, in output order.
        sentence: All of it for people.
    """

    label: str
    detail: Detail | None
    reason: str
    gain: float
    changes: tuple[Change, ...]
    sentence: str


@frozen(kw_only=True)
class PluginView:
    """One plugin as listed: ``status`` is active, disabled, broken, incompatible or conflict."""

    name: str
    status: str
    distribution: str
    version: str
    summary: str
    dimension: str
    hooks: tuple[str, ...]
    missing: tuple[str, ...]
    reason: str


@frozen(kw_only=True)
class StageCount:
    """One line of the search log: candidates before and after a level or rule."""

    level: str
    before: int
    after: int
    taken: Mapping[str, int]


@frozen(eq=False, kw_only=True)
class SearchResult:
    """Everything a renderer may show.

    Arrays have one value per generated row (``len(batch)`` = N). Rows that fell during generation
    are not in the batch; they are ``cuts``.

    Attributes:
        fields: Declared fields in output order (owner filled in).
        dimensions: Degree dimensions in output order, also those without a plugin.
        batch: All generated rows.
        verdicts: Feasible or the first reason.
        memory_bytes: memory_cost, -1 where it was not estimated.
        allocated_bytes: Largest stage without reserves, -1 where not estimated.
        memory_verdict: Index in ``("fits", "tight", "over")``, -1 where memory was not estimated.
        seconds: performance_cost; a lower bound where not ``exact``; NaN where not estimated.
        exact: Whether ``seconds`` is the exact replay.
        sentences: Reasons of generated rows: objects with ``code``, ``owner``, ``rows`` and ``say(k)``.
        cuts: Branches that fell during generation.
        ranking: Rows in rank order (feasible and exact), at least top-k of them.
        top: Details of the top-k.
        misses: Details of the nearest misses when nothing is feasible.
        pareto: Rows of the step time / memory front, fastest first.
        space_size: Candidates in the whole space.
        counts: What each level took.
        warnings: Habit code -> (rows it touches, sentence of the first).
        log: Lines of the search log, without clock times.
        today: What the person runs today, when the job says it.
    """

    job: Job
    plugins: tuple[PluginView, ...]
    fields: Mapping[str, Field]
    dimensions: tuple[Dimension, ...]
    batch: StrategyBatch
    verdicts: Verdicts
    memory_bytes: Ints
    allocated_bytes: Ints
    memory_verdict: Ints
    seconds: Floats
    exact: Bools
    sentences: tuple[Any, ...]
    cuts: Cuts
    ranking: Ints
    top: tuple[Detail, ...]
    misses: tuple[Detail, ...]
    pareto: Ints
    space_size: int
    counts: tuple[StageCount, ...]
    ranker: str
    ranker_sentence: str
    partition_plans: tuple[str, ...]
    recompute_plans: tuple[str, ...]
    warnings: Mapping[str, tuple[int, str]] = field(factory=dict)
    log: tuple[str, ...] = ()
    today: Comparison | None = None

    @property
    def feasible_count(self) -> int:
        """Number of feasible rows."""
        return int(self.verdicts.feasible.sum())
