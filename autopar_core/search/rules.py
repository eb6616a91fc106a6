"""Rules of no dimension: the number of devices and the batch."""

from __future__ import annotations

import numpy as np

from autopar_core.domain.fields import Level
from autopar_core.domain.strategy import StrategyBatch
from autopar_core.domain.verdict import Broken
from autopar_core.search.contexts import Contexts


def core_rules(rows: StrategyBatch, level: Level, contexts: Contexts) -> list[Broken]:
    """Broken rules of the core at a level."""
    if level is Level.DEGREE:
        return [_devices(rows, contexts)]
    if level is Level.BATCH:
        return _batch(rows, contexts)
    return []


def _devices(rows: StrategyBatch, contexts: Contexts) -> Broken:
    world = contexts.core.world(rows)
    devices = contexts.job.cluster.devices
    return Broken(
        code="devices",
        rows=world != devices,
        sentence="the degrees multiply to {world}, not to {devices} devices",
        numbers={"world": world, "devices": devices},
        source="every framework: the product of degrees is the world size",
    )


def _batch(rows: StrategyBatch, contexts: Contexts) -> list[Broken]:
    """Global batch = replicas x micro-batch size x micro-batches."""
    batch = contexts.job.training.global_batch_size
    replicas = contexts.core.replicas(rows)
    share = replicas * rows["micro_batch_size"]
    whole = batch % np.maximum(share, 1) == 0
    named = "micro_batch_num" in contexts.job.space.wanted
    rules = [
        Broken(
            code="batch",
            rows=~whole,
            sentence="global batch {batch} is not divisible by {replicas} replicas x "
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
                sentence="{replicas} replicas x micro_batch_size {micro_batch_size} x "
                "{micro_batch_num} micro-batches are not the global batch {batch}",
                numbers={"batch": batch, "replicas": replicas},
                source="Megatron-LM num_microbatches_calculator",
            )
        )
    return rules
