"""The arrays that charts draw; ``result.json`` holds the same ones, so both always agree."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from attrs import frozen

from autopar_core.api import Detail, SearchResult
from autopar_core.builtin.groups import memory_parts, stack, time_group, time_order
from autopar_core.builtin.tables import labels, reasons, shown, trends


SCATTER_ROWS = 5000
BAR_GROUPS = 9
STRATEGY_BARS = 20
REASON_BARS = 15


@frozen(kw_only=True, eq=False)
class ChartData:
    """One chart: its file stem, what it shows, and every array drawn."""

    name: str
    title: str
    series: Mapping[str, Any]


_MADE: WeakKeyDictionary[SearchResult, tuple[ChartData, ...]] = WeakKeyDictionary()


def chart_data(result: SearchResult) -> tuple[ChartData, ...]:
    """Every chart of a result, in the order of the report; made once per result."""
    if result not in _MADE:
        _MADE[result] = tuple(make(result) for make in _CHARTS)
    return _MADE[result]


def charted(result: SearchResult) -> tuple[Detail, ...]:
    """The strategies that bars are drawn for: all that are shown, but no more than fit."""
    return shown(result)[:STRATEGY_BARS]


def _named(names: Sequence[str], rows: Sequence[Any], unit: str) -> list[dict[str, Any]]:
    return [{"name": name, unit: list(row)} for name, row in zip(names, rows, strict=True)]


def _title(result: SearchResult, feasible: str, otherwise: str) -> str:
    return feasible if result.top else f"No feasible strategy: {otherwise}"


def _places(result: SearchResult) -> list[str]:
    names = labels(result, charted(result))
    if not result.top:
        return names
    return [f"{d.place}  {name}" for d, name in zip(charted(result), names, strict=True)]


def _step_time(result: SearchResult) -> ChartData:
    costs = [detail.performance for detail in charted(result)]
    bars = [[(time_group(part), part.seconds) for part in cost.parts] for cost in costs]
    names, rows = stack(bars, BAR_GROUPS, time_order(result))
    return ChartData(
        name="step_time",
        title=_title(result, "Step time of the best strategies", "step time of the nearest misses"),
        series={
            "feasible": bool(result.top),
            "labels": _places(result),
            "bars": _named(names, rows, "seconds"),
            "total_seconds": [cost.seconds for cost in costs],
            "low_seconds": [cost.low_seconds for cost in costs],
            "high_seconds": [cost.high_seconds for cost in costs],
        },
    )


def _memory(result: SearchResult) -> ChartData:
    details = charted(result)
    bars = [memory_parts(detail, detail.memory.worst_rank) for detail in details]
    names, rows = stack(bars, BAR_GROUPS)
    return ChartData(
        name="memory",
        title=_title(
            result, "Memory per device of the best strategies", "memory of the nearest misses"
        ),
        series={
            "feasible": bool(result.top),
            "labels": _places(result),
            "bars": _named(names, rows, "bytes"),
            "total_bytes": [detail.memory.total_bytes for detail in details],
            "reserved_bytes": [detail.memory.reserved_bytes for detail in details],
            "limit_bytes": result.job.cluster.memory_limit,
        },
    )


def _stages(result: SearchResult) -> ChartData:
    details = shown(result)[:1]
    stages = sorted(details[0].stages, key=lambda s: s.rank) if details else []
    bars = [memory_parts(details[0], stage.rank) for stage in stages]
    names, rows = stack(bars, BAR_GROUPS)
    name = f" ({labels(result, shown(result))[0]})" if details else ""
    return ChartData(
        name="stages",
        title=_title(
            result, f"Stages of the best strategy{name}", f"stages of the nearest miss{name}"
        ),
        series={
            "feasible": bool(result.top),
            "ranks": [stage.rank for stage in stages],
            "layers": [sum(stage.layers) for stage in stages],
            "bars": _named(names, rows, "bytes"),
            "limit_bytes": result.job.cluster.memory_limit,
            "forward_seconds": [stage.forward_seconds for stage in stages],
            "backward_seconds": [stage.backward_seconds for stage in stages],
        },
    )


def _distribution(result: SearchResult) -> ChartData:
    known = np.flatnonzero((result.memory_bytes >= 0) & np.isfinite(result.seconds))
    if len(known) > SCATTER_ROWS:
        known = known[np.linspace(0, len(known) - 1, SCATTER_ROWS).astype(np.int64)]
    best = result.top[0] if result.top else None
    return ChartData(
        name="distribution",
        title=_title(result, "Memory and step time of the candidates", "memory and step time"),
        series={
            "feasible": bool(result.top),
            "rows": known.tolist(),
            "memory_bytes": result.memory_bytes[known].tolist(),
            "seconds": result.seconds[known].tolist(),
            "row_feasible": result.verdicts.feasible[known].tolist(),
            "row_exact": result.exact[known].tolist(),
            "front_memory_bytes": result.memory_bytes[result.pareto].tolist(),
            "front_seconds": result.seconds[result.pareto].tolist(),
            "best_memory_bytes": best.memory.total_bytes if best else None,
            "best_seconds": best.performance.seconds if best else None,
            "limit_bytes": result.job.cluster.memory_limit,
        },
    )


def _reasons(result: SearchResult) -> ChartData:
    rules = reasons(result)
    codes = [f"{rule.code} ({rule.owner})" for rule in rules]
    candidates = [rule.candidates for rule in rules]
    if len(rules) > REASON_BARS:
        left = len(rules) - REASON_BARS + 1
        codes = [*codes[: REASON_BARS - 1], f"{left} more rules"]
        candidates = [*candidates[: REASON_BARS - 1], sum(candidates[REASON_BARS - 1 :])]
    return ChartData(
        name="reasons",
        title=_title(result, "Candidates that break each rule", "candidates that break each rule"),
        series={"feasible": bool(result.top), "codes": codes, "candidates": candidates},
    )


def _trends(result: SearchResult) -> ChartData:
    panels = [
        {
            "dimension": trend.dimension,
            "field": trend.field,
            "values": trend.values,
            "best_seconds": trend.best_seconds,
            "least_memory_bytes": trend.least_memory_bytes,
        }
        for trend in trends(result)
    ]
    return ChartData(
        name="trends",
        title=_title(result, "What each degree can reach", "what each degree can reach"),
        series={
            "feasible": bool(result.top),
            "panels": panels,
            "limit_bytes": result.job.cluster.memory_limit,
        },
    )


_CHARTS: tuple[Callable[[SearchResult], ChartData], ...] = (
    _step_time, _memory, _stages, _distribution, _reasons, _trends,
)  # fmt: skip
