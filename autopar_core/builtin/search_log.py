"""search.log: what each level and rule took, in plain text, without times of day."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from autopar_core.api import SearchResult
from autopar_core.builtin import words
from autopar_core.builtin.diagnosis import advice
from autopar_core.builtin.tables import asked, cut_totals, labels, reasons


def lines(result: SearchResult) -> list[str]:
    """The log, line by line."""
    return list(_lines(result))


def files(result: SearchResult) -> Mapping[str, bytes]:
    """``search.log``."""
    return {"search.log": ("\n".join(lines(result)) + "\n").encode()}


def _lines(result: SearchResult) -> Iterator[str]:
    for name, value in asked(result):
        yield f"{name}: {value}"
    for note in result.job.notes:
        yield f"note: {note}"
    for plugin in result.plugins:
        why = f": {plugin.reason}" if plugin.reason else ""
        version = f" {plugin.version}" if plugin.version else ""
        yield f"plugin {plugin.name}{version} {plugin.status}{why}"
    yield from result.log or _totals(result)
    for level in result.counts:
        yield (
            f"level {level.level}: {words.count(level.before)} -> {words.count(level.after)}"
            f" ({words.count(level.before - level.after)} fell)"
        )
        for code, number in level.taken.items():
            yield f"  {code} took {words.count(number)}"
    for reason in reasons(result):
        yield (
            f"rule {reason.code} ({reason.owner}): {words.candidates(reason.candidates)};"
            f" {reason.example}"
        )
    for code, (rows, sentence) in result.warnings.items():
        yield f"habit {code}: {words.candidates(rows)}; {sentence}"
    if not result.top:
        yield from (f"diagnosis: {sentence}" for sentence in advice(result))
        return
    yield f"ranked by {result.ranker}: {result.ranker_sentence}"
    names = labels(result, result.top)
    width = max(map(len, names))
    for detail, name in zip(result.top, names, strict=True):
        tie = "  tie with the best" if detail.tie_with_best and detail.place > 1 else ""
        yield (
            f"{detail.place:>3}  {name:<{width}}  {words.seconds(detail.performance.seconds):>9}"
            f"  {words.gib(detail.memory.total_bytes):>11}  {detail.memory.verdict}{tie}"
        )


def _totals(result: SearchResult) -> Iterator[str]:
    """The numbers that a search which logged nothing owes the reader."""
    branches, stood_for = cut_totals(result)
    yield f"space: {words.candidates(result.space_size)}"
    yield f"branches cut: {words.count(branches)}, for {words.candidates(stood_for)}"
    yield f"feasible: {words.count(result.feasible_count)} of {words.several(len(result.batch), 'row')}"
