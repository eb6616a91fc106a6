"""The solver against HiGHS on an integer program of the same problem."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pipelines
import pytest
from attrs import evolve

from autopar_core.compose.memory_peak import Layout
from autopar_core.domain.space import Plan
from autopar_core.search.clock import stage_seconds
from autopar_core.search.problem import Problem
from autopar_core.search.solve import solve


pytestmark = pytest.mark.slow


# Seconds that HiGHS gets for one case; what it has proven by then is compared.
LIMIT = 60.0


def options(problem: Problem, rank_layers: int) -> list[Any]:
    """Of every rank (layers, forward, backward) of every mix that fits."""
    found: list[Any] = [[] for _ in range(problem.key.ranks)]
    for layers in range(1, rank_layers + 1):
        mixes = np.array([(s, f) for s in range(layers + 1) for f in range(layers + 1 - s)])
        ranks = problem.key.ranks
        layout = Layout(
            np.full((len(mixes), ranks), layers), np.repeat(mixes[:, :1], ranks, axis=1),
            np.repeat(mixes[:, 1:], ranks, axis=1),
        )  # fmt: skip
        part = problem.take(np.zeros(len(mixes), np.int64))
        good = part.peaks(layout) <= problem.budget[0]
        forward, backward = stage_seconds(problem.key, part.time, layout)
        for rank in range(ranks):
            for i in np.nonzero(good[:, rank])[0].tolist():
                found[rank].append((layers, forward[i, rank], backward[i, rank]))
    return found


def integer_program(problem: Problem, rank_layers: int) -> tuple[float, float, float]:
    """(Step of the best layout, proven bound of all, seconds it took).

    One binary for every rank, number of layers and mix that fits; start times of every forward and
    backward are continuous, in the order of 1F1B.
    """
    highspy = pytest.importorskip("highspy")
    p, m = problem.key.ranks, problem.key.micro_batches
    table = options(problem, rank_layers)
    unit = table[0][0][1]
    hop = float(max(problem.time.hop[0][0], problem.time.hop[1][0])) / unit
    model = highspy.Highs()
    model.setOptionValue("output_flag", False)
    model.setOptionValue("threads", 1)
    model.setOptionValue("time_limit", LIMIT)
    model.setOptionValue("mip_rel_gap", 1e-4)
    chosen = [[model.addBinary() for _ in row] for row in table]
    for row in chosen:
        model.addConstr(sum(row) == 1)
    model.addConstr(
        sum(n * x for row, xs in zip(table, chosen, strict=True)
            for (n, _, _), x in zip(row, xs, strict=True)) == problem.layers
    )  # fmt: skip
    time_of = [
        [sum(each[k] / unit * x for each, x in zip(row, xs, strict=True)) for k in (1, 2)]
        for row, xs in zip(table, chosen, strict=True)
    ]
    end = {(r, i, k): model.addVariable(lb=0) for r in range(p) for i in range(m) for k in "FB"}
    last = model.addVariable(lb=0)
    for rank in range(p):
        warm = min(p - 1 - rank, m)
        order = [("F", i) for i in range(warm)]
        for i in range(m - warm):
            order += [("F", warm + i), ("B", i)]
        order += [("B", i) for i in range(m - warm, m)]
        before = None
        for kind, i in order:
            here, took = end[rank, i, kind], time_of[rank][kind == "B"]
            model.addConstr(here >= (took if before is None else end[before] + took))
            if kind == "F" and rank:
                model.addConstr(here >= end[rank - 1, i, "F"] + took + hop)
            if kind == "B" and rank < p - 1:
                model.addConstr(here >= end[rank + 1, i, "B"] + took + hop)
            before = (rank, i, kind)
        model.addConstr(last >= end[before])
    start = time.perf_counter()
    model.minimize(last)
    took = time.perf_counter() - start
    info = model.getInfo()
    return info.objective_function_value * unit, info.mip_dual_bound * unit, took


@pytest.mark.timeout(900)
def test_never_worse_than_the_integer_program_by_half_a_percent(record_property: Any) -> None:
    rng = np.random.default_rng(0)
    tried, compared, mine_total, theirs_total, worst = 0, 0, 0.0, 0.0, -1.0
    for ranks, layers in ((4, 32), (4, 56), (6, 48), (6, 72), (8, 56), (8, 64), (8, 80)):
        one = pipelines.pipeline(
            layers=layers, ranks=ranks, m=2 * ranks, share=float(rng.uniform(0.7, 0.95)),
            vocab=int(rng.choice([32000, 128256])),
        )  # fmt: skip
        one = evolve(one, time=evolve(one.time, steps=()))
        solve(one, Plan(), Plan())
        start = time.perf_counter()
        found = solve(one, Plan(), Plan())
        mine_total += time.perf_counter() - start
        tried += 1
        if not pipelines.fits(one, found):
            continue
        step = float(pipelines.steps(one, found.layout)[0])
        theirs, bound, took = integer_program(one, int(1.6 * layers / ranks) + 2)
        theirs_total += took
        compared += 1
        worst = max(worst, step / theirs - 1)
        assert step <= theirs * 1.005
        assert step >= bound * (1 - 1e-6)
    assert compared >= 5
    record_property("worst", float(worst))
    record_property("milliseconds", float(1e3 * mine_total / tried))
    record_property("times as fast", float(theirs_total / compared / (mine_total / tried)))
