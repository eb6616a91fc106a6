"""What DeepSpeed refuses."""

from __future__ import annotations

from typing import Any

from autopar_core.api import Broken, EvalContext, Level, StrategyBatch


Context = EvalContext[Any, Any]


def broken(batch: StrategyBatch, level: Level, ctx: Context) -> list[Broken]:
    """Every rule that rows break at a level."""
    if level is Level.DEGREE:
        heads = ctx.model.kv_heads
        return [
            Broken(
                code="deepspeed-kv-heads",
                rows=heads % batch["tp_degree"] != 0,
                sentence="AutoTP needs whole KV heads on every rank: {heads} over tp {tp_degree}",
                numbers={"heads": heads},
                source="DeepSpeed module_inject/auto_tp.py; issue 7259",
            )
        ]
    stages = batch["pp_degree"]
    if level is Level.SCHEDULE:
        names = batch.fields["schedule"].choices
        plain = batch["schedule"] == names.index("1f1b")
        return [
            Broken(
                code="deepspeed-schedule",
                rows=(stages > 1) & ~plain,
                sentence="DeepSpeed's pipeline engine has the 1f1b schedule only, no {schedule}",
                source="DeepSpeed runtime/pipe/schedule.py: TrainSchedule",
            )
        ]
    if level is Level.SHARDING:
        return [
            Broken(
                code="deepspeed-pipeline-zero",
                rows=(stages > 1) & (batch["zero_stage"] > 1),
                sentence="ZeRO stage {zero_stage} does not combine with pp {pp_degree} stages",
                source="DeepSpeed runtime/pipe/engine.py: ZeRO-2 and ZeRO-3 are incompatible",
            ),
            Broken(
                code="deepspeed-shard-all",
                rows=(batch["zero_stage"] > 0) & (batch["shard_degree"] < batch["dp_degree"]),
                sentence="DeepSpeed shards over all dp {dp_degree} ranks, not over {shard_degree}",
                source="DeepSpeed runtime/config.py: MiCS was removed, hpZ keeps a second copy",
            ),
        ]
    return []
