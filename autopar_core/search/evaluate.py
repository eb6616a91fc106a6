"""Memory (exact) and step time (bound or exact) of many rows, chunk by chunk, worker by worker.

A row's numbers depend on its own values alone: not on the other rows of its chunk, the chunk size, the
number of workers or the order of plugins.
"""

from __future__ import annotations

import multiprocessing
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from attrs import define, field, frozen

from autopar_core.compose.memory_peak import Layout
from autopar_core.compose.memory_table import MemoryTable
from autopar_core.compose.situation import Situation
from autopar_core.compose.time_table import TimeTable, tail_seconds
from autopar_core.domain.arrays import Bools, Floats, Ints
from autopar_core.domain.space import Plan
from autopar_core.domain.strategy import StrategyBatch
from autopar_core.domain.verdict import OVER_MEMORY
from autopar_core.hooks.schedule import ScheduleKey
from autopar_core.search.contexts import Contexts
from autopar_core.search.problem import Problem, Solution
from autopar_core.search.solve import solve
from autopar_core.search.terms import Objection, Terms, collect
from autopar_core.units import GIB


# Rows per chunk: tables of a chunk stay within a few tens of MB.
CHUNK_ROWS = 8192
# Rows x stages solved at once: arrays of this many cells stay in a core's cache.
CELLS = 2**17
LEAST_ROWS = 256
# Bounds are sums in another order than the replay: their rounding never exceeds this share.
BOUND_SLACK = 1e-12
NO_PARTITION = "partition-shape"


@define(eq=False)
class Estimates:
    """Results of N rows.

    Attributes:
        memory: (N,) bytes, allocated of the worst rank plus reserves; -1 where not estimated.
        allocated: (N,) bytes of the worst rank; -1 where not estimated.
        worst: (N,) that rank.
        seconds: (N,) step time; NaN where not estimated.
        layout: (N,) a fingerprint of the layers and their recompute on every stage.
        possible: (N,) rows that could be estimated.
        objections: Reasons of the rows that could not.
    """

    memory: Ints
    allocated: Ints
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
        return cls(none, none.copy(), zero, np.full(size, np.nan), zero.copy(),
                   np.ones(size, bool))  # fmt: skip


@frozen(eq=False)
class StageTimes:
    """Per virtual stage and per rank, (K, S) or (K, ranks): what the schedule is made of."""

    forward: Floats
    backward: Floats
    hop: Floats
    ends: Floats
    tail: Floats

    @property
    def step(self) -> Floats:
        """(K,) the rank that ends last."""
        return np.asarray((self.ends + self.tail).max(axis=1))


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
        modes = tuple(
            m for m in ("selective", "full")
            if m in core.recompute_linears and m in core.recompute_modes
        )  # fmt: skip
        return Problem(
            self.situation(key, memory), memory, time, job.cluster.memory_limit - memory.reserve,
            job.model.num_layers, core.recompute_granularity, modes,
        )  # fmt: skip

    def plans(self, partition: int, recompute: int) -> tuple[Plan, Plan]:
        """Plans by the indices of the plan columns."""
        space = self.contexts.job.space
        return space.partitions[partition], space.recomputes[recompute]

    def stage_times(
        self, key: ScheduleKey, time: TimeTable, layout: Layout, exact: bool
    ) -> StageTimes:
        """Times of every stage and the end of every rank, bounded or replayed."""
        composer = self.contexts.composer
        plain = layout.layers - layout.selective - layout.full
        forward = layout.layers * time.forward[:, None]
        backward = plain * time.backward[:, 0, None]
        backward = backward + layout.selective * time.backward[:, 1, None]
        backward = backward + layout.full * time.backward[:, 2, None]
        for part, stage in (("embedding", 0), ("head", -1)):
            forward[:, stage] += time.ends[part][0]
            backward[:, stage] += time.ends[part][1]
        hop = np.maximum(*time.hop)
        if key.stages == 1:
            hop = np.zeros_like(hop)
        sent_forward, sent_backward = forward, backward
        if blocks(composer.blocking, key):
            sent_forward, sent_backward = forward.copy(), backward.copy()
            sent_forward[:, :-1] += time.hop[0][:, None]
            sent_backward[:, 1:] += time.hop[1][:, None]
            hop = np.zeros_like(hop)
        run = composer.replay if exact else composer.bound
        ends = run(key, sent_forward, sent_backward, hop)
        if not exact and key.stages > 1:
            ends = ends * (1 - BOUND_SLACK)
        ranks = layout.layers.reshape(-1, key.chunks, key.ranks).sum(axis=1)
        tail = tail_seconds(
            time.steps, ranks, key.ranks, composer.first_forward(key, forward),
            composer.last_backward(key, backward),
        )  # fmt: skip
        return StageTimes(forward, backward, hop, ends, tail)

    def rows(self, batch: StrategyBatch, exact: bool = False) -> Estimates:
        """Estimate one chunk of rows."""
        result = Estimates.empty(len(batch))
        terms = collect(batch, self.contexts)
        for objection in terms.objections:
            result.possible &= ~objection.rows
            result.objections.append((np.nonzero(objection.rows)[0], objection))
        usable = np.nonzero(result.possible)[0]
        if len(usable):
            self._estimate(batch, terms, usable, result, exact)
        return result

    def _estimate(
        self, batch: StrategyBatch, terms: Terms, usable: Ints, result: Estimates, exact: bool
    ) -> None:
        memory = MemoryTable.build(terms.memory, len(batch))
        time = TimeTable.build(terms.time, len(batch))
        index, keys = self.contexts.composer.keys(batch)
        alike: dict[ScheduleKey, list[int]] = {}
        for number, key in enumerate(keys):
            alike.setdefault(self.contexts.composer.moment_key(key), []).append(number)
        plans = batch["partition_plan"] * (1 << 20) + batch["recompute_plan"]
        for numbers in alike.values():
            group = usable[np.isin(index[usable], numbers)]
            size = max(LEAST_ROWS, CELLS // keys[numbers[0]].stages)
            for plan in np.unique(plans[group]):
                every = group[plans[group] == plan]
                for start in range(0, len(every), size):
                    rows = every[start : start + size]
                    problem = self.problem(keys[numbers[0]], memory.take(rows), time.take(rows))
                    pair = self.plans(int(plan) >> 20, int(plan) % (1 << 20))
                    solution = solve(problem, self.contexts.composer, *pair)
                    self._record_memory(problem, solution, rows, result, pair[0])
                    self._record_time(problem, solution, rows, result, exact, keys, index)

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
        self, problem: Problem, solution: Solution, rows: Ints, result: Estimates, partition: Plan
    ) -> None:
        worst = solution.peaks.argmax(axis=1)
        allocated = solution.peaks.max(axis=1)
        ok = solution.possible
        done = rows[ok]
        result.worst[done] = worst[ok]
        result.layout[done] = fingerprint(solution.layout)[ok]
        result.allocated[done] = allocated[ok].astype(np.int64)
        result.memory[done] = (allocated + problem.memory.reserve)[ok].astype(np.int64)
        if ok.all():
            return
        key = problem.situation.key
        result.possible[rows[~ok]] = False
        sentence = (
            f"the partition or recompute asked for ({partition.text}) does not fit "
            f"{problem.layers} layers on {key.ranks} x {key.chunks} stages"
        )
        everyone = np.zeros(len(result.memory), bool)
        everyone[rows[~ok]] = True
        objection = Objection(NO_PARTITION, self.contexts.composer.owner, everyone, sentence)
        result.objections.append((rows[~ok], objection))


def blocks(blocking: bool, key: ScheduleKey) -> bool:
    """Whether messages occupy their sender: plain schedules only, interleaving overlaps them."""
    return blocking and key.chunks == 1 and key.ranks > 1


def evaluate(
    batch: StrategyBatch, estimator: Estimator, *, workers: int = 1, chunk_rows: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> Estimates:  # fmt: skip
    """Estimate all rows: exact memory and a bound of step time.

    Rows are ordered by schedule key first, so that a chunk holds few keys; results are put back where
    they belong.
    """
    size = len(batch)
    share = size if workers <= 1 else -(-size // (2 * workers))
    chunk = chunk_rows or max(1, min(CHUNK_ROWS, share))
    index, _ = estimator.contexts.composer.keys(batch)
    order = np.argsort(index, kind="stable")
    parts = [order[i : i + chunk] for i in range(0, size, chunk)]
    result = Estimates.empty(size)
    done = 0
    for rows, found in zip(parts, _mapped(estimator, batch, parts, workers), strict=True):
        for name in ("memory", "allocated", "worst", "seconds", "layout", "possible"):
            getattr(result, name)[rows] = getattr(found, name)
        result.objections += [(rows[at], objection) for at, objection in found.objections]
        done += len(rows)
        if progress is not None:
            progress(done, size)
    return result


# What forked workers inherit: they cannot be handed loaded plugins through a pipe.
_SHARED: dict[str, Any] = {}


def _run(rows: Ints) -> Estimates:
    found: Estimates = _SHARED["estimator"].rows(_SHARED["batch"].take(rows))
    return found


def _mapped(
    estimator: Estimator, batch: StrategyBatch, parts: list[Ints], workers: int
) -> Iterator[Estimates]:
    """Estimates of each part in order, by forked processes where the system has them."""
    _SHARED.update(estimator=estimator, batch=batch)
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
    value = np.zeros(len(layout.layers), dtype=np.uint64)
    with np.errstate(over="ignore"):
        for columns in (layout.layers, layout.selective, layout.full):
            for column in columns.T.astype(np.uint64):
                value = (value + column + np.uint64(1)) * MULTIPLIER
    return value.view(np.int64)


def repeated_plans(batch: StrategyBatch, estimates: Estimates) -> list[Sentences]:
    """Rows to which another plan gives the very same layers and recompute; the first one stays."""
    plans = ("partition_plan", "recompute_plan")
    rows = np.nonzero(estimates.possible)[0]
    keys = batch.take(rows).packed([name for name in batch.fields if name not in plans])
    keys.append(estimates.layout[rows])
    order = np.lexsort((rows, *keys))
    same = np.ones(max(len(rows) - 1, 0), dtype=bool)
    for key in keys:
        same &= key[order][1:] == key[order][:-1]
    again = rows[order[1:][same]]
    if not len(again):
        return []
    sentence = "another partition or recompute plan gives this row the same layers"
    return [Sentences(SAME_PLAN, "core", np.sort(again), lambda _: sentence)]


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
