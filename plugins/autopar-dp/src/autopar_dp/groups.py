"""Who shares states with whom: the shard group, its replicas, and what is divided."""

from __future__ import annotations

import numpy as np
from attrs import frozen

from autopar_core.api import (
    Bools,
    Divide,
    EvalContext,
    Extent,
    Group,
    Ints,
    Rounding,
    StrategyBatch,
)
from autopar_dp.config import DpConfig, DpProfile


Context = EvalContext[DpConfig, DpProfile]


@frozen(eq=False)
class Sharing:
    """Groups of N rows.

    Attributes:
        everyone: All ranks with the same parameters.
        shard: The part of them over which states are sharded.
        replicas: One rank of every shard group.
        stage: (N,) ZeRO stage.
    """

    everyone: Group
    shard: Group
    replicas: Group
    stage: Ints

    @property
    def hybrid(self) -> Bools:
        """(N,) rows with more than one shard group."""
        return np.asarray((self.replicas.size > 1) & (self.stage > 0))

    @property
    def gathered(self) -> Bools:
        """(N,) rows whose parameters are gathered when they are needed (stage 3)."""
        return np.asarray(self.stage == 3)


def sharing(batch: StrategyBatch, ctx: Context) -> Sharing:
    """Shard and replica groups; ranks of a sequence-splitting dimension are part of the shard group."""
    everyone = ctx.group(batch, "parameters")
    replicas = np.maximum(1, batch["replicate_degree"])
    stage = batch["zero_stage"]
    replicas = np.where(stage > 0, replicas, 1)
    size = np.maximum(1, everyone.size // replicas)
    near = np.minimum(size, everyone.per_domain)
    shard = Group(size, near, everyone.domain)
    far = np.minimum(replicas, np.maximum(1, everyone.per_domain // np.maximum(near, 1)))
    return Sharing(everyone, shard, Group(replicas, far, everyone.domain), stage)


def divides(batch: StrategyBatch, ctx: Context) -> list[Divide]:
    """What each stage divides by the shard group: Rajbhandari et al. 2020 (ZeRO), section 5."""
    groups = sharing(batch, ctx)
    rounding = Rounding.ROWS if ctx.profile.padded_rows else Rounding.EXACT
    made = []
    for extent, from_stage in ((Extent.OPTIMIZER_COPIES, 1), (Extent.GRADIENT_COPIES, 2),
                               (Extent.PARAMETER_COPIES, 3)):  # fmt: skip
        by = np.where(groups.stage >= from_stage, groups.shard.size, 1)
        made.append(Divide(extent, by, rounding))
    return made
