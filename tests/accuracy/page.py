"""docs/accuracy.md and its Chinese twin, from measurements, words and reasons."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tomli


sys.path.insert(0, str(Path(__file__).parent))

from measure import Line, Measured, lines

from autopar_core.validate.summary import reasons


WORDS = tomli.loads((Path(__file__).parent / "words.toml").read_text(encoding="utf-8"))
LANGUAGES = {"en": "accuracy.md", "zh": "zh/accuracy.md"}
# Rows of tier A that are shown one by one: off by more than the bar of nine rows in ten.
WORST_PERCENT = 12.0


def pages(found: Measured) -> dict[str, str]:
    """File below docs/ -> content."""
    return {name: _Page(found, language).text() for language, name in LANGUAGES.items()}


class _Page:
    """One language."""

    def __init__(self, found: Measured, language: str) -> None:
        self.found = found
        self.language = language
        self.lines = lines(found.answer)

    def text(self) -> str:
        """The whole page."""
        return "\n".join([*self._parts(), ""])

    def say(self, name: str) -> str:
        """A text of this language."""
        told: str = WORDS[self.language][name]
        return told

    def _parts(self) -> Iterator[str]:
        yield f"# {self.say('title')}\n"
        yield self.say("lead") + "\n"
        yield "```text\npython3 dev.py accuracy\n```\n"
        for tier in ("A", "BC"):
            yield f"## {self.say(f'tier {tier}')}\n"
            for quantity in ("time", "memory", "reserved"):
                yield from self._errors(f"{quantity} {tier}", self.say(quantity), "###")
        yield f"## {self.say('groups')}\n"
        yield self.say("groups text") + "\n"
        for name in dict.fromkeys(line.section for line in self.lines):
            if name.startswith("group "):
                yield from self._errors(name, self.say(name), "###")
        yield f"## {self.say('choice')}\n"
        yield self.say("choice text") + "\n"
        yield from self._choices()
        yield f"## {self.say('operations')}\n"
        yield self.say("operations text") + "\n"
        yield from self._operations()
        yield f"## {self.say('field')}\n"
        yield self.say("field text") + "\n"
        yield from self._field()
        yield f"## {self.say('worst')}\n"
        yield self.say("worst text") + "\n"
        yield from self._worst()
        yield f"## {self.say('skipped')}\n"
        yield from self._skipped()
        yield f"## {self.say('how')}\n"
        yield from self._how()
        yield f"## {self.say('missing')}\n"
        yield from (f"- {each}" for each in WORDS[self.language]["not modelled"])

    def _errors(self, section: str, title: str, level: str) -> Iterator[str]:
        chosen = [line for line in self.lines if line.section == section]
        if not chosen:
            return
        yield f"{level} {title}\n"
        heads = ("source", "rows", "skipped", "compared", "median", "p90", "worst error", "bias",
                 "rank", "bar", "met")  # fmt: skip
        yield from self._table(heads, [self._error_line(line) for line in chosen])

    def _error_line(self, line: Line) -> list[str]:
        stated = line.pairs.statistics()
        rank = stated["spearman"]
        bar = next((b for b in WORDS["bar"] if re.fullmatch(b["line"], line.key)), None)
        limits, met = "", ""
        if bar is not None and len(line.pairs):
            values = {
                "median": stated["median_abs_pct"], "p90": stated["p90_abs_pct"],
                "p95": stated["p95_abs_pct"], "worst": stated["max_abs_pct"],
                "bias": abs(stated["mean_pct"] or 0.0),
            }  # fmt: skip
            names = {name: self.say(f"bar {name}") for name in values}
            wanted = {name: bar[name] for name in values if name in bar}
            limits = ", ".join(f"{names[name]} {value:g}" for name, value in wanted.items())
            failed = [name for name, most in wanted.items() if (values[name] or 0.0) > most]
            met = self.say("yes") if not failed else "**" + self.say("no") + "**"
        return [
            line.source, str(line.rows), str(line.skipped), str(len(line.pairs)),
            _number(stated["median_abs_pct"]), _number(stated["p90_abs_pct"]),
            _number(stated["max_abs_pct"]), _number(stated["mean_pct"], "+"),
            "" if rank is None else f"{rank:.3f}", limits, met,
        ]  # fmt: skip

    def _choices(self) -> Iterator[str]:
        heads = ("source", "rows", "problems", "rank", "rank inside", "median regret", "p90 regret")
        yield from self._table(heads, [
            [
                source, str(each.rows), str(each.problems), _rank(each.spearman),
                _rank(each.inside), _number(each.regret(50)), _number(each.regret(90)),
            ]
            for source, each in self.found.choices.items()
        ])  # fmt: skip

    def _operations(self) -> Iterator[str]:
        heads = ("operation", "calls", "median", "p90", "long median", "long p90",
                 "profile median", "profile p90")  # fmt: skip
        yield from self._table(heads, [
            [
                each.name, str(len(each.errors)), *_pair(each.errors),
                *_pair(each.errors[each.long]), *_pair(each.shipped),
            ]
            for each in self.found.operations
        ])  # fmt: skip

    def _field(self) -> Iterator[str]:
        yield f"### {self.say('cases')}\n"
        yield self._share(self.found.verdicts) + "\n"
        heads = ("case", "framework", "reported", "predicted", "memory GiB", "reserved GiB", "limit GiB",
                 "judged")  # fmt: skip
        yield from self._table(heads, [
            [
                each.id, each.framework, each.reported, each.predicted,
                _number(each.memory_gib), _number(each.reserved_gib), _number(each.limit_gib),
                self._word(each.right, each.why),
            ]
            for each in self.found.verdicts
        ])  # fmt: skip
        yield f"### {self.say('pairs')}\n"
        yield self._share(self.found.orders) + "\n"
        heads = ("pair", "metric", "measured ratio", "predicted ratio", "judged")
        yield from self._table(heads, [
            [
                each.id, each.metric, f"{each.measured:.3f}",
                "" if each.predicted is None else f"{each.predicted:.3f}",
                self._word(each.right, each.why),
            ]
            for each in self.found.orders
        ])  # fmt: skip

    def _share(self, judged: Sequence[Any]) -> str:
        known = [each.right for each in judged if each.right is not None]
        return self.say("share").format(rows=len(judged), judged=len(known), right=sum(known))

    def _word(self, right: bool | None, why: str) -> str:
        if right is None:
            return f"{self.say('not judged')}: {why}"
        return self.say("right") if right else "**" + self.say("wrong") + "**"

    def _worst(self) -> Iterator[str]:
        rows = []
        for row in self.found.answer.rows:
            if row.tier.upper() == "A" and row.predicted_step_time_s and row.measured_step_time_s:
                error = 100 * (row.predicted_step_time_s / row.measured_step_time_s - 1)
                if abs(error) > WORST_PERCENT:
                    rows.append((row, error))
        whole = [(row, error) for row, error in rows if not self._many(row.source)]
        heads = ("run", "measured s", "predicted s", "error", "reason")
        ordered = sorted(whole, key=lambda pair: (-abs(pair[1]), pair[0].id))
        yield from self._table(heads, [
            [
                row.id, f"{row.measured_step_time_s:.4g}", f"{row.predicted_step_time_s:.4g}",
                _number(error, "+"), self._reason(row.id),
            ]
            for row, error in ordered
        ])  # fmt: skip
        for source in sorted({row.source for row, _ in rows if self._many(row.source)}):
            count = sum(row.source == source for row, _ in rows)
            yield f"- {source}, {count}: {self._reason(source + '-')}"
        yield ""

    def _many(self, source: str) -> bool:
        return source in WORDS["many"]

    def _reason(self, run: str) -> str:
        for each in WORDS["reason"]:
            if re.search(each["run"], run):
                told: str = each[self.language]
                return told
        return self.say("unexplained")

    def _skipped(self) -> Iterator[str]:
        heads = ("rows", "missing fact", "sources")
        yield from self._table(heads, [
            [each["skipped"], each["missing"], each["sources"]]
            for each in reasons(self.found.answer.rows)
        ])  # fmt: skip
        for fact, count in sorted(self.found.answer.no_memory.items()):
            yield f"- {self.say('no memory').format(count=count, fact=fact)}"
        if self.found.answer.no_memory:
            yield ""

    def _how(self) -> Iterator[str]:
        sources = {row.source for row in self.found.answer.rows}
        table: Mapping[str, Any] = WORDS["source"]
        yield from self._table(("source", "how measured"), [
            [name, table[name][self.language] if name in table else self.say("unexplained")]
            for name in sorted(sources)
        ])  # fmt: skip

    def _table(self, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
        if not rows:
            return
        yield "| " + " | ".join(self.say(f"head {head}") for head in heads) + " |"
        yield "|" + "---|" * len(heads)
        yield from (
            "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows
        )
        yield ""


def _number(value: float | None, sign: str = "") -> str:
    if value is None:
        return ""
    if abs(value) < 0.005:
        return "0"
    return f"{value:{sign}.{2 if abs(value) < 1 else 1}f}"


def _rank(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def _pair(errors: Any) -> list[str]:
    size = np.abs(errors)
    return [_number(float(np.percentile(size, p))) if len(size) else "" for p in (50, 90)]
