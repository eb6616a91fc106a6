"""What ``autopar validate`` judges: whole runs, timed operations, and reports from the field."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np
from attrs import frozen

from autopar_core.cli.output import plugins_at_work, print_table
from autopar_core.cli.session import console, load_plugins
from autopar_core.errors import InputError
from autopar_core.units import counted


if TYPE_CHECKING:
    from autopar_core.plugins.manager import PluginManager
    from autopar_core.validate import predict
    from autopar_core.validate.field import Order, Verdict
    from autopar_core.validate.operations import Judged
    from autopar_core.validate.rows import Run

_RIGHT = (
    "lines", "median %", "p90 %", "long: median %", "long: p90 %", "profile: median %",
    "profile: p90 %", "memory GiB", "reserved GiB", "limit GiB", "measured", "predicted ratio",
)  # fmt: skip


@frozen(kw_only=True)
class Answer:
    """A document for JSON, tables for people, and whether anything could be judged.

    Attributes:
        tables: (title, rows) each.
        right: Headings of numbers.
        pictures: File name -> content, drawn when called.
    """

    document: dict[str, Any]
    lines: tuple[str, ...]
    tables: tuple[tuple[str, Sequence[Mapping[str, str]]], ...]
    judged: bool
    right: tuple[str, ...] = _RIGHT
    pictures: Callable[[], Mapping[str, bytes]] = dict

    def show(self) -> None:
        """Print sentences and tables."""
        for line in self.lines:
            click.echo(line)
        for title, rows in self.tables:
            print_table(title, rows, self.right)


def runs(files: Sequence[Path]) -> Answer:
    """Whole runs: every row that can be predicted, with the errors by source.

    Raises:
        InputError: When a table is wrong.
    """
    from autopar_core.validate import summary
    from autopar_core.validate.rows import read_runs

    def drawn() -> Mapping[str, bytes]:
        from autopar_core.validate.plot import pictures

        return pictures(rows)

    measured = read_runs(files)
    manager = load_plugins()
    with plugins_at_work():
        answer = _predicted(measured, manager)
    rows = answer.rows
    skipped = sum(row.skipped is not None for row in rows)
    lacking = [
        {"rows": str(count), "missing": fact} for fact, count in sorted(answer.no_memory.items())
    ]
    return Answer(
        document=summary.document(answer), judged=skipped < len(rows),
        lines=(f"{counted(len(rows), 'run')}: {len(rows) - skipped} predicted, {skipped} skipped",),
        tables=(
            *summary.tables(rows), *summary.group_tables(answer),
            (summary.CHOICE_TITLE, summary.choice_lines(answer)),
            ("Skipped: what is missing", summary.reasons(rows)),
            ("Step time only: what memory lacks", lacking),
        ),
        right=summary.RIGHT, pictures=drawn,
    )  # fmt: skip


def _predicted(measured: list[Run], manager: PluginManager) -> predict.Answer:
    from autopar_core.validate import predict

    if not sys.stderr.isatty():
        return predict.validate(measured, manager)
    from rich.progress import Progress

    with Progress(console=console(stderr=True), transient=True) as shown:
        task = shown.add_task("predicting runs", total=len(measured))
        return predict.validate(
            measured, manager, lambda done, total: shown.update(task, completed=done, total=total)
        )


def operations(path: Path, name: str) -> Answer:
    """Laws of GEMMs, attention and memory-bound operations.

    Raises:
        InputError: When the tables or the system are not known.
    """
    from autopar_core.config.catalogue import Profiles, system_profile
    from autopar_core.validate.operations import as_document, judge_operations, read_operations

    lines = read_operations(path)
    table = Profiles("system", load_plugins()).table(name, "--system")
    judged = judge_operations(lines, system_profile(table, lambda _: f"{name}.toml"))
    said = (
        f"{sum(map(len, lines.values()))} operations: each law fitted on half, judged on the other"
    )
    return Answer(
        document=as_document(judged), lines=(said,), judged=bool(judged),
        tables=(("Laws of operations", [_law(each) for each in judged]),
                ("Constants, fitted on all lines", [_constants(each) for each in judged])),
    )  # fmt: skip


def _law(judged: Judged) -> dict[str, str]:
    return {
        "operation": judged.name, "lines": str(len(judged.errors)),
        **_sizes("", judged.errors), **_sizes("long: ", judged.errors[judged.long]),
        **_sizes("profile: ", judged.shipped),
    }  # fmt: skip


def _sizes(prefix: str, errors: Any) -> dict[str, str]:
    size = np.abs(errors)
    values = [f"{np.percentile(size, share):.1f}" if len(size) else "" for share in (50, 90)]
    return {f"{prefix}median %": values[0], f"{prefix}p90 %": values[1]}


def _constants(judged: Judged) -> dict[str, str]:
    values = ", ".join(f"{name} {value:.4g}" for name, value in judged.constants.items())
    return {"operation": judged.name, "constants": values}


def reports(cases: Path | None, pairs: Path | None) -> Answer:
    """Cases that fit or ran out of memory, or pairs of which one was faster.

    Raises:
        InputError: When a table is wrong, or pairs come without the cases that they name.
    """
    from autopar_core.validate.field import as_document, judge_cases, judge_pairs, share_right
    from autopar_core.validate.field_reader import read_cases, read_pairs

    if cases is None:
        raise InputError("--pairs", "name the table of its configurations too: --cases FILE")
    known = read_cases(cases)
    manager = load_plugins()
    judged: Sequence[Verdict] | Sequence[Order]
    with plugins_at_work():
        if pairs is None:
            title, judged = "Does it fit?", judge_cases(known.values(), manager)
            rows = [_verdict_line(each) for each in judged]
        else:
            title, judged = "Which is better?", judge_pairs(read_pairs(pairs), known, manager)
            rows = [_order_line(each) for each in judged]
    right, count = share_right(judged)
    share = f" ({100 * right / count:.0f} %)" if count else ""
    said = f"{counted(len(judged), 'row')}: {count} judged, {right} right{share}"
    return Answer(
        document=as_document(judged), lines=(said,), judged=bool(count), tables=((title, rows),)
    )


def _word(right: bool | None, why: str) -> str:
    return f"not judged: {why}" if right is None else "right" if right else "wrong"


def _verdict_line(each: Verdict) -> dict[str, str]:
    return {
        "case": each.id, "framework": each.framework, "reported": each.reported,
        "predicted": each.predicted, "memory GiB": _number(each.memory_gib),
        "reserved GiB": _number(each.reserved_gib), "limit GiB": _number(each.limit_gib),
        "judged": _word(each.right, each.why),
    }  # fmt: skip


def _order_line(each: Order) -> dict[str, str]:
    return {
        "pair": each.id, "metric": each.metric, "measured": f"{each.measured:.3f}",
        "predicted ratio": "" if each.predicted is None else f"{each.predicted:.3f}",
        "judged": _word(each.right, each.why),
    }  # fmt: skip


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"
