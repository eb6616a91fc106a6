"""``autopar report``: the answer of a run from its folder."""

from __future__ import annotations

from pathlib import Path

import click

from autopar_core.cli.earlier import EarlierRun
from autopar_core.cli.output import FEASIBLE, NOTHING_FITS, print_json
from autopar_core.cli.session import console, json_option


@click.command()
@click.argument("folder", type=click.Path(path_type=Path), metavar="DIR")
@json_option
def report(folder: Path, as_json: bool) -> int:
    """Print the answer of a run again, as the search printed it."""
    run = EarlierRun.read(folder, "report")
    if as_json:
        print_json(run.document)
    else:
        from autopar_core.builtin.answer_json import read_answer
        from autopar_core.builtin.text import print_answer

        print_answer(console(), read_answer(run.document, f"report {folder}"))
    return FEASIBLE if run.strategies else NOTHING_FITS
