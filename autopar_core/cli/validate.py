"""``autopar validate``."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from autopar_core.cli.folder import add_files
from autopar_core.cli.output import plugins_at_work, print_table
from autopar_core.cli.session import console, json_option, load_plugins
from autopar_core.errors import InputError


if TYPE_CHECKING:
    from autopar_core.plugins.manager import PluginManager
    from autopar_core.validate.predict import Answer
    from autopar_core.validate.rows import Run

PREDICTED, NOTHING = 0, 1


@click.command()
@click.argument("files", nargs=-1, type=click.Path(path_type=Path), metavar="RUNS.tsv...")
@click.option(
    "--out", type=click.Path(path_type=Path), metavar="OUT.json",
    help="Write every row and the errors by source.",
)  # fmt: skip
@click.option(
    "--plot", type=click.Path(path_type=Path), metavar="DIR",
    help="Draw predicted against measured, PNG and SVG.",
)  # fmt: skip
@click.option(
    "--ops", type=click.Path(path_type=Path), metavar="DIR|FILE.tsv",
    help="Judge the laws of operations on timed GEMMs, attention and memory-bound kernels.",
)  # fmt: skip
@click.option(
    "--system", default="h200-sxm-141gb", metavar="NAME", show_default=True,
    help="System on which the operations of --ops were timed.",
)  # fmt: skip
@click.option(
    "--cases", type=click.Path(path_type=Path), metavar="FILE.tsv",
    help="Judge verdicts on memory: reported configurations that fit or ran out.",
)  # fmt: skip
@click.option(
    "--pairs", type=click.Path(path_type=Path), metavar="FILE.tsv",
    help="Judge orders: pairs of the configurations in --cases, the better one first.",
)  # fmt: skip
@json_option
def validate(
    files: tuple[Path, ...], out: Path | None, plot: Path | None, ops: Path | None, system: str,
    cases: Path | None, pairs: Path | None, as_json: bool,
) -> int:  # fmt: skip
    """Compare predictions with measurements.

    RUNS.tsv are tab-separated tables of measured runs. Every row that can be predicted is, measured
    or not; the others are counted with the fact that is missing. Instead of runs: timed operations
    (--ops), or reports from the field (--cases, --pairs).
    """
    _check(out, plot)
    asked = sum((bool(files), ops is not None, cases is not None or pairs is not None))
    if asked != 1:
        raise InputError("", "give tables of measured runs, or --ops, or --cases: one of them")
    if files:
        return _runs(files, out, plot, as_json)
    if plot is not None:
        raise InputError("--plot", "draws measured runs only")
    from autopar_core.cli import judge

    answer = judge.operations(ops, system) if ops is not None else judge.reports(cases, pairs)
    made = _text(answer.document)
    if out is not None:
        add_files(out.parent, {out.name: made.encode()}, f"--out {out}")
    if as_json:
        click.echo(made, nl=False)
    else:
        answer.show()
    return PREDICTED if answer.judged else NOTHING


def _check(out: Path | None, plot: Path | None) -> None:
    if out is not None and out.is_dir():
        raise InputError(f"--out {out}", "is a folder; name a file")
    if plot is not None and plot.exists() and not plot.is_dir():
        raise InputError(f"--plot {plot}", "is a file; name a folder")


def _text(document: Mapping[str, Any]) -> str:
    return json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _runs(files: tuple[Path, ...], out: Path | None, plot: Path | None, as_json: bool) -> int:
    from autopar_core.validate.rows import read_runs
    from autopar_core.validate.summary import document

    runs = read_runs(files)
    manager = load_plugins()
    with plugins_at_work():
        answer = _answer(runs, manager)
    made = _text(document(answer))
    if out is not None:
        add_files(out.parent, {out.name: made.encode()}, f"--out {out}")
    if plot is not None:
        from autopar_core.validate.plot import pictures

        add_files(plot, pictures(answer.rows), f"--plot {plot}")
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
    from autopar_core.validate.summary import (
        CHOICE_TITLE,
        RIGHT,
        choice_lines,
        group_tables,
        reasons,
        tables,
    )

    rows = answer.rows
    skipped = sum(row.skipped is not None for row in rows)
    click.echo(f"{len(rows)} runs: {len(rows) - skipped} predicted, {skipped} skipped")
    for title, lines in (*tables(rows), *group_tables(answer)):
        print_table(title, lines, RIGHT)
    print_table(CHOICE_TITLE, choice_lines(answer), RIGHT)
    print_table("Skipped: what is missing", reasons(rows), ("skipped",))
    lacking: list[dict[str, Any]] = [
        {"rows": str(count), "missing": fact} for fact, count in sorted(answer.no_memory.items())
    ]
    print_table("Step time only: what memory lacks", lacking, ("rows",))
