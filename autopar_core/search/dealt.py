"""Partitions that a framework deals itself in place of those that a search would choose."""

from __future__ import annotations

from attrs import evolve

from autopar_core.domain.job import Job
from autopar_core.domain.space import Plan
from autopar_core.errors import PluginCallError
from autopar_core.plugins import PluginManager
from autopar_core.search.contexts import Contexts


HOOK = "autopar_partitions"


def with_dealt_partitions(job: Job, manager: PluginManager) -> Job:
    """The job whose free partitions are those that plugins name; given ones stay as they are.

    Raises:
        PluginCallError: When a partition does not place every layer once.
    """
    if not any(manager.implements(name, HOOK) for name in manager.active):
        return job
    contexts = Contexts.build(job, manager)
    plans: dict[str, Plan] = {}
    for name in manager.active:
        if not manager.implements(name, HOOK):
            continue
        answer = manager.call(name, HOOK, ctx=contexts.by_plugin[name])
        for partition in answer if isinstance(answer, list | tuple) else ():
            layers = [int(each) for each in partition]
            if sum(layers) != job.model.num_layers or min(layers) < 0:
                raise PluginCallError(name, HOOK, f"{layers} does not place every layer once")
            plan = Plan(kind="given", given=layers)
            plans[plan.text] = plan
    if not plans:
        return job
    given = [plan for plan in job.space.partitions if plan.kind == "given"]
    free = len(given) < len(job.space.partitions)
    kept = {plan.text: plan for plan in given}
    chosen = {**kept, **plans} if free else kept
    return evolve(job, space=evolve(job.space, partitions=tuple(chosen.values())))
