"""``autopar search``."""

from __future__ import annotations

from pathlib import Path

import click
from attrs import evolve

from autopar_core.cli.folder import check_target
from autopar_core.cli.output import Bar, plugins_at_work, show
from autopar_core.cli.session import (
    Request,
    job_options,
    json_option,
    open_session,
    overrides_of,
    with_set,
)


@click.command()
@click.argument("file", required=False, type=click.Path(path_type=Path), metavar="[FILE.toml]")
@job_options
@click.option("--rank-by", metavar="NAME", help="Ranker, for instance step_time.")
@click.option("--top-k", metavar="N", help="How many strategies to show.")
@click.option(
    "--out", type=click.Path(path_type=Path), metavar="DIR", help="Write every file of the run."
)
@click.option(
    "--from", "earlier", type=click.Path(path_type=Path), metavar="DIR",
    help="Start from the inputs of an earlier run.",
)  # fmt: skip
@click.option(
    "--compare", metavar="FILE",
    help="A launch file of today, shown beside the answers; sets today.source.",
)  # fmt: skip
@click.option("--no-charts", is_flag=True, help="Leave out charts and the report.")
@click.option(
    "--workers", type=click.IntRange(min=0), default=0, metavar="N",
    help="Processes; 0 lets autopar decide. The answer does not depend on it.",
)  # fmt: skip
@json_option
def search(
    file: Path | None,
    sets: tuple[str, ...],
    fixes: tuple[str, ...],
    disable: tuple[str, ...],
    only: tuple[str, ...],
    plugin_files: tuple[Path, ...],
    rank_by: str | None,
    top_k: str | None,
    out: Path | None,
    earlier: Path | None,
    compare: str | None,
    no_charts: bool,
    workers: int,
    as_json: bool,
) -> int:
    """Find the best strategies for the model, cluster and search space of an input file."""
    overrides = overrides_of(sets, fixes, disable, only)
    overrides = with_set(overrides, "--rank-by", "search.rank_by", rank_by)
    overrides = with_set(overrides, "--top-k", "search.top_k", top_k)
    if compare is not None:
        overrides = evolve(
            overrides, sets=(*overrides.sets, ("--compare", "today", {"source": compare}))
        )
    if out is not None:
        check_target(out)
    session = open_session(
        Request(file=file, earlier=earlier, overrides=overrides, plugin_files=plugin_files)
    )
    from autopar_core.search import run

    with Bar() as bar, plugins_at_work():
        result = run.search(session.job, session.manager, workers=workers, progress=bar)
        if session.job.today is not None:
            from autopar_core.search.today import with_today

            result = with_today(result, session.job, session.manager)
    return show(result, session.manager, out=out, charts=not no_charts, as_json=as_json)
