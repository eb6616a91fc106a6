"""Nanotron, DeepSpeed and Accelerate: readers, exporters, and what each framework refuses.

Also reads, without writing, the files of Hetu-Galvatron, Picotron, llm-foundry and HyperParallel's
fast-tuner.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from autopar_core.api import (
    Broken,
    EvalContext,
    Exporter,
    Level,
    PluginInfo,
    Reader,
    StrategyBatch,
    hookimpl,
)
from autopar_formats import (
    accelerate_read,
    accelerate_write,
    deepspeed_read,
    deepspeed_rules,
    deepspeed_write,
    fast_tuner_read,
    foundry_read,
    galvatron_read,
    nanotron_read,
    nanotron_rules,
    nanotron_write,
    picotron_read,
)


@hookimpl
def autopar_plugin_info() -> PluginInfo:
    """Introduce the plugin."""
    return PluginInfo(api=(1, 0), summary="Nanotron, DeepSpeed and Accelerate: files in and out.")


@hookimpl
def autopar_filter(batch: StrategyBatch, level: Level, ctx: EvalContext[Any, Any]) -> list[Broken]:
    """Rules of the framework that the job names, if it is one of these."""
    if ctx.framework.is_a("nanotron"):
        return nanotron_rules.broken(batch, level, ctx)
    if ctx.framework.is_a("deepspeed-zero3"):
        return deepspeed_rules.broken(batch, level, ctx)
    return []


@hookimpl
def autopar_partitions(ctx: EvalContext[Any, Any]) -> list[list[int]]:
    """The split of a framework that takes no other."""
    return nanotron_rules.partitions(ctx) if ctx.framework.is_a("nanotron") else []


@hookimpl
def autopar_readers() -> Sequence[Reader]:
    """Readers by framework."""
    modules = (
        nanotron_read, deepspeed_read, accelerate_read, galvatron_read, picotron_read,
        foundry_read, fast_tuner_read,
    )  # fmt: skip
    return tuple(module.READER for module in modules)


@hookimpl
def autopar_exporters() -> Sequence[Exporter]:
    """Exporters by framework."""
    return (nanotron_write.EXPORTER, deepspeed_write.EXPORTER, accelerate_write.EXPORTER)
