"""A synthetic search result: plausible numbers, every kind of verdict, as many rows as wanted."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from attrs import frozen
from result_details import GIB, LIMIT, PART_NAMES, detail_of

from autopar_core.domain.bands import Band, Bands
from autopar_core.domain.fields import Dimension, Field, Level
from autopar_core.domain.framework import CoreProfile, FrameworkProfile, StateBytes
from autopar_core.domain.job import Job
from autopar_core.domain.model import ModelConfig
from autopar_core.domain.result import PluginView, SearchResult, StageCount
from autopar_core.domain.space import Plan, SearchSpace
from autopar_core.domain.strategy import StrategyBatch
from autopar_core.domain.system import (
    GemmLaw,
    KernelLaw,
    LinkLaw,
    Links,
    MemoryLaw,
    SystemProfile,
)
from autopar_core.domain.training import ClusterConfig, Range, TrainingConfig
from autopar_core.domain.verdict import Broken, CutGroup, Cuts, Verdicts


@frozen(eq=False, kw_only=True)
class Said:
    """Stands in for the lazy sentences of a search."""

    rows: Any
    code: str
    owner: str
    text: str
    level: str = "judge"

    def say(self, k: int) -> str:
        return self.text.format(row=int(self.rows[k]))


def _cut(
    fields: dict[str, Field], level: str, decided: dict[str, int], stands_for: int,
    *reasons: tuple[str, str, str],
) -> CutGroup:  # fmt: skip
    """One branch that fell."""
    return CutGroup(
        level=level, batch=StrategyBatch.of(fields, {n: [v] for n, v in decided.items()}),
        decided=tuple(decided), stands_for=np.array([stands_for]),
        rules=tuple(
            Broken(code=code, owner=owner, rows=np.array([True]), sentence=sentence)
            for code, owner, sentence in reasons
        ),
    )  # fmt: skip


def _degree(name: str) -> Field:
    return Field(
        name=f"{name}_degree", short=name, level=Level.DEGREE, neutral=1, owner=name, doc=f"{name}."
    )


def fields_of(dimensions: tuple[Dimension, ...]) -> dict[str, Field]:
    made = [dimension.degree for dimension in dimensions]
    make = [
        ("micro_batch_num", "m", Level.BATCH, 1, {}),
        ("micro_batch_size", "mbs", Level.BATCH, 1, {}),
        ("vpp_degree", "vpp", Level.CHUNKS, 1, {"owner": "pp"}),
        (
            "schedule",
            "schedule",
            Level.SCHEDULE,
            "none",
            {"choices": ("none", "1f1b", "interleaved")},
        ),
        ("sequence_parallel", "sp", Level.SHARDING, False, {"boolean": True}),
        ("zero_stage", "zero", Level.SHARDING, 0, {}),
        ("partition_plan", "partition", Level.RECOMPUTE, 0, {}),
        ("recompute_plan", "recompute", Level.RECOMPUTE, 0, {}),
    ]
    for name, short, level, neutral, more in make:
        made.append(Field(name=name, short=short, level=level, neutral=neutral, **more))  # type: ignore[arg-type]
    return {field.name: field for field in made}


def dimensions_of(extra: tuple[str, ...] = ()) -> tuple[Dimension, ...]:
    return tuple(
        Dimension(name=name, degree=_degree(name)) for name in ("dp", "tp", "pp", "cp", *extra)
    )


def job_of(limit: int = LIMIT, **space: Any) -> Job:
    band = Band(median=0.03, p90=0.1, rows=20, remaining=0.02)
    return Job(
        bands=Bands(time=band, memory=band, reserved=band),
        model=ModelConfig(
            name="llama-3-70b",
            num_layers=80,
            hidden=8192,
            ffn_hidden=28672,
            heads=64,
            kv_heads=8,
            vocab=128256,
        ),
        training=TrainingConfig(global_batch_size=1024, seq_len=8192),
        cluster=ClusterConfig(devices=256, memory_limit=limit, devices_per_domain=8),
        system=SystemProfile(
            name="h100-sxm-80gb",
            title="NVIDIA H100 SXM5 80 GB (700 W)",
            devices_per_domain=8,
            memory_bytes=85520809984,
            compute_units=132,
            peak_flops={"bf16": 989e12},
            gemm=GemmLaw(efficiency=0.66, k0=165.0),
            kernel=KernelLaw(launch_seconds=3e-6),
            memory=MemoryLaw(bytes_per_second=3.35e12, elementwise_efficiency=0.65),
            attention={},
            links=Links(
                intra=LinkLaw(bytes_per_second=3e11, latency_seconds=1e-5),
                inter=LinkLaw(bytes_per_second=4e10, latency_seconds=2e-5),
            ),
            sources={"gemm": "fitted", "memory_bytes": "data sheet"},
            unverified=("gemm.k0",),
        ),
        framework=FrameworkProfile(
            name="megatron",
            title="Megatron-LM",
            rank_order="tp-cp-dp-pp",
            core=CoreProfile(states=StateBytes(parameters=2, gradients=4, optimizer=12)),
        ),
        space=SearchSpace(
            wanted={"tp_degree": (1, 2, 4, 8), "micro_batch_size": Range(min=1, max=4)},
            partitions=(Plan(),),
            recomputes=(Plan(), Plan(kind="full")),
            **space,
        ),
        plugin_sections={"cp": {"comm_type": "p2p"}},
        sources={
            "model": "preset llama-3-70b",
            "training.seq_len": "run.toml",
            "search.tp": "run.toml",
        },
        raw={"model": {"source": "llama-3-70b"}, "search": {"tp": [1, 2, 4, 8]}},
        notes=("The attention law of this system is taken over from another device.",),
    )


def make_result(
    rows: int = 600,
    *,
    feasible: bool = True,
    top: int = 5,
    extra: tuple[str, ...] = (),
    many_parts: bool = False,
    judged: bool = True,
) -> SearchResult:
    """A result of about ``rows`` rows; nothing is judged at all when ``judged`` is false."""
    dimensions = dimensions_of(extra)
    fields = fields_of(dimensions)
    grid = list(
        itertools.product(
            (1, 2, 4, 8), (1, 2, 4, 8, 16), (1, 2, 4), (1, 2, 4), (0, 1, 2, 3), (0, 1)
        )
    )
    picks = np.array(grid)[np.linspace(0, len(grid) - 1, rows).astype(int) if judged else []]
    t, p, c, mbs, zero, plan = picks.T if judged else np.zeros((6, 0), dtype=int)
    d = np.maximum(1, 256 // (t * p * c))
    columns = {
        "dp_degree": d,
        "tp_degree": t,
        "pp_degree": p,
        "cp_degree": c,
        "micro_batch_num": np.maximum(1, 1024 // (d * mbs)),
        "micro_batch_size": mbs,
        "schedule": (p > 1).astype(int),
        "sequence_parallel": (t > 1).astype(int),
        "zero_stage": zero,
        "recompute_plan": plan,
    }
    for name in extra:
        columns[f"{name}_degree"] = 1 + (np.arange(len(t)) % 3)
    batch = StrategyBatch.of(fields, columns)
    memory = (
        70e9 * 18 / (t * p) / np.minimum(d, 1 + zero * 3)
        + 9e9 * mbs * (1 - 0.8 * plan) / c
        + 4e9
        + 1e8 * (np.arange(len(t)) % 97)
    ).astype(np.int64)
    seconds = 9.0 * (1 + 0.03 * t + 0.02 * c) * (1 + p / 60) * (1 + 0.25 * plan) * (1 + 0.1 / mbs)
    seconds = seconds + 1e-3 * (np.arange(len(t)) % 89)
    if not feasible:
        memory = memory + LIMIT
    unknown = np.zeros(len(batch), dtype=bool)
    unknown[len(batch) // 2 :: 50] = True  # rows that a plugin declines
    memory[unknown], seconds[unknown] = -1, np.nan
    fits = (memory <= LIMIT) & ~unknown
    code = np.where(unknown, 1, np.where(fits, 0, 2))
    order = np.lexsort((memory, seconds))
    ranking = order[fits[order]]
    near = np.argsort(np.where(unknown, np.iinfo(np.int64).max, memory), kind="stable")
    best = np.minimum.accumulate(memory[ranking]) if len(ranking) else memory[:0]
    pareto = ranking[np.flatnonzero(np.r_[True, best[1:] < best[:-1]])] if len(ranking) else ranking
    exact = np.zeros(len(batch), dtype=bool)
    exact[ranking[:50]] = exact[pareto] = True
    for name in fields:
        if name.endswith("_degree"):
            for value in np.unique(batch[name]):
                exact[ranking[batch[name][ranking] == value][:1]] = True
    others = 16 if many_parts else 0
    names = [
        *PART_NAMES,
        *(("abcdef"[i % 6], f"buffer of kind {i} with a long name") for i in range(others)),
    ]
    owners = ["dp", "tp", "pp", "cp", *extra] + [f"third-party-{i}" for i in range(others)]
    shown_rows = (ranking[:top] if feasible else near[:top]).tolist()
    details = tuple(
        detail_of(
            fields,
            batch,
            row,
            place + 1 if feasible else 0,
            int(memory[row]),
            float(seconds[row]),
            names=names,
            owners=owners,
        )
        for place, row in enumerate(shown_rows)
    )
    plugin = {
        "status": "active",
        "distribution": "autopar-core",
        "version": "0.1.0",
        "summary": "s",
        "dimension": "",
        "hooks": ("autopar_memory",),
        "missing": (),
        "reason": "",
    }
    broken = {**plugin, "status": "broken", "reason": "ImportError: no module named 'x'"}
    return SearchResult(
        job=job_of(),
        plugins=(
            PluginView(name="builtin", **plugin),  # type: ignore[arg-type]
            PluginView(name="extra", **broken),  # type: ignore[arg-type]
        ),
        fields=fields,
        dimensions=dimensions,
        batch=batch,
        verdicts=Verdicts(
            feasible=fits, code=code, codes=("feasible", "NotImplemented", "memory-limit")
        ),
        memory_bytes=memory,
        allocated_bytes=np.where(memory < 0, -1, memory - 2 * GIB),
        memory_verdict=np.where(memory < 0, -1, np.where(memory > LIMIT, 2, memory % 2)),
        seconds=seconds,
        exact=exact,
        sentences=(
            Said(
                rows=np.flatnonzero(unknown),
                code="NotImplemented",
                owner="cp",
                text="NotImplemented: plugin 'cp' declines autopar_memory, \"ring\" has no law",
            ),
            Said(
                rows=np.flatnonzero(code == 2),
                code="memory-limit",
                owner="core",
                text="row {row} needs more memory, context included, than the limit",
            ),
        ),
        cuts=Cuts(
            (
                _cut(
                    fields,
                    "DEGREE",
                    {"dp_degree": 16, "tp_degree": 16},
                    4_800_000,
                    ("tp-heads", "tp", "tp_degree 16 does not divide 8 kv heads"),
                    ("habit-node", "core", '16 > 8, a "node"'),
                ),
                _cut(
                    fields,
                    "BATCH",
                    {"dp_degree": 3, "micro_batch_size": 2},
                    12,
                    ("batch-divides", "core", "1024 sequences do not split over 3 replicas"),
                ),
            )
        ),
        ranking=ranking,
        top=details if feasible else (),
        misses=() if feasible else details,
        pareto=pareto,
        space_size=len(batch) + 4_800_012,
        counts=(
            StageCount(
                level="DEGREE",
                before=len(batch) + 4_800_012,
                after=len(batch) + 12,
                taken={"tp-heads": 4_800_000},
            ),
            StageCount(
                level="BATCH", before=len(batch) + 12, after=len(batch), taken={"batch-divides": 12}
            ),
        ),
        ranker="step_time",
        ranker_sentence="Shortest step first.",
        partition_plans=("auto",),
        recompute_plans=("auto", "full"),
        warnings={"tp-node": (7, "tp_degree 16 leaves the scale-up domain of 8")},
        log=("generator grid",),
    )
