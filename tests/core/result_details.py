"""Strategies of a synthetic result in full: memory, time and stages."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from autopar_core.domain.cost import (
    MemoryCost,
    MemoryPart,
    PerformanceCost,
    StageMemory,
    StageSummary,
    TimePart,
)
from autopar_core.domain.fields import Field
from autopar_core.domain.result import Detail
from autopar_core.domain.strategy import Strategy, StrategyBatch


GIB = 2**30
LIMIT = 72 * GIB


def _memory(total: int, stages: int, names: list[tuple[str, str]], reserve: int) -> MemoryCost:
    shares = np.array([1 / (i + 1.5) for i in range(len(names))])
    made = []
    for rank in range(stages):
        allocated = int((total - reserve) * (1 - 0.35 * rank / max(1, stages)))
        sizes = (shares / shares.sum() * (allocated + GIB // 4)).astype(np.int64)
        sizes[0] += allocated + GIB // 4 - sizes.sum()
        parts = [
            MemoryPart(
                owner=owner, name=name, bytes=int(size), formula="a * b", source="[KOR22] eq. 2"
            )
            for (owner, name), size in zip(names, sizes, strict=True)
        ]
        parts.append(MemoryPart(owner="core", name="shared with the residual", bytes=-GIB // 4))
        made.append(
            StageMemory(
                rank=rank,
                allocated_bytes=allocated,
                instant="backward of chunk 0: mlp",
                in_flight=(stages - rank,),
                parts=tuple(parts),
            )
        )
    return MemoryCost(
        total_bytes=total,
        allocated_bytes=total - reserve,
        low_bytes=int(0.97 * total),
        high_bytes=int(1.03 * total),
        reserved_bytes=int(1.08 * total),
        limit_bytes=LIMIT,
        worst_rank=0,
        verdict="over" if total > LIMIT else "tight" if 1.08 * total > LIMIT else "fits",
        stages=tuple(made),
        reserves=(MemoryPart(owner="core", name="runtime context", bytes=reserve),),
    )


def _time(seconds: float, owners: list[str]) -> PerformanceCost:
    weights = np.array([8.0, *(1.2 / (i + 1) for i in range(len(owners))), 1.1])
    values = (weights / weights.sum() * seconds).tolist()
    parts = [
        TimePart(
            owner="core",
            name="linear layers",
            phase="forward",
            resource="device",
            seconds=values[0],
        )
    ]
    for owner, value in zip(owners, values[1:-1], strict=True):
        parts.append(
            TimePart(
                owner=owner,
                name="all-reduce",
                phase="backward",
                resource="link",
                seconds=value,
                hidden_seconds=value / 2,
                formula="V / bandwidth",
                source="measured",
            )
        )
    parts.append(
        TimePart(owner="pp", name="idle (bubble)", phase="", resource="device", seconds=values[-1])
    )
    return PerformanceCost(
        seconds=seconds,
        low_seconds=0.94 * seconds,
        high_seconds=1.08 * seconds,
        exact=True,
        rank=0,
        mfu=4.1 / seconds,
        tokens_per_second_per_device=1024 * 8192 / seconds / 256,
        parts=tuple(parts),
    )


def _stages(count: int, seconds: float) -> tuple[StageSummary, ...]:
    layers = 80 // count
    return tuple(
        StageSummary(
            rank=rank,
            layers=(layers,),
            layer_ranges=((rank * layers, rank * layers + layers - 1),),
            recompute={"selective": (0,), "full": (rank % 2,)},
            embedding=rank == 0,
            head=rank == count - 1,
            forward_seconds=seconds / 90 * (1 + 0.05 * (rank % 3)),
            backward_seconds=seconds / 45,
            end_seconds=seconds,
            idle_seconds=seconds / 10,
            memory_bytes=60 * GIB,
            in_flight=count - rank,
        )
        for rank in range(count)
    )


def detail_of(
    result_fields: Mapping[str, Field],
    batch: StrategyBatch,
    row: int,
    place: int,
    memory_bytes: int,
    seconds: float,
    *,
    names: list[tuple[str, str]],
    owners: list[str],
) -> Detail:
    spelled = {n: v for n, v in batch.row(row).items() if not n.endswith("_plan")}
    stages = int(spelled["pp_degree"])
    fits = memory_bytes <= LIMIT
    return Detail(
        place=place,
        row=row,
        strategy=Strategy(
            fields=spelled,
            stage_partition=[80 // stages] * stages,
            layer_offset=[0] * stages,
            layer_recompute={"selective": [0] * stages, "full": [r % 2 for r in range(stages)]},
        ),
        feasible=fits,
        filter_reason="" if fits else f"{memory_bytes / GIB:.1f} GiB is over {LIMIT / GIB:.1f} GiB",
        memory=_memory(memory_bytes, stages, names, 2 * GIB),
        performance=_time(seconds, owners),
        stages=_stages(stages, seconds),
        warnings=("tp inside the node",) if place == 3 else (),
        tie_with_best=place in (1, 2),
        partition_plan="auto",
        recompute_plan=("auto", "full")[int(batch["recompute_plan"][row])],
    )


PART_NAMES = [
    ("core", "parameters"),
    ("core", "optimizer states"),
    ("core", "gradients"),
    ("core", "saved: attention inputs and outputs"),
    ("core", "saved: MLP activations"),
    ("core", "logits"),
]
