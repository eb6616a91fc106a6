"""What Megatron refuses besides the rules that the dimensions own, with a legal alternative each."""

from __future__ import annotations

import numpy as np

from autopar_core.api import HABIT, Broken, EvalContext, Level, StrategyBatch
from autopar_megatron.config import MegatronConfig
from autopar_megatron.plan import DELAYED


Context = EvalContext[MegatronConfig, None]
# Number format -> what rows and columns of its matrix products must be multiples of.
# TransformerEngine: height divisible by 8 and width by 16, and the weight gradient has tokens as its
# width; MXFP8 scales blocks of 32 (transformer_engine/pytorch/utils.py, assert_dim_for_fp8_exec).
EIGHT_BIT = {"fp8": 16, "nvfp4": 16, "mxfp8": 32}


def broken(batch: StrategyBatch, level: Level, ctx: Context) -> list[Broken]:
    """Every rule that rows break at a level; none for other frameworks."""
    if not ctx.framework.is_a("megatron"):
        return []
    if level is Level.DEGREE:
        return [_positions(batch, ctx), *_widths(batch, ctx)]
    if level is Level.CHUNKS:
        return [_two_stages(batch)]
    if level is Level.SHARDING:
        return [*_all_to_all(batch, ctx), *_tokens(batch, ctx)]
    if level is Level.RECOMPUTE:
        return [_selective(batch, ctx)]
    return []


def _positions(batch: StrategyBatch, ctx: Context) -> Broken:
    model, seq = ctx.model, ctx.training.seq_len
    short = model.position == "learned" and model.position_rows < seq
    return Broken(
        code="megatron-positions",
        rows=np.full(len(batch), short),
        sentence="{rows} learned positions are fewer than the {seq} tokens of a sequence; train with "
        "at most {rows}, or give the model more rows",
        numbers={"rows": model.position_rows, "seq": seq},
        source="Megatron-LM arguments.py: max_position_embeddings >= seq_length",
    )


def _multiple(ctx: Context) -> int | None:
    """What sides of products in the job's number format are multiples of; None in 16 bits."""
    return EIGHT_BIT.get(ctx.framework.core.recipe(ctx.training.precision).format)


def _widths(batch: StrategyBatch, ctx: Context) -> list[Broken]:
    multiple = _multiple(ctx)
    if multiple is None:
        return []
    model, tp = ctx.model, batch["tp_degree"]
    odd = np.full(len(batch), model.hidden % multiple != 0)
    for width in (model.ffn_hidden, model.query_width):
        odd |= (width % tp == 0) & (width // tp % multiple != 0)
    return [
        Broken(
            code="megatron-fp8-width",
            rows=odd,
            sentence="{precision} multiplies matrices whose sides are multiples of {multiple}, which FFN "
            "width {ffn} and query width {query} over tp {tp_degree} are not; use a smaller tp or bf16",
            numbers={
                "precision": ctx.training.precision, "multiple": multiple, "ffn": model.ffn_hidden,
                "query": model.query_width,
            },
            source="TransformerEngine assert_dim_for_fp8_exec",
        )
    ]  # fmt: skip


def _two_stages(batch: StrategyBatch) -> Broken:
    names = batch.fields["schedule"].choices
    interleaved = batch["schedule"] == names.index("interleaved")
    return Broken(
        code="megatron-interleave-two",
        rows=interleaved & (batch["pp_degree"] == 2),
        sentence="interleaving over 2 pipeline ranks needs overlapped p2p communication, which older "
        "releases of Megatron do not have; they need pp 4 or no virtual stages",
        kind=HABIT,
        source="Megatron-LM arguments.py: pipeline size above 2 without overlap_p2p_comm",
    )


def _all_to_all(batch: StrategyBatch, ctx: Context) -> list[Broken]:
    field = batch.fields["cp_comm_type"]
    if "a2a" not in field.choices:
        return []
    model, tp, cp = ctx.model, batch["tp_degree"], batch["cp_degree"]
    rows = (cp > 1) & (batch["cp_comm_type"] == field.encode("a2a"))
    heads, kv = model.heads // np.maximum(tp, 1), np.maximum(model.kv_heads // np.maximum(tp, 1), 1)
    return [
        Broken(
            code="megatron-a2a-heads",
            rows=rows & ((heads % cp != 0) | (kv % cp != 0)),
            sentence="all-to-all gives whole heads to cp {cp_degree} ranks: {heads} attention and {kv} "
            "key/value heads of a tp {tp_degree} rank are not divisible; use p2p or all_gather",
            numbers={"heads": heads, "kv": kv},
            source="TransformerEngine AttnFuncWithCPAndQKVOA2A: heads and groups % cp == 0",
        )
    ]


def _tokens(batch: StrategyBatch, ctx: Context) -> list[Broken]:
    multiple = _multiple(ctx)
    if multiple is None:
        return []
    shares = batch["cp_degree"] * np.where(batch["sequence_parallel"] == 1, batch["tp_degree"], 1)
    tokens = batch["micro_batch_size"] * ctx.training.seq_len
    return [
        Broken(
            code="megatron-fp8-tokens",
            rows=tokens % (shares * multiple) != 0,
            sentence="{precision} needs a multiple of {multiple} tokens on a rank, which {tokens} tokens "
            "over {shares} ranks are not; pad sequences to a multiple of {whole} tokens",
            numbers={
                "precision": ctx.training.precision, "multiple": multiple, "tokens": tokens,
                "shares": shares, "whole": shares * multiple,
            },
            source="TransformerEngine assert_dim_for_fp8_exec; NeMo reports of 5504x184 inputs",
        )
    ]  # fmt: skip


def _selective(batch: StrategyBatch, ctx: Context) -> Broken:
    """A plan that asks for selective recompute; where it is open, the profile leaves the mode out."""
    named = [
        index
        for index, plan in enumerate(ctx.space.recomputes)
        if plan.kind == "selective"
        or (plan.kind == "given" and np.any(plan.given.get("selective", 0)))
    ]
    delayed = ctx.training.precision == DELAYED
    return Broken(
        code="megatron-delayed-selective",
        rows=np.isin(batch["recompute_plan"], named) & delayed,
        sentence="{precision} does not go with selective recompute, which repeats norms; use "
        "fp8-current, or recompute layers in full",
        numbers={"precision": ctx.training.precision},
        source="Megatron core transformer_config.py: delayed scaling with recompute of layernorm",
    )
