"""A search from job to result, and the estimate of a single strategy."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

import numpy as np
from attrs import evolve, frozen

from autopar_core.domain.arrays import Bools, Floats, Ints
from autopar_core.domain.fields import Level, Value
from autopar_core.domain.job import Job
from autopar_core.domain.result import Detail, SearchResult
from autopar_core.domain.strategy import StrategyBatch
from autopar_core.domain.verdict import HABIT, Verdicts
from autopar_core.errors import InputError
from autopar_core.plugins import PluginManager
from autopar_core.search.contest import Contest
from autopar_core.search.contexts import Contexts
from autopar_core.search.dealt import with_dealt_partitions
from autopar_core.search.detail import Describer
from autopar_core.search.evaluate import (
    Estimates,
    Estimator,
    Sentences,
    evaluate,
    merged,
    over_memory,
    repeated_plans,
)
from autopar_core.search.generate import Generation
from autopar_core.search.memory_verdict import verdict_codes
from autopar_core.search.picked import (
    Picked,
    generate_rows,
    pick_generator,
    pick_ranker,
    rank_key,
)
from autopar_core.search.rules import broken_rules
from autopar_core.units import counted


Progress = Callable[[int, int], None]
# Nearest misses told when nothing is feasible.
MISSES = 3
FEASIBLE = "feasible"
# Rows from which several processes pay for their start.
LARGE = 20_000


def search(
    job: Job, manager: PluginManager, *, workers: int = 0, chunk_rows: int = 0,
    progress: Progress | None = None,
) -> SearchResult:  # fmt: skip
    """Generate, filter, estimate, rank and detail.

    Args:
        job: The checked input.
        manager: Active plugins.
        workers: Processes; 0 takes one per core where the space is large. Results do not depend on it.
        chunk_rows: Rows per chunk; 0 takes the default. Results do not depend on it.
        progress: Called with rows done and rows in all.

    Raises:
        InputError: Unknown ranker or generator, empty space.
        PluginError: A plugin breaks the contract, or active plugins clash.
    """
    job = with_dealt_partitions(job, manager)
    contexts = Contexts.build(job, manager)
    ranker = pick_ranker(manager, job.space.rank_by)
    generator = pick_generator(manager, job.space.generator)
    generation = Generation(contexts)
    batch = _generate(generation, generator)
    _check_habits(generation)
    estimator = Estimator(contexts)
    processes = workers or os.cpu_count() or 1
    estimates = evaluate(
        batch, estimator, workers=processes if workers or len(batch) > LARGE else 1,
        chunk_rows=chunk_rows, progress=progress,
    )  # fmt: skip
    found = _Found.of(batch, estimates, job, ())
    exact = _exact_set(found, contexts, estimator, ranker, processes)
    if len(exact.repeated):
        found = _Found.of(batch, estimates, job, (repeated_plans(exact.repeated),))
    return _result(contexts, generation, found, exact, ranker, Describer(estimator))


def estimate(job: Job, manager: PluginManager, fields: Mapping[str, Value]) -> SearchResult:
    """One strategy: its fields fixed, the best of what is left open.

    The result has it in ``top`` when it is feasible, else its nearest miss in ``misses``.
    """
    wanted = {**job.space.wanted, **{name: (value,) for name, value in fields.items()}}
    one = evolve(job, space=evolve(job.space, wanted=wanted, top_k=1, rank_by="step_time"))
    return search(one, manager)


def _check_habits(generation: Generation) -> None:
    """A habit that is turned on must exist; rules are known once every level was asked."""
    for code in generation.contexts.job.space.habits:
        known = generation.codes.get(HABIT, set())
        if generation.complete and code not in known:
            listed = ", ".join(sorted(known)) or "none"
            raise InputError("search.habits", f"no habit {code!r}; known: {listed}")


def _generate(generation: Generation, generator: Picked) -> StrategyBatch:
    """Rows of the generator, sifted level by level if it has not done so, without repetitions."""
    batch = generate_rows(generator, generation)
    if not generator.thing.sifted:
        generation.space_size = len(batch)
        for level in Level:
            batch = generation.sift(batch, level)
    # a column that a generator left out is its neutral value
    batch = StrategyBatch.of(generation.fields, {n: batch[n] for n in generation.fields})
    return generation.distinct(batch)


@frozen(eq=False)
class _Found:
    """Rows with estimates and verdicts."""

    batch: StrategyBatch
    estimates: Estimates
    verdicts: Verdicts
    sentences: tuple[Sentences, ...]

    @classmethod
    def of(
        cls, batch: StrategyBatch, estimates: Estimates, job: Job, repeated: tuple[Sentences, ...]
    ) -> _Found:
        """First reason of each row, in the order of code; the memory limit comes last."""
        limit = job.cluster.memory_limit
        sentences = [*merged(estimates.objections), *repeated]
        over = over_memory(estimates, limit)
        if over is not None:
            sentences.append(over)
        codes = [FEASIBLE]
        code = np.zeros(len(batch), dtype=np.int64)
        for reason in sentences:
            if reason.code not in codes:
                codes.append(reason.code)
            rows = reason.rows[code[reason.rows] == 0]
            code[rows] = codes.index(reason.code)
        feasible = (code == 0) & estimates.possible
        verdicts = Verdicts(feasible=feasible, code=code, codes=tuple(codes))
        return cls(batch, estimates, verdicts, tuple(sentences))

    def reason(self, row: int) -> str:
        """All sentences of a row, the first one first."""
        said = []
        for reason in self.sentences:
            at = np.searchsorted(reason.rows, row)
            if at < len(reason.rows) and reason.rows[at] == row:
                said.append(reason.say(int(at)))
        return said[0] if said else ""


@frozen(eq=False)
class _Exact:
    """Exact rows of all N rows and what they are for."""

    seconds: Floats
    exact: Bools
    ranking: Ints
    pareto: Ints
    repeated: Ints
    reach: float
    missed: int


def _exact_set(
    found: _Found, contexts: Contexts, estimator: Estimator, ranker: Picked, workers: int
) -> _Exact:
    """Search what may belong to the top-k, the front, or the best of each degree value."""
    estimates = found.estimates
    feasible = np.nonzero(found.verdicts.feasible)[0]
    marked = np.zeros(len(found.batch), dtype=bool)
    none = np.zeros(0, dtype=np.int64)
    if not len(feasible):
        return _Exact(estimates.seconds.copy(), marked, none, none, none, 1.0, 0)

    def key(time: Floats, memory: Ints) -> Floats:
        return rank_key(ranker, time, memory, contexts.core)

    contest = Contest(
        found.batch, estimates, feasible, estimator, key, ranker.thing.monotone,
        [
            np.unique(found.batch[d.degree.name][feasible], return_inverse=True)[1].reshape(-1)
            for d in contexts.dimensions.values()
        ],
        contexts.job.space, workers,
    )  # fmt: skip
    won = contest.winners()
    seconds = estimates.seconds.copy()
    marked[won.exact] = True
    return _Exact(seconds, marked, won.ranking, won.front, won.repeated, won.reach,
                  won.missed)  # fmt: skip


def _result(
    contexts: Contexts, generation: Generation, found: _Found, exact: _Exact, ranker: Picked,
    describer: Describer,
) -> SearchResult:  # fmt: skip
    job = evolve(contexts.job, notes=(*contexts.job.notes, *_void_pins(found, contexts)))
    top = []
    for place, row in enumerate(exact.ranking.tolist(), start=1):
        top.append(describer.describe(found.batch, row, place, _habits(generation, found, row), ""))
    misses = () if top else _misses(found, describer)
    return SearchResult(
        job=job,
        plugins=tuple(record.view() for record in contexts.manager.records),
        fields=contexts.fields,
        dimensions=tuple(contexts.dimensions.values()),
        batch=found.batch,
        verdicts=found.verdicts,
        memory_bytes=found.estimates.memory,
        allocated_bytes=found.estimates.allocated,
        memory_verdict=verdict_codes(
            found.estimates.memory,
            found.estimates.allocated,
            found.estimates.reserved,
            job.bands.memory,
            job.cluster.memory_limit,
        ),
        seconds=exact.seconds,
        exact=exact.exact,
        sentences=found.sentences,
        cuts=generation.cuts,
        ranking=exact.ranking,
        top=_ties(top, job.bands.time.remaining),
        misses=misses,
        pareto=exact.pareto,
        space_size=generation.space_size,
        counts=tuple(generation.counts),
        ranker=ranker.thing.name,
        ranker_sentence=ranker.thing.doc,
        partition_plans=tuple(plan.text for plan in job.space.partitions),
        recompute_plans=tuple(plan.text for plan in job.space.recomputes),
        warnings=generation.warnings,
        log=_log(generation, found, exact, job),
    )


def _void_pins(found: _Found, contexts: Contexts) -> tuple[str, ...]:
    """Named values that feasible rows do not have, because the field means nothing there."""
    feasible, notes = found.verdicts.feasible, []
    for name, wanted in contexts.job.space.wanted.items():
        field = contexts.fields[name]
        if isinstance(wanted, tuple) and field.needs:
            named = [field.encode(value) for value in wanted]
            void = int((feasible & ~np.isin(found.batch[name], named)).sum())
            if void:
                asked = ", ".join(map(str, wanted))
                needs = field.needs
                if needs in {role for d in contexts.dimensions.values() for role in d.replicates}:
                    needs = f"several ranks with the same {needs}"
                notes.append(
                    f"{name} = {asked} means nothing in {void} of the {int(feasible.sum())} feasible "
                    f"strategies: it needs {needs}. Fix that too to leave them out."
                )
    return tuple(notes)


def _ties(top: list[Detail], remaining: float) -> tuple[Detail, ...]:
    """Mark what the model cannot tell from place 1: within the residual after the class scalar.

    Only exact step times are compared: a bound says nothing about a difference.
    """
    if not top:
        return ()
    best = top[0].performance
    near = [
        best.exact and d.performance.exact
        and abs(np.log(d.performance.seconds / best.seconds)) <= remaining
        for d in top
    ]  # fmt: skip
    return tuple(evolve(d, tie_with_best=bool(tie)) for d, tie in zip(top, near, strict=True))


def _misses(found: _Found, describer: Describer) -> tuple[Detail, ...]:
    """The rows that come nearest to the memory limit."""
    memory, possible = found.estimates.memory, found.estimates.possible
    rows = np.nonzero(possible & (memory >= 0))[0]
    order = rows[np.lexsort((rows, found.estimates.seconds[rows], memory[rows]))][:MISSES]
    return tuple(
        describer.describe(found.batch, row, 0, (), found.reason(row)) for row in order.tolist()
    )


def _habits(generation: Generation, found: _Found, row: int) -> tuple[str, ...]:
    """Sentences of the habits that one row goes against."""
    one = found.batch.take(np.array([row]))
    return tuple(
        rule.say(one, 0)
        for level in Level
        for rule in broken_rules(one, level, generation.contexts)
        if rule.kind == HABIT and rule.rows[0]
    )


def _log(generation: Generation, found: _Found, exact: _Exact, job: Job) -> tuple[str, ...]:
    cuts = generation.cuts
    estimated = int(found.estimates.possible.sum())
    lines = [
        f"space: {counted(generation.space_size, 'candidate')}",
        f"cut before any estimate: {counted(cuts.stands_for, 'candidate')} in "
        f"{counted(len(cuts), 'branch')}",
        f"generated: {counted(len(found.batch), 'row')}, estimated: {estimated}",
        f"feasible: {int(found.verdicts.feasible.sum())}",
        f"exact step times: {int(exact.exact.sum())}, Pareto front: {len(exact.pareto)}",
        "no other row can enter the top-k, the front or the best of a degree"
        if exact.reach == 1
        else "other rows: a search of their layers would have to save more than "
        f"{100 * exact.reach:g} % to enter the top-k, the front or the best of a degree",
    ]
    if exact.missed:
        lines.append(
            f"{exact.missed} rows that were not searched need less memory than what the search found: "
            "the Pareto front may lack some of them"
        )
    return (*job.notes, *lines)


__all__ = ["estimate", "search"]
