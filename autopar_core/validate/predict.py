"""Predictions of many measured runs: runs of one job are estimated together."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from attrs import asdict, define, evolve, field, frozen

from autopar_core.compose.memory_table import MemoryTable
from autopar_core.compose.time_table import TimeTable
from autopar_core.config.catalogue import Profiles
from autopar_core.config.load import load_job
from autopar_core.config.overrides import Overrides
from autopar_core.config.tables import deep_merge
from autopar_core.domain.arrays import Floats, Ints
from autopar_core.domain.job import Job
from autopar_core.domain.strategy import StrategyBatch
from autopar_core.domain.terms import MODES, TimeTerm
from autopar_core.errors import InputError
from autopar_core.hooks.schedule import ScheduleKey
from autopar_core.search.contexts import Contexts
from autopar_core.search.detail import model_flops
from autopar_core.search.evaluate import Estimator
from autopar_core.search.memory_verdict import recompute_modes, reserved_ratios
from autopar_core.search.problem import Solution
from autopar_core.search.solve import solve
from autopar_core.search.terms import Terms, collect
from autopar_core.units import GIB
from autopar_core.validate.mapping import Mapped, MissingFactError, map_run
from autopar_core.validate.rows import Run


if TYPE_CHECKING:
    from autopar_core.plugins.manager import PluginManager

LINK, HOST = "link", "host"
# Share of a rank's own time beyond its device time from which the host bounds it.
HOST_BOUND = 0.1


@define(kw_only=True)
class Row:
    """One line of the answer; None where there is no number. Names are those of the JSON file."""

    id: str
    source: str
    tier: str
    predicted_step_time_s: float | None = None
    measured_step_time_s: float | None = None
    predicted_peak_mem_gib: float | None = None
    measured_peak_mem_gib: float | None = None
    predicted_reserved_mem_gib: float | None = None
    measured_reserved_mem_gib: float | None = None
    bound_by: str | None = None
    skipped: str | None = None


@frozen(kw_only=True)
class Fact:
    """What a predicted row is beside its numbers.

    Attributes:
        system, framework: Names of its profiles.
        scale, default_scale: The scalar on its step time, and that of a system without its own.
        mode: Recompute mode by which reserved memory is looked up.
        flops_at_peak_s: Its model FLOPs at the data-sheet peak of all devices, seconds.
        tokens: Of one step.
    """

    system: str
    framework: str
    scale: float
    default_scale: float
    mode: str
    flops_at_peak_s: float
    tokens: int


@frozen(kw_only=True)
class Answer:
    """Rows in the order of the files.

    Attributes:
        runs: The lines that the rows were made of.
        rows: Their predictions.
        facts: What else is known of each; None where a row was skipped.
        no_memory: How often a fact lacks that only memory needs.
    """

    runs: tuple[Run, ...]
    rows: tuple[Row, ...]
    facts: tuple[Fact | None, ...]
    no_memory: Mapping[str, int] = field(factory=dict)


def validate(
    runs: Sequence[Run], manager: PluginManager,
    progress: Callable[[int, int], None] | None = None, change: Mapping[str, Any] | None = None,
) -> Answer:  # fmt: skip
    """Predict every run that can be predicted.

    Args:
        runs: Lines of files.
        manager: Active plugins.
        progress: Called with rows done and rows in all.
        change: Input tables below every row's own, for instance overrides of the profiles.

    Raises:
        InputError: When a cell holds something of the wrong kind.
    """
    rows = [_measured(run) for run in runs]
    facts: list[Fact | None] = [None] * len(runs)
    systems = Profiles("system", manager)
    groups: dict[str, list[tuple[int, Mapped]]] = {}
    for number, run in enumerate(runs):
        try:
            mapped = map_run(run, systems)
        except MissingFactError as fact:
            rows[number].skipped = str(fact)
            continue
        if change:
            mapped = evolve(mapped, tables=deep_merge(change, mapped.tables))
        groups.setdefault(json.dumps(mapped.tables, sort_keys=True), []).append((number, mapped))
    done = 0
    for members in groups.values():
        _predict(members, rows, facts, manager)
        done += len(members)
        if progress is not None:
            progress(done, len(runs))
    lacking: dict[str, int] = {}
    for _, mapped in (each for members in groups.values() for each in members):
        if mapped.no_memory:
            lacking[mapped.no_memory] = lacking.get(mapped.no_memory, 0) + 1
    return Answer(runs=tuple(runs), rows=tuple(rows), facts=tuple(facts), no_memory=lacking)


def _measured(run: Run) -> Row:
    """What the row says; a peak of reserved memory is compared with reserved memory."""
    peak, reserved = (
        run.number("measured_peak_mem_gib"), run.number("measured_peak_mem_reserved_gib"),
    )  # fmt: skip
    if run.text("mem_kind").lower().startswith("reserved"):
        peak, reserved = None, peak if reserved is None else reserved
    return Row(
        id=run.id, source=run.source, tier=run.text("tier"),
        measured_step_time_s=run.number("step_time_s"), measured_peak_mem_gib=peak,
        measured_reserved_mem_gib=reserved,
    )  # fmt: skip


def _predict(
    members: Sequence[tuple[int, Mapped]], rows: Sequence[Row], facts: list[Fact | None],
    manager: PluginManager,
) -> None:  # fmt: skip
    """Fill in the rows of one job, and the facts of those that could be predicted."""
    numbers = [number for number, _ in members]
    mapped = [each for _, each in members]
    try:
        job = load_job(None, mapped[0].tables, Overrides(), manager)
        contexts = Contexts.build(job, manager)
        fields = contexts.fields
        columns = {
            name: [fields[name].encode(each.fields[name]) for each in mapped]
            for name in mapped[0].fields
        }
    except InputError as error:
        for number in numbers:
            rows[number].skipped = f"a configuration that can be described ({error.what})"
        return
    batch = StrategyBatch.of(fields, columns)
    terms = collect(batch, contexts)
    for objection in terms.objections:
        for at in np.nonzero(objection.rows)[0].tolist():
            rows[numbers[at]].skipped = rows[numbers[at]].skipped or objection.sentence
    usable = np.array([rows[number].skipped is None for number in numbers])
    modes = _Group(Estimator(contexts), terms, len(batch)).fill(
        batch, np.nonzero(usable)[0], mapped, [rows[number] for number in numbers]
    )
    for at, mode in modes.items():
        facts[numbers[at]] = _fact(job, mode)


def _fact(job: Job, mode: str) -> Fact:
    scales = job.framework.core.time_scale
    default = scales.get("default", 1.0)
    rate = job.cluster.devices * job.system.peak("bf16")
    return Fact(
        system=job.system.name, framework=job.framework.name, mode=mode,
        scale=scales.get(job.system.name, default), default_scale=default,
        flops_at_peak_s=model_flops(job) / rate,
        tokens=job.training.global_batch_size * job.training.seq_len,
    )  # fmt: skip


@frozen(eq=False)
class _Tables:
    """Times of the same rows: all, without links, and each kind of device work alone."""

    whole: TimeTable
    alone: TimeTable
    device: TimeTable
    memory: TimeTable

    @classmethod
    def build(cls, terms: Sequence[TimeTerm], size: int) -> _Tables:
        own = [term for term in terms if term.resource != LINK]
        compute = [term for term in own if term.resource != HOST]
        mathematics = [t for t in compute if t.kind in ("linear", "attention") or _gemm(t)]
        marks = {id(term) for term in mathematics}
        moved = [term for term in compute if id(term) not in marks]
        return cls(*(TimeTable.build(each, size) for each in (terms, own, mathematics, moved)))


def _gemm(term: TimeTerm) -> bool:
    """Products outside the blocks offer no window, so only their formula tells what they are."""
    return term.segment == "head" and "peak" in term.formula


class _Group:
    """Rows of one job."""

    def __init__(self, estimator: Estimator, terms: Terms, size: int) -> None:
        self.estimator = estimator
        self.composer = estimator.contexts.composer
        self.memory = MemoryTable.build(terms.memory, size)
        self.times = _Tables.build(terms.time, size)

    def fill(
        self, batch: StrategyBatch, usable: Ints, mapped: Sequence[Mapped], rows: Sequence[Row]
    ) -> dict[int, str]:
        """Fill in the usable rows, one schedule after another; recompute modes of those done."""
        index, keys = self.composer.keys(batch)
        modes: dict[int, str] = {}
        for number in np.unique(index[usable]).tolist():
            at = usable[index[usable] == number]
            found = self._key(keys[number], at, [mapped[i] for i in at], [rows[i] for i in at])
            modes |= {int(at[i]): mode for i, mode in found.items()}
        return modes

    def _key(
        self, key: ScheduleKey, at: Ints, mapped: Sequence[Mapped], rows: Sequence[Row]
    ) -> dict[int, str]:
        problem = self.estimator.problem(key, self.memory.take(at), self.times.whole.take(at))
        solution = solve(problem, *self.estimator.plans(0, 0))
        step = self.estimator.stage_times(key, problem.time, solution.layout, exact=True)
        ends = step.ends + step.tail
        whole, own, device, memory = (
            self._work(key, table.take(at), solution)
            for table in (self.times.whole, self.times.alone, self.times.device, self.times.memory)
        )
        core = self.estimator.contexts.job.framework.core
        modes = recompute_modes(solution.layout)
        ratios = reserved_ratios(core, modes)
        for i, (each, row) in enumerate(zip(mapped, rows, strict=True)):
            if not solution.possible[i]:
                row.skipped = "a partition and recompute that fit the stages"
                continue
            if each.alone:
                late = each.stage if each.stage is not None else int(own[i].argmax())
                row.predicted_step_time_s = float(own[i, late])
            else:
                late = int(ends[i].argmax())
                row.predicted_step_time_s = float(ends[i, late])
            link = 0.0 if each.alone else whole[i, late] - own[i, late]
            row.bound_by = _bound(own[i, late], device[i, late], memory[i, late], link)
            rank = each.stage if each.stage is not None else int(solution.peaks[i].argmax())
            if not each.no_memory:
                peak = float(solution.peaks[i, rank]) / GIB
                row.predicted_peak_mem_gib = peak
                row.predicted_reserved_mem_gib = peak * float(ratios[i])
        done = np.nonzero(solution.possible)[0].tolist()
        return {i: MODES[int(modes[i])] for i in done}

    def _work(self, key: ScheduleKey, table: TimeTable, solution: Solution) -> Floats:
        """(K, ranks) seconds of a rank's own work, back to back."""
        times = self.estimator.stage_times(key, table, solution.layout, exact=False)
        work = (times.forward + times.backward).reshape(-1, key.chunks, key.ranks).sum(axis=1)
        return np.asarray(key.micro_batches * work + times.tail)


def _bound(own: float, device: float, memory: float, link: float) -> str:
    """What a rank's step consists of most; the host where it adds much to what the device needs."""
    if own - device - memory > HOST_BOUND * own:
        return HOST
    parts = {"device": device, "memory": memory, LINK: link}
    return max(parts, key=lambda name: parts[name])


def as_json(row: Row) -> dict[str, Any]:
    """The row as it stands in the file."""
    return asdict(row)
