"""``autopar report``: the answer of a run from its folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from autopar_core.cli.earlier import EarlierRun
from autopar_core.cli.output import FEASIBLE, NOTHING_FITS, print_json, print_table
from autopar_core.cli.session import json_option
from autopar_core.cli.words import columns, costs, memory, row, seconds


@click.command()
@click.argument("folder", type=click.Path(path_type=Path), metavar="DIR")
@json_option
def report(folder: Path, as_json: bool) -> int:
    """Print the answer of a run: strategies, parts of memory and time, reasons."""
    run = EarlierRun.read(folder, "report")
    if as_json:
        print_json(run.document)
    else:
        _print(run)
    return FEASIBLE if run.strategies else NOTHING_FITS


def _print(run: EarlierRun) -> None:
    strategies = run.strategies
    fallen = run.document.get("infeasible_summary", {})
    misses = [miss["strategy"] for miss in fallen.get("nearest_misses", ())]
    shown = strategies or misses
    keys = columns(shown)
    rows = [_row(number, each, keys) for number, each in enumerate(shown, 1)]
    print_table("Best strategies" if strategies else "Nearest misses", rows)
    for sentence in fallen.get("advice", ()):
        click.echo(sentence)
    if strategies:
        place = strategies[0]["place"]
        _print_parts(run, place)
    rules = [
        {
            "rule": rule["code"],
            "owner": rule["owner"],
            "candidates": f"{rule.get('rows', 0) + rule.get('stands_for', 0):,}",
            "example": rule["example"],
        }
        for rule in fallen.get("rules", ())
    ]
    print_table("Why candidates fell (one may break several rules)", rules, right=("candidates",))
    for note in run.inputs.get("notes", ()):
        click.echo(f"note: {note}")


def _row(number: int, strategy: Mapping[str, Any], keys: list[str]) -> dict[str, str]:
    return {
        "#": str(strategy.get("place") or number),
        **row(strategy, keys),
        **costs(strategy),
        "verdict": strategy.get("filter_reason") or strategy.get("memory_verdict", ""),
    }


def _print_parts(run: EarlierRun, place: int) -> None:
    for title, key, text in (
        ("Memory of the best by owner", "memory_breakdown", memory),
        ("Step time of the best by owner", "performance_breakdown", seconds),
    ):
        owners = run.part(key, place).get("by_owner", {})
        rows = [{"owner": owner, "amount": text(value)} for owner, value in owners.items()]
        print_table(title, rows, right=("amount",))
