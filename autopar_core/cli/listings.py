"""``autopar plugins``, ``systems``, ``frameworks``: what autopar knows."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import click

from autopar_core.cli.output import print_json, print_table
from autopar_core.cli.session import json_option, load_plugins, plugin_options, split_names
from autopar_core.config.catalogue import Profiles, system_profile
from autopar_core.config.tables import Origins
from autopar_core.units import show_bytes


@click.command()
@plugin_options
@json_option
def plugins(
    disable: tuple[str, ...], only: tuple[str, ...], plugin_files: tuple[Path, ...], as_json: bool
) -> int:
    """List plugins: what each brings, and why it is not active."""
    manager = load_plugins(split_names(disable), split_names(only), plugin_files)
    views = [attrs.asdict(record.view()) for record in manager.records]
    if as_json:
        print_json({"plugins": views, "conflicts": list(manager.conflicts)})
        return 0
    rows = [
        {
            "name": view["name"],
            "status": view["status"],
            "from": f"{view['distribution']} {view['version']}".strip(),
            "dimension": view["dimension"],
            "hooks": ", ".join(hook.removeprefix("autopar_") for hook in view["hooks"]),
            "says": view["reason"] or view["summary"],
        }
        for view in views
    ]
    print_table("", rows)
    for sentence in manager.conflicts:
        click.echo(f"conflict: {sentence}")
    return 0


@click.command()
@plugin_options
@json_option
def systems(
    disable: tuple[str, ...], only: tuple[str, ...], plugin_files: tuple[Path, ...], as_json: bool
) -> int:
    """List systems: accelerators and the links around them."""
    manager = load_plugins(split_names(disable), split_names(only), plugin_files)
    found = []
    for name, table in _every("system", Profiles("system", manager)):
        found.append(attrs.asdict(system_profile(table, Origins(f"{name}.toml").below())))
    if as_json:
        print_json(found)
        return 0
    rows = [
        {
            "name": each["name"],
            "title": each["title"],
            "memory": show_bytes(each["memory_bytes"]),
            "domain": str(each["devices_per_domain"]),
            "peak": ", ".join(f"{k} {v / 1e12:.0f}" for k, v in each["peak_flops"].items()),
            "unverified": str(len(each["unverified"])),
        }
        for each in found
    ]
    print_table("", rows, right=("memory", "domain", "unverified"))
    click.echo("peak in TFLOP/s; unverified: values that are recalled or borrowed")
    return 0


@click.command()
@plugin_options
@json_option
def frameworks(
    disable: tuple[str, ...], only: tuple[str, ...], plugin_files: tuple[Path, ...], as_json: bool
) -> int:
    """List framework profiles."""
    manager = load_plugins(split_names(disable), split_names(only), plugin_files)
    found = [table for _, table in _every("framework", Profiles("framework", manager))]
    if as_json:
        print_json(found)
        return 0
    rows = [
        {
            "name": each["name"],
            "title": each.get("title", ""),
            "rank order": each.get("rank_order", ""),
            "values": str(len(each.get("sources", {}))),
            "unverified": str(len(each.get("unverified", ()))),
        }
        for each in found
    ]
    print_table("", rows, right=("values", "unverified"))
    return 0


def _every(kind: str, profiles: Profiles) -> list[tuple[str, Mapping[str, Any]]]:
    return [(name, profiles.table(name, kind)) for name in profiles.names()]
