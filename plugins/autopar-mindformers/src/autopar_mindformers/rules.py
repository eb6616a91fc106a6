"""What MindFormers refuses besides the rules that the dimensions own, with a legal alternative each."""

from __future__ import annotations

from typing import Any

import numpy as np

from autopar_core.api import Broken, EvalContext, Level, StrategyBatch
from autopar_mindformers.shapes import shape_fault


Context = EvalContext[Any, Any]
PRECISIONS = ("bf16", "fp16", "fp32")


def broken(batch: StrategyBatch, level: Level, ctx: Context) -> list[Broken]:
    """Every rule that rows break at a level; none for other frameworks."""
    if not ctx.framework.is_a("mindformers"):
        return []
    if level is Level.DEGREE:
        return [_family(batch, ctx), _precision(batch, ctx)]
    if level is Level.CHUNKS:
        return [_micro_batches(batch)]
    if level is Level.SHARDING:
        return _all_to_all(batch, ctx)
    return []


def _family(batch: StrategyBatch, ctx: Context) -> Broken:
    fault = shape_fault(ctx.model)
    return Broken(
        code="mindformers-family",
        rows=np.full(len(batch), bool(fault)),
        sentence="MindFormers' training classes (Llama, Qwen3, TeleChat3) build no model with {field} "
        "{value}; use a framework that does, or a model of Llama shape",
        numbers={"field": fault, "value": str(getattr(ctx.model, fault)) if fault else ""},
        source="mindformers 2.1.0 models/: classes registered for training",
    )


def _precision(batch: StrategyBatch, ctx: Context) -> Broken:
    return Broken(
        code="mindformers-precision",
        rows=np.full(len(batch), ctx.training.precision not in PRECISIONS),
        sentence="MindFormers computes in {known}, not in {precision}; train in bf16",
        numbers={"known": ", ".join(PRECISIONS), "precision": ctx.training.precision},
        source="mindformers 2.1.0 parallel_core/transformer_config.py: ms_dtype_mapping",
    )


def _micro_batches(batch: StrategyBatch) -> Broken:
    stages, number = batch["pp_degree"], batch["micro_batch_num"]
    return Broken(
        code="mindformers-micro-batches",
        rows=(stages > 1) & (number < stages),
        sentence="MindFormers needs pp {pp_degree} micro-batches or more, not {micro_batch_num}; use a "
        "smaller micro-batch or fewer stages",
        source="mindformers 2.1.0 modules/transformer/transformer.py, TransformerOpParallelConfig: "
        "micro_batch_num >= pipeline_stage when training",
    )


def _all_to_all(batch: StrategyBatch, ctx: Context) -> list[Broken]:
    field = batch.fields["cp_comm_type"]
    if "a2a" not in field.choices:
        return []
    heads, context = ctx.model.heads, batch["cp_degree"]
    ranks = batch["tp_degree"] * context
    exchanged = (context > 1) & (batch["cp_comm_type"] == field.encode("a2a"))
    return [
        Broken(
            code="mindformers-ulysses-heads",
            rows=exchanged & (heads % ranks != 0),
            sentence="ulysses_cp gives whole heads to tp x cp = {ranks} ranks, which {heads} heads are "
            "not divisible by; use p2p or all_gather (colossalai_cp)",
            numbers={"ranks": ranks, "heads": heads},
            source="mindformers 2.1.0 training_graph/transformer/attention.py: "
            "num_heads % (tp * ulysses_cp_num)",
        )
    ]
