"""An answer read back from result.json: the other half of ``result_json``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from autopar_core.api import Detail, Dimension, Field, Level, Strategy
from autopar_core.builtin.answer import Answer
from autopar_core.builtin.definition import definition
from autopar_core.builtin.result_json import SCHEMA_VERSION
from autopar_core.builtin.tables import PLANS, Reason, asked_in
from autopar_core.domain.cost import (
    MemoryCost,
    MemoryPart,
    PerformanceCost,
    StageMemory,
    StageSummary,
    TimePart,
)
from autopar_core.domain.result import Change, Comparison, PluginView
from autopar_core.errors import InputError
from autopar_core.plugins.fields import BATCH_FIELDS, standard


Table = Mapping[str, Any]
_LAYOUT = ("stage_partition", "layer_recompute")


def read_answer(document: Table, where: str) -> Answer:
    """The answer of a run.

    Raises:
        InputError: When something is missing that every result of this schema has.
    """
    try:
        return _answer(document)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        why = f"is no result of schema {SCHEMA_VERSION}: {type(error).__name__}: {error}"
        raise InputError(where, why) from error


def _answer(document: Table) -> Answer:
    summary, fallen = document["all_candidate_summary"], document["infeasible_summary"]
    asked = asked_in(document["inputs"], summary["ranked_by"], summary["ranked_by_sentence"])
    costs = zip(
        document["top_k_strategies"], document["memory_breakdown"],
        document["performance_breakdown"], document["stage_summary"], strict=True,
    )  # fmt: skip
    top = tuple(_detail(s, memory, time, stages["stages"]) for s, memory, time, stages in costs)
    misses = tuple(
        _detail(miss["strategy"], miss["memory"], miss["performance"], miss["stages"])
        for miss in fallen["nearest_misses"]
    )
    today = _today(document["visualization_report"]["today"])
    plugins = tuple(PluginView(**plugin) for plugin in document["plugins"])
    known = [detail.strategy.fields for detail in (*top, *misses)]
    if today is not None and today.detail is not None:
        known.append(today.detail.strategy.fields)
    return Answer(
        asked=tuple(asked), space_size=summary["space_size"], judged=summary["generated"],
        feasible=summary["feasible"], fields=_fields(known),
        dimensions=tuple(_dimensions(summary["trends"], plugins)), top=top, misses=misses,
        today=today, rules=tuple(Reason(**rule) for rule in fallen["rules"]),
        advice=tuple(fallen["advice"]), said=tuple(document["inputs"]["notes"]), plugins=plugins,
        warnings={each["code"]: (each["rows"], each["example"]) for each in fallen["habits"]},
    )  # fmt: skip


def _detail(chosen: Table, memory: Table, time: Table, stages: Iterable[Table]) -> Detail:
    fields = {name: value for name, value in definition(chosen).items() if name not in _LAYOUT}
    return Detail(
        place=chosen["place"], row=chosen["row"],
        strategy=Strategy(
            fields=fields, layer_offset=chosen["layer_offset"],
            **{name: chosen[name] for name in _LAYOUT},
        ),
        feasible=chosen["feasible"], filter_reason=chosen["filter_reason"],
        memory=_memory(memory), performance=_performance(time),
        stages=tuple(StageSummary(**stage) for stage in stages),
        warnings=tuple(chosen["warnings"]), tie_with_best=chosen["tie_with_best"],
        partition_gain=chosen["partition_gain"], partition_gap=chosen["partition_gap"],
        **{plan: chosen[plan] for plan in PLANS},
    )  # fmt: skip


def _memory(cost: Table) -> MemoryCost:
    stages = tuple(
        StageMemory(
            rank=stage["rank"], allocated_bytes=stage["allocated_bytes"], instant=stage["instant"],
            in_flight=tuple(stage["in_flight"]), parts=_memory_parts(stage["parts"]),
        )
        for stage in cost["stages"]
    )  # fmt: skip
    sizes = ("total", "allocated", "low", "high", "reserved", "limit")
    return MemoryCost(
        worst_rank=cost["worst_rank"], verdict=cost["verdict"], stages=stages,
        reserves=_memory_parts(cost["reserves"]),
        **{f"{size}_bytes": cost[f"{size}_bytes"] for size in sizes},
    )  # fmt: skip


def _memory_parts(parts: Iterable[Table]) -> tuple[MemoryPart, ...]:
    return tuple(MemoryPart(**part) for part in parts)


def _performance(cost: Table) -> PerformanceCost:
    numbers = ("seconds", "low_seconds", "high_seconds", "mfu", "tokens_per_second_per_device")
    return PerformanceCost(
        exact=cost["exact"], rank=cost["rank"],
        parts=tuple(TimePart(**part) for part in cost["parts"]),
        # JSON has no NaN: what is not known is null.
        **{name: float("nan") if cost[name] is None else cost[name] for name in numbers},
    )  # fmt: skip


def _today(entry: Table | None) -> Comparison | None:
    if entry is None:
        return None
    chosen = entry["strategy"]
    return Comparison(
        label=entry["source"], reason=entry["filter_reason"], sentence=entry["sentence"],
        gain=float("nan") if entry["gain"] is None else entry["gain"],
        changes=tuple(Change(**change) for change in entry["changes"]),
        detail=None if chosen is None else _detail(
            chosen, entry["memory"], entry["performance"], entry["stages"]["stages"]
        ),
    )  # fmt: skip


def _fields(strategies: Iterable[Table]) -> dict[str, Field]:
    """Fields in the order of output; of one that is not standard the file knows the name alone."""
    table = standard()
    degrees = [dimension.degree for dimension in table.dimensions.values()]
    known = {each.name: each for each in (*degrees, *BATCH_FIELDS, *table.fields.values())}
    found: dict[str, Field] = {}
    for strategy in strategies:
        for name, value in strategy.items():
            found.setdefault(name, known.get(name) or _unknown(name, value))
    return found


def _unknown(name: str, value: Any) -> Field:
    yes_or_no, text = isinstance(value, bool), isinstance(value, str)
    return Field(
        name=name, short=name, level=Level.SHARDING, boolean=yes_or_no,
        neutral="none" if text else False if yes_or_no else 0, choices=(value,) if text else (),
    )  # fmt: skip


def _dimensions(degrees: Iterable[str], plugins: Iterable[PluginView]) -> Iterable[Dimension]:
    names = [plugin.dimension for plugin in plugins if plugin.dimension]
    known = {each.degree.name: each for each in standard().dimensions.values()}
    for degree in degrees:
        name = next((each for each in names if degree.startswith(f"{each}_")), degree)
        field = Field(name=degree, short=name, level=Level.DEGREE, neutral=1)
        yield known.get(degree) or Dimension(name=name, degree=field)
