"""``autopar explain``: a strategy of one's own against the winner of a run."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import click
from attrs import frozen

from autopar_core.builtin.definition import definition
from autopar_core.cli.earlier import EarlierRun
from autopar_core.cli.output import (
    FEASIBLE,
    NOTHING_FITS,
    json_text,
    plugins_at_work,
    print_json,
    print_table,
)
from autopar_core.cli.session import Request, json_option, plugin_options
from autopar_core.cli.strategy import open_strategy, reason_of
from autopar_core.cli.words import (
    cell,
    costs,
    difference,
    heading,
    memory,
    seconds,
    spell,
)


Part = tuple[str, str]


@frozen(kw_only=True)
class Costed:
    """A strategy of a result.json with its parts: (owner, name) -> bytes or seconds."""

    strategy: Mapping[str, Any]
    memory: Mapping[Part, float]
    time: Mapping[Part, float]


@click.command()
@click.argument("folder", type=click.Path(path_type=Path), metavar="DIR")
@click.argument("strategy", nargs=-1, metavar="FIELD=VALUE...")
@plugin_options
@json_option
def explain(
    folder: Path,
    strategy: tuple[str, ...],
    disable: tuple[str, ...],
    only: tuple[str, ...],
    plugin_files: tuple[Path, ...],
    as_json: bool,
) -> int:
    """Estimate a strategy with the inputs of a run and compare it with the winner, part by part."""
    run = EarlierRun.read(folder, "explain")
    winner = _winner(run)
    asked = open_strategy(Request.again(folder, disable, only, plugin_files), strategy)
    from autopar_core.search import run as searching

    with plugins_at_work():
        result = searching.estimate(asked.session.job, asked.session.manager, asked.fields)
    document = json.loads(json_text(result, asked.session.manager))
    mine = _estimated(document)
    if mine is None:
        sentence = f"it is not feasible: {reason_of(result)}"
    else:
        sentence = _verdict(mine, winner, run)
    if as_json:
        print_json(_as_json(mine, winner, sentence))
    else:
        click.echo(sentence)
        _print(mine, winner)
    feasible = winner is not None or (mine is not None and mine.strategy["feasible"])
    return FEASIBLE if feasible else NOTHING_FITS


def _winner(run: EarlierRun) -> Costed | None:
    if not run.strategies:
        return None
    best = run.strategies[0]
    place = best.get("place", 1)
    return _costed(
        best, run.part("memory_breakdown", place), run.part("performance_breakdown", place)
    )


def _estimated(document: Mapping[str, Any]) -> Costed | None:
    """The only strategy of a fresh estimate: in the answers, or among the nearest misses."""
    if document["top_k_strategies"]:
        return _costed(
            document["top_k_strategies"][0],
            document["memory_breakdown"][0],
            document["performance_breakdown"][0],
        )
    misses = document.get("infeasible_summary", {}).get("nearest_misses", ())
    if not misses:
        return None
    return _costed(misses[0]["strategy"], misses[0]["memory"], misses[0]["performance"])


def _costed(
    strategy: Mapping[str, Any], memory: Mapping[str, Any], performance: Mapping[str, Any]
) -> Costed:
    worst = memory.get("worst_rank")
    parts = [
        part
        for stage in memory.get("stages", ())
        if stage["rank"] == worst
        for part in stage["parts"]
    ]
    return Costed(
        strategy=strategy,
        memory=_summed([*parts, *memory.get("reserves", ())], "bytes"),
        time=_summed(performance.get("parts", ()), "seconds"),
    )


def _summed(parts: Iterable[Mapping[str, Any]], unit: str) -> dict[Part, float]:
    """Parts of one owner and name, added up over phases."""
    found: dict[Part, float] = {}
    for part in parts:
        key = (part["owner"], part["name"])
        found[key] = found.get(key, 0) + part[unit]
    return found


def _verdict(mine: Costed, winner: Costed | None, run: EarlierRun) -> str:
    reason = mine.strategy["filter_reason"]
    if reason:
        return f"it is not feasible: {reason}"
    if winner is None:
        return "it is feasible, and the run found nothing that is"
    if definition(mine.strategy) == definition(winner.strategy):
        return "it is the winner itself"
    slower = mine.strategy["performance_cost"] / winner.strategy["performance_cost"] - 1
    ranked = run.document.get("all_candidate_summary", {}).get("ranked_by", "step_time")
    if slower < 0 and ranked == "step_time":
        place = "it is feasible and better than the winner, so the run did not try it"
    else:
        place = f"it is feasible but not the best by {ranked}"
    pace = f"{abs(slower):.1%} {'slower' if slower >= 0 else 'faster'} than the winner"
    largest = max(
        _rows(mine.time, winner.time), key=lambda row: row[3] if slower >= 0 else -row[3],
        default=None,
    )  # fmt: skip
    most = ""
    if largest is not None and largest[3]:
        most = f"; most of it is {largest[0][1]} ({largest[0][0]}), "
        most += difference(seconds(largest[3]), largest[3])
    return f"{place}: {pace}{most}"


def _rows(
    mine: Mapping[Part, float], winner: Mapping[Part, float]
) -> list[tuple[Part, float, float, float]]:
    """(part, winner, mine, difference), the largest difference first."""
    rows = []
    for key in sorted({*mine, *winner}):
        before, after = winner.get(key, 0), mine.get(key, 0)
        # Sums in another order differ in the last digits.
        same = math.isclose(before, after, rel_tol=1e-9)
        rows.append((key, before, after, 0 if same else after - before))
    return sorted(rows, key=lambda row: -abs(row[3]))


def _print(mine: Costed | None, winner: Costed | None) -> None:
    if mine is None:
        return
    against = winner or Costed(strategy={}, memory={}, time={})
    fields = []
    theirs = definition(against.strategy)
    for key, value in definition(mine.strategy).items():
        if spell(value) != spell(theirs.get(key)):
            other = cell(key, theirs.get(key))
            fields.append({"field": heading(key), "winner": other, "this": cell(key, value)})
    for key, text in costs(mine.strategy).items():
        fields.append({"field": key, "winner": costs(against.strategy)[key], "this": text})
    print_table("Strategies", fields)
    _print_parts("Time", _rows(mine.time, against.time), seconds)
    _print_parts("Memory", _rows(mine.memory, against.memory), memory)


def _print_parts(
    title: str,
    rows: Iterable[tuple[Part, float, float, float]],
    text: Callable[[float | None], str],
) -> None:
    shown = [
        {
            "part": name,
            "owner": owner,
            "winner": text(before),
            "this": text(after),
            "difference": difference(text(change), change),
        }
        for (owner, name), before, after, change in rows
        if before or after
    ]
    print_table(title, shown, right=("winner", "this", "difference"))


def _as_json(mine: Costed | None, winner: Costed | None, sentence: str) -> dict[str, Any]:
    against = winner or Costed(strategy={}, memory={}, time={})
    made: dict[str, Any] = {
        "sentence": sentence,
        "strategy": dict(mine.strategy) if mine else None,
        "winner": dict(winner.strategy) if winner else None,
    }
    for name in ("time", "memory"):
        rows = _rows(getattr(mine, name), getattr(against, name)) if mine else []
        made[name] = [
            {"owner": owner, "name": part, "winner": before, "this": after, "difference": change}
            for (owner, part), before, after, change in rows
        ]
    return made
