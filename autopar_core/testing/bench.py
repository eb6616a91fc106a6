"""A plugin on a bench: a small job, rows that its own rules let pass, and its answers to them."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from attrs import field, frozen

import autopar_core.builtin
from autopar_core.config.load import load_job
from autopar_core.config.overrides import Overrides
from autopar_core.config.tables import deep_merge
from autopar_core.domain.arrays import Array, Bools, Ints
from autopar_core.domain.fields import Dimension, Level
from autopar_core.domain.result import SearchResult
from autopar_core.domain.strategy import StrategyBatch
from autopar_core.domain.terms import MemoryTerm, Partial, Shard, TimeTerm
from autopar_core.domain.verdict import HARD, Broken
from autopar_core.plugins import MISSING, PluginManager
from autopar_core.search.contexts import Contexts
from autopar_core.search.generate import Generation
from autopar_core.search.rules import broken_rules
from autopar_core.search.run import search
from autopar_core.work.rank_work import RankWork


SMALL_JOB: Mapping[str, Mapping[str, Any]] = {
    "model": {
        "num_layers": 16, "hidden": 1024, "ffn_hidden": 4096, "heads": 16, "kv_heads": 8,
        "vocab": 32768,
    },
    "training": {"global_batch_size": 64, "seq_len": 4096},
    "cluster": {"system": "h100-sxm-80gb", "devices": 8},
    "search": {"micro_batch_size": [1, 2]},
}  # fmt: skip
"""Input tables of a model that every small degree divides, on one node of eight devices."""

# Fields of the core that any plugin may read.
CORE_FIELDS = frozenset({"micro_batch_size", "micro_batch_num"})

Plugins = Sequence[tuple[str, object]]


def load(files: Sequence[str | Path] = (), extra: Plugins = (), **options: Any) -> PluginManager:
    """Plugins with the core's own among them; ``options`` as for ``PluginManager.load``."""
    own = ("builtin", autopar_core.builtin)
    return PluginManager.load(files=files, extra=(own, *extra), **options)


def run_search(
    changes: Mapping[str, Any] | None = None,
    *,
    files: Sequence[str | Path] = (),
    extra: Plugins = (),
    only: Sequence[str] = (),
    disable: Sequence[str] = (),
) -> SearchResult:
    """Search in process.

    Args:
        changes: Input tables that are merged into :data:`SMALL_JOB`.
        files: One-file plugins.
        extra: Names and modules or objects that are plugins.
        only: Dimensions to keep.
        disable: Plugins to leave out.
    """
    manager = load(files, extra, only=only, disable=disable)
    tables = deep_merge(SMALL_JOB, changes or {})
    return search(load_job(None, tables, Overrides(), manager), manager)


@frozen(eq=False)
class WatchedBatch(StrategyBatch):
    """Rows that remember which fields somebody outside the core asked for."""

    reads: set[str] = field(factory=set)

    def __getitem__(self, name: str) -> Ints:
        """Column of a field."""
        asker = sys._getframe(1).f_globals.get("__name__", "")
        if not asker.startswith("autopar_core."):
            self.reads.add(name)
        return StrategyBatch.__getitem__(self, name)


@frozen(eq=False)
class Answers:
    """What a plugin said about N rows; a hook that it lacks or declines has said nothing."""

    shards: tuple[Shard, ...]
    memory: tuple[MemoryTerm, ...]
    time: tuple[TimeTerm, ...]
    supported: Bools


@frozen(eq=False)
class Bench:
    """One plugin alone with the core.

    Attributes:
        plugin: Its name.
        contexts: The job as it and the core see it.
    """

    plugin: str
    contexts: Contexts

    @classmethod
    def of(
        cls,
        plugin: str,
        changes: Mapping[str, Any] | None = None,
        files: Sequence[str | Path] = (),
        extra: Plugins = (),
    ) -> Bench:
        """Load a plugin and no other that has a dimension.

        Raises:
            AssertionError: It is not active, with the reason of the core.
        """
        manager = load(files, extra, only=(plugin,))
        records = {record.name: record for record in manager.records}
        record = records[plugin]
        assert record.status == "active", f"{record.label} is {record.status}: {record.reason}"
        job = load_job(None, deep_merge(SMALL_JOB, changes or {}), Overrides(), manager)
        return cls(plugin, Contexts.build(job, manager))

    @classmethod
    def once(cls, tests: type, *arguments: Any) -> Bench:
        """The bench of a class of tests, made at its first test: :meth:`of` with the arguments."""
        if tests not in _BENCHES:
            _BENCHES[tests] = cls.of(*arguments)
        return _BENCHES[tests]

    @property
    def dimension(self) -> Dimension:
        """The dimension of the plugin.

        Raises:
            AssertionError: It has none.
        """
        for dimension in self.contexts.dimensions.values():
            if dimension.degree.owner == self.plugin:
                return dimension
        raise AssertionError(f"plugin '{self.plugin}' has no dimension")

    def lacks(self, hook: str) -> bool:
        """Whether the plugin does not implement a hook."""
        return not self.contexts.manager.implements(self.plugin, hook)

    def own_fields(self) -> frozenset[str]:
        """Names of its fields, the degree among them."""
        fields = self.contexts.fields.values()
        return frozenset(f.name for f in fields if f.owner == self.plugin)

    def rules(self, batch: StrategyBatch, level: Level) -> list[Broken]:
        """What the plugin's filter says about rows."""
        rules = broken_rules(batch, level, self.contexts)
        return [rule for rule in rules if rule.owner == self.plugin]

    def levels(self) -> list[tuple[Level, StrategyBatch, list[Broken]]]:
        """(level, rows, rules) from degrees on: own fields take every value, other degrees are one.

        Rows that break a hard rule of the plugin are at the next level no more.
        """
        generation = Generation(self.contexts)
        degree = self.dimension.degree.name
        rows = generation.batch({degree: generation.values(degree)})
        found = []
        for level in Level:
            for one in generation.of_level(level):
                own = one.owner == self.plugin and one.name != degree
                if own or one.name == "micro_batch_size":
                    rows = generation.expand(rows, one)
            rows = read_only(generation.resolve(rows, level))
            rules = self.rules(rows, level)
            found.append((level, rows, rules))
            broken = np.zeros(len(rows), dtype=bool)
            for rule in rules:
                if rule.kind == HARD:
                    broken |= rule.rows
            rows = rows.take(~broken)
        return [*found, (Level.RECOMPUTE, read_only(rows), [])]

    def rows(self) -> StrategyBatch:
        """Whole candidates that the plugin's own rules let pass."""
        return self.levels()[-1][1]

    def call(self, hook: str, batch: StrategyBatch, **more: Any) -> tuple[tuple[Any, ...], Bools]:
        """(answer, rows that it covers) of one hook of the plugin; nothing where it declines.

        Raises:
            PluginCallError: The plugin raised.
        """
        everyone = np.ones(len(batch), dtype=bool)
        manager, context = self.contexts.manager, self.contexts.by_plugin[self.plugin]
        answer = manager.call(self.plugin, hook, batch=batch, ctx=context, **more)
        if answer is MISSING:
            return (), everyone
        if isinstance(answer, Partial):
            return tuple(answer.value), np.asarray(answer.supported)
        assert isinstance(answer, list | tuple), f"{hook} returned a {type(answer).__name__}"
        return tuple(answer), everyone

    def work(self, batch: StrategyBatch, shards: Sequence[Shard]) -> RankWork:
        """The work of a rank after shards."""
        index, keys = self.contexts.composer.keys(batch)
        stages = np.array([key.stages for key in keys], dtype=np.int64)[index]
        job = self.contexts.job
        return RankWork.build(
            job.model, job.training.seq_len, batch["micro_batch_size"], batch["micro_batch_num"],
            stages > 1, shards,
        )  # fmt: skip

    def ask(self, batch: StrategyBatch) -> Answers:
        """Shards, memory terms and time terms of the plugin."""
        shards, sharded = self.call("autopar_shard", batch)
        work = self.work(batch, shards)
        memory, fits = self.call("autopar_memory", batch, work=work)
        time, timed = self.call("autopar_performance", batch, work=work)
        return Answers(shards, memory, time, sharded & fits & timed)


_BENCHES: WeakKeyDictionary[type, Bench] = WeakKeyDictionary()


def read_only(batch: StrategyBatch) -> StrategyBatch:
    """The same rows in arrays that cannot be written."""
    columns: dict[str, Array] = {}
    for name, column in batch.columns.items():
        columns[name] = column.copy()
        columns[name].setflags(write=False)
    return StrategyBatch(len(batch), columns, batch.fields)
