"""The timeline of one strategy, from the same terms, layers and replay as its costs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import evolve

from autopar_core.compose.memory_trace import memory_trace
from autopar_core.compose.time_explain import RankShare
from autopar_core.compose.timeline import bottleneck, rank_times, segments, tail_parts
from autopar_core.domain.fields import Value
from autopar_core.domain.job import Job
from autopar_core.domain.space import Plan
from autopar_core.domain.timeline import StepTimeline
from autopar_core.plugins import PluginManager
from autopar_core.search.contexts import Contexts
from autopar_core.search.detail import Case, Describer
from autopar_core.search.evaluate import Estimator
from autopar_core.search.run import estimate


def step_timeline(
    job: Job, manager: PluginManager, fields: Mapping[str, Value], partition: Any, recompute: Plan
) -> StepTimeline | None:
    """The step of a strategy over time, None when it does not fit.

    Args:
        job: The checked input.
        manager: Active plugins.
        fields: Its scalar fields.
        partition: Its layers of each stage, as a result spells them.
        recompute: Which of them recompute in which mode.

    Raises:
        InputError: As an estimate.
        PluginError: As an estimate.
    """
    space = evolve(
        job.space,
        partitions=(Plan(kind="given", given=partition),),
        recomputes=(recompute,),
    )
    result = estimate(evolve(job, space=space), manager, fields)
    if not result.top:
        return None
    contexts = Contexts.build(result.job, manager)
    describer = Describer(Estimator(contexts))
    return lay_out(describer.case(result.batch, result.top[0].row), contexts)


def lay_out(case: Case, contexts: Contexts) -> StepTimeline:
    """The step of a solved row."""
    key, times, layout, composer = case.key, case.times, case.layout, contexts.composer
    found = composer.timeline(key, times.forward, times.backward, times.hop, times.weight)
    ends = (times.ends + times.tail)[0]
    first = composer.first_forward(key, times.forward)[0]
    last = composer.last_backward(key, times.backward)[0]
    tails = [
        tail_parts(
            case.terms.time,
            RankShare.of(key, rank, layout, float(first[rank]), float(last[rank])),
        )
        for rank in range(key.ranks)
    ]
    again = layout.selective * (case.time.backward[:, 1] - case.time.backward[:, 0])[:, None]
    again = again + layout.full * (case.time.backward[:, 2] - case.time.backward[:, 0])[:, None]
    closing = composer.moments(composer.moment_key(key))
    trace, peaks = memory_trace(case.problem.memory, key, found, layout, closing, ends)
    parts = segments(found, again[0], ends, tails, key)
    return StepTimeline(
        seconds=float(ends.max()), schedule=key.schedule, ranks=key.ranks, chunks=key.chunks,
        micro_batches=key.micro_batches, segments=parts, memory=trace,
        limit_bytes=contexts.job.cluster.memory_limit, by_rank=rank_times(parts, ends, peaks),
        bottleneck=bottleneck(found, again[0], ends, tails, key),
    )  # fmt: skip
