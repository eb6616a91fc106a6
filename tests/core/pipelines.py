"""Pipelines of a real framework profile for tests of the solver, and the same problem counted out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import product
from typing import Any

import numpy as np
from attrs import evolve

import autopar_core.builtin as builtin
from autopar_core.compose.memory_peak import Layout
from autopar_core.compose.memory_table import MemoryTable
from autopar_core.compose.time_table import TimeTable
from autopar_core.config.load import load_job
from autopar_core.config.overrides import Overrides
from autopar_core.domain.strategy import StrategyBatch
from autopar_core.plugins import PluginManager
from autopar_core.search.clock import clock, stage_seconds
from autopar_core.search.contexts import Contexts
from autopar_core.search.evaluate import Estimator
from autopar_core.search.problem import Problem, Solution
from autopar_core.search.terms import collect


PLUGINS = PluginManager.load(extra=(("builtin", builtin),))


@cache
def contexts(framework: str, layers: int, ranks: int, m: int, vocab: int, seq: int, hidden: int,
             tied: bool = False) -> Contexts:  # fmt: skip
    """A job on 8 replicas."""
    tables: dict[str, Any] = {
        "model": {"num_layers": layers, "hidden": hidden, "ffn_hidden": 4 * hidden, "heads": 16,
                  "kv_heads": 8, "vocab": vocab, "tied_embeddings": tied},
        "training": {"global_batch_size": 8 * m, "seq_len": seq},
        "cluster": {"system": "h100-sxm-80gb", "devices": 8 * ranks},
        "framework": {"name": framework},
    }  # fmt: skip
    return Contexts.build(load_job(None, tables, Overrides(), PLUGINS), PLUGINS)


def pipeline(
    framework: str = "generic", *, layers: int, ranks: int, chunks: int = 1, m: int,
    share: float = 2.0, vocab: int = 32000, seq: int = 4096, hidden: int = 1024,
    schedule: str = "", tied: bool = False,
) -> Problem:  # fmt: skip
    """One row; the budget is a share of what the even split takes without recompute."""
    made = contexts(framework, layers, ranks, m, vocab, seq, hidden, tied)
    stage = 3 if framework == "torchtitan" else 1
    values = {
        "dp_degree": 8, "pp_degree": ranks, "vpp_degree": chunks, "zero_stage": stage,
        "shard_degree": 8, "schedule": schedule or ("1f1b" if chunks == 1 else "interleaved"),
        "micro_batch_size": 1, "micro_batch_num": m,
    }  # fmt: skip
    batch = StrategyBatch.of(
        made.fields, {n: [made.fields[n].encode(v)] for n, v in values.items()}
    )
    terms = collect(batch, made)
    _, keys = made.composer.keys(batch)
    memory, time = MemoryTable.build(terms.memory, 1), TimeTable.build(terms.time, 1)
    one = Estimator(made).problem(keys[0], memory, time)
    even = Layout.plain(made.composer.even(keys[0], layers)[None].copy())
    return evolve(one, budget=np.floor(share * one.peaks(even).max(axis=1)))


def fits(problem: Problem, found: Solution) -> bool:
    """Whether the only row fits."""
    return bool((found.peaks <= problem.budget[:, None]).all() and found.possible.all())


def steps(problem: Problem, layout: Layout) -> Any:
    """(Q,) exact steps of layouts of the only row."""
    time = problem.time.take(np.zeros(len(layout.layers), np.int64))
    seconds = stage_seconds(problem.key, time, layout)
    return clock(
        problem.composer, problem.key, time, layout.layers, *seconds, exact=True
    ).step  # fmt: skip


def compositions(total: int, low: Sequence[int], high: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Every way to place layers within bounds."""
    if len(low) == 1:
        if low[0] <= total <= high[0]:
            yield (total,)
        return
    for here in range(low[0], min(high[0], total) + 1):
        for rest in compositions(total - here, low[1:], high[1:]):
            yield (here, *rest)


def partitions(problem: Problem) -> Any:
    """(P, S) every partition that the framework can spell."""
    listed = problem.composer.listed(problem.key, problem.layers)
    if listed is not None:
        return listed
    low = problem.composer.fewest(problem.key).tolist()
    return np.array([*compositions(problem.layers, low, [problem.layers] * len(low))])


def mixes(problem: Problem, layers: Sequence[int]) -> list[tuple[tuple[int, int], ...]]:
    """(selective, full) of every chunk of a rank, in every way that its modes allow."""
    each = [
        [(s, f) for s in range(n + 1) for f in range(n + 1 - s)
         if (not s or "selective" in problem.modes) and (not f or "full" in problem.modes)]
        for n in layers
    ]  # fmt: skip
    return [*product(*each)]


def cheapest_by_counting(problem: Problem, layers: Sequence[int]) -> list[Any]:
    """Of every rank the cheapest mix of these chunks that fits, None where none does."""
    ranks, chunks = problem.key.ranks, problem.key.chunks
    tried = mixes(problem, layers)
    counts = np.array(tried).reshape(len(tried), chunks, 2)
    layout = Layout(
        np.tile(np.repeat(np.array(layers), ranks), (len(tried), 1)),
        np.repeat(counts[:, :, 0], ranks, axis=1), np.repeat(counts[:, :, 1], ranks, axis=1),
    )  # fmt: skip
    peaks = problem.take(np.zeros(len(tried), np.int64)).peaks(layout)
    backward = problem.time.backward[0]
    price = (counts * (backward[1:] - backward[0])).sum(axis=(1, 2))
    found: list[Any] = []
    for rank in range(ranks):
        good = np.nonzero(peaks[:, rank] <= problem.budget[0])[0]
        found.append(tried[good[price[good].argmin()]] if len(good) else None)
    return found


def fastest_by_counting(problem: Problem) -> float:
    """Least step over all partitions, with the cheapest mix of every rank or every global choice."""
    ranks, chunks, every = problem.key.ranks, problem.key.chunks, partitions(problem)
    layouts: list[tuple[Any, Any, Any]] = []
    if problem.granularity == "stage":
        table: dict[tuple[int, ...], list[Any]] = {}
        for one in every:
            cells = one.reshape(chunks, ranks).T
            chosen = []
            for rank, layers in enumerate(map(tuple, cells.tolist())):
                if layers not in table:
                    table[layers] = cheapest_by_counting(problem, layers)
                chosen.append(table[layers][rank])
            if all(mix is not None for mix in chosen):
                counts = np.array(chosen).transpose(1, 0, 2).reshape(-1, 2)
                layouts.append((one, counts[:, 0], counts[:, 1]))
    else:
        top = problem.layers if problem.granularity == "count" else 0
        for one in every:
            zero = np.zeros_like(one)
            layouts.append((one, zero, zero))
            if "selective" in problem.modes:
                layouts.append((one, one, zero))
            if "full" in problem.modes:
                layouts += [(one, zero, np.minimum(one, c)) for c in range(1, top)]
                layouts.append((one, zero, one))
    if not layouts:
        return float("inf")
    layout = Layout(*(np.array([each[i] for each in layouts]) for i in range(3)))
    row = np.zeros(len(layouts), np.int64)
    good = (problem.take(row).peaks(layout) <= problem.budget[0]).all(axis=1)
    return float(steps(problem, layout.take(good)).min()) if good.any() else float("inf")
