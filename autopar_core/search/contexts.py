"""The job as each plugin sees it, and the composer of its schedules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from attrs import frozen

from autopar_core.compose.moments import MomentArrays
from autopar_core.config.converter import structure
from autopar_core.domain.arrays import Bools, Floats, Ints
from autopar_core.domain.fields import Dimension, Field
from autopar_core.domain.job import Job
from autopar_core.domain.strategy import StrategyBatch
from autopar_core.errors import PluginError
from autopar_core.hooks.context import EvalContext
from autopar_core.hooks.schedule import Composer, Floor, Moments, ScheduleKey, Timeline
from autopar_core.plugins import MISSING, PluginManager, all_dimensions, declared_fields


CORE = "core"
SCHEDULE_HOOK = "autopar_schedule"


@frozen
class SingleStage:
    """The composer that is there without any: one stage, micro-batches one after another."""

    owner: str = CORE
    rule: str = ""

    def keys(self, batch: StrategyBatch) -> tuple[Ints, tuple[ScheduleKey, ...]]:
        """Rows differ by their number of micro-batches only."""
        values, index = np.unique(batch["micro_batch_num"], return_inverse=True)
        keys = tuple(ScheduleKey("none", 1, 1, int(m)) for m in values)
        return index.reshape(-1).astype(np.int64), keys

    def moment_key(self, key: ScheduleKey) -> ScheduleKey:
        """The second micro-batch is like every later one."""
        return ScheduleKey(key.schedule, 1, 1, min(key.micro_batches, 2))

    def moments(self, key: ScheduleKey) -> Moments:
        """First and later forward, first and later backward."""
        count = min(key.micro_batches, 2)
        return self._moments(np.tile([0, 1], count), np.arange(2 * count) < 2)

    def _moments(self, kind: Ints, first: Bools) -> Moments:
        n = len(kind)
        no, yes, zero = np.zeros((n, 1), bool), np.ones((n, 1), bool), np.zeros(n, np.int64)
        return MomentArrays(
            zero, kind, zero, np.ones((n, 1), np.int64), np.zeros((n, 1), np.int64), first, yes,
            no, no, np.zeros(n, bool),
        )  # fmt: skip

    def partition(
        self, key: ScheduleKey, layers: int, unit: Floats, extra: Floats, low: Ints, high: Ints
    ) -> tuple[Ints, Bools]:
        """All layers on the stage."""
        return np.full((len(unit), 1), layers, np.int64), np.ones(len(unit), bool)

    def even(self, key: ScheduleKey, layers: int) -> Ints:
        """All layers on the stage."""
        return np.array([layers], dtype=np.int64)

    def fewest(self, key: ScheduleKey) -> Ints:
        """The stage has a layer."""
        return np.ones(1, np.int64)

    def listed(self, key: ScheduleKey, layers: int) -> Ints | None:
        """There is one partition."""
        return None

    def glance(self, key: ScheduleKey, busy: Floats, first: Floats) -> Floats:
        """Exact."""
        return np.asarray(key.micro_batches * busy)

    def floor(self, key: ScheduleKey, slowest: Floats, total: Floats, longer: Floats) -> Floor:
        """Micro-batches one after another."""
        end = key.micro_batches * slowest
        return Floor(end, end, float(key.micro_batches), 0)

    def bound(
        self, key: ScheduleKey, forward: Floats, backward: Floats, hop: Floats,
        weight: Floats | None = None,
    ) -> Floats:  # fmt: skip
        """Exact."""
        return np.asarray(key.micro_batches * (forward + backward))

    def replay(
        self, key: ScheduleKey, forward: Floats, backward: Floats, hop: Floats,
        weight: Floats | None = None,
    ) -> Floats:  # fmt: skip
        """Exact."""
        return self.bound(key, forward, backward, hop)

    def timeline(
        self, key: ScheduleKey, forward: Floats, backward: Floats, hop: Floats, weight: Floats
    ) -> Timeline:
        """Forward and backward in turn."""
        m = key.micro_batches
        moments = self._moments(np.tile([0, 1], m), np.arange(2 * m) < 2)
        return Timeline.of_one_stage(m, float(forward[0, 0]), float(backward[0, 0]), moments)

    def last_backward(self, key: ScheduleKey, backward: Floats) -> Floats:
        """One micro-batch's backward."""
        return backward

    def first_forward(self, key: ScheduleKey, forward: Floats) -> Floats:
        """One micro-batch's forward."""
        return forward


@frozen(eq=False)
class Contexts:
    """The job for every active plugin.

    Attributes:
        manager: Active plugins.
        job: The input.
        fields: Declared fields in output order.
        dimensions: All dimensions in output order, also those without a plugin.
        core: The job as the core sees it.
        by_plugin: The job as each active plugin sees it.
        composer: The schedule composer; a single stage when no plugin has one.
    """

    manager: PluginManager
    job: Job
    fields: Mapping[str, Field]
    dimensions: Mapping[str, Dimension]
    core: EvalContext[Any, Any]
    by_plugin: Mapping[str, EvalContext[Any, Any]]
    composer: Composer

    @classmethod
    def build(cls, job: Job, manager: PluginManager) -> Contexts:
        """Structure every plugin's sections and ask for the composer.

        Raises:
            PluginError: When active plugins clash.
            InputError: When a section does not fit the plugin's class.
        """
        if manager.conflicts:
            raise PluginError(manager.conflicts[0])
        fields = declared_fields(manager)
        dimensions = {d.name: d for d in all_dimensions(manager)}
        core = EvalContext(
            model=job.model, training=job.training, cluster=job.cluster, system=job.system,
            framework=job.framework, space=job.space, fields=fields, dimensions=dimensions,
            config=None, profile=job.framework.core,
        )  # fmt: skip
        by_plugin: dict[str, EvalContext[Any, Any]] = {}
        for name in manager.active:
            by_plugin[name] = _seen_by(core, job, manager, name)
        composer: Composer = SingleStage()
        for name in manager.active:
            if manager.implements(name, SCHEDULE_HOOK):
                answer = manager.call(name, SCHEDULE_HOOK, ctx=by_plugin[name])
                composer = composer if answer is MISSING else answer
        return cls(manager, job, fields, dimensions, core, by_plugin, composer)


def _seen_by(
    core: EvalContext[Any, Any], job: Job, manager: PluginManager, name: str
) -> EvalContext[Any, Any]:
    info = manager.info(name)
    config = profile = None
    if info.config is not None:
        config = structure(info.config, job.plugin_sections.get(name, {}), f"plugins.{name}")
    if info.profile is not None:
        where = f"framework profile {job.framework.name}: {name}"
        profile = structure(info.profile, job.framework.sections.get(name, {}), where)
    return core.seen_by(config, profile)
