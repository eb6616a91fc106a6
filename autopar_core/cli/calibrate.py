"""``autopar calibrate``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from autopar_core.cli.folder import add_files
from autopar_core.cli.output import plugins_at_work, print_json, print_table
from autopar_core.cli.session import json_option, load_plugins
from autopar_core.errors import InputError
from autopar_core.units import counted


if TYPE_CHECKING:
    from autopar_core.validate.calibrate import Calibration

FITTED, NOTHING = 0, 1
_RIGHT = ("shipped", "fitted", "spread %", "runs", "configurations", "median %", "p90 %")


@click.command()
@click.argument(
    "files", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="RUNS.tsv..."
)
@click.option("--system", required=True, metavar="NAME", help="System that the runs were on.")
@click.option("--framework", required=True, metavar="NAME", help="Framework profile of the runs.")
@click.option(
    "--fit", multiple=True, metavar="CONSTANT",
    help="Refuse to answer when this constant cannot be fitted.",
)  # fmt: skip
@click.option(
    "--out", type=click.Path(path_type=Path), metavar="FILE.toml",
    help="Write the profile; `framework.calibration` in an input uses it.",
)  # fmt: skip
@json_option
def calibrate(
    files: tuple[Path, ...], system: str, framework: str, fit: tuple[str, ...], out: Path | None,
    as_json: bool,
) -> int:  # fmt: skip
    """Fit a profile to your own runs.

    RUNS.tsv are tables as for validate; rows of other systems and frameworks are left out. Fitted are
    few physical constants, each only where the runs carry it. The error is told for runs that were
    not fitted.
    """
    from autopar_core.validate.calibrate import calibrate as fit_runs
    from autopar_core.validate.calibration_file import as_document, as_toml
    from autopar_core.validate.rows import read_runs

    if out is not None and out.is_dir():
        raise InputError(f"--out {out}", "is a folder; name a file")
    runs = read_runs(files)
    manager = load_plugins()
    with plugins_at_work():
        found = fit_runs(runs, system, framework, manager, fit)
    if out is not None and found.fitted:
        add_files(out.parent, {out.name: as_toml(found).encode()}, f"--out {out}")
    if as_json:
        print_json(as_document(found))
    else:
        _print(as_document(found), found, out)
    return FITTED if found.fitted else NOTHING


def _print(document: dict[str, Any], found: Calibration, out: Path | None) -> None:
    click.echo(
        f"{counted(found.rows, 'run')} of {found.framework} on {found.system}, "
        f"{counted(found.configurations, 'configuration')}; "
        f"{counted(found.left_out, 'other row')} left out"
    )
    constants = [
        {
            "constant": each["name"], "shipped": f"{each['shipped']:.4g}",
            "fitted": f"{each['value']:.4g}", "spread %": f"{100 * each['spread']:.1f}",
            "runs": str(each["rows"]), "configurations": str(each["configurations"]),
        }
        for each in document["constants"]
    ]  # fmt: skip
    print_table("Constants", constants, _RIGHT)
    refused = [{"not fitted": name, "why": why} for name, why in document["not_fitted"].items()]
    print_table("", refused)
    words = {"shipped": "as shipped", "held_out": "fitted on the other half"}
    errors = [
        {
            "step time": words[name], "median %": f"{sizes['median_abs_pct']:.1f}",
            "p90 %": f"{sizes['p90_abs_pct']:.1f}",
        }
        for name, sizes in document["errors"].items()
    ]  # fmt: skip
    print_table("Errors", errors, _RIGHT)
    if not found.fitted:
        click.echo("nothing can be fitted: see above for what is needed", err=True)
    elif out is None:
        click.echo("nothing was written; name a file with --out", err=True)
    else:
        click.echo(f'written to {out}; use it with framework.calibration = "{out}"', err=True)
