"""Peaks of any terms a plugin may return: the tables against counting every moment and instant."""

from __future__ import annotations

import random

import numpy as np
import pytest

import autopar_core.builtin as builtin
from autopar_core.compose.layout import Layout
from autopar_core.compose.memory_explain import RankExplainer
from autopar_core.compose.memory_peak import peak_moments, rank_peaks
from autopar_core.compose.memory_table import MemoryTable
from autopar_core.compose.memory_trace import memory_trace
from autopar_core.compose.situation import Situation
from autopar_core.config.load import load_job
from autopar_core.config.overrides import Overrides
from autopar_core.domain.terms import (
    ALWAYS,
    BLOCK_INSTANTS,
    INSTANTS,
    MODES,
    PLACES,
    POSITIONS,
    SCALES,
    WHENS,
    MemoryTerm,
)
from autopar_core.hooks.schedule import Composer, ScheduleKey
from autopar_core.plugins import PluginManager
from autopar_core.search.contexts import Contexts
from autopar_core.testing.bench import SMALL_JOB


PLUGINS = PluginManager.load(extra=(("builtin", builtin),))
SCHEDULES = ["1f1b", "gpipe", "interleaved", "zb-h1", "zbv", "dualpipev"]
COMPOSER: Composer = Contexts.build(
    load_job(None, SMALL_JOB, Overrides(), PLUGINS), PLUGINS
).composer


def any_term(draw: random.Random, name: str) -> MemoryTerm | None:
    """A term with conditions that mean something together, else None."""
    live = frozenset(draw.sample(INSTANTS, draw.randint(1, 6)))
    live = draw.choice([live, live, ALWAYS, frozenset(BLOCK_INSTANTS)])
    try:
        return MemoryTerm(
            name=name, bytes=np.array([draw.randint(0, 50)]), live=live,
            scale=draw.choice(SCALES), on=draw.choice(["any", *PLACES]),
            position=draw.choice(["any"] * 6 + list(POSITIONS)),
            when=draw.choice(["always"] * 6 + list(WHENS)),
            modes=frozenset(draw.choice([MODES, draw.sample(MODES, draw.randint(1, 3))])),
        )  # fmt: skip
    except ValueError:
        return None


def any_layout(draw: random.Random, stages: int, ranks: int) -> Layout:
    """0 to 4 layers per stage (more where every k-th recomputes), some of them recomputed."""
    layers = [draw.randint(0 if stages > 1 else 1, 4) for _ in range(stages)]
    if draw.random() < 0.3:
        more = np.array([[3 * n for n in layers]])
        return Layout.alternating(more, draw.choice([2, 3, 4]), ranks)
    some, most = draw.choice([(0, 0), (0, 1), (1, 0), (1, 1)])
    full = [draw.randint(0, n) * most for n in layers]
    selective = [draw.randint(0, n - m) * some for n, m in zip(layers, full, strict=True)]
    return Layout(np.array([layers]), np.array([selective]), np.array([full]))


@pytest.mark.parametrize("seed", range(6))
def test_tables_find_the_peak_of_any_terms(seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(60):
        made = (any_term(draw, f"term {n}") for n in range(draw.randint(2, 9)))
        terms = [term for term in made if term is not None]
        ranks = draw.choice([1, 2, 3, 4])
        schedule = draw.choice(SCHEDULES) if ranks > 1 else "none"
        chunks = 2 if schedule in ("interleaved", "zbv", "dualpipev") else 1
        shaped = chunks == 2 and schedule != "interleaved"
        m = ranks * draw.randint(2 if schedule == "dualpipev" else 1, 3)
        key = COMPOSER.moment_key(ScheduleKey(schedule, ranks, chunks, m, mirrored=shaped))
        layout = any_layout(draw, key.stages, ranks)
        table = MemoryTable.build(terms, 1)
        moments = COMPOSER.moments(key)
        chosen = Situation.of(key, moments, table.whens, table.forward_end)
        peaks = rank_peaks(table, chosen, layout)[0]
        # no moment left out, no table: every term counted at every instant
        whens = frozenset(WHENS) - {"step"} | table.whens
        every = Situation.of(key, moments, whens, forward_end=True)
        counted = RankExplainer(terms, every, layout)
        shown = peak_moments(table, chosen, layout)
        for rank in range(ranks):
            at = np.nonzero(every.rank == rank)[0].tolist()
            most = max(counted.rank(moment).allocated_bytes for moment in at)
            assert peaks[rank] == most, (key, terms, layout)
            found = RankExplainer(terms, chosen, layout).rank(shown[rank])
            assert found.allocated_bytes == most


@pytest.mark.parametrize("seed", range(4))
def test_the_memory_of_every_operation_has_the_peaks(seed: int) -> None:
    """No operation of the whole step holds more than the situations that the search looks at."""
    draw = random.Random(100 + seed)
    for _ in range(25):
        made = (any_term(draw, f"term {n}") for n in range(draw.randint(2, 9)))
        terms = [term for term in made if term is not None]
        ranks = draw.choice([1, 2, 4])
        schedule = draw.choice(SCHEDULES) if ranks > 1 else "none"
        chunks = 2 if schedule in ("interleaved", "zbv", "dualpipev") else 1
        key = ScheduleKey(schedule, ranks, chunks, ranks * draw.randint(2, 5), mirrored=chunks == 2
                          and schedule != "interleaved")  # fmt: skip
        layout = any_layout(draw, key.stages, ranks)
        table = MemoryTable.build(terms, 1)
        ones = np.ones((1, key.stages))
        found = COMPOSER.timeline(key, ones, 2 * ones, np.zeros(1), ones)
        short = COMPOSER.moment_key(key)
        closing = COMPOSER.moments(short)
        ends = np.array([found.released[found.rank == r].max() + 1 for r in range(ranks)])
        trace, peaks = memory_trace(table, key, found, layout, closing, ends)
        chosen = Situation.of(short, closing, table.whens, table.forward_end)
        reserve = int(table.reserve[0])
        wanted = rank_peaks(table, chosen, layout)[0] + reserve
        assert peaks.tolist() == wanted.tolist(), (key, terms, layout)
        for rank in range(ranks):
            mine = trace.rank == rank
            assert trace.bytes[mine].max() == wanted[rank]
            assert trace.start[mine][0] == 0.0
            assert (np.diff(trace.start[mine]) > 0).all()
