"""``autopar estimate``."""

from __future__ import annotations

from pathlib import Path

import click

from autopar_core.cli.model import reader_option
from autopar_core.cli.output import plugins_at_work, show
from autopar_core.cli.session import (
    Request,
    job_options,
    json_option,
    overrides_of,
    with_set,
)
from autopar_core.cli.strategy import open_strategy
from autopar_core.errors import InputError


@click.command()
@click.argument("arguments", nargs=-1, metavar="[FILE.toml] [FIELD=VALUE...]")
@click.option(
    "--from-config", "configs", multiple=True, metavar="FILE",
    help="Price what this launch file runs; FILE.toml and options fill in or change the rest.",
)  # fmt: skip
@click.option("--model", "model_name", metavar="NAME_OR_PATH", help="The model; sets model.source.")
@reader_option
@job_options
@json_option
def estimate(
    arguments: tuple[str, ...],
    configs: tuple[str, ...],
    model_name: str | None,
    reader: str,
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
    micro_batch_size, schedule or layer_recompute. With --from-config the strategy, the model and the
    job come from a launch file, and FILE.toml may be left out.
    """
    file, strategy = _file_and_strategy(arguments, bool(configs))
    overrides = overrides_of(sets, fixes, disable, only)
    if model_name is not None:
        overrides = with_set(overrides, "--model", "model.source", f'"{model_name}"')
    request = Request(
        file=file, overrides=overrides, plugin_files=plugin_files, configs=configs, reader=reader
    )
    asked = open_strategy(request, strategy)
    from autopar_core.search import run

    with plugins_at_work():
        result = run.estimate(asked.session.job, asked.session.manager, asked.fields)
    return show(result, asked.session.manager, as_json=as_json, every_term=True)


def _file_and_strategy(
    arguments: tuple[str, ...], configured: bool
) -> tuple[Path | None, tuple[str, ...]]:
    """The input file, which alone has no equals sign, and the fields of the strategy.

    Raises:
        InputError: When there is no input file where one is needed.
    """
    if arguments and ("=" not in arguments[0] or Path(arguments[0]).is_file()):
        return Path(arguments[0]), arguments[1:]
    if not configured:
        raise InputError("estimate", "give an input file, or --from-config FILE")
    return None, arguments
