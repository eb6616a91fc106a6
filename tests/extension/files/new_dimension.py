"""A dimension of its own: ``xp`` splits the width of the FFN, attention stays whole on every rank.

For models whose heads a tensor-parallel degree would not divide. Every rank holds its share of
the FFN matrices (column-parallel up and gate, row-parallel down) and all of attention; one
all-reduce of the hidden states closes the FFN forward, one opens it backward (Shoeybi et al. 2019,
section 3).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from attrs import field, frozen, validators

from autopar_core.api import (
    HABIT,
    MLP,
    Broken,
    Dimension,
    Divide,
    EvalContext,
    Extent,
    Field,
    Level,
    MemoryTerm,
    PluginInfo,
    RankWork,
    Shard,
    StrategyBatch,
    TimeTerm,
    Window,
    all_reduce_seconds,
    hookimpl,
)


AUTOPAR_NAME = "xp"
SOURCE = "Shoeybi et al. 2019, section 3, for the FFN alone"


@frozen(kw_only=True)
class XpConfig:
    """``[plugins.xp]``: the largest degree that is tried."""

    max_degree: int = field(default=8, validator=validators.ge(1))


@frozen(kw_only=True)
class XpProfile:
    """``[xp]`` of a framework profile: buffers of the communicator, what a GEMM can hide."""

    communicator_bytes: int = 200_000_000
    hidden_share: float = 0.5


Context = EvalContext[XpConfig, XpProfile]


@hookimpl
def autopar_plugin_info() -> PluginInfo:
    """Introduce the plugin."""
    return PluginInfo(
        api=(1, 0),
        summary="FFN parallelism: the FFN split, attention whole",
        dimension=Dimension(
            name="xp",
            degree=Field(
                name="xp_degree", short="xp", level=Level.DEGREE, neutral=1,
                doc="Ranks among which the width of the FFN is divided.",
            ),
        ),
        fields=(
            Field(
                name="xp_overlap", short="xo", level=Level.SHARDING, neutral=False, boolean=True,
                needs="xp_degree",
                doc="Whether the all-reduce runs in pieces under the GEMMs around it.",
            ),
        ),
        config=XpConfig,
        profile=XpProfile,
    )  # fmt: skip


@hookimpl
def autopar_field_values(ctx: Context) -> Mapping[str, Sequence[Any]]:
    """Divisors of the number of devices up to the limit; both ways to communicate."""
    devices, most = ctx.cluster.devices, ctx.config.max_degree
    degrees = [d for d in range(1, min(devices, most) + 1) if devices % d == 0]
    return {"xp_degree": degrees, "xp_overlap": (False, True)}


@hookimpl
def autopar_filter(batch: StrategyBatch, level: Level, ctx: Context) -> list[Broken]:
    """The width must divide; leaving the fast links is a bad habit."""
    if level is not Level.DEGREE:
        return []
    degree = batch["xp_degree"]
    return [
        Broken(
            code="xp-ffn",
            rows=ctx.model.ffn_hidden % degree != 0,
            sentence="FFN width {width} is not divisible by xp {xp_degree}",
            numbers={"width": ctx.model.ffn_hidden},
            source=SOURCE,
        ),
        Broken(
            code="xp-domain",
            rows=~ctx.group(batch, "xp").inside,
            sentence="xp {xp_degree} leaves the scale-up domain",
            kind=HABIT,
        ),
    ]


@hookimpl
def autopar_shard(batch: StrategyBatch) -> list[Shard]:
    """Divide the width of the FFN."""
    return [Divide(Extent.FFN_WIDTH, batch["xp_degree"])]


@hookimpl
def autopar_memory(batch: StrategyBatch, work: RankWork, ctx: Context) -> list[MemoryTerm]:
    """The piece in flight when communication overlaps, and the communicator's buffers."""
    piece = work.tensor_bytes({"hidden": 2}) * batch["xp_overlap"]
    return [
        MemoryTerm(
            name="all-reduce in pieces", bytes=piece, live=frozenset({MLP}),
            formula="2 B x hidden", source=SOURCE,
        ),
        MemoryTerm(
            name="communicator buffers",
            bytes=(batch["xp_degree"] > 1) * np.int64(ctx.profile.communicator_bytes),
            reserve=True, formula="constant where the degree is above one", source="assumed",
        ),
    ]  # fmt: skip


@hookimpl
def autopar_performance(batch: StrategyBatch, work: RankWork, ctx: Context) -> list[TimeTerm]:
    """One all-reduce per layer and direction; full recompute repeats the forward's."""
    group = ctx.group(batch, "xp")
    one = all_reduce_seconds(ctx.system.links, 2 * work.elements("hidden"), group)
    overlap = batch["xp_overlap"] == 1
    window = Window(name="linear", share=ctx.profile.hidden_share)
    terms = []
    for phase in ("forward", "backward", "recompute_full"):
        for name, rows, behind in (
            ("FFN all-reduce", ~overlap, None),
            ("FFN all-reduce under GEMMs", overlap, window),
        ):
            terms.append(
                TimeTerm(
                    name=name, seconds=one * rows, resource="link", phase=phase, window=behind,
                    formula="all-reduce of 2 B x hidden", source=SOURCE,
                )
            )  # fmt: skip
    return terms
