"""A framework's plugin on a bench: its rules asked row by row, strategies as its exporters get them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
from attrs import evolve, frozen

from autopar_core.config.load import load_job
from autopar_core.config.overrides import Overrides
from autopar_core.config.tables import deep_merge
from autopar_core.domain.export import ExportEstimate, ExportRequest
from autopar_core.domain.fields import Level, Value
from autopar_core.domain.job import Job
from autopar_core.domain.strategy import Strategy, StrategyBatch
from autopar_core.domain.verdict import Broken
from autopar_core.plugins.fields import PLAN_FIELDS
from autopar_core.search.contexts import Contexts
from autopar_core.testing.bench import SMALL_JOB, load


Changes = Mapping[str, Any]
ESTIMATE = ExportEstimate(
    seconds=1.5, low_seconds=1.3, high_seconds=1.7, memory_bytes=2**30, limit_bytes=2**36
)
_PLANS = frozenset(field.name for field in PLAN_FIELDS)


@frozen(eq=False)
class AskedRule:
    """What one rule says about the rows that were asked.

    Attributes:
        broken: True for each row that breaks it.
    """

    rule: Broken
    batch: StrategyBatch
    broken: list[bool]

    def say(self, row: int) -> str:
        """The sentence for a row."""
        return self.rule.say(self.batch, row)


@frozen(eq=False)
class FrameworkBench:
    """One plugin among all that are installed, in a job of its framework.

    ```python
    bench = FrameworkBench.of("mine", {"framework": {"name": "mine"}})
    rows = {"tp_degree": [2, 3]}
    assert bench.broken(Level.DEGREE, rows)["mine-heads"].broken == [False, True]
    assert export(bench.request(tp_degree=2, full=[4]))
    ```

    Attributes:
        plugin: Its name.
        contexts: The job as it and the core see it.
    """

    plugin: str
    contexts: Contexts

    @classmethod
    def of(cls, plugin: str, changes: Changes | None = None, **plugins: Any) -> FrameworkBench:
        """:data:`~autopar_core.testing.bench.SMALL_JOB` with changes; ``plugins`` as for ``load``.

        Raises:
            AssertionError: The plugin is not active.
        """
        manager = load(**plugins)
        assert plugin in manager.active, f"plugin '{plugin}' is not active"
        job = load_job(None, deep_merge(SMALL_JOB, changes or {}), Overrides(), manager)
        return cls(plugin, Contexts.build(job, manager))

    @property
    def job(self) -> Job:
        """The job without changes."""
        return self.contexts.job

    def broken(
        self, level: Level, rows: Mapping[str, Sequence[Value]], **changes: Changes
    ) -> dict[str, AskedRule]:
        """Code -> what the plugin's filter says about rows at a level.

        Args:
            level: Fields up to it are decided.
            rows: Field -> spelled values, one for each row; fields that are absent are neutral.
            changes: ``model``, ``training``, ``cluster``, ``framework``, ``space``: attributes
                that differ from the job's.
        """
        manager, context = self.contexts.manager, self.contexts.by_plugin[self.plugin]
        context = evolve(context, **_changed(context, changes))
        fields = self.contexts.fields
        columns = {name: [fields[name].encode(v) for v in values] for name, values in rows.items()}
        batch = StrategyBatch.of(fields, {name: np.array(each) for name, each in columns.items()})
        found = manager.call(self.plugin, "autopar_filter", batch=batch, level=level, ctx=context)
        return {rule.code: AskedRule(rule, batch, rule.rows.tolist()) for rule in found}

    def request(
        self,
        *,
        stages: Sequence[int] = (),
        full: Sequence[int] = (),
        selective: Sequence[int] = (),
        chunks: int = 1,
        plugins: Changes | None = None,
        header: Sequence[str] = ("made up",),
        changes: Mapping[str, Changes] | None = None,
        **fields: Value,
    ) -> ExportRequest:
        """A strategy as an exporter gets it; devices and global batch follow, the estimate is made up.

        Args:
            stages: Layers of every virtual stage, chunk by chunk; the even split if absent.
            full: How many of them recompute in full; none if absent.
            selective: The same in the selective mode.
            chunks: Virtual stages of a rank.
            plugins: Settings of ``[plugins.NAME]``.
            header: Lines for the top of the files.
            changes: As in :meth:`broken`; the model may be another one altogether.
            fields: Fields of the strategy; what is absent is neutral.
        """
        values = {**self._neutral(), **fields}
        job = evolve(self.job, **_changed(self.job, changes or {}))
        dimensions = self.contexts.dimensions.values()
        degrees = {each.name: int(values[each.degree.name]) for each in dimensions}
        ranks = prod(degrees[each.name] for each in dimensions if each.splits_layers)
        replicas = prod(degrees[each.name] for each in dimensions if each.splits_batch)
        share = job.model.num_layers // (chunks * ranks)
        counts = list(stages) or [share] * (chunks * ranks)
        zero = [0] * len(counts)

        def shaped(flat: Sequence[int]) -> list[Any]:
            rows = [list(flat[at : at + ranks]) for at in range(0, len(flat), ranks)]
            return rows if len(rows) > 1 else rows[0]

        strategy = Strategy(
            fields=values, stage_partition=shaped(counts),
            layer_offset=shaped([count - share for count in counts]),
            layer_recompute={"selective": shaped(selective or zero), "full": shaped(full or zero)},
        )  # fmt: skip
        micro = int(values["micro_batch_size"]) * int(values["micro_batch_num"])
        return ExportRequest(
            model=job.model, training=evolve(job.training, global_batch_size=micro * replicas),
            cluster=evolve(job.cluster, devices=prod(degrees.values())), system=job.system,
            framework=job.framework, strategy=strategy, estimate=ESTIMATE,
            plugins=plugins or job.plugin_sections, header=tuple(header),
        )  # fmt: skip

    def _neutral(self) -> dict[str, Value]:
        fields = self.contexts.fields
        return {name: each.neutral for name, each in fields.items() if name not in _PLANS}


def _changed(holder: Any, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Parts of a job or a context with attributes changed, or replaced as a whole."""
    return {
        name: evolve(getattr(holder, name), **change) if isinstance(change, Mapping) else change
        for name, change in changes.items()
    }
