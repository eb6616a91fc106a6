"""What every plugin says about rows: broken rules and derived columns; and the core's own rules."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from string import Formatter
from typing import Any

import numpy as np
from attrs import evolve

from autopar_core.domain.arrays import Ints
from autopar_core.domain.fields import Level
from autopar_core.domain.strategy import StrategyBatch
from autopar_core.domain.training import Range
from autopar_core.domain.verdict import Broken
from autopar_core.errors import PluginCallError
from autopar_core.plugins import MISSING
from autopar_core.search.contexts import CORE, Contexts


RESOLVE_HOOK, FILTER_HOOK = "autopar_resolve", "autopar_filter"


def broken_rules(rows: StrategyBatch, level: Level, contexts: Contexts) -> list[Broken]:
    """Rules of the core and of every plugin at a level, in the order of owner and code.

    Raises:
        PluginCallError: When a plugin answers with something else than rules about these rows.
    """
    found = [evolve(rule, owner=CORE) for rule in core_rules(rows, level, contexts)]
    for name, context in sorted(contexts.by_plugin.items()):
        if contexts.manager.implements(name, FILTER_HOOK):
            answer = contexts.manager.call(name, FILTER_HOOK, batch=rows, level=level, ctx=context)
            if answer is not MISSING:
                found += _checked(name, answer, rows)
    return sorted(found, key=lambda rule: (rule.owner, rule.code))


def _checked(plugin: str, answer: Any, rows: StrategyBatch) -> list[Broken]:
    if not isinstance(answer, list | tuple) or not all(isinstance(r, Broken) for r in answer):
        raise PluginCallError(plugin, FILTER_HOOK, f"expected a list of Broken, got {answer!r:.60}")
    checked = []
    for rule in answer:
        which = np.asarray(rule.rows, dtype=bool)
        if which.shape != (len(rows),):
            why = f"rule {rule.code!r} speaks of {which.shape} rows, there are {len(rows)}"
            raise PluginCallError(plugin, FILTER_HOOK, why)
        names = {part[1] for part in Formatter().parse(rule.sentence) if part[1]}
        unknown = sorted(names - set(rule.numbers) - set(rows.fields))
        if unknown:
            why = (
                f"the sentence of rule {rule.code!r} names {unknown[0]!r}, which is no number of it"
            )
            raise PluginCallError(plugin, FILTER_HOOK, why)
        checked.append(evolve(rule, rows=which, owner=plugin))
    return checked


def resolved_columns(
    rows: StrategyBatch, level: Level, contexts: Contexts
) -> Iterator[tuple[str, Ints]]:
    """Columns that plugins derive for fields they own.

    Raises:
        PluginCallError: When a plugin sets a field of someone else.
    """
    for name, context in sorted(contexts.by_plugin.items()):
        if not contexts.manager.implements(name, RESOLVE_HOOK):
            continue
        answer = contexts.manager.call(name, RESOLVE_HOOK, batch=rows, level=level, ctx=context)
        if answer is MISSING:
            continue
        if not isinstance(answer, Mapping):
            raise PluginCallError(name, RESOLVE_HOOK, f"expected a mapping, got {answer!r:.60}")
        for column, values in answer.items():
            if column not in rows.fields or rows.fields[column].owner != name:
                raise PluginCallError(name, RESOLVE_HOOK, f"field {column!r} is not its own")
            yield column, np.asarray(values, dtype=np.int64)


def core_rules(rows: StrategyBatch, level: Level, contexts: Contexts) -> list[Broken]:
    """Broken rules of the core at a level."""
    if level is Level.DEGREE:
        return [_devices(rows, contexts)]
    rules = _batch(rows, contexts) if level is Level.BATCH else []
    return rules + _unwanted(rows, level, contexts)


def _unwanted(rows: StrategyBatch, level: Level, contexts: Contexts) -> list[Broken]:
    """Values that follow from other fields and are not what the person named.

    Fields that the person's other choices make void keep their neutral value.
    """
    rules = []
    for name, wanted in contexts.job.space.wanted.items():
        field = contexts.fields[name]
        if field.level is not level or field.needs:
            continue
        column = rows[name]
        if isinstance(wanted, Range):
            bad = np.zeros(len(rows), dtype=bool)
            bad |= wanted.min is not None and column < wanted.min
            bad |= wanted.max is not None and column > wanted.max
            asked = f"{wanted.min} to {wanted.max}"
        else:
            bad = ~np.isin(column, [field.encode(value) for value in wanted])
            asked = ", ".join(map(str, wanted))
        rules.append(
            Broken(code="not-wanted", rows=bad, sentence=f"{name} {{{name}}} is not {{asked}}",
                   numbers={"asked": asked}, source="the search section")
        )  # fmt: skip
    return rules


def _devices(rows: StrategyBatch, contexts: Contexts) -> Broken:
    world = contexts.core.world(rows)
    devices = contexts.job.cluster.devices
    return Broken(
        code="devices",
        rows=world != devices,
        sentence="the degrees multiply to {world}, not to {devices:1 device}",
        numbers={"world": world, "devices": devices},
        source="every framework: the product of degrees is the world size",
    )


def _batch(rows: StrategyBatch, contexts: Contexts) -> list[Broken]:
    """Global batch = replicas x micro-batch size x micro-batches."""
    batch = contexts.job.training.global_batch_size
    replicas = contexts.core.replicas(rows)
    share = replicas * rows["micro_batch_size"]
    whole = batch % np.maximum(share, 1) == 0
    named = isinstance(contexts.job.space.wanted.get("micro_batch_num"), tuple)
    rules = [
        Broken(
            code="batch",
            rows=~whole,
            sentence="global batch {batch} is not divisible by {replicas:1 replica} x "
            "micro_batch_size {micro_batch_size}",
            numbers={"batch": batch, "replicas": replicas},
            source="Megatron-LM num_microbatches_calculator",
        )
    ]
    if named:
        rules.append(
            Broken(
                code="batch-product",
                rows=whole & (share * rows["micro_batch_num"] != batch),
                sentence="global batch {batch} is not {replicas:1 replica} x micro_batch_size "
                "{micro_batch_size} x {micro_batch_num:1 micro-batch}",
                numbers={"batch": batch, "replicas": replicas},
                source="Megatron-LM num_microbatches_calculator",
            )
        )
    return rules
