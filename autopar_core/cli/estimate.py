"""``autopar estimate``."""

from __future__ import annotations

from pathlib import Path

import click

from autopar_core.cli.output import plugins_at_work, show
from autopar_core.cli.session import Request, job_options, json_option, overrides_of
from autopar_core.cli.strategy import open_strategy


@click.command()
@click.argument("file", type=click.Path(path_type=Path), metavar="FILE.toml")
@click.argument("strategy", nargs=-1, metavar="FIELD=VALUE...")
@job_options
@json_option
def estimate(
    file: Path,
    strategy: tuple[str, ...],
    sets: tuple[str, ...],
    fixes: tuple[str, ...],
    disable: tuple[str, ...],
    only: tuple[str, ...],
    plugin_files: tuple[Path, ...],
    as_json: bool,
) -> int:
    """Memory and step time of one strategy, term by term.

    Every term is shown with its owner, formula, inputs and source, so that it can be checked by
    hand. FIELD is any field of a strategy or its short form, for instance the degree of a dimension,
    micro_batch_size, schedule or layer_recompute.
    """
    request = Request(
        file=file, overrides=overrides_of(sets, fixes, disable, only), plugin_files=plugin_files
    )
    asked = open_strategy(request, strategy)
    from autopar_core.search import run

    with plugins_at_work():
        result = run.estimate(asked.session.job, asked.session.manager, asked.fields)
    return show(result, asked.session.manager, as_json=as_json, every_term=True)
