"""An answer on a terminal: the strategies, where its time and memory go, and why the others fell."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from autopar_core.api import Detail
from autopar_core.builtin import words
from autopar_core.builtin.answer import Answer
from autopar_core.builtin.diagnosis import excess_bytes
from autopar_core.builtin.groups import time_group
from autopar_core.builtin.tables import beside, labels, scalar_fields, shown
from autopar_core.builtin.terms_text import terms


if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table


PARTS, REASONS = 12, 10
TODAY = "today"
ALWAYS_SHOWN = ("micro_batch_size", "micro_batch_num")
LONG_STAGES = 24
LEFT_COLUMNS = ("layers", "recomputed", "verdict")
OPTIONAL_COLUMNS = ("band", "MFU", "layers", "recomputed")


def print_answer(console: Console, answer: Answer, *, every_term: bool = False) -> None:
    """Print everything a person needs to decide; columns that do not fit are left out.

    ``every_term`` adds the whole derivation of the first strategy.
    """
    for part in renderables(answer, console.width):
        console.print(part)
    if every_term:
        for detail in shown(answer)[:1]:
            for part in terms(detail):
                console.print(part)


def renderables(answer: Answer, width: int = 160) -> list[RenderableType]:
    """The parts that are printed, in order, for a terminal of some width."""
    parts: list[RenderableType] = [_asked(answer), _counts(answer), *_strategies(answer, width)]
    if not answer.top:
        parts += _sentences("Diagnosis", answer.advice)
    for detail in shown(answer)[:1]:
        parts += [_memory(answer, detail), _time(answer, detail)]
    return [*parts, *_reasons(answer), *_sentences("Notes", notes(answer))]


def notes(answer: Answer) -> list[str]:
    """What a person should know besides the answer: notes, plugins that failed, habits, ties."""
    made = list(answer.said)
    made += [
        f"Plugin {plugin.name} is {plugin.status}: {plugin.reason}"
        for plugin in answer.plugins
        if plugin.status != "active"
    ]
    made += [
        f"Habit {code}, {words.candidates(rows)}: {sentence}"
        for code, (rows, sentence) in answer.warnings.items()
    ]
    made += [words.partition(detail) for detail in answer.top[:1] if words.partition(detail)]
    if any(detail.tie_with_best for detail in answer.top if detail.place > 1):
        made.append("~ ties with the best: closer than the model can tell; a measurement decides.")
    if any(detail.memory.verdict == "tight" for detail in answer.top):
        made.append(
            "tight: memory fits as predicted, but with what the allocator reserves, or with an error as "
            "large as in measured runs, it may not."
        )
    return made


def varying_fields(answer: Answer) -> list[tuple[str, str]]:
    """(field, heading) of the columns people need: degrees, micro-batches, and what differs."""
    degrees = {dimension.degree.name: dimension.name for dimension in answer.dimensions}
    made = []
    for name, field in scalar_fields(answer).items():
        if name in degrees:
            made.append((name, degrees[name]))
        elif name in ALWAYS_SHOWN or len(_values(answer, name)) > 1:
            made.append((name, field.short or name))
    return made


def common_fields(answer: Answer) -> list[tuple[str, str]]:
    """(field, value) of what every shown strategy uses alike, so that it needs no column."""
    columns = {name for name, _ in varying_fields(answer)}
    made = []
    for name, field in scalar_fields(answer).items():
        values = _values(answer, name) - {field.neutral}
        if name not in columns and values:
            made.append((name, spell(values.pop())))
    return made


def _values(answer: Answer, name: str) -> set[Any]:
    neutral = answer.fields[name].neutral
    return {detail.strategy.fields.get(name, neutral) for detail in beside(answer)}


def _table(title: str, columns: Iterable[tuple[str, str]]) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
    )
    for heading, justify in columns:
        right = justify == "right"
        table.add_column(heading, justify="right" if right else "left", no_wrap=right)
    return table


def _asked(answer: Answer) -> Table:
    from rich.table import Table

    table = Table.grid(padding=(0, 2))
    for name, value in answer.asked:
        table.add_row(f"[bold]{name}[/bold]", _plain(value))
    return table


def _plain(text: str) -> RenderableType:
    from rich.text import Text

    return Text(text)


def _counts(answer: Answer) -> RenderableType:
    return _plain(
        f"\n{words.candidates(answer.space_size)} in the space,"
        f" {words.count(answer.judged)} judged, {words.count(answer.feasible)} feasible"
    )


def _strategies(answer: Answer, width: int) -> list[RenderableType]:
    details = beside(answer)
    if not details:
        return _sentences("Today", [answer.today.sentence]) if answer.today else []
    columns: dict[str, list[str]] = {"#": []}
    for number, detail in enumerate(details, 1):
        tie = "~" if detail.tie_with_best and detail.place > 1 else ""
        columns["#"].append(TODAY if detail.row < 0 else f"{tie}{detail.place or number}")
    for name, heading in varying_fields(answer):
        columns[heading] = [spell(d.strategy.fields.get(name, "")) for d in details]
    costs, memories = [d.performance for d in details], [d.memory for d in details]
    columns["layers"] = [_short(words.stage_totals(d.strategy.stage_partition)) for d in details]
    columns["recomputed"] = [words.recompute_total(d.strategy.layer_recompute) for d in details]
    columns["step time"] = [words.seconds(cost.seconds) for cost in costs]
    columns["band"] = [
        f"{words.seconds(c.low_seconds)} - {words.seconds(c.high_seconds)}" for c in costs
    ]
    columns["MFU"] = [words.percent(cost.mfu) for cost in costs]
    columns["memory"] = [words.gib(memory.total_bytes) for memory in memories]
    if answer.top:
        columns["verdict"] = [memory.verdict for memory in memories]
    else:
        columns["over by"] = [words.gib(excess_bytes(detail)) for detail in details]
    for optional in OPTIONAL_COLUMNS:
        if sum(2 + max(map(len, (head, *cells))) for head, cells in columns.items()) > width:
            columns.pop(optional)
    table = _table(
        "Best strategies" if answer.top else "Nearest misses",
        [(head, "left" if head in LEFT_COLUMNS else "right") for head in columns],
    )
    for i, detail in enumerate(details):
        cells = [values[i] for values in columns.values()]
        table.add_row(*map(_plain, cells), style="bold" if detail.place == 1 else None)
    common = ", ".join(f"{name} {value}" for name, value in common_fields(answer))
    made: list[RenderableType] = [table]
    if common:
        made.append(_plain(f"  everywhere: {common}\n"))
    if answer.today is not None:
        made += _sentences("Today", [answer.today.sentence])
    return made


def spell(value: Any) -> str:
    """A field value as people read it."""
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)


def _short(text: str) -> str:
    return text if len(text) <= LONG_STAGES else text[: LONG_STAGES - 3] + "..."


def _memory(answer: Answer, detail: Detail) -> Table:
    cost = detail.memory
    worst = next((stage for stage in cost.stages if stage.rank == cost.worst_rank), None)
    parts = [*(worst.parts if worst else ()), *cost.reserves]
    where = f"stage {cost.worst_rank}" + (f", {worst.instant}" if worst else "")
    table = _table(
        f"Memory of {labels(answer, shown(answer))[0]} ({where})",
        [("part", "left"), ("owner", "left"), ("memory", "right"), ("share", "right")],
    )
    ordered = sorted(parts, key=lambda p: (-p.bytes, p.name))
    kept = [(p.name, p.owner, p.bytes) for p in ordered[:PARTS]]
    if len(ordered) > PARTS:
        rest = sum(p.bytes for p in ordered[PARTS:])
        kept.append((f"{len(ordered) - PARTS} smaller parts", "", rest))
    total = max(1, cost.total_bytes)
    for name, owner, size in kept:
        cells = (name, owner, words.gib(size), words.percent(size / total))
        table.add_row(*map(_plain, cells))
    table.add_section()
    table.add_row("total", "", words.gib(cost.total_bytes), f"limit {words.gib(cost.limit_bytes)}")
    return table


def _time(answer: Answer, detail: Detail) -> Table:
    cost = detail.performance
    table = _table(
        f"Step time of {labels(answer, shown(answer))[0]} (stage {cost.rank}, the last to end)",
        [
            ("part", "left"),
            ("group", "left"),
            *((name, "right") for name in ("time", "share", "hidden")),
        ],
    )
    sums: dict[tuple[str, str], list[float]] = {}
    for part in cost.parts:
        one = sums.setdefault((part.name, time_group(part)), [0.0, 0.0])
        one[0] += part.seconds
        one[1] += part.hidden_seconds
    ordered = sorted(sums.items(), key=lambda item: (-item[1][0], item[0]))
    kept = ordered[:PARTS]
    if len(ordered) > PARTS:
        rest = [sum(values[i] for _, values in ordered[PARTS:]) for i in (0, 1)]
        kept.append(((f"{len(ordered) - PARTS} smaller parts", ""), rest))
    total = cost.seconds or 1.0
    for (name, group), (shown_seconds, hidden) in kept:
        concealed = words.hidden(hidden)
        cells = (
            name,
            group,
            words.seconds(shown_seconds),
            words.percent(shown_seconds / total),
            concealed,
        )
        table.add_row(*map(_plain, cells))
    table.add_section()
    table.add_row("total", "", words.seconds(cost.seconds), "", "")
    return table


def _reasons(answer: Answer) -> list[RenderableType]:
    rules = answer.rules
    if not rules:
        return []
    table = _table(
        "Why candidates fell (one may break several rules)",
        [("candidates", "right"), ("rule", "left"), ("for instance", "left")],
    )
    for rule in rules[:REASONS]:
        cells = (words.count(rule.candidates), f"{rule.code} ({rule.owner})", rule.example)
        table.add_row(*map(_plain, cells))
    if len(rules) > REASONS:
        rest = sum(rule.candidates for rule in rules[REASONS:])
        table.add_row(words.count(rest), f"{len(rules) - REASONS} more rules", "see rejected.csv")
    return [table]


def _sentences(title: str, sentences: Iterable[str]) -> list[RenderableType]:
    from rich.text import Text

    listed = list(sentences)
    if not listed:
        return []
    text = Text()
    text.append(title, style="bold")
    for sentence in listed:
        text.append(f"\n  - {sentence}")
    text.append("\n")
    return [text]
