"""Layouts that the solver answers: expressible by the framework, within the plan, least that fits."""

from __future__ import annotations

from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pytest
from attrs import evolve

import autopar_core.builtin as builtin
from autopar_core.compose.layout import Layout
from autopar_core.compose.memory_table import MemoryTable
from autopar_core.compose.time_table import TimeTable
from autopar_core.config.load import load_job
from autopar_core.config.overrides import Overrides
from autopar_core.domain.arrays import Ints
from autopar_core.domain.space import Plan
from autopar_core.domain.strategy import StrategyBatch
from autopar_core.domain.training import Range
from autopar_core.plugins import PluginManager
from autopar_core.search.contexts import Contexts
from autopar_core.search.evaluate import Estimator
from autopar_core.search.problem import Problem, Solution
from autopar_core.search.solve import solve
from autopar_core.search.terms import collect


PLUGINS = PluginManager.load(extra=(("builtin", builtin),))
LAYERS, RANKS = 13, 4


@cache
def contexts(framework: str) -> Contexts:
    tables: dict[str, Any] = {
        "model": {"num_layers": LAYERS, "hidden": 1024, "ffn_hidden": 4096, "heads": 16,
                  "kv_heads": 8, "vocab": 32000},
        "training": {"global_batch_size": 64, "seq_len": 4096},
        "cluster": {"system": "h100-sxm-80gb", "devices": 32},
        "framework": {"name": framework},
    }  # fmt: skip
    return Contexts.build(load_job(None, tables, Overrides(), PLUGINS), PLUGINS)


@cache
def problem(framework: str, chunks: int, share: float) -> Problem:
    """One row of 4 stages; the budget is a share of what the even split takes without recompute."""
    made = contexts(framework)
    stage = 3 if framework == "torchtitan" else 1
    values = {
        "dp_degree": 8, "pp_degree": RANKS, "vpp_degree": chunks, "zero_stage": stage,
        "shard_degree": 8, "schedule": "1f1b" if chunks == 1 else "interleaved",
        "micro_batch_size": 1, "micro_batch_num": 8,
    }  # fmt: skip
    batch = StrategyBatch.of(
        made.fields, {n: [made.fields[n].encode(v)] for n, v in values.items()}
    )
    terms = collect(batch, made)
    _, keys = made.composer.keys(batch)
    memory, time = MemoryTable.build(terms.memory, 1), TimeTable.build(terms.time, 1)
    whole = Estimator(made).problem(keys[0], memory, time)
    even = Layout.plain(made.composer.even(keys[0], LAYERS)[None].copy())
    budget = np.floor(share * whole.peaks(even).max(axis=1))
    return evolve(whole, budget=budget)


@cache
def solved(framework: str, chunks: int, share: float, number: int) -> Solution:
    """What the solver answers where the plan has one of the ranges."""
    return solve(problem(framework, chunks, share), Plan(), Plan(layers=RANGES[number]))


def on_ranks(counts: Ints) -> list[int]:
    return [int(x) for x in counts.reshape(-1, RANKS).sum(axis=0)]


SHARES = (0.55, 0.65, 0.75, 0.85, 0.95)
RANGES = (Range(), Range(max=3), Range(min=1, max=3), Range(max=4))
CASES = list(product((1, 2), SHARES, range(len(RANGES))))


@pytest.mark.parametrize("framework", ["megatron", "torchtitan"])
def test_a_mode_that_is_switched_as_a_whole_is_on_everywhere_or_nowhere(framework: str) -> None:
    # a maximum of 3 lies between the layers of the ranks: it must not leave some ranks switched on
    for chunks, share, number in CASES:
        found = solved(framework, chunks, share, number).layout
        whole = [found.selective] if framework == "megatron" else [found.selective, found.full]
        for mode in whole:
            assert (mode == found.layers).all() or not mode.any(), (chunks, share, RANGES[number])


@pytest.mark.parametrize("framework", ["generic", "torchtitan"])
def test_no_rank_recomputes_more_than_the_plan_allows(framework: str) -> None:
    for chunks, share, number in CASES:
        found, layers = solved(framework, chunks, share, number).layout, RANGES[number]
        most = max(on_ranks(found.selective + found.full))
        assert layers.max is None or most <= layers.max, (chunks, share, layers)


def test_one_layer_less_does_not_fit() -> None:
    tried = 0
    for chunks, share, number in CASES:
        one, layers = problem("generic", chunks, share), RANGES[number]
        found = solved("generic", chunks, share, number)
        assert (one.peaks(found.layout) == found.peaks).all()
        if (found.peaks > one.budget[:, None]).any():
            continue
        held = on_ranks(found.layout.selective + found.layout.full)
        for name, rank in product(("selective", "full"), range(RANKS)):
            counts = getattr(found.layout, name)[0, rank::RANKS]
            if counts.any() and held[rank] > (layers.min or 0):
                less = found.layout.take(np.array([0]))
                last = int(np.nonzero(counts)[0][-1])
                getattr(less, name)[0, rank + last * RANKS] -= 1
                assert one.peaks(less)[0, rank] > one.budget[0], (chunks, share, layers)
                tried += 1
    assert tried > 20
