"""What nanotron refuses, or accepts and then does otherwise."""

from __future__ import annotations

from typing import Any

import numpy as np

from autopar_core.api import Bools, Broken, EvalContext, Level, StrategyBatch
from autopar_formats.nanotron_split import padded_vocab, split
from autopar_formats.shapes import llama_fault


Context = EvalContext[Any, Any]
CONFIG = "nanotron config/config.py"


def broken(batch: StrategyBatch, level: Level, ctx: Context) -> list[Broken]:
    """Every rule that rows break at a level."""
    if level is Level.DEGREE:
        return [*_degrees(batch, ctx), *_family(batch, ctx)]
    if level is Level.SCHEDULE:
        return [_warm_up(batch)]
    if level is Level.RECOMPUTE:
        return [_partition(batch, ctx)]
    return []


def partitions(ctx: Context) -> list[list[int]]:
    """What nanotron deals for every pipeline and tensor degree that the devices allow."""
    devices, model = ctx.cluster.devices, ctx.model
    degrees = [each for each in range(1, devices + 1) if devices % each == 0]
    found: dict[tuple[int, ...], None] = {}
    for stages in degrees:
        for tensor in degrees:
            if stages * tensor <= devices and model.heads % tensor == 0:
                found[split(model, stages, padded_vocab(model.vocab, 1, tensor))] = None
    return [list(each) for each in found]


def _degrees(batch: StrategyBatch, ctx: Context) -> list[Broken]:
    model, tensor, context = ctx.model, batch["tp_degree"], batch["cp_degree"]
    return [
        Broken(
            code="nanotron-heads",
            rows=(model.heads % tensor != 0),
            sentence="nanotron cannot split {heads} heads over tp {tp_degree}",
            numbers={"heads": model.heads},
            source=f"{CONFIG}: num_attention_heads % tp == 0",
        ),
        Broken(
            code="nanotron-kv-heads",
            rows=(model.kv_heads < tensor) | (model.kv_heads % tensor != 0),
            sentence="nanotron needs whole KV heads on every rank: {heads} over tp {tp_degree}",
            numbers={"heads": model.kv_heads},
            source=f"{CONFIG}: num_key_value_heads >= tp; models/qwen.py: kv heads // tp",
        ),
        Broken(
            code="nanotron-ring",
            rows=(context > 1) & (ctx.training.seq_len % (2 * context) != 0),
            sentence="ring attention needs {seq} tokens in 2 x cp {cp_degree} equal parts",
            numbers={"seq": ctx.training.seq_len},
            source="nanotron models/qwen.py: ring attention",
        ),
    ]


def _family(batch: StrategyBatch, ctx: Context) -> list[Broken]:
    fault = llama_fault(ctx.model)
    return [
        Broken(
            code="nanotron-family",
            rows=np.full(len(batch), bool(fault)),
            sentence="nanotron builds Llama and Qwen2 only: model.{field} is {value}",
            numbers={"field": fault, "value": str(getattr(ctx.model, fault)) if fault else ""},
            source="nanotron config/models_config.py",
        )
    ]


def _warm_up(batch: StrategyBatch) -> Broken:
    plain = batch["schedule"] == batch.fields["schedule"].choices.index("1f1b")
    stages, number = batch["pp_degree"], batch["micro_batch_num"]
    return Broken(
        code="nanotron-warm-up",
        rows=plain & (stages > 1) & (number < stages - 1),
        sentence="nanotron's 1f1b needs pp {pp_degree} - 1 micro-batches or more, not "
        "{micro_batch_num}",
        source="nanotron parallel/pipeline_parallel/engine.py",
    )


def _partition(batch: StrategyBatch, ctx: Context) -> Broken:
    """Rows whose layers nanotron would deal otherwise."""
    plans = ctx.space.partitions
    rows: Bools = np.zeros(len(batch), dtype=bool)
    dealt = np.full(len(batch), "", dtype=object)
    keys = np.stack([batch["pp_degree"], batch["tp_degree"], batch["partition_plan"]])
    for stages, tensor, plan in {tuple(each) for each in keys.T.tolist()}:
        if stages == 1 and plans[plan].kind != "given":
            continue
        theirs = split(ctx.model, stages, padded_vocab(ctx.model.vocab, 1, tensor))
        given = plans[plan].given if plans[plan].kind == "given" else None
        if given is None or list(theirs) != list(given):
            same = (keys == np.array([[stages], [tensor], [plan]])).all(axis=0)
            rows |= same
            dealt[same] = ", ".join(map(str, theirs))
    return Broken(
        code="nanotron-partition",
        rows=rows,
        sentence="nanotron deals layers by cost, {dealt} here, and nothing can change that",
        numbers={"dealt": dealt},
        source="nanotron models/base.py: build_model",
    )
