"""``autopar export``: files that launch a strategy of a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import autopar_core
from autopar_core.builtin import words
from autopar_core.cli.earlier import EarlierRun
from autopar_core.cli.folder import write_files
from autopar_core.cli.output import plugins_at_work, print_json
from autopar_core.cli.session import (
    Request,
    Session,
    json_option,
    open_session,
    place_option,
    plugin_options,
)
from autopar_core.cli.words import cell, columns, heading, memory, seconds
from autopar_core.config.converter import nearest
from autopar_core.domain.export import ExportEstimate, ExportRequest
from autopar_core.domain.strategy import Strategy
from autopar_core.errors import AutoparError, InputError, PluginCallError, PluginError


if TYPE_CHECKING:
    from autopar_core.hooks.named import Exporter
    from autopar_core.plugins.manager import PluginManager

_PLAN = ("stage_partition", "layer_offset", "layer_recompute")


@click.command()
@click.argument("folder", type=click.Path(path_type=Path), metavar="DIR")
@place_option
@click.option("--to", "target", metavar="NAME", required=True, help="Format to write.")
@click.option(
    "--out", type=click.Path(path_type=Path), metavar="DIR",
    help="Where to write; without it the files are printed.",
)  # fmt: skip
@plugin_options
@json_option
def export(
    folder: Path,
    place: int,
    target: str,
    out: Path | None,
    disable: tuple[str, ...],
    only: tuple[str, ...],
    plugin_files: tuple[Path, ...],
    as_json: bool,
) -> int:
    """Write the files that launch a strategy of a run, with its estimate at the top.

    A strategy that the format has no way to say is refused with the nearest one that it can say.
    """
    run = EarlierRun.read(folder, "export")
    chosen = run.at(place)
    session = open_session(Request.again(folder, disable, only, plugin_files))
    plugin, exporter = _exporter(session.manager, target)
    files = _written(plugin, exporter, _request(run, chosen, session))
    if out is not None:
        write_files(out, {name: text.encode() for name, text in files.items()})
    if as_json:
        print_json({"to": exporter.name, "place": place, "files": files})
    elif out is None:
        for name, text in files.items():
            click.echo(f"==> {name} <==")
            click.echo(text)
    else:
        for name in files:
            click.echo(f"{out / name}")
    if not session.job.framework.is_a(*exporter.frameworks):
        click.echo(
            f"note: the estimate is for {session.job.framework.name}; that of {exporter.name} may "
            "differ",
            err=True,
        )
    return 0


def _exporter(manager: PluginManager, target: str) -> tuple[str, Exporter]:
    exporters = [
        (plugin, each) for plugin, many in manager.collect("autopar_exporters") for each in many
    ]
    named = [pair for pair in exporters if pair[1].name == target]
    if len(named) > 1:
        plugins = ", ".join(plugin for plugin, _ in named)
        raise PluginError(f"exporter '{target}' comes from several plugins: {plugins}; disable one")
    if not named:
        names = sorted(each.name for _, each in exporters)
        raise InputError(
            f"--to {target}", f"unknown format{nearest(target, names, noun='formats', many=40)}"
        )
    return named[0]


def _request(run: EarlierRun, chosen: Mapping[str, Any], session: Session) -> ExportRequest:
    from autopar_core.plugins.fields import PLAN_FIELDS, declared_fields

    job = session.job
    hidden = {field.name for field in PLAN_FIELDS}
    fields = {
        name: chosen.get(name, field.neutral)
        for name, field in declared_fields(session.manager).items()
        if name not in hidden
    }
    strategy = Strategy(fields=fields, **{key: chosen[key] for key in _PLAN})
    estimate = ExportEstimate(
        seconds=chosen["performance_cost"], low_seconds=chosen["performance_low"],
        high_seconds=chosen["performance_high"], memory_bytes=chosen["memory_cost"],
        limit_bytes=job.cluster.memory_limit,
    )  # fmt: skip
    return ExportRequest(
        model=job.model, training=job.training, cluster=job.cluster, system=job.system,
        framework=job.framework, strategy=strategy, estimate=estimate, plugins=job.plugin_sections,
        header=tuple(_header(run, chosen, session)),
    )  # fmt: skip


def _header(run: EarlierRun, chosen: Mapping[str, Any], session: Session) -> Iterator[str]:
    """The estimate and how it was made: the same for the same run, whenever and wherever."""
    job = session.job
    yield (
        f"autopar {autopar_core.__version__}: estimated step time "
        f"{seconds(chosen['performance_cost'])} ({seconds(chosen['performance_low'])} to "
        f"{seconds(chosen['performance_high'])}), memory {memory(chosen['memory_cost'])} of "
        f"{memory(job.cluster.memory_limit)} per device"
    )
    named = ", ".join(f"{heading(key)} {cell(key, chosen[key])}" for key in columns([chosen]))
    yield f"place {chosen['place']} of a search: {named}" if named else "one device"
    training = job.training
    yield (
        f"{job.model.name or 'model'}, {job.model.parameters:,} parameters; "
        f"{words.several(training.global_batch_size, 'sequence')} of "
        f"{training.seq_len:,} tokens per step, "
        f"{training.precision}; {job.cluster.devices:,} x {job.system.name}; "
        f"profile {job.framework.name}"
    )
    plugins = run.document.get("plugins", ())
    active = [plugin for plugin in plugins if plugin["status"] == "active"]
    versions = [f"{plugin['name']} {plugin.get('version', '')}".strip() for plugin in active]
    yield f"plugins: {', '.join(versions)}"
    yield "estimated, not measured on these machines"


def _written(plugin: str, exporter: Exporter, request: ExportRequest) -> dict[str, str]:
    """The files of an exporter.

    Raises:
        CannotExpress: When the format has no way to say the strategy.
        PluginCallError: When the plugin failed or broke the contract.
    """
    hook = f"exporter '{exporter.name}'"
    try:
        with plugins_at_work():
            files = dict(exporter.export(request))
    except AutoparError:
        raise
    except Exception as error:
        raise PluginCallError(plugin, hook, f"{type(error).__name__}: {error}") from error
    for name, text in files.items():
        path = Path(name)
        if path.is_absolute() or ".." in path.parts or not isinstance(text, str):
            raise PluginCallError(plugin, hook, f"{name!r} is no file name with a text")
    return files
