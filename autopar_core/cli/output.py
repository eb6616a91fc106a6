"""Answers on the terminal, as JSON, and into a folder."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from autopar_core.cli.earlier import RESULT
from autopar_core.cli.folder import write_folder
from autopar_core.cli.session import console
from autopar_core.errors import PluginError


if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from autopar_core.domain.result import SearchResult
    from autopar_core.hooks.named import Renderer
    from autopar_core.plugins.manager import PluginManager

FEASIBLE, NOTHING_FITS = 0, 1
_JSON = "json"
# Renderers that draw: the report shows the charts, and drawing takes longer than most searches.
_DRAWING = ("charts", "report")


def plugins_at_work() -> AbstractContextManager[object]:
    """Sends what plugins print to standard error: standard output is for the answer."""
    return redirect_stdout(sys.stderr)


def renderers_of(manager: PluginManager, *, charts: bool = True) -> list[Renderer]:
    """Every renderer, in the order of plugins."""
    many = [each for _, renderers in manager.collect("autopar_renderers") for each in renderers]
    return [each for each in many if charts or each.name not in _DRAWING]


def json_text(result: SearchResult, manager: PluginManager) -> str:
    """The content of result.json.

    Raises:
        PluginError: When no active plugin writes it.
    """
    for renderer in renderers_of(manager):
        if renderer.name == _JSON:
            with plugins_at_work():
                return bytes(renderer.render(result)[RESULT]).decode()
    raise PluginError(f"no active plugin writes {RESULT}; do not disable the one that does")


def show(
    result: SearchResult,
    manager: PluginManager,
    *,
    out: Path | None = None,
    charts: bool = True,
    as_json: bool = False,
    every_term: bool = False,
) -> int:
    """Write and print a result; ``every_term`` prints the whole derivation of the first strategy.

    Returns:
        The exit code: 0 when something is feasible, 1 otherwise.
    """
    if out is not None:
        from autopar_core.builtin.outputs import render_all

        with plugins_at_work():
            files = render_all(result, renderers_of(manager, charts=charts))
        write_folder(out, files)
    if as_json:
        click.echo(json_text(result, manager), nl=False)
    else:
        from autopar_core.builtin.answer import Answer
        from autopar_core.builtin.text import print_answer

        print_answer(console(), Answer.of(result), every_term=every_term)
        if out is not None:
            click.echo(f"written to {out}", err=True)
    return FEASIBLE if result.top else NOTHING_FITS


def print_json(value: Any) -> None:
    """Plain data on standard output."""
    click.echo(json.dumps(value, indent=2, ensure_ascii=False))


def print_table(title: str, rows: Sequence[Mapping[str, str]], right: tuple[str, ...] = ()) -> None:
    """Rows of texts as a table; the keys of the first row are the headings."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    if not rows:
        return
    if title:
        click.secho(f"\n{title}", bold=True)
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for heading in rows[0]:
        numeric = heading in right
        table.add_column(heading, justify="right" if numeric else "left", no_wrap=numeric)
    for row in rows:
        table.add_row(*(Text(text) for text in row.values()))
    console().print(table)


class Bar:
    """Progress on standard error, shown only when that is a terminal.

    An instance is what ``search`` is given: ``bar(done, total)``.
    """

    def __init__(self) -> None:
        self._progress: Progress | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> Bar:
        if sys.stderr.isatty():
            from rich.progress import Progress

            self._progress = Progress(console=console(stderr=True), transient=True)
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._progress is not None:
            self._progress.stop()

    def __call__(self, done: int, total: int) -> None:
        """Show how many candidates are judged."""
        if self._progress is None:
            return
        if self._task is None:
            self._task = self._progress.add_task("judging candidates")
        self._progress.update(self._task, completed=done, total=total or None)
