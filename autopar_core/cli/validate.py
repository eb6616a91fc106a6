"""``autopar validate``."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from autopar_core.cli.output import plugins_at_work, print_table
from autopar_core.cli.session import console, json_option, load_plugins
from autopar_core.errors import InputError


if TYPE_CHECKING:
    from autopar_core.plugins.manager import PluginManager
    from autopar_core.validate.predict import Answer
    from autopar_core.validate.rows import Run

PREDICTED, NOTHING = 0, 1


@click.command()
@click.argument(
    "files", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="RUNS.tsv..."
)
@click.option(
    "--out", type=click.Path(path_type=Path), metavar="OUT.json",
    help="Write every row and the errors by source.",
)  # fmt: skip
@click.option(
    "--plot", type=click.Path(path_type=Path), metavar="DIR",
    help="Draw predicted against measured, PNG and SVG.",
)  # fmt: skip
@json_option
def validate(files: tuple[Path, ...], out: Path | None, plot: Path | None, as_json: bool) -> int:
    """Compare predictions with measured runs.

    RUNS.tsv are tab-separated tables of measured runs. Every row that can be predicted is, measured
    or not; the others are counted with the fact that is missing.
    """
    from autopar_core.validate.rows import read_runs
    from autopar_core.validate.summary import document

    if out is not None and out.is_dir():
        raise InputError(f"--out {out}", "is a folder; name a file")
    if plot is not None and plot.exists() and not plot.is_dir():
        raise InputError(f"--plot {plot}", "is a file; name a folder")
    runs = read_runs(files)
    manager = load_plugins()
    with plugins_at_work():
        answer = _answer(runs, manager)
    made = json.dumps(document(answer), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    if out is not None:
        _write(out.parent, {out.name: made.encode()}, f"--out {out}")
    if plot is not None:
        from autopar_core.validate.plot import pictures

        _write(plot, pictures(answer.rows), f"--plot {plot}")
    if as_json:
        click.echo(made, nl=False)
    else:
        _print(answer)
    return PREDICTED if any(row.skipped is None for row in answer.rows) else NOTHING


def _answer(runs: list[Run], manager: PluginManager) -> Answer:
    from autopar_core.validate import predict

    if not sys.stderr.isatty():
        return predict.validate(runs, manager)
    from rich.progress import Progress

    with Progress(console=console(stderr=True), transient=True) as shown:
        task = shown.add_task("predicting runs", total=len(runs))
        return predict.validate(
            runs, manager, lambda done, total: shown.update(task, completed=done, total=total)
        )


def _print(answer: Answer) -> None:
    from autopar_core.validate.summary import RIGHT, reasons, tables

    rows = answer.rows
    skipped = sum(row.skipped is not None for row in rows)
    click.echo(f"{len(rows)} runs: {len(rows) - skipped} predicted, {skipped} skipped")
    for title, lines in tables(rows):
        print_table(title, lines, RIGHT)
    print_table("Skipped: what is missing", reasons(rows), ("skipped",))
    lacking: list[dict[str, Any]] = [
        {"rows": str(count), "missing": fact} for fact, count in sorted(answer.no_memory.items())
    ]
    print_table("Step time only: what memory lacks", lacking, ("rows",))


def _write(folder: Path, files: Mapping[str, bytes], where: str) -> None:
    """Each file whole or not at all.

    Raises:
        InputError: When the place cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            fresh = folder / f".{name}.new-{os.getpid()}"
            fresh.write_bytes(content)
            fresh.replace(folder / name)
    except OSError as error:
        raise InputError(where, f"cannot be written: {error.strerror}") from None
