"""The plugin to copy: one rule that warns, and one ranker.

It has no dimension, so it divides nothing and adds no term. A plugin needs three things: a module
with functions that carry ``@hookimpl``, the hook ``autopar_plugin_info`` among them, and an entry
point in the group ``autopar`` (see ``pyproject.toml``). ``autopar_core.api`` is all it may import.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from attrs import field, frozen, validators

from autopar_core.api import (
    HABIT,
    Broken,
    EvalContext,
    Floats,
    Ints,
    Level,
    PluginInfo,
    Ranker,
    StrategyBatch,
    hookimpl,
)


# Step times whose ratio is below this count as equal for the ranker.
SAME_TIME = 1.02


@frozen(kw_only=True)
class ExampleConfig:
    """``[plugins.example]`` of an input file; every option needs a default.

    Attributes:
        min_tokens: Warn where a micro-batch gives a device less work than this many tokens would;
            0 never warns.
    """

    min_tokens: int = field(default=0, validator=validators.ge(0))


@hookimpl
def autopar_plugin_info() -> PluginInfo:
    """Introduce the plugin: required, and asked first."""
    return PluginInfo(
        api=(1, 0),
        summary="Template: warns of tiny micro-batches; ranker time_then_memory.",
        config=ExampleConfig,
    )


@hookimpl
def autopar_filter(
    batch: StrategyBatch, level: Level, ctx: EvalContext[ExampleConfig, None]
) -> list[Broken]:
    """Warn where a micro-batch is spread thin.

    Called once per level with all rows as arrays: N rows in, (N,) answers out, no loop. The size of
    a micro-batch is decided at ``Level.BATCH``; ``habit`` warns, ``HARD`` would prune.
    """
    if level is not Level.BATCH or ctx.config.min_tokens == 0:
        return []
    # No dimension is named: whatever splits a replica, these are its devices.
    devices = ctx.world(batch) // ctx.replicas(batch)
    share = batch["micro_batch_size"] * ctx.training.seq_len // devices
    return [
        Broken(
            code="example-thin",
            rows=share < ctx.config.min_tokens,
            # names in braces are keys of ``numbers`` or fields of the row
            sentence="micro_batch_size {micro_batch_size} on {devices:1 device} is {share:1 token} "
            "of work for each, fewer than {least}",
            numbers={"devices": devices, "share": share, "least": ctx.config.min_tokens},
            kind=HABIT,
            source="plugins.example.min_tokens",
        )
    ]


def time_then_memory(seconds: Floats, memory_bytes: Ints, ctx: EvalContext[Any, Any]) -> Floats:
    """(N,) smaller is better: the step of a 2 % ladder, then the share of the memory limit.

    A key looks at its own row and at the job only. It never falls when time or memory grows, so
    the ranker is monotone and the core may rank lower bounds first.
    """
    ladder = np.floor(np.log(seconds) / np.log(SAME_TIME))
    return np.asarray(ladder + memory_bytes / (ctx.cluster.memory_limit + 1.0))


@hookimpl
def autopar_rankers() -> Sequence[Ranker]:
    """Offer a ranker; a person picks it with ``--rank-by time_then_memory``."""
    doc = "Step time on a ladder of 2 %, least memory first on each step."
    return (Ranker("time_then_memory", doc, time_then_memory),)
