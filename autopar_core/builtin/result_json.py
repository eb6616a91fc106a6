"""result.json: everything a search found, in the form of docs/result.schema.json."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from autopar_core.api import Detail, MemoryPart, SearchResult, StageSummary
from autopar_core.builtin import search_log
from autopar_core.builtin.diagnosis import advice, excess_bytes
from autopar_core.builtin.inputs_json import inputs
from autopar_core.builtin.json_text import dump, plain
from autopar_core.builtin.series import chart_data
from autopar_core.builtin.tables import (
    PLANS,
    by_owner,
    cut_totals,
    distinct_sentences,
    reasons,
    row_fields,
    scalar_fields,
    trends,
)


SCHEMA_VERSION = "1.0"
NOT_IMPLEMENTED = "NotImplemented"


def files(result: SearchResult) -> Mapping[str, bytes]:
    """``result.json``."""
    return {"result.json": dump(document(result)).encode()}


def document(result: SearchResult) -> dict[str, Any]:
    """The whole document as plain data."""
    made = {
        "schema_version": SCHEMA_VERSION,
        "inputs": inputs(result),
        "plugins": [plain(plugin) for plugin in result.plugins],
        "top_k_strategies": [strategy(result, detail) for detail in result.top],
        "all_candidate_summary": candidate_summary(result),
        "infeasible_summary": infeasible_summary(result),
        "memory_breakdown": [memory(detail) for detail in result.top],
        "performance_breakdown": [performance(detail) for detail in result.top],
        "stage_summary": [stages(detail) for detail in result.top],
        "visualization_report": {
            "today": today(result),
            "charts": [
                {
                    "name": chart.name,
                    "title": chart.title,
                    "files": [f"charts/{chart.name}.png", f"charts/{chart.name}.svg"],
                    "series": dict(chart.series),
                }
                for chart in chart_data(result)
            ],
        },
        "search_log": search_log.lines(result),
    }
    whole: dict[str, Any] = plain(made)
    return whole


def strategy(result: SearchResult, detail: Detail) -> dict[str, Any]:
    """One strategy: fields, plan, costs, verdict."""
    chosen, cost, memory_cost = detail.strategy, detail.performance, detail.memory
    fields = {
        name: chosen.fields.get(name, field.neutral)
        for name, field in scalar_fields(result).items()
    }
    return {
        "place": detail.place,
        "row": detail.row,
        **fields,
        **{plan: getattr(detail, plan) for plan in PLANS},
        "stage_partition": chosen.stage_partition,
        "layer_offset": chosen.layer_offset,
        "layer_recompute": dict(chosen.layer_recompute),
        "memory_cost": memory_cost.total_bytes,
        "memory_low": memory_cost.low_bytes,
        "memory_high": memory_cost.high_bytes,
        "reserved_memory": memory_cost.reserved_bytes,
        "memory_verdict": memory_cost.verdict,
        "performance_cost": cost.seconds,
        "performance_low": cost.low_seconds,
        "performance_high": cost.high_seconds,
        "mfu": cost.mfu,
        "tokens_per_second_per_device": cost.tokens_per_second_per_device,
        "feasible": detail.feasible,
        "filter_reason": detail.filter_reason,
        "partition_gain": detail.partition_gain,
        "partition_gap": detail.partition_gap,
        "tie_with_best": detail.tie_with_best,
        "warnings": list(detail.warnings),
    }


def today(result: SearchResult) -> dict[str, Any] | None:
    """What the person runs today beside the best; None when the job does not say."""
    if result.today is None:
        return None
    one = result.today
    return {
        "source": one.label,
        "sentence": one.sentence,
        "feasible": not one.reason,
        "filter_reason": one.reason,
        "gain": None if math.isnan(one.gain) else one.gain,
        "changes": [plain(change) for change in one.changes],
        "strategy": None if one.detail is None else strategy(result, one.detail),
        "memory": None if one.detail is None else memory(one.detail),
        "performance": None if one.detail is None else performance(one.detail),
        "stages": None if one.detail is None else stages(one.detail),
    }


def candidate_summary(result: SearchResult) -> dict[str, Any]:
    """Counts, what each degree can reach, and the front of step time and memory."""
    return {
        "space_size": result.space_size,
        "generated": len(result.batch),
        "evaluated": int((result.memory_bytes >= 0).sum()),
        "feasible": result.feasible_count,
        "infeasible": len(result.batch) - result.feasible_count,
        "exact": int(result.exact.sum()),
        "ranked_by": result.ranker,
        "ranked_by_sentence": result.ranker_sentence,
        "trends": {
            trend.field: [
                {
                    "value": value,
                    "candidates": trend.candidates[i],
                    "feasible": trend.feasible[i],
                    "best_step_time": trend.best_seconds[i],
                    "least_memory": None if least < 0 else least,
                }
                for i, (value, least) in enumerate(
                    zip(trend.values, trend.least_memory_bytes, strict=True)
                )
            ]
            for trend in trends(result)
        },
        "pareto_front": [
            {
                "row": row,
                "fields": row_fields(result, row),
                "memory_cost": int(result.memory_bytes[row]),
                "performance_cost": float(result.seconds[row]),
            }
            for row in result.pareto.tolist()
        ],
        "levels": [plain(level) for level in result.counts],
    }


def infeasible_summary(result: SearchResult) -> dict[str, Any]:
    """Why candidates fell, what came nearest, and what would help."""
    rules = reasons(result)
    branches, stood_for = cut_totals(result)
    return {
        "rules": [
            {
                "code": rule.code,
                "owner": rule.owner,
                "rows": rule.rows,
                "branches": rule.branches,
                "stands_for": rule.stands_for,
                "example": rule.example,
            }
            for rule in rules
        ],
        "cut_branches": {"branches": branches, "stands_for": stood_for},
        "not_implemented": [
            reason
            for code in sorted(
                {rule.code for rule in rules if rule.code.startswith(NOT_IMPLEMENTED)}
            )
            for reason in distinct_sentences(result, code)
        ],
        "habits": [
            {"code": code, "rows": rows, "example": sentence}
            for code, (rows, sentence) in result.warnings.items()
        ],
        "nearest_misses": [
            {
                "strategy": strategy(result, detail),
                "excess_memory": excess_bytes(detail),
                "memory": memory(detail),
                "performance": performance(detail),
                "stages": stages(detail)["stages"],
            }
            for detail in result.misses
        ],
        "advice": advice(result),
    }


def memory(detail: Detail) -> dict[str, Any]:
    """Memory of a strategy, part by part on every stage."""
    cost = detail.memory
    worst = [part for s in cost.stages if s.rank == cost.worst_rank for part in s.parts]
    return {
        "place": detail.place,
        "total_bytes": cost.total_bytes,
        "allocated_bytes": cost.allocated_bytes,
        "low_bytes": cost.low_bytes,
        "high_bytes": cost.high_bytes,
        "reserved_bytes": cost.reserved_bytes,
        "limit_bytes": cost.limit_bytes,
        "worst_rank": cost.worst_rank,
        "verdict": cost.verdict,
        "by_owner": dict(by_owner([*worst, *cost.reserves], "bytes")),
        "reserves": [_memory_part(part) for part in cost.reserves],
        "stages": [
            {
                "rank": stage.rank,
                "allocated_bytes": stage.allocated_bytes,
                "instant": stage.instant,
                "in_flight": list(stage.in_flight),
                "parts": [_memory_part(part) for part in stage.parts],
            }
            for stage in cost.stages
        ],
    }


def _memory_part(part: MemoryPart) -> dict[str, Any]:
    made: dict[str, Any] = plain(part)
    return made


def performance(detail: Detail) -> dict[str, Any]:
    """Step time of a strategy, part by part on the rank that ends last."""
    cost = detail.performance
    return {
        "place": detail.place,
        "seconds": cost.seconds,
        "low_seconds": cost.low_seconds,
        "high_seconds": cost.high_seconds,
        "exact": cost.exact,
        "rank": cost.rank,
        "mfu": cost.mfu,
        "tokens_per_second_per_device": cost.tokens_per_second_per_device,
        "by_owner": dict(by_owner(cost.parts, "seconds")),
        "parts": [plain(part) for part in cost.parts],
    }


def stages(detail: Detail) -> dict[str, Any]:
    """Every stage of a strategy: layers, recompute, times, memory."""
    return {"place": detail.place, "stages": [_stage(stage) for stage in detail.stages]}


def _stage(stage: StageSummary) -> dict[str, Any]:
    made: dict[str, Any] = plain(stage)
    return made
