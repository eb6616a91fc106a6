"""report.html: one self-contained page that opens offline and needs no script."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

from autopar_core.api import Detail, SearchResult
from autopar_core.builtin import charts, words
from autopar_core.builtin.answer import Answer
from autopar_core.builtin.diagnosis import excess_bytes
from autopar_core.builtin.groups import time_group
from autopar_core.builtin.inputs_json import inputs
from autopar_core.builtin.series import chart_data
from autopar_core.builtin.tables import (
    beside,
    cut_totals,
    degree_settings,
    labels,
    scalar_fields,
    shown,
)
from autopar_core.builtin.text import TODAY, notes, spell, varying_fields


if TYPE_CHECKING:
    from jinja2 import Template


_ID = re.compile(r'(\bid="|href="#|url\(#)')
MANY_STAGES = 64


def files(result: SearchResult) -> Mapping[str, bytes]:
    """``report.html``."""
    return {"report.html": _template().render(page(result)).encode()}


@cache
def _template() -> Template:
    from jinja2 import Environment, StrictUndefined

    folder = resources.files("autopar_core.builtin") / "templates"
    text = (folder / "report.html.j2").read_text(encoding="utf-8")
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.from_string(text)


def page(result: SearchResult) -> dict[str, Any]:
    """Everything the template shows, as text."""
    names = labels(result, beside(result))
    branches, stood_for = cut_totals(result)
    answer = Answer.of(result)
    columns = varying_fields(answer)
    return {
        "title": result.job.model.name or "training strategy",
        "feasible": bool(result.top),
        "asked": answer.asked,
        "counts": [
            ("candidates in the space", words.count(result.space_size)),
            (
                f"fell while they were generated, in {words.count(branches)} branches",
                words.count(stood_for),
            ),
            ("judged", words.count(len(result.batch))),
            ("feasible", words.count(result.feasible_count)),
        ],
        "advice": answer.advice,
        "today": result.today.sentence if result.today is not None else "",
        "columns": [heading for _, heading in columns],
        "strategies": [
            _strategy(result, detail, number, name, [column for column, _ in columns])
            for number, (detail, name) in enumerate(zip(beside(result), names, strict=True), 1)
        ],
        "stages": _stages(shown(result)[0]) if shown(result) else [],
        "stages_of": names[0] if names else "",
        "rules": [
            {
                "code": rule.code,
                "owner": rule.owner,
                "candidates": words.count(rule.candidates),
                "rows": words.count(rule.rows),
                "branches": words.count(rule.branches),
                "example": rule.example,
            }
            for rule in answer.rules
        ],
        "charts": _charts(result),
        "notes": notes(answer),
        "inputs": _inputs(result),
        "plugins": result.plugins,
        "again": _again(result),
    }


def _strategy(
    result: SearchResult, detail: Detail, number: int, name: str, columns: list[str]
) -> dict[str, Any]:
    cost, memory, chosen = detail.performance, detail.memory, detail.strategy
    worst = next((s for s in memory.stages if s.rank == memory.worst_rank), None)
    parts = [*(worst.parts if worst else ()), *memory.reserves]
    fields = scalar_fields(result)
    return {
        "place": TODAY if detail.row < 0 else detail.place or number,
        "name": name,
        "tie": detail.tie_with_best and detail.place > 1,
        "cells": [spell(chosen.fields.get(column, "")) for column in columns],
        "layers": words.stages(chosen.stage_partition),
        "layer_totals": words.stage_totals(chosen.stage_partition),
        "offset": words.stages(chosen.layer_offset),
        "recompute": words.recompute(chosen.layer_recompute),
        "recomputed": words.recompute_total(chosen.layer_recompute),
        "seconds": words.seconds(cost.seconds),
        "band": f"{words.seconds(cost.low_seconds)} – {words.seconds(cost.high_seconds)}",
        "mfu": words.percent(cost.mfu),
        "tokens": words.count(cost.tokens_per_second_per_device),
        "memory": words.gib(memory.total_bytes),
        "memory_band": f"{words.gib(memory.low_bytes)} – {words.gib(memory.high_bytes)}",
        "reserved": words.gib(memory.reserved_bytes),
        "limit": words.gib(memory.limit_bytes),
        "verdict": memory.verdict,
        "over": words.gib(excess_bytes(detail)),
        "reason": detail.filter_reason,
        "warnings": detail.warnings,
        "fields": [(key, spell(chosen.fields.get(key, f.neutral))) for key, f in fields.items()],
        "memory_at": f"stage {memory.worst_rank}" + (f", {worst.instant}" if worst else ""),
        "memory_parts": [
            {
                "name": part.name,
                "owner": part.owner,
                "size": words.gib(part.bytes),
                "share": _share(part.bytes, memory.total_bytes),
                "formula": part.formula,
                "source": part.source,
            }
            for part in sorted(parts, key=lambda p: (-p.bytes, p.name))
        ],
        "time_at": f"stage {cost.rank}",
        "time_parts": [
            {
                "name": " ".join(filter(None, (part.name, part.phase))),
                "owner": time_group(part),
                "size": words.seconds(part.seconds),
                "hidden": words.hidden(part.hidden_seconds),
                "share": _share(part.seconds, cost.seconds),
                "formula": part.formula,
                "source": part.source,
            }
            for part in sorted(cost.parts, key=lambda p: (-p.seconds, p.owner, p.name, p.phase))
        ],
    }


def _share(part: float, whole: float) -> float:
    return round(100 * part / whole, 1) if whole and abs(part) < float("inf") else 0.0


def _stages(detail: Detail) -> list[dict[str, Any]]:
    made = []
    for stage in detail.stages[:MANY_STAGES]:
        ranges = ["none" if r is None else f"{r[0]}–{r[1]}" for r in stage.layer_ranges]
        also = [name for name, has in (("embedding", stage.embedding), ("head", stage.head)) if has]
        made.append(
            {
                "rank": stage.rank,
                "layers": " + ".join(map(str, stage.layers)),
                "ranges": "; ".join(ranges),
                "also": ", ".join(also),
                "recompute": words.recompute(stage.recompute),
                "forward": words.seconds(stage.forward_seconds),
                "backward": words.seconds(stage.backward_seconds),
                "idle": words.seconds(stage.idle_seconds),
                "end": words.seconds(stage.end_seconds),
                "memory": words.gib(stage.memory_bytes),
                "in_flight": stage.in_flight,
            }
        )
    return made


def _charts(result: SearchResult) -> list[dict[str, Any]]:
    from markupsafe import Markup

    drawn = charts.files(result)
    made = []
    for chart in chart_data(result):
        svg = drawn[f"charts/{chart.name}.svg"].decode()
        svg = _ID.sub(rf"\g<1>{chart.name}-", svg[svg.index("<svg") :])
        # The text is our own drawing, not the person's input, so it is not escaped.
        made.append({"name": chart.name, "title": chart.title, "svg": Markup(svg)})
    return made


def _inputs(result: SearchResult) -> list[tuple[str, list[tuple[str, str, str]]]]:
    """Sections of (key, value, source)."""
    tables = inputs(result)
    sections = [(name, tables[name]) for name in ("model", "training", "cluster")]
    sections.append(("search", {**tables["search"]["wanted"], **tables["search"]["settings"]}))
    sections += [(f"plugins.{name}", table) for name, table in tables["plugins"].items()]
    sections += [(f"{name} profile", tables[name]["values"]) for name in ("system", "framework")]
    return [
        (name, [(key, _value(one["value"]), _said(one)) for key, one in table.items()])
        for name, table in sections
    ]


def _value(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(_value, value))
    if isinstance(value, dict):
        return ", ".join(f"{key} {_value(one)}" for key, one in value.items() if one is not None)
    return spell(value)


def _said(one: Mapping[str, Any]) -> str:
    return str(one["source"]) + ("" if one.get("verified", True) else " (not verified)")


def _again(result: SearchResult) -> list[tuple[str, str]]:
    """(what for, command) to go on from here; DIR is this run's folder."""
    limit = words.gib(result.job.cluster.memory_limit, 0)
    made = []
    details = shown(result)
    if result.dimensions and details:
        degree = result.dimensions[0].degree
        value = details[0].strategy.fields.get(degree.name, degree.neutral)
        made.append(
            (
                "Keep one value and search the rest",
                f"autopar search --from DIR --fix {degree.short}={value}",
            )
        )
    made.append(
        (
            "Change the memory limit",
            f"autopar search --from DIR --set cluster.memory_limit='{limit}'",
        )
    )
    if result.dimensions:
        name = result.dimensions[-1].name
        made.append((f"Leave {name} out", f"autopar search --from DIR --disable {name}"))
    made.append(("Prefer memory", "autopar search --from DIR --rank-by memory_headroom"))
    if details:
        settings = degree_settings(result, details[0])
        made.append(("Ask about one strategy, yours perhaps", f"autopar explain DIR {settings}"))
    if result.top:
        name = result.job.framework.name
        made.append(
            ("Write the best for your framework", f"autopar export DIR --place 1 --to {name}")
        )
    return made
