"""``autopar validate``."""

from __future__ import annotations

import json
from pathlib import Path

import click

from autopar_core.cli.folder import add_files
from autopar_core.cli.session import json_option
from autopar_core.errors import InputError


JUDGED, NOTHING = 0, 1


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
    if plot is not None and not files:
        raise InputError("--plot", "draws measured runs only")
    from autopar_core.cli import judge

    if files:
        answer = judge.runs(files)
    else:
        answer = judge.operations(ops, system) if ops is not None else judge.reports(cases, pairs)
    made = json.dumps(answer.document, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    if out is not None:
        add_files(out.parent, {out.name: made.encode()}, f"--out {out}")
    if plot is not None:
        add_files(plot, answer.pictures(), f"--plot {plot}")
    if as_json:
        click.echo(made, nl=False)
    else:
        answer.show()
    return JUDGED if answer.judged else NOTHING


def _check(out: Path | None, plot: Path | None) -> None:
    if out is not None and out.is_dir():
        raise InputError(f"--out {out}", "is a folder; name a file")
    if plot is not None and plot.exists() and not plot.is_dir():
        raise InputError(f"--plot {plot}", "is a file; name a folder")
