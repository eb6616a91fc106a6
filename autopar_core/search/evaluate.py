"""Memory (exact) and step time (bound or exact) of many rows, chunk by chunk, worker by worker.

A row's numbers depend on its own values alone: not on the other rows of its chunk, the chunk size, the
number of workers or the order of plugins.
"""

from __future__ import annotations

import multiprocessing
import warnings
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from typing import Any

import numpy as np
from attrs import define, field, frozen

from autopar_core.compose.layout import Layout
from autopar_core.compose.memory_table import MemoryTable
from autopar_core.compose.situation import Situation
from autopar_core.compose.time_table import TimeTable
from autopar_core.domain.arrays import Bools, Floats, Ints
from autopar_core.domain.space import Plan
from autopar_core.domain.strategy import StrategyBatch
from autopar_core.domain.verdict import OVER_MEMORY
from autopar_core.hooks.schedule import ScheduleKey
from autopar_core.search.boxes import space
from autopar_core.search.clock import StageTimes, clock, stage_seconds
from autopar_core.search.contexts import Contexts
from autopar_core.search.least import least_times
from autopar_core.search.memory_verdict import reserved_bytes
from autopar_core.search.problem import Problem, Solution
from autopar_core.search.solve import solve
from autopar_core.search.survey import survey
from autopar_core.search.terms import Objection, Terms, collect
from autopar_core.search.unsuited import objections as unsuited
from autopar_core.units import GIB


# Rows per chunk: tables of a chunk stay within a few tens of MB.
CHUNK_ROWS = 8192
# Rows x stages solved at once: arrays of this many cells stay in a core's cache.
CELLS = 2**17
LEAST_ROWS = 256
# Parts per process: some take longer than others.
SHARES = 4


@define(eq=False)
class Estimates:
    """Results of N rows.

    Attributes:
        memory: (N,) bytes, allocated of the worst rank plus reserves; -1 where not estimated.
        allocated: (N,) bytes of the worst rank; -1 where not estimated.
        reserved: (N,) bytes that the allocator holds, plus reserves; -1 where not estimated.
        worst: (N,) that rank.
        seconds: (N,) step time; NaN where not estimated.
        layout: (N,) a fingerprint of the layers and their recompute on every stage.
        possible: (N,) rows that could be estimated.
        objections: Reasons of the rows that could not.
    """

    memory: Ints
    allocated: Ints
    reserved: Ints
    worst: Ints
    seconds: Floats
    layout: Ints
    possible: Bools
    objections: list[tuple[Ints, Objection]] = field(factory=list)

    @classmethod
    def empty(cls, size: int) -> Estimates:
        """Nothing estimated yet."""
        none = np.full(size, -1, dtype=np.int64)
        zero = np.zeros(size, np.int64)
        return cls(none, none.copy(), none.copy(), zero, np.full(size, np.nan), zero.copy(),
                   np.ones(size, bool))  # fmt: skip


class Effort(Enum):
    """How a row's layers and time are found.

    ``BOUND`` and ``REPLAY`` take the balanced layout, with a bound of its step or its exact step.
    ``SEARCH`` looks for the fastest layout and replays it; ``CELLS`` tries every layer on every chunk.
    """

    BOUND = 0
    REPLAY = 1
    SEARCH = 2
    CELLS = 3


class Estimator:
    """Evaluates rows of one job."""

    def __init__(self, contexts: Contexts) -> None:
        self.contexts = contexts
        self._situations: dict[Any, Situation] = {}

    def situation(self, key: ScheduleKey, table: MemoryTable) -> Situation:
        """Moments of a key that matter for the terms at hand; computed once."""
        key = self.contexts.composer.moment_key(key)
        mark = (key, table.whens, table.forward_end)
        found = self._situations.get(mark)
        if found is None:
            moments = self.contexts.composer.moments(key)
            found = Situation.of(key, moments, table.whens, table.forward_end)
            self._situations[mark] = found
        return found

    def problem(self, key: ScheduleKey, memory: MemoryTable, time: TimeTable) -> Problem:
        """The solver's view of some rows of one key."""
        job = self.contexts.job
        core = job.framework.core
        modes = tuple(m for m in core.recompute_modes if m in core.recompute_linears)
        return Problem(
            self.contexts.composer, key, self.situation(key, memory), memory, time,
            job.cluster.memory_limit - memory.reserve, job.model.num_layers, self.granularity,
            modes, core.recompute_every,
        )  # fmt: skip

    @property
    def granularity(self) -> str:
        """How recompute is spelled: the framework's way, or once for all stages when asked for."""
        job = self.contexts.job
        spelled = job.framework.core.recompute_granularity
        return "count" if job.space.uniform_recompute and spelled == "stage" else spelled

    def plans(self, partition: int, recompute: int) -> tuple[Plan, Plan]:
        """Plans by the indices of the plan columns."""
        space = self.contexts.job.space
        return space.partitions[partition], space.recomputes[recompute]

    def stage_times(
        self, key: ScheduleKey, time: TimeTable, layout: Layout, exact: bool
    ) -> StageTimes:
        """Times of every stage and the end of every rank, bounded or replayed."""
        forward, backward = stage_seconds(key, time, layout)
        return clock(self.contexts.composer, key, time, layout.layers, forward, backward, exact)

    def rows(self, batch: StrategyBatch, effort: Effort = Effort.BOUND) -> Estimates:
        """Estimate one chunk of rows."""
        result = Estimates.empty(len(batch))
        terms = collect(batch, self.contexts)
        for objection in terms.objections:
            result.possible &= ~objection.rows
            result.objections.append((np.nonzero(objection.rows)[0], objection))
        usable = np.nonzero(result.possible)[0]
        if len(usable):
            self._estimate(batch, terms, usable, result, effort)
        return result

    def _estimate(
        self, batch: StrategyBatch, terms: Terms, usable: Ints, result: Estimates, effort: Effort
    ) -> None:
        memory = MemoryTable.build(terms.memory, len(batch))
        time = TimeTable.build(terms.time, len(batch))
        composer, searched = self.contexts.composer, effort in (Effort.SEARCH, Effort.CELLS)
        index, keys = composer.keys(batch)
        alike: dict[ScheduleKey, list[int]] = {}
        for number, key in enumerate(keys):
            # what is searched is timed, so its rows share the key itself; else their moments
            alike.setdefault(key if searched else composer.moment_key(key), []).append(number)
        plans = batch["partition_plan"] * (1 << 20) + batch["recompute_plan"]
        for numbers in alike.values():
            group = usable[np.isin(index[usable], numbers)]
            size = max(LEAST_ROWS, CELLS // keys[numbers[0]].stages)
            for plan in np.unique(plans[group]):
                every = group[plans[group] == plan]
                pair = self.plans(int(plan) >> 20, int(plan) % (1 << 20))
                for start in range(0, len(every), size):
                    rows = every[start : start + size]
                    problem = self.problem(keys[numbers[0]], memory.take(rows), time.take(rows))
                    if searched:
                        found = solve(problem, *pair, thorough=effort is Effort.CELLS)
                    else:
                        found = survey(problem, *pair)
                    self._record_memory(problem, found, rows, result, pair)
                    exact = effort is not Effort.BOUND
                    self._record_time(problem, found, rows, result, exact, keys, index)

    def least(self, batch: StrategyBatch) -> Floats:
        """(N,) seconds that no layout of these rows goes below; 0 where layouts are not open."""
        terms = collect(batch, self.contexts)
        memory = MemoryTable.build(terms.memory, len(batch))
        time = TimeTable.build(terms.time, len(batch))
        composer, layers = self.contexts.composer, self.contexts.job.model.num_layers
        index, keys = composer.keys(batch)
        plans = batch["partition_plan"] * (1 << 20) + batch["recompute_plan"]
        seconds = np.zeros(len(batch))
        for number, plan in sorted({*zip(index.tolist(), plans.tolist(), strict=True)}):
            rows = np.nonzero((index == number) & (plans == plan))[0]
            partition, recompute = self.plans(plan >> 20, plan % (1 << 20))
            open_ = space(composer, keys[number], layers, partition)
            if open_.fixed is None and open_.possible and open_.listed is None:
                problem = self.problem(keys[number], memory.take(rows), time.take(rows))
                found = least_times(problem, open_, recompute)
                seconds[rows] = found.steps(composer, keys[number], problem.time)
        return seconds

    def _record_time(
        self, problem: Problem, solution: Solution, rows: Ints, result: Estimates, exact: bool,
        keys: Sequence[ScheduleKey], index: Ints,
    ) -> None:  # fmt: skip
        for number in np.unique(index[rows]).tolist():
            at = np.nonzero(index[rows] == number)[0]
            times = self.stage_times(
                keys[number], problem.time.take(at), solution.layout.take(at), exact
            )
            result.seconds[rows[at]] = times.step
        result.seconds[rows[~solution.possible]] = np.nan

    def _record_memory(
        self, problem: Problem, solution: Solution, rows: Ints, result: Estimates,
        plans: tuple[Plan, Plan],
    ) -> None:  # fmt: skip
        worst = solution.peaks.argmax(axis=1)
        allocated = solution.peaks.max(axis=1)
        ok = solution.possible
        done = rows[ok]
        result.worst[done] = worst[ok]
        result.layout[done] = fingerprint(solution.layout)[ok]
        result.allocated[done] = allocated[ok].astype(np.int64)
        result.memory[done] = (allocated + problem.memory.reserve)[ok].astype(np.int64)
        held = reserved_bytes(self.contexts.job.framework.core, solution.layout, allocated)
        result.reserved[done] = (held + problem.memory.reserve)[ok].astype(np.int64)
        if ok.all():
            return
        result.possible[rows[~ok]] = False
        for mine, objection in unsuited(problem, solution, plans, self.contexts):
            result.objections.append((rows[mine], objection))


def evaluate(
    batch: StrategyBatch, estimator: Estimator, *, workers: int = 1, chunk_rows: int = 0,
    effort: Effort = Effort.BOUND, progress: Callable[[int, int], None] | None = None,
) -> Estimates:  # fmt: skip
    """Estimate all rows: memory and step time of their layouts.

    Rows are ordered by schedule key first, so that a chunk holds few keys; results are put back where
    they belong.
    """
    size = len(batch)
    share = size if workers <= 1 else -(-size // (SHARES * workers))
    chunk = chunk_rows or max(1, min(CHUNK_ROWS, share))
    index, _ = estimator.contexts.composer.keys(batch)
    order = np.argsort(index, kind="stable")
    parts = [order[i : i + chunk] for i in range(0, size, chunk)]
    result = Estimates.empty(size)
    done = 0
    for rows, found in zip(parts, _mapped(estimator, batch, parts, workers, effort), strict=True):
        for name in ("memory", "allocated", "reserved", "worst", "seconds", "layout", "possible"):
            getattr(result, name)[rows] = getattr(found, name)
        result.objections += [(rows[at], objection) for at, objection in found.objections]
        done += len(rows)
        if progress is not None:
            progress(done, size)
    return result


# What forked workers inherit: they cannot be handed loaded plugins through a pipe.
_SHARED: dict[str, Any] = {}


def _run(rows: Ints) -> Estimates:
    batch = _SHARED["batch"].take(rows)
    found: Estimates = _SHARED["estimator"].rows(batch, _SHARED["effort"])
    return found


def _mapped(
    estimator: Estimator, batch: StrategyBatch, parts: list[Ints], workers: int, effort: Effort
) -> Iterator[Estimates]:
    """Estimates of each part in order, by forked processes where the system has them."""
    _SHARED.update(estimator=estimator, batch=batch, effort=effort)
    try:
        if workers <= 1 or len(parts) <= 1 or "fork" not in multiprocessing.get_all_start_methods():
            yield from map(_run, parts)
            return
        with warnings.catch_warnings():
            # numerical libraries may keep idle threads; children only compute and return arrays
            warnings.simplefilter("ignore", DeprecationWarning)
            with multiprocessing.get_context("fork").Pool(min(workers, len(parts))) as pool:
                yield from pool.imap(_run, parts)
    finally:
        _SHARED.clear()


@frozen(eq=False)
class Sentences:
    """Sentences of one reason for many rows, made when they are asked for."""

    code: str
    owner: str
    rows: Ints
    text: Callable[[int], str]

    def say(self, index: int) -> str:
        """Sentence of the ``index``-th of ``rows``."""
        return self.text(index)


SAME_PLAN = "same-plan"
# The multiplier of the L64 generators (Steele and Vigna 2021): a polynomial in it modulo 2^64 tells
# layouts apart but for a chance of 2^-64.
MULTIPLIER = np.uint64(0xD1342543DE82EF95)


def fingerprint(layout: Layout) -> Ints:
    """(K,) a number that is the same for equal layouts only."""
    value = np.full(len(layout.layers), layout.every, dtype=np.uint64)
    with np.errstate(over="ignore"):
        for columns in (layout.layers, layout.selective, layout.full):
            for column in columns.T.astype(np.uint64):
                value = (value + column + np.uint64(1)) * MULTIPLIER
    return value.view(np.int64)


def first_alike(batch: StrategyBatch, layout: Ints, rows: Ints) -> Ints:
    """(R,) the first of some ascending rows to which the plans give the very same layers."""
    plans = ("partition_plan", "recompute_plan")
    keys = batch.take(rows).packed([name for name in batch.fields if name not in plans])
    keys.append(layout[rows])
    order = np.lexsort((rows, *keys))
    same = np.ones(max(len(rows) - 1, 0), dtype=bool)
    for key in keys:
        same &= key[order][1:] == key[order][:-1]
    head = np.maximum.accumulate(np.where(np.r_[True, ~same], np.arange(len(rows)), 0))
    first = np.empty(len(rows), np.int64)
    first[order] = rows[order[head]] if len(rows) else rows
    return first


def repeated_plans(rows: Ints) -> Sentences:
    """Rows to which another plan gives the very same layers and recompute; the first one stays."""
    sentence = "another partition or recompute plan gives this row the same layers"
    return Sentences(SAME_PLAN, "core", np.sort(rows), lambda _: sentence)


def over_memory(estimates: Estimates, limit: int) -> Sentences | None:
    """Rows that need more than the limit."""
    rows = np.nonzero(estimates.possible & (estimates.memory > limit))[0]
    if not len(rows):
        return None
    need = (estimates.memory[rows] / GIB).tolist()
    stage = estimates.worst[rows].tolist()
    most = limit / GIB

    def text(index: int) -> str:
        return (
            f"needs {need[index]:.2f} GiB on stage {stage[index]}, {need[index] - most:.2f} GiB over "
            f"the limit of {most:.2f} GiB"
        )

    return Sentences(OVER_MEMORY, "core", rows, text)


def merged(objections: list[tuple[Ints, Objection]]) -> list[Sentences]:
    """Objections of all chunks, one entry per reason, rows ascending, in the order of code and text."""
    found: dict[tuple[str, str, str], list[Ints]] = {}
    for rows, objection in objections:
        mark = (objection.code, objection.owner, objection.sentence)
        found.setdefault(mark, []).append(rows)
    made = []
    for (code, owner, sentence), parts in sorted(found.items()):
        rows = np.sort(np.concatenate(parts))
        made.append(Sentences(code, owner, rows, lambda _, s=sentence: s))  # type: ignore[misc]
    return made
