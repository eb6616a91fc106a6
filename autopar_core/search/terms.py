"""Asks every dimension for its shards and terms, and says which rows nobody can estimate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from attrs import evolve, frozen

from autopar_core.compose.core_memory import core_memory
from autopar_core.compose.core_time import core_time
from autopar_core.domain.arrays import Bools, Ints
from autopar_core.domain.strategy import StrategyBatch
from autopar_core.domain.terms import (
    AttentionCalls,
    Divide,
    Extent,
    MemoryTerm,
    Partial,
    Shard,
    TimeTerm,
)
from autopar_core.domain.verdict import NOT_IMPLEMENTED
from autopar_core.errors import PluginCallError
from autopar_core.hooks.specs import BEHAVIOUR_HOOKS
from autopar_core.plugins import MISSING
from autopar_core.search.contexts import SCHEDULE_HOOK, Contexts
from autopar_core.work.rank_work import RankWork


SHARD, MEMORY, PERFORMANCE = BEHAVIOUR_HOOKS


@frozen(eq=False)
class Objection:
    """Rows that fall for one reason that has the same sentence for all of them."""

    code: str
    owner: str
    rows: Bools
    sentence: str


@frozen(eq=False)
class Terms:
    """Everything that the estimators said about N rows; ``time_scale`` is in the seconds already."""

    work: RankWork
    memory: tuple[MemoryTerm, ...]
    time: tuple[TimeTerm, ...]
    objections: tuple[Objection, ...]
    time_scale: float


def collect(batch: StrategyBatch, contexts: Contexts) -> Terms:
    """Shards, then work, then memory and time terms of all dimensions, in the order of plugin names."""
    objections = _absent(batch, contexts)
    shards: list[Shard] = []
    attention: dict[str, Bools] = {}
    for owner, answer in _ask(SHARD, batch, contexts, objections):
        answered = _checked(owner, SHARD, answer, (Divide, AttentionCalls))
        shards += answered
        for one in answered:
            if isinstance(one, AttentionCalls):
                attention[owner] = attention.get(owner, np.zeros(len(batch), bool)) | one.rows
    objections += _replaced_twice(attention)
    stages = _stages(batch, contexts)
    work = RankWork.build(
        contexts.job.model, contexts.job.training.seq_len, batch["micro_batch_size"],
        batch["micro_batch_num"], stages > 1, shards,
    )  # fmt: skip
    objections += _indivisible(work, shards)
    framework, system = contexts.job.framework, contexts.job.system
    memory = core_memory(work, framework.core, contexts.job.recipe, system)
    for owner, answer in _ask(MEMORY, batch, contexts, objections, work=work):
        for term in _checked(owner, MEMORY, answer, (MemoryTerm,)):
            if not np.issubdtype(term.bytes.dtype, np.integer) or len(term.bytes) != len(batch):
                why = f"term {term.name!r}: bytes must be one whole number per row"
                raise PluginCallError(owner, MEMORY, why)
            memory.append(evolve(term, owner=owner))
    time = core_time(work, framework.core, system, contexts.job.recipe)
    for owner, answer in _ask(PERFORMANCE, batch, contexts, objections, work=work):
        for term in _checked(owner, PERFORMANCE, answer, (TimeTerm,)):
            seconds = np.asarray(term.seconds)
            # NaN fails the comparison too
            if seconds.shape != (len(batch),) or not (seconds >= 0).all():
                why = f"term {term.name!r}: seconds must be one number per row, 0 or more"
                raise PluginCallError(owner, PERFORMANCE, why)
            time.append(evolve(term, owner=owner))
    scales = framework.core.time_scale
    scale = scales.get(system.name, scales.get("default", 1.0))
    scaled = tuple(evolve(term, seconds=term.seconds * scale) for term in time)
    return Terms(work, tuple(memory), scaled, tuple(objections), scale)


def _stages(batch: StrategyBatch, contexts: Contexts) -> Ints:
    """(N,) virtual stages of each row."""
    index, keys = contexts.composer.keys(batch)
    return np.array([key.stages for key in keys], dtype=np.int64)[index]


def _ask(
    hook: str, batch: StrategyBatch, contexts: Contexts, objections: list[Objection], **more: Any
) -> list[tuple[str, Sequence[Any]]]:
    """Answers of active plugins by name; a partial answer adds an objection for the other rows."""
    answers = []
    for name in contexts.manager.active:
        if not contexts.manager.implements(name, hook):
            continue
        answer = contexts.manager.call(
            name, hook, batch=batch, ctx=contexts.by_plugin[name], **more
        )
        if answer is MISSING:
            objections += _declined(name, hook, batch, contexts)
            continue
        if isinstance(answer, Partial):
            sentence = f"{NOT_IMPLEMENTED}: plugin '{name}' {hook}: {answer.why}"
            objections.append(Objection(NOT_IMPLEMENTED, name, ~answer.supported, sentence))
            answer = answer.value
        answers.append((name, answer))
    return answers


def _replaced_twice(attention: dict[str, Bools]) -> list[Objection]:
    """Rows whose attention call two plugins replace: nobody knows their combination."""
    found = []
    owners = sorted(attention)
    for number, owner in enumerate(owners):
        for other in owners[number + 1 :]:
            both = attention[owner] & attention[other]
            if both.any():
                sentence = (
                    f"{NOT_IMPLEMENTED}: plugins '{owner}' and '{other}' {SHARD}: both replace the "
                    "attention call; their combination has no law"
                )
                found.append(Objection(NOT_IMPLEMENTED, owner, both, sentence))
    return found


def _declined(name: str, hook: str, batch: StrategyBatch, contexts: Contexts) -> list[Objection]:
    """A plugin that answered nothing: rows that use its dimension cannot be estimated."""
    dimension = contexts.manager.info(name).dimension
    if dimension is None:
        return []
    rows = batch[dimension.degree.name] > 1
    sentence = contexts.manager.absence(dimension.name, hook)
    return [Objection(NOT_IMPLEMENTED, name, rows, sentence)]


def _absent(batch: StrategyBatch, contexts: Contexts) -> list[Objection]:
    """Rows that use a dimension for which no plugin, or half a plugin, is active."""
    found = []
    for dimension in contexts.dimensions.values():
        rows = batch[dimension.degree.name] > 1
        if not rows.any():
            continue
        plugin = contexts.manager.plugin_of(dimension.name)
        wanted = BEHAVIOUR_HOOKS + ((SCHEDULE_HOOK,) if dimension.splits_layers else ())
        for hook in wanted:
            if plugin is None or not contexts.manager.implements(plugin, hook):
                sentence = contexts.manager.absence(dimension.name, hook)
                found.append(Objection(NOT_IMPLEMENTED, plugin or dimension.name, rows, sentence))
                break
    return found


def _checked(owner: str, hook: str, answer: Any, kinds: tuple[type, ...]) -> list[Any]:
    """The answer as a list of the right kind.

    Raises:
        PluginCallError: Naming plugin and hook.
    """
    if not isinstance(answer, (list, tuple)) or not all(isinstance(x, kinds) for x in answer):
        names = " or ".join(kind.__name__ for kind in kinds)
        raise PluginCallError(owner, hook, f"expected a list of {names}, got {answer!r:.80}")
    return list(answer)


def _indivisible(work: RankWork, shards: Sequence[Shard]) -> list[Objection]:
    """Extents that the dimensions together do not divide, although each of them alone may."""
    model, seq_len = work.model, work.seq_len
    whole = {
        Extent.TOKENS: seq_len, Extent.RESIDUAL_TOKENS: seq_len,
        Extent.ATTENTION_HEADS: model.heads, Extent.FFN_WIDTH: model.ffn_hidden,
    }  # fmt: skip
    found = []
    for extent, base in whole.items():
        product = np.ones(len(work), dtype=np.int64)
        for shard in shards:
            if isinstance(shard, Divide) and shard.extent is extent:
                product = product * shard.by
        sentence = (
            f"{base} {extent.value.replace('_', ' ')} are not divisible by all splits together"
        )
        found.append(Objection(f"{extent.value}-divide", "core", base % product != 0, sentence))
    heads, kv = work.extent(Extent.ATTENTION_HEADS), work.extent(Extent.KV_HEADS)
    for shard in shards:
        if isinstance(shard, AttentionCalls):
            for call in shard.calls:
                bad = (heads % call.heads_divisor != 0) | (kv % call.heads_divisor != 0)
                sentence = "the rank's query and key/value heads do not divide by the head exchange"
                found.append(Objection("heads-exchange", "core", shard.rows & bad, sentence))
    return [objection for objection in found if objection.rows.any()]
