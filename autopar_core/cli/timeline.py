"""``autopar timeline``: one step of a strategy of a run, over time."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from autopar_core.builtin.definition import definition
from autopar_core.cli.earlier import RESULT, EarlierRun
from autopar_core.cli.folder import write_files
from autopar_core.cli.output import FEASIBLE, plugins_at_work, print_table
from autopar_core.cli.session import Request, json_option, place_option, plugin_options
from autopar_core.cli.strategy import open_found
from autopar_core.cli.words import brief
from autopar_core.config.plans import partition_plans, recompute_plans
from autopar_core.config.search_section import PARTITION, RECOMPUTE
from autopar_core.domain.space import Plan
from autopar_core.errors import InputError
from autopar_core.units import counted


if TYPE_CHECKING:
    from autopar_core.domain.job import Job
    from autopar_core.domain.timeline import StepTimeline


@click.command()
@click.argument("folder", type=click.Path(path_type=Path), metavar="DIR")
@place_option
@click.option(
    "--out", type=click.Path(path_type=Path), metavar="DIR",
    help="Write the picture, the data and a trace for Perfetto there.",
)  # fmt: skip
@plugin_options
@json_option
def timeline(
    folder: Path,
    place: int,
    out: Path | None,
    disable: tuple[str, ...],
    only: tuple[str, ...],
    plugin_files: tuple[Path, ...],
    as_json: bool,
) -> int:
    """Show one step of a strategy over time: what each rank does, waits for and holds."""
    run = EarlierRun.read(folder, "timeline")
    strategy = run.at(place)
    job, step = _replayed(strategy, Request.again(folder, disable, only, plugin_files))
    from autopar_core.builtin import timeline_files
    from autopar_core.builtin.json_text import dump

    about = {"place": place, "strategy": definition(strategy)}
    if out is not None:
        files = timeline_files.files(step, about, f"Place {place}", _caption(job, strategy))
        write_files(out, files, timeline_files.NAMES)
    if as_json:
        click.echo(dump(timeline_files.document(step, about)), nl=False)
        return FEASIBLE
    click.echo(timeline_files.title(step, f"Place {place}"))
    click.echo(f"bottleneck: {step.bottleneck.sentence}")
    rows = timeline_files.table(step)
    print_table("Ranks", rows, right=tuple(rows[0]))
    if out is not None:
        click.echo(f"written to {out}", err=True)
    return FEASIBLE


def _layout(strategy: Mapping[str, Any], layers: int, where: str) -> tuple[Any, Any]:
    """Layers and recompute of each stage, as the run has them.

    Raises:
        InputError: When they are none of this model.
    """
    partition, recompute = strategy.get(PARTITION), strategy.get(RECOMPUTE)
    if not isinstance(partition, list):
        raise InputError(f"{where}: {PARTITION}", "expected the layers of each stage; search again")
    partition_plans(partition, layers, f"{where}: {PARTITION}")
    if not isinstance(recompute, Mapping):
        raise InputError(f"{where}: {RECOMPUTE}", "expected layers by mode; search again")
    recompute_plans(recompute, f"{where}: {RECOMPUTE}")
    return partition, recompute


def _plan(strategy: Mapping[str, Any], job: Job, recompute: Any) -> Plan:
    """How the strategy recomputes: "every k-th layer" is no number of first layers of a stage."""
    for plan in job.space.recomputes:
        if plan.kind == "every" and plan.text == strategy.get("recompute_plan"):
            return plan
    return Plan(kind="given", given=recompute)


def _caption(job: Job, strategy: Mapping[str, Any]) -> str:
    """Whose step it is: model, devices, framework and strategy."""
    model = job.model.name or f"{counted(job.model.num_layers, 'layer')}"
    where = f"{job.cluster.devices} x {job.system.name}"
    return f"{model} on {where}, {job.framework.name}: {brief(strategy)}"


def _replayed(strategy: Mapping[str, Any], request: Request) -> tuple[Job, StepTimeline]:
    """(The run's job, the step of the strategy); it takes as long as the run says.

    Raises:
        InputError: When it does not, or does not fit any more.
    """
    asked = open_found(request, strategy)
    from autopar_core.search.timeline import step_timeline

    where, job = f"timeline {request.earlier}", asked.session.job
    assert request.earlier is not None
    result = f"timeline {request.earlier / RESULT}"
    partition, recompute = _layout(strategy, job.model.num_layers, result)
    with plugins_at_work():
        step = step_timeline(
            job, asked.session.manager, asked.fields, partition, _plan(strategy, job, recompute)
        )
    if step is None:
        raise InputError(where, "the strategy does not fit with these plugins; search again")
    told = strategy.get("performance_cost")
    if step.seconds != told:
        why = f"takes {step.seconds!r} s now, and the run says {told!r} s; search again"
        raise InputError(where, f"the strategy {why} with this version and these plugins")
    return job, step
