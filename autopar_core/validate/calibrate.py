"""A person's own runs as a profile: few physical constants, fitted robustly and judged on a half."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from attrs import field, frozen

from autopar_core.config.catalogue import Profiles, framework_profile, system_profile
from autopar_core.config.tables import deep_merge
from autopar_core.domain.arrays import Bools, Floats
from autopar_core.domain.framework import FrameworkProfile
from autopar_core.domain.system import SystemProfile
from autopar_core.domain.terms import MODES
from autopar_core.errors import InputError
from autopar_core.units import counted
from autopar_core.validate.constants import (
    Constant,
    change,
    constants_of,
    reserved_of,
    rules,
)
from autopar_core.validate.fit import Fitted, Times, Values, fit_time, held_out
from autopar_core.validate.mapping import MissingFactError, map_run
from autopar_core.validate.predict import Answer, Row, validate
from autopar_core.validate.rows import Run


if TYPE_CHECKING:
    from autopar_core.plugins.manager import PluginManager


@frozen(kw_only=True)
class Calibration:
    """What runs say about a system under a framework.

    Attributes:
        system, framework: Names of the profiles.
        fitted: Constants, those of time first.
        refused: Constant -> why the rows do not carry it.
        rows, configurations: Runs with a step time, and how many different ones.
        left_out: Runs of other systems or frameworks, or without a prediction.
        before, held_out: ln(measured / predicted) of every run with the shipped constants, and with
            those fitted on the half that it is not in.
        memory: ln(measured / predicted) of allocated memory; no constant is fitted for it.
        reserved: The same of reserved memory, with ratios fitted on the other half.
    """

    system: str
    framework: str
    fitted: tuple[Fitted, ...]
    refused: Mapping[str, str]
    rows: int
    configurations: int
    left_out: int
    before: Floats
    held_out: Floats
    memory: Floats = field(factory=lambda: np.zeros(0))
    reserved: Floats = field(factory=lambda: np.zeros(0))


def calibrate(
    runs: Sequence[Run], system: str, framework: str, manager: PluginManager,
    asked: Sequence[str] = (),
) -> Calibration:  # fmt: skip
    """Fit what the runs carry.

    Args:
        runs: Lines of files; those of other systems and frameworks are left out.
        system, framework: Names or aliases of the profiles.
        manager: Active plugins.
        asked: Constants that must be fitted; all that the rows carry when empty.

    Raises:
        InputError: An unknown name, or a constant that was asked for and is not carried.
    """
    machine, profile = _profiles(system, framework, manager)
    known = constants_of(machine, profile)
    _check_names(asked, known)
    own = _own(runs, machine.name, profile.name, manager)
    answer = validate(own, manager)
    mine = np.array([fact is not None for fact in answer.facts], dtype=bool)
    timed = mine & np.array([
        bool(row.measured_step_time_s and row.predicted_step_time_s) for row in answer.rows
    ], dtype=bool)  # fmt: skip
    times = _times(own, answer, timed, manager)
    fitted, refused = fit_time(times, known)
    chosen = [each.constant for each in fitted]
    before, held = np.zeros(0), np.zeros(0)
    if chosen:
        before, held = times.left({}), held_out(times, chosen)
    held_reserved, ratios, refused_ratios = _reserved(answer, mine, machine, profile)
    for name in asked:
        if name in refused:
            raise InputError("--fit", f"{name}: {refused[name]}")
    return Calibration(
        system=machine.name, framework=profile.name, fitted=(*fitted, *ratios),
        refused={**refused, **refused_ratios}, rows=int(timed.sum()),
        configurations=len(np.unique(times.index)), left_out=len(runs) - int(mine.sum()),
        before=before, held_out=held, memory=_logs(answer, mine, "peak_mem_gib"), reserved=held_reserved,
    )  # fmt: skip


def _profiles(
    system: str, framework: str, manager: PluginManager
) -> tuple[SystemProfile, FrameworkProfile]:
    machine = Profiles("system", manager).table(system, "--system")
    profile = Profiles("framework", manager).table(framework, "--framework")
    return (
        system_profile(machine, lambda _: f"{system}.toml"),
        framework_profile(profile, lambda _: f"{framework}.toml"),
    )


def _own(runs: Sequence[Run], system: str, framework: str, manager: PluginManager) -> list[Run]:
    """The runs of a system and a framework."""
    systems, found = Profiles("system", manager), []
    for run in runs:
        try:
            tables = map_run(run, systems).tables
        except MissingFactError:
            continue
        if (tables["cluster"]["system"], tables["framework"]["name"]) == (system, framework):
            found.append(run)
    return found


def _check_names(asked: Sequence[str], known: Sequence[Constant]) -> None:
    names = [each.name for each in known]
    for name in asked:
        if name not in names:
            raise InputError("--fit", f"no constant {name!r}; known: {', '.join(names)}")


def _times(runs: Sequence[Run], answer: Answer, rows: Bools, manager: PluginManager) -> Times:
    at = np.nonzero(rows)[0].tolist()
    chosen = [runs[i] for i in at]
    # runs of the same configuration, and only they, have the same prediction to the last bit
    known: dict[float | None, int] = {}
    index = [known.setdefault(answer.rows[i].predicted_step_time_s, len(known)) for i in at]
    first = np.array([answer.rows[i].predicted_step_time_s for i in at], dtype=np.float64)
    asked: dict[tuple[tuple[str, float], ...], Floats] = {(): first}

    def predicted(values: Values) -> Floats:
        mark = tuple((each.name, value) for each, value in values.items())
        if mark not in asked:
            made = validate(chosen, manager, change=change(values))
            asked[mark] = np.array([row.predicted_step_time_s for row in made.rows], np.float64)
        return asked[mark]

    measured = [answer.rows[i].measured_step_time_s for i in at]
    return Times(
        measured=np.array(measured, dtype=np.float64), index=np.array(index, dtype=np.int64),
        predicted=predicted,
    )  # fmt: skip


def _logs(answer: Answer, rows: Bools, column: str) -> Floats:
    """(k,) ln(measured / predicted) of the rows that have both."""
    found = []
    for row, mine in zip(answer.rows, rows, strict=True):
        measured, predicted = (getattr(row, f"{w}_{column}") for w in ("measured", "predicted"))
        if mine and measured and predicted:
            found.append(np.log(measured / predicted))
    return np.array(found, dtype=np.float64)


def _allocated(row: Row) -> float | None:
    return row.measured_peak_mem_gib or row.predicted_peak_mem_gib


def _reserved(
    answer: Answer, rows: Bools, machine: SystemProfile, profile: FrameworkProfile
) -> tuple[Floats, list[Fitted], dict[str, str]]:
    """(held-out residuals, ratios, refusals) of reserved over allocated memory by recompute mode."""
    found: dict[str, list[float]] = {}
    for row, fact, mine in zip(answer.rows, answer.facts, rows, strict=True):
        allocated = _allocated(row)
        if mine and fact is not None and row.measured_reserved_mem_gib and allocated:
            found.setdefault(fact.mode, []).append(row.measured_reserved_mem_gib / allocated)
    left, fitted, refused = [np.zeros(0)], [], {}
    least = rules()["least_configurations"]
    for mode in (each for each in MODES if each in found):
        ratios = np.log(found[mode])
        constant = reserved_of(mode, machine, profile)
        if len(ratios) < least:
            some = counted(len(ratios), "run")
            refused[constant.name] = f"{some} with reserved memory; {least} are needed"
            continue
        middle = float(np.median(ratios))
        # asymptotic standard error of a median: 1.253 sigma / sqrt(n), sigma from the median deviation
        spread = 1.253 * 1.4826 * float(np.median(np.abs(ratios - middle))) / np.sqrt(len(ratios))
        fitted.append(
            Fitted(constant=constant, value=float(np.exp(middle)), spread=float(spread),
                   rows=len(ratios), configurations=len(np.unique(ratios)))
        )  # fmt: skip
        for fit, judge in ((ratios[::2], ratios[1::2]), (ratios[1::2], ratios[::2])):
            left.append(judge - np.median(fit))
    return np.concatenate(left), fitted, refused


def overrides(found: Calibration) -> dict[str, object]:
    """``{"cluster": ..., "framework": ...}``: the fitted values as overrides of the profiles."""
    tables: dict[str, object] = {}
    for each in found.fitted:
        made = change({each.constant: each.value})
        name = each.constant.path[0]
        tables = deep_merge(tables, {name: made[name]["override"]})
    return tables
