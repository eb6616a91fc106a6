"""``autopar model``: what a preset or a file of a framework says, and where it says it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs
import click

from autopar_core.cli.output import print_json, print_table
from autopar_core.cli.session import json_option, load_plugins, plugin_options, split_names
from autopar_core.cli.words import spell
from autopar_core.config.model_section import model_of
from autopar_core.config.source_file import STRATEGY, Reading
from autopar_core.config.tables import leaves


# What a launch file says besides the model.
_BESIDE = ("training", "cluster", "framework", "plugins", STRATEGY)

reader_option = click.option(
    "--reader", default="", metavar="NAME",
    help="Reader of the file; without it the content decides.",
)  # fmt: skip


@click.command()
@click.argument("source", metavar="NAME_OR_PATH")
@reader_option
@click.option(
    "--model", "preset", default="", metavar="NAME_OR_PATH",
    help="The model, where the file has a strategy only.",
)  # fmt: skip
@plugin_options
@json_option
def model(
    source: str,
    reader: str,
    preset: str,
    disable: tuple[str, ...],
    only: tuple[str, ...],
    plugin_files: tuple[Path, ...],
    as_json: bool,
) -> int:
    """Count a model's parameters exactly; NAME_OR_PATH is a preset or a file of a framework.

    Shows every field with the place where it stands, and what a launch file says besides: training,
    devices, framework and strategy.
    """
    manager = load_plugins(split_names(disable), split_names(only), plugin_files)
    config, sources, reading = model_of(source, manager, reader, preset)
    fields = {
        name: {"value": value, "source": sources[name]}
        for name, value in attrs.asdict(config).items()
    }
    beside = {name: dict(_said(name, reading)) for name in _BESIDE}
    if as_json:
        said: dict[str, Any] = {name: table for name, table in beside.items() if table}
        if reading.notes:
            said["notes"] = list(reading.notes)
        print_json({"parameters": config.parameters, "fields": fields, **said})
        return 0
    click.echo(f"{config.name}: {config.parameters:,} parameters")
    _print("", fields)
    for name, table in beside.items():
        _print(name.capitalize(), table)
    for note in reading.notes:
        click.echo(f"note: {note}")
    return 0


def _said(name: str, reading: Reading) -> Iterator[tuple[str, dict[str, Any]]]:
    """(key, value with its place) of one table."""
    table = reading.strategy if name == STRATEGY else reading.of(name)
    for keys, value in leaves(table):
        key = ".".join(keys)
        yield key, {"value": value, "source": reading.source(f"{name}.{key}")}


def _print(title: str, table: Mapping[str, Mapping[str, Any]]) -> None:
    rows = [
        {"field": name, "value": spell(each["value"]), "source": each["source"]}
        for name, each in table.items()
    ]
    print_table(title, rows, right=("value",))
