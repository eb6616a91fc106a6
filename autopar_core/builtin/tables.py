"""What tables and charts show, taken from a result once and shared by every output."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from attrs import frozen

from autopar_core.api import Detail, Dimension, Field, SearchResult
from autopar_core.builtin import words
from autopar_core.builtin.inputs_json import inputs
from autopar_core.domain.result import Comparison


PLANS = ("partition_plan", "recompute_plan")
SAMPLED_SENTENCES = 2000


@frozen(kw_only=True)
class Reason:
    """One rule: generated rows that break it, branches cut by it, candidates those stand for."""

    code: str
    owner: str
    rows: int
    branches: int
    stands_for: int
    example: str

    @property
    def candidates(self) -> int:
        """Candidates that break the rule; one candidate may break several."""
        return self.rows + self.stands_for


@frozen(kw_only=True, eq=False)
class Trend:
    """One dimension: what is best at each value of its degree, NaN or -1 where nothing is known."""

    dimension: str
    field: str
    values: list[int]
    candidates: list[int]
    feasible: list[int]
    best_seconds: list[float]
    least_memory_bytes: list[int]


class Shown(Protocol):
    """What a result and an answer that was read back both have."""

    @property
    def fields(self) -> Mapping[str, Field]:
        """Declared fields in output order."""

    @property
    def dimensions(self) -> tuple[Dimension, ...]:
        """Degree dimensions in output order."""

    @property
    def top(self) -> tuple[Detail, ...]:
        """The top-k."""

    @property
    def misses(self) -> tuple[Detail, ...]:
        """The nearest misses."""

    @property
    def today(self) -> Comparison | None:
        """What the person runs today."""


def scalar_fields(result: Shown) -> dict[str, Field]:
    """Fields with a value of their own: all but the plans, which are shown as their text."""
    return {name: field for name, field in result.fields.items() if name not in PLANS}


def plan_texts(result: SearchResult) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Texts of the partition plans and of the recompute plans, by column value."""
    return result.partition_plans or ("auto",), result.recompute_plans or ("auto",)


def shown(result: Shown) -> tuple[Detail, ...]:
    """The top-k, or the nearest misses when nothing is feasible."""
    return result.top or result.misses


def beside(result: Shown) -> tuple[Detail, ...]:
    """What is shown, and what the person runs today after it."""
    today = result.today.detail if result.today is not None else None
    return (*shown(result), *([today] if today is not None else []))


def row_fields(result: SearchResult, row: int) -> dict[str, Any]:
    """Spelled scalar fields and plans of a generated row."""
    batch = result.batch
    spelled: dict[str, Any] = {
        name: field.decode(int(batch[name][row])) for name, field in scalar_fields(result).items()
    }
    for plan, texts in zip(PLANS, plan_texts(result), strict=True):
        known = plan in batch.columns
        spelled[plan] = texts[int(batch[plan][row])] if known else texts[0]
    return spelled


def labels(result: Shown, details: Sequence[Detail]) -> list[str]:
    """A short name for each strategy: degrees, micro-batches, and whatever else differs."""
    degrees = {dimension.degree.name: dimension.name for dimension in result.dimensions}
    batch = {"micro_batch_size": "mbs", "micro_batch_num": "m"}
    base = {**degrees, **batch}
    extra = [
        field
        for name, field in scalar_fields(result).items()
        if name not in base and len({d.strategy.fields.get(name) for d in details}) > 1
    ]
    plans = [plan for plan in PLANS if len({getattr(d, plan) for d in details}) > 1]
    made = []
    for detail in details:
        fields = detail.strategy.fields
        words_of = [f"{short}{fields[name]}" for name, short in base.items() if name in fields]
        words_of += [
            _token(f, fields[f.name]) for f in extra if fields.get(f.name, f.neutral) != f.neutral
        ]
        words_of += [f"{plan.removesuffix('_plan')}:{getattr(detail, plan)}" for plan in plans]
        made.append(" ".join(words_of))
    return made


def _token(field: Field, value: Any) -> str:
    if field.choices:
        return str(value)
    return field.short if field.boolean else f"{field.short}{value}"


def degree_settings(result: SearchResult, detail: Detail) -> str:
    """The degrees as the command line takes them, ``"x=8 y=4"``, with the micro-batch size."""
    fields = detail.strategy.fields
    pairs = [(d.name, fields[d.degree.name]) for d in result.dimensions if d.degree.name in fields]
    if "micro_batch_size" in fields:
        pairs.append(("micro_batch_size", fields["micro_batch_size"]))
    return " ".join(f"{name}={value}" for name, value in pairs)


def asked(result: SearchResult) -> list[tuple[str, str]]:
    """What was asked, as (name, text)."""
    return asked_in(inputs(result), result.ranker, result.ranker_sentence)


def asked_in(tables: Mapping[str, Any], ranker: str, ranker_sentence: str) -> list[tuple[str, str]]:
    """What was asked according to the inputs of a result.json, as (name, text)."""
    model, training, cluster = (
        {key: entry["value"] for key, entry in tables[name].items()}
        for name in ("model", "training", "cluster")
    )
    system = tables["system"]["title"] or tables["system"]["name"]
    framework = tables["framework"]["title"] or tables["framework"]["name"]
    if tables["framework"]["fallback_for"]:
        framework += f" (stands in for {tables['framework']['fallback_for']}, which has no profile)"
    return [
        (
            "model",
            f"{model['name'] or 'unnamed'}, {words.large(tables['parameters'])} parameters"
            f" ({words.count(tables['parameters'])}), {words.several(model['num_layers'], 'layer')},"
            f" hidden {model['hidden']}",
        ),
        (
            "training",
            f"{words.several(training['global_batch_size'], 'sequence')} of"
            f" {words.several(training['seq_len'], 'token')} per step, {training['precision']}",
        ),
        (
            "cluster",
            f"{words.count(cluster['devices'])} x {system},"
            f" {cluster['devices_per_domain']} in a scale-up domain,"
            f" memory limit {words.gib(cluster['memory_limit'])}",
        ),
        ("framework", framework),
        ("ranked by", f"{ranker}: {ranker_sentence}"),
    ]


def cut_totals(result: SearchResult) -> tuple[int, int]:
    """(branches cut, candidates they stand for)."""
    return len(result.cuts), result.cuts.stands_for


def reasons(result: SearchResult) -> list[Reason]:
    """Every rule that took candidates, the one that took most first."""
    found: dict[tuple[str, str], list[Any]] = {}
    for entry in result.sentences:
        if len(entry.rows):
            one = found.setdefault((entry.code, entry.owner), [0, 0, 0, ""])
            one[0] += len(entry.rows)
            one[3] = one[3] or entry.say(0)
    for group in result.cuts.groups:
        for rule in group.rules:
            rows = np.flatnonzero(rule.rows)
            if len(rows):
                one = found.setdefault((rule.code, rule.owner), [0, 0, 0, ""])
                one[1] += len(rows)
                one[2] += int(group.stands_for[rows].sum())
                one[3] = one[3] or rule.say(group.batch, int(rows[0]))
    made = [
        Reason(code=c, owner=o, rows=n[0], branches=n[1], stands_for=n[2], example=n[3])
        for (c, o), n in found.items()
    ]
    return sorted(made, key=lambda r: (-r.candidates, r.code, r.owner))


def distinct_sentences(result: SearchResult, code: str) -> list[str]:
    """Different sentences of one rule, in order; of very many rows an even sample is read."""
    found: dict[str, None] = {}
    for entry in result.sentences:
        if entry.code == code:
            size = len(entry.rows)
            picked = np.linspace(0, size - 1, min(size, SAMPLED_SENTENCES)).astype(int)
            found.update(dict.fromkeys(entry.say(int(k)) for k in picked))
    for group in result.cuts.groups:
        for rule in group.rules:
            if rule.code == code:
                rows = np.flatnonzero(rule.rows)
                picked = np.linspace(0, len(rows) - 1, min(len(rows), SAMPLED_SENTENCES))
                said = rule.say_rows(group.batch, rows[picked.astype(int)])
                found.update(dict.fromkeys(said))
    return list(found)


def trends(result: SearchResult) -> list[Trend]:
    """Per dimension and degree: candidates, feasible ones, best step time, least memory.

    The best step time is of feasible rows with exact time; the least memory of all judged rows.
    """
    feasible = result.verdicts.feasible
    timed = feasible & result.exact & np.isfinite(result.seconds)
    judged = result.memory_bytes >= 0
    made = []
    for dimension in result.dimensions:
        column = result.batch[dimension.degree.name]
        trend = Trend(
            dimension=dimension.name, field=dimension.degree.name, values=[], candidates=[],
            feasible=[], best_seconds=[], least_memory_bytes=[],
        )  # fmt: skip
        for value in np.unique(column).tolist():
            here = column == value
            times = result.seconds[here & timed]
            memory = result.memory_bytes[here & judged]
            trend.values.append(value)
            trend.candidates.append(int(here.sum()))
            trend.feasible.append(int((here & feasible).sum()))
            trend.best_seconds.append(float(times.min()) if len(times) else float("nan"))
            trend.least_memory_bytes.append(int(memory.min()) if len(memory) else -1)
        made.append(trend)
    return made


def by_owner(parts: Sequence[Any], value: str) -> Mapping[str, Any]:
    """Sum of an attribute of parts, by owner, largest first."""
    sums: dict[str, Any] = {}
    for part in parts:
        sums[part.owner] = sums.get(part.owner, 0) + getattr(part, value)
    return dict(sorted(sums.items(), key=lambda item: (-item[1], item[0])))
