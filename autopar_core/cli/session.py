"""What every command that needs a job does first: input, plugins, job."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from attrs import evolve, field, frozen

from autopar_core.cli.earlier import RESULT, EarlierRun
from autopar_core.config.load import load_job
from autopar_core.config.model_section import read_source
from autopar_core.config.overrides import (
    Overrides,
    apply,
    parse_assignments,
    parse_value,
    plugin_selection,
)
from autopar_core.config.source_file import Reading, agreed_all
from autopar_core.config.tables import NO_FILE, Origins, read_toml
from autopar_core.errors import InputError, PluginError


if TYPE_CHECKING:
    from rich.console import Console

    from autopar_core.domain.job import Job
    from autopar_core.plugins.manager import PluginManager

F = TypeVar("F", bound=Callable[..., Any])

# Plugins that the core brings itself: name -> module.
SHIPPED = {"builtin": "autopar_core.builtin"}


@frozen(kw_only=True)
class Request:
    """What a command line asks for, before anything is read."""

    file: Path | None = None
    earlier: Path | None = None
    overrides: Overrides = field(factory=Overrides)
    plugin_files: tuple[Path, ...] = ()
    configs: tuple[str, ...] = ()
    reader: str = ""

    @classmethod
    def again(
        cls,
        earlier: Path,
        disable: Iterable[str],
        only: Iterable[str],
        plugin_files: tuple[Path, ...],
    ) -> Request:
        """The inputs of an earlier run, with the plugins of ``plugin_options``."""
        overrides = overrides_of((), (), disable, only)
        return cls(earlier=earlier, overrides=overrides, plugin_files=plugin_files)


@frozen(kw_only=True)
class Session:
    """A checked job, the plugins that work on it, and what ``--from-config`` said."""

    manager: PluginManager
    job: Job
    config: Reading | None = None


def plugin_options(command: F) -> F:
    """Add the options that choose plugins."""
    for option in (
        click.option(
            "--plugin", "plugin_files", multiple=True, metavar="FILE.py",
            type=click.Path(path_type=Path), help="Load a one-file plugin.",
        ),
        click.option("--only", multiple=True, metavar="NAME", help="Keep only these dimensions."),
        click.option("--disable", multiple=True, metavar="NAME", help="Switch a plugin off."),
    ):  # fmt: skip
        command = option(command)
    return command


def job_options(command: F) -> F:
    """Add the input file, and the options that change it."""
    for option in (
        click.option(
            "--fix", "fixes", multiple=True, metavar="FIELD=VALUE",
            help="Search only this value of a field.",
        ),
        click.option(
            "--set", "sets", multiple=True, metavar="KEY=VALUE",
            help="Change a key of the input, for instance training.seq_len=4096.",
        ),
    ):  # fmt: skip
        command = option(command)
    return plugin_options(command)


json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print JSON on standard output and nothing else there."
)
place_option = click.option(
    "--place", type=click.IntRange(min=1), default=1, metavar="N", show_default=True,
    help="Which of the strategies that the run found.",
)  # fmt: skip


def overrides_of(
    sets: Iterable[str], fixes: Iterable[str], disable: Iterable[str], only: Iterable[str]
) -> Overrides:
    """The changes of a command line."""
    return Overrides(
        sets=tuple(("--set", *pair) for pair in parse_assignments(sets, "--set")),
        fixes=tuple(("--fix", *pair) for pair in parse_assignments(fixes, "--fix")),
        disable=split_names(disable),
        only=split_names(only),
    )


def split_names(names: Iterable[str]) -> tuple[str, ...]:
    """Names given one by one or with commas between them."""
    return tuple(part.strip() for name in names for part in name.split(",") if part.strip())


def with_set(overrides: Overrides, option: str, key: str, text: str | None) -> Overrides:
    """The same with one more key from an option of its own."""
    if text is None:
        return overrides
    return evolve(overrides, sets=(*overrides.sets, (option, key, parse_value(text))))


def load_plugins(
    disable: Iterable[str] = (), only: Iterable[str] = (), files: Iterable[Path] = ()
) -> PluginManager:
    """Every plugin that may run.

    Raises:
        PluginError: When a name is unknown.
    """
    from autopar_core.plugins.manager import PluginManager

    shipped = [(name, import_module(module)) for name, module in SHIPPED.items()]
    return PluginManager.load(
        disable=tuple(disable), only=tuple(only), files=tuple(files), extra=shipped
    )


def open_session(request: Request) -> Session:
    """Read the input, load the plugins that it leaves on, and check the job.

    Raises:
        InputError: When the input is wrong.
        PluginError: When plugins are in conflict, or a named one cannot be used.
    """
    path, tables, sources, used = _input(request)
    origins = Origins(path.name if path else NO_FILE)
    changed = apply(dict(tables), request.overrides, origins)
    disable, only = plugin_selection(changed, origins)
    manager = load_plugins(disable, only, request.plugin_files)
    refuse_unusable(manager)
    readings = [
        read_source(each, "--from-config", Path(), manager, request.reader)
        for each in request.configs
    ]
    job = load_job(path, tables, request.overrides, manager, sources, readings)
    gone = [name for name in used if name not in {record.name for record in manager.records}]
    notes = [f"the earlier run also used the plugin '{name}', which is not here" for name in gone]
    config = agreed_all(readings) if readings else None
    return Session(manager=manager, job=evolve(job, notes=(*job.notes, *notes)), config=config)


def _input(
    request: Request,
) -> tuple[Path | None, Mapping[str, Any], Mapping[str, str], tuple[str, ...]]:
    """(file, its tables, sources and active plugins of the earlier run that it belongs to)."""
    if request.configs and request.file is None and request.earlier is None:
        return None, {}, {}, ()
    if (request.file is None) == (request.earlier is None):
        raise InputError("", "give an input file or --from DIR, one of them")
    if request.earlier is not None:
        run = EarlierRun.read(request.earlier, "--from")
        return run.folder / RESULT, run.raw, run.sources, run.active_plugins
    assert request.file is not None
    return request.file, read_toml(request.file), {}, ()


def refuse_unusable(manager: PluginManager) -> None:
    """Stop where an answer would silently leave out what the person asked for.

    Raises:
        PluginError: On a conflict, or when a file of ``--plugin`` is broken.
    """
    broken = set(manager.asked_broken)
    for record in manager.records:
        if record.name in broken and record.status != "active":
            raise PluginError(f"--plugin {record.distribution}: {record.reason}")
    if manager.conflicts:
        raise PluginError(manager.conflicts[0])


def console(*, stderr: bool = False) -> Console:
    """Where tables go; a pipe gets a width that cuts nothing."""
    from rich.console import Console

    terminal = (sys.stderr if stderr else sys.stdout).isatty()
    return Console(stderr=stderr, highlight=False, width=None if terminal else 140)
