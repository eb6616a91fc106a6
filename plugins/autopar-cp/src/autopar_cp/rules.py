"""What context parallelism cannot divide."""

from __future__ import annotations

from autopar_core.api import HABIT, Broken, EvalContext, Level, StrategyBatch
from autopar_cp.config import CpConfig, CpProfile


# Tokens per rank below which ring steps are short and the exchange shows (Megatron-Bridge guide: use it
# from 8k tokens on).
SHORT_SEQUENCE = 8192


def broken(
    batch: StrategyBatch, level: Level, ctx: EvalContext[CpConfig, CpProfile]
) -> list[Broken]:
    """Every rule that rows break at a level."""
    if level is not Level.DEGREE:
        return []
    cp, seq = batch["cp_degree"], ctx.training.seq_len
    chunks = 2 * cp if ctx.profile.balanced else cp
    return [
        Broken(
            code="cp-sequence",
            rows=(cp > 1) & (seq % chunks != 0),
            sentence="{seq} tokens are not divisible into {chunks} chunks for cp {cp_degree}",
            numbers={"seq": seq, "chunks": chunks},
            source="Megatron-LM arguments: sequence % (2 cp) == 0 (balanced causal order)",
        ),
        Broken(
            code="cp-short",
            rows=(cp > 1) & (seq < SHORT_SEQUENCE),
            sentence="cp {cp_degree} for only {seq} tokens",
            numbers={"seq": seq},
            kind=HABIT,
            source="Megatron-Bridge performance guide",
        ),
    ]
