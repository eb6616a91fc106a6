"""``autopar diff``: inputs, plugins and answers of two runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from autopar_core.builtin.definition import definition
from autopar_core.cli.earlier import EarlierRun
from autopar_core.cli.output import print_json, print_table
from autopar_core.cli.session import json_option
from autopar_core.cli.words import columns, identity, memory, row, seconds, spell
from autopar_core.config.tables import leaves


# Keys of the inputs that hold bytes.
SIZES = ("memory_limit", "memory_bytes")


@click.command()
@click.argument("before", type=click.Path(path_type=Path), metavar="DIR")
@click.argument("after", type=click.Path(path_type=Path), metavar="DIR")
@json_option
def diff(before: Path, after: Path, as_json: bool) -> int:
    """What changed between two runs: inputs, plugins, places and costs."""
    runs = EarlierRun.read(before, "diff"), EarlierRun.read(after, "diff")
    made = {
        "inputs": list(_changes(*(dict(_flat(run.inputs)) for run in runs))),
        "plugins": list(_changes(*(_plugins(run) for run in runs))),
        "strategies": list(_strategies(*runs)),
    }
    if as_json:
        print_json(made)
    else:
        _print(made)
    return 0


def _flat(inputs: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Dotted key -> effective value; of the tables as given only what is nowhere else."""
    seen = set()
    for keys, value in leaves({key: inputs[key] for key in inputs if key not in ("raw", "notes")}):
        if keys[-1] in ("source", "verified"):
            continue
        path = tuple(key for key in keys if key not in ("value", "values", "wanted", "settings"))
        seen.add(path)
        if value != {}:
            yield ".".join(path), value
    for keys, value in leaves(inputs["raw"]):
        if keys not in seen and keys[0] not in ("search", "plugins") and "override" not in keys:
            yield ".".join(keys), value


def _plugins(run: EarlierRun) -> dict[str, Any]:
    return {
        each["name"]: f"{each['status']} {each.get('version', '')}".strip()
        for each in run.document.get("plugins", ())
    }


def _changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for key in dict.fromkeys([*before, *after]):
        if before.get(key) != after.get(key):
            yield {"key": key, "before": before.get(key), "after": after.get(key)}


def _strategies(before: EarlierRun, after: EarlierRun) -> Iterator[dict[str, Any]]:
    """Every strategy that one of the runs shows, in the order of the later run."""
    old = {identity(each): each for each in before.strategies}
    new = {identity(each): each for each in after.strategies}
    for key in dict.fromkeys([*new, *old]):
        first, second = old.get(key, {}), new.get(key, {})
        yield {
            "strategy": definition(second or first),
            "place_before": first.get("place"),
            "place_after": second.get("place"),
            "performance_cost_before": first.get("performance_cost"),
            "performance_cost_after": second.get("performance_cost"),
            "memory_cost_before": first.get("memory_cost"),
            "memory_cost_after": second.get("memory_cost"),
        }


def _print(made: Mapping[str, Any]) -> None:
    for title, key in (("Inputs that differ", "inputs"), ("Plugins that differ", "plugins")):
        rows = [
            {
                "key": each["key"],
                "before": _input(each["key"], each["before"]),
                "after": _input(each["key"], each["after"]),
            }
            for each in made[key]
        ]
        print_table(title, rows)
        if not rows:
            click.echo(f"{title}: none")
    keys = columns(each["strategy"] for each in made["strategies"])
    rows = [
        {
            "place": f"{spell(each['place_before']) or '-'} -> {spell(each['place_after']) or '-'}",
            **row(each["strategy"], keys),
            "step time": _pair(each, "performance_cost", seconds),
            "memory": _pair(each, "memory_cost", memory),
        }
        for each in made["strategies"]
    ]
    print_table("Strategies", rows)


def _input(key: str, value: Any) -> str:
    """A value of the inputs; sizes as people write them."""
    if isinstance(value, int) and key.rsplit(".", 1)[-1] in SIZES:
        return memory(value)
    return spell(value)


def _pair(entry: Mapping[str, Any], key: str, text: Callable[[float | None], str]) -> str:
    """Before and after, or the one there is."""
    before, after = text(entry[f"{key}_before"]), text(entry[f"{key}_after"])
    return f"{before} -> {after}" if before and after and before != after else after or before
