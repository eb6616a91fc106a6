"""What tensor parallelism cannot divide, and what it had better not do."""

from __future__ import annotations

from autopar_core.api import HABIT, Broken, EvalContext, Level, StrategyBatch
from autopar_tp.config import TpConfig, TpProfile


def broken(
    batch: StrategyBatch, level: Level, ctx: EvalContext[TpConfig, TpProfile]
) -> list[Broken]:
    """Every rule that rows break at a level."""
    if level is Level.DEGREE:
        return _degrees(batch, ctx)
    if level is Level.SHARDING:
        rows = (batch["sequence_parallel"] == 1) & (ctx.training.seq_len % batch["tp_degree"] != 0)
        return [
            Broken(
                code="tp-sequence",
                rows=rows,
                sentence="sequence parallelism splits {seq} tokens into tp {tp_degree}: not whole",
                numbers={"seq": ctx.training.seq_len},
                source="Megatron-LM, Paddle auto-tuner: sequence % tp == 0",
            )
        ]
    return []


def _degrees(batch: StrategyBatch, ctx: EvalContext[TpConfig, TpProfile]) -> list[Broken]:
    tp, model, profile = batch["tp_degree"], ctx.model, ctx.profile
    kv_bad = model.kv_heads % tp != 0
    kv_rule = "must divide them"
    if profile.kv_replication:
        kv_bad &= tp % model.kv_heads != 0
        kv_rule = "must divide them or be a multiple of them (replication)"
    rules = [
        Broken(
            code="tp-heads",
            rows=model.heads % tp != 0,
            sentence="{heads} attention heads are not divisible by tp {tp_degree}",
            numbers={"heads": model.heads},
            source="Megatron-LM transformer_config, torchtitan decoder",
        ),
        Broken(
            code="tp-kv-heads",
            rows=kv_bad,
            sentence="{kv} key/value heads: tp {tp_degree} " + kv_rule,
            numbers={"kv": model.kv_heads},
            source="Megatron-LM transformer_config (replication), torchtitan decoder (strict)",
        ),
        Broken(
            code="tp-ffn",
            rows=model.ffn_hidden % tp != 0,
            sentence="FFN width {ffn} is not divisible by tp {tp_degree}",
            numbers={"ffn": model.ffn_hidden},
            source="Megatron-LM layers.divide",
        ),
        Broken(
            code="tp-domain",
            rows=tp > ctx.cluster.devices_per_domain,
            sentence="tp {tp_degree} leaves the scale-up domain of {domain} devices",
            numbers={"domain": ctx.cluster.devices_per_domain},
            kind=HABIT,
            source="habit of Megatron, NeMo and Primus guides; priced, not forbidden",
        ),
    ]
    if profile.vocabulary_divides:
        rules.append(
            Broken(
                code="tp-vocabulary",
                rows=model.vocab % tp != 0,
                sentence="vocabulary {vocab} is not divisible by tp {tp_degree}",
                numbers={"vocab": model.vocab},
                source="framework profile: vocabulary_divides",
            )
        )
    return rules
