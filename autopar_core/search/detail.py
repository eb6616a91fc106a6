"""One candidate in full: memory parts of every stage, time parts, stage summary."""

from __future__ import annotations

from typing import Any

import numpy as np
from attrs import frozen

from autopar_core.compose.layout import Layout
from autopar_core.compose.memory_explain import RankExplainer, part_of
from autopar_core.compose.memory_peak import peak_moments
from autopar_core.compose.memory_table import MemoryTable
from autopar_core.compose.time_explain import RankShare, explain_time
from autopar_core.compose.time_table import TimeTable
from autopar_core.domain.arrays import Ints
from autopar_core.domain.cost import (
    MemoryCost,
    PerformanceCost,
    StageSummary,
)
from autopar_core.domain.job import Job
from autopar_core.domain.result import Detail
from autopar_core.domain.space import Plan
from autopar_core.domain.strategy import Strategy, StrategyBatch
from autopar_core.hooks.schedule import ScheduleKey
from autopar_core.search.boxes import space
from autopar_core.search.clock import StageTimes
from autopar_core.search.evaluate import Estimator
from autopar_core.search.memory_verdict import WORDS, reserved_bytes, verdict_codes
from autopar_core.search.problem import Problem
from autopar_core.search.solve import solve
from autopar_core.search.terms import Terms, collect


@frozen(eq=False)
class Case:
    """One row, solved: its terms, schedule, layers and exact times."""

    one: StrategyBatch
    terms: Terms
    time: TimeTable
    key: ScheduleKey
    problem: Problem
    plans: tuple[Plan, Plan]
    layout: Layout
    times: StageTimes


class Describer:
    """Describes rows of a job."""

    def __init__(self, estimator: Estimator) -> None:
        self.estimator = estimator
        self.contexts = estimator.contexts

    def describe(
        self, batch: StrategyBatch, row: int, place: int, warnings: tuple[str, ...], reason: str
    ) -> Detail:
        """The detail of one row; ``reason`` is empty when it is feasible."""
        case = self.case(batch, row)
        key, layout, times = case.key, case.layout, case.times
        cost = self._memory(case.terms, case.problem, layout)
        gain, gap = self._partition(case)
        return Detail(
            place=place, row=row, strategy=self._strategy(case.one, key, layout),
            feasible=not reason, filter_reason=reason, memory=cost,
            performance=self._performance(case.terms, key, layout, times),
            stages=self._stages(key, layout, times, cost), warnings=warnings,
            partition_plan=case.plans[0].text, recompute_plan=case.plans[1].text,
            partition_gain=gain, partition_gap=gap,
        )  # fmt: skip

    def _partition(self, case: Case) -> tuple[float | None, float | None]:
        """Shares of the step that the search for layers saved, and may have missed at the most."""
        found = space(
            self.contexts.composer, case.key, self.contexts.job.model.num_layers, case.plans[0]
        )
        if found.fixed is not None or not found.possible:
            return None, None
        step = float(case.times.step[0])
        least = float(self.estimator.least(case.one)[0])
        even = solve(case.problem, Plan(kind="even"), case.plans[1])
        gain = None
        if even.possible[0] and (even.peaks[0] <= case.problem.budget[0]).all():
            times = self.estimator.stage_times(case.key, case.time, even.layout, exact=True)
            gain = 1 - step / float(times.step[0])
        return gain, max(0.0, 1 - least / step)

    def case(self, batch: StrategyBatch, row: int) -> Case:
        """One row with its layers and exact times."""
        one = batch.take(np.array([row]))
        terms = collect(one, self.contexts)
        memory, time = MemoryTable.build(terms.memory, 1), TimeTable.build(terms.time, 1)
        _, keys = self.contexts.composer.keys(one)
        key = keys[0]
        problem = self.estimator.problem(key, memory, time)
        plans = self.estimator.plans(int(one["partition_plan"][0]), int(one["recompute_plan"][0]))
        layout = solve(problem, *plans).layout
        times = self.estimator.stage_times(key, time, layout, exact=True)
        return Case(one, terms, time, key, problem, plans, layout, times)

    def _strategy(self, one: StrategyBatch, key: ScheduleKey, layout: Layout) -> Strategy:
        fields = {
            n: v for n, v in one.row(0).items() if n not in ("partition_plan", "recompute_plan")
        }
        layers = layout.layers[0]
        offset = layers - self.contexts.job.model.num_layers // key.stages
        recompute = {
            "selective": nested(layout.selective[0], key), "full": nested(layout.full[0], key)
        }  # fmt: skip
        return Strategy(
            fields=fields, stage_partition=nested(layers, key), layer_offset=nested(offset, key),
            layer_recompute=recompute,
        )  # fmt: skip

    def _memory(self, terms: Terms, problem: Problem, layout: Layout) -> MemoryCost:
        situation = problem.situation
        explainer = RankExplainer(terms.memory, situation, layout)
        stages = [
            explainer.rank(moment) for moment in peak_moments(problem.memory, situation, layout)
        ]
        worst = max(stages, key=lambda s: (s.allocated_bytes, -s.rank))
        reserves = tuple(
            part_of(term, 1) for term in terms.memory if term.reserve and term.bytes[0]
        )
        total = worst.allocated_bytes + sum(part.bytes for part in reserves)
        limit = self.contexts.job.cluster.memory_limit
        job, outside = self.contexts.job, total - worst.allocated_bytes
        allocated = np.array([worst.allocated_bytes], dtype=np.int64)
        reserved = reserved_bytes(job.framework.core, layout, allocated) + outside
        code = verdict_codes(allocated + outside, allocated, reserved, job.bands.memory, limit)[0]
        low, high = job.bands.memory.around(worst.allocated_bytes)
        return MemoryCost(
            total_bytes=total, allocated_bytes=worst.allocated_bytes, low_bytes=round(low) + outside,
            high_bytes=round(high) + outside, reserved_bytes=int(reserved[0]), limit_bytes=limit,
            worst_rank=worst.rank, verdict=WORDS[code], stages=tuple(stages), reserves=reserves,
        )  # fmt: skip

    def _performance(
        self, terms: Terms, key: ScheduleKey, layout: Layout, times: StageTimes
    ) -> PerformanceCost:
        job, composer = self.contexts.job, self.contexts.composer
        ends = (times.ends + times.tail)[0]
        rank = int(ends.argmax())
        total = float(ends[rank])
        share = RankShare.of(
            key, rank, layout, float(composer.first_forward(key, times.forward)[0, rank]),
            float(composer.last_backward(key, times.backward)[0, rank]),
        )  # fmt: skip
        parts = explain_time(terms.time, share, total, composer.owner, terms.time_scale)
        tokens = job.training.global_batch_size * job.training.seq_len
        low, high = job.bands.time.around(total, job.format_uncertainty)
        return PerformanceCost(
            seconds=total, low_seconds=low, high_seconds=high, exact=True, rank=rank,
            mfu=model_flops(job) / (total * job.cluster.devices * job.system.peak("bf16")),
            tokens_per_second_per_device=tokens / total / job.cluster.devices, parts=parts,
        )  # fmt: skip

    def _stages(
        self, key: ScheduleKey, layout: Layout, times: StageTimes, memory: MemoryCost
    ) -> tuple[StageSummary, ...]:
        layers = layout.layers[0, key.order]
        starts = np.zeros_like(layers)
        starts[key.order] = np.cumsum(layers) - layers
        rows = []
        for rank in range(key.ranks):
            stages = [chunk * key.ranks + rank for chunk in range(key.chunks)]
            ranges = tuple(
                (int(starts[s]), int(starts[s] + layout.layers[0, s]) - 1)
                if layout.layers[0, s] else None
                for s in stages
            )  # fmt: skip
            work = float(times.forward[0, stages].sum() + times.backward[0, stages].sum())
            end = float(times.ends[0, rank])
            rows.append(
                StageSummary(
                    rank=rank, layers=tuple(int(layout.layers[0, s]) for s in stages),
                    layer_ranges=ranges,
                    recompute={
                        "selective": tuple(int(layout.selective[0, s]) for s in stages),
                        "full": tuple(int(layout.full[0, s]) for s in stages),
                    },
                    embedding=rank == 0, head=rank == key.last % key.ranks,
                    forward_seconds=float(times.forward[0, stages].sum()),
                    backward_seconds=float(times.backward[0, stages].sum()), end_seconds=end,
                    idle_seconds=max(0.0, end - work * key.micro_batches),
                    memory_bytes=memory.stages[rank].allocated_bytes
                    + sum(part.bytes for part in memory.reserves),
                    in_flight=sum(memory.stages[rank].in_flight),
                )
            )  # fmt: skip
        return tuple(rows)


def nested(values: Ints, key: ScheduleKey) -> list[Any]:
    """``[stage]``, or ``[chunk][stage]`` when there are several chunks."""
    if key.chunks == 1:
        return [int(v) for v in values]
    return [[int(v) for v in row] for row in values.reshape(key.chunks, key.ranks)]


def model_flops(job: Job) -> float:
    """FLOPs of a step by convention: 3 x forward, causal attention counted half, no recompute."""
    model, training = job.model, job.training
    matrices = sum(m.rows * m.cols for m in model.matrices())
    attention = 4 * training.seq_len * model.query_width * 0.5
    per_token = model.num_layers * (2 * matrices + attention) + 2 * model.hidden * model.vocab
    return 3.0 * per_token * training.global_batch_size * training.seq_len
