"""Layers and recompute that the solver chooses, against everything that there is to choose from."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st
from pipelines import cheapest_by_counting, fastest_by_counting, fits, pipeline, steps

from autopar_core.compose.memory_peak import Layout
from autopar_core.domain.space import Plan
from autopar_core.domain.training import Range
from autopar_core.search.boxes import space
from autopar_core.search.least import least_times
from autopar_core.search.mixes import cheapest
from autopar_core.search.problem import Problem
from autopar_core.search.solve import solve
from autopar_core.search.survey import survey


AUTO = Plan()


def check(problem: Problem) -> tuple[float, float]:
    """(Solver's step, least step by counting); both infinite where nothing fits."""
    found, first = solve(problem, AUTO, AUTO), survey(problem, AUTO, AUTO)
    assert fits(problem, found) == fits(problem, first)
    best = fastest_by_counting(problem)
    mine = float(steps(problem, found.layout)[0]) if fits(problem, found) else float("inf")
    known = space(problem.composer, problem.key, problem.layers, AUTO)
    if known.fixed is None and known.listed is None and np.isfinite(best):
        least = least_times(problem, known, AUTO)
        assert least.steps(problem.composer, problem.key, problem.time)[0] <= best * (1 + 1e-12)
    return mine, best


def cases(seed: int, number: int, frameworks: tuple[str, ...], chunks: int) -> list[Any]:
    """Small pipelines with budgets from far too little to plenty."""
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(number):
        ranks = int(rng.integers(2, 5 if chunks == 1 else 3))
        low = ranks if chunks == 1 else ranks * chunks
        layers = int(rng.integers(low, 11 if chunks == 1 else low + 3))
        framework = frameworks[rng.integers(len(frameworks))]
        rounds = int(rng.integers(1, 6))
        whole = chunks > 1 or framework == "torchtitan"
        m = ranks * rounds if whole else int(rng.integers(1, 5 * ranks))
        made.append(
            {"framework": framework, "layers": layers, "ranks": ranks, "chunks": chunks, "m": m,
             "vocab": int(rng.choice([32000, 128256, 256000])),
             "seq": int(rng.choice([2048, 8192])), "share": float(rng.uniform(0.5, 1.1))}
        )  # fmt: skip
    return made


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("frameworks", [("generic",), ("megatron", "torchtitan", "mindformers")])
def test_one_chunk_is_the_fastest_by_counting(seed: int, frameworks: tuple[str, ...]) -> None:
    outcomes = []
    for case in cases(seed, 14, frameworks, 1):
        mine, best = check(pipeline(**case))
        assert np.isfinite(mine) == np.isfinite(best), case
        if np.isfinite(best):
            assert mine == pytest.approx(best, rel=1e-9), case
        outcomes.append(np.isfinite(best))
    assert any(outcomes)
    assert not all(outcomes)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_one_chunk_is_the_fastest_by_counting_in_many_cases() -> None:
    number = 0
    frameworks = ("generic", "megatron", "torchtitan", "mindformers")
    for case in cases(99, 300, frameworks, 1):
        mine, best = check(pipeline(**case))
        assert mine == pytest.approx(best, rel=1e-9) or (np.isinf(mine) and np.isinf(best)), case
        number += np.isfinite(best)
    assert number > 100


def test_several_chunks_are_within_two_percent_of_the_fastest_by_counting() -> None:
    # a mix that recomputes least in sum may do so on the chunk where it delays more
    gaps = []
    for case in cases(3, 14, ("generic", "megatron"), 2):
        mine, best = check(pipeline(**case))
        assert np.isfinite(mine) == np.isfinite(best), case
        if np.isfinite(best):
            gaps.append(mine / best - 1)
    assert len(gaps) >= 4
    assert max(gaps) < 0.02
    assert np.median(gaps) == pytest.approx(0, abs=1e-9)


def test_the_cheapest_mix_is_that_of_counting() -> None:
    rng = np.random.default_rng(4)
    for share in rng.uniform(0.4, 1.0, 12).tolist():
        one = pipeline(layers=12, ranks=4, m=8, share=share)
        for layers in (1, 2, 3, 5):
            found = cheapest(one, np.full((1, 4), layers), AUTO)
            backward = one.time.backward[0] - one.time.backward[0, 0]
            for rank, best in enumerate(cheapest_by_counting(one, (layers,))):
                inside = found.peaks[0, rank] <= one.budget[0]
                assert inside == (best is not None)
                if best is not None:
                    some, full = found.layout.selective[0, rank], found.layout.full[0, rank]
                    price = some * backward[1] + full * backward[2]
                    least = best[0][0] * backward[1] + best[0][1] * backward[2]
                    assert price == pytest.approx(least, abs=1e-12)


@settings(deadline=None, derandomize=True, max_examples=12)
@given(
    ranks=st.integers(2, 4), extra=st.integers(0, 8), m=st.integers(1, 12), chunks=st.integers(1, 2),
    shares=st.lists(st.floats(0.5, 1.2), min_size=2, max_size=4),
)  # fmt: skip
def test_more_memory_never_makes_a_row_slower(
    ranks: int, extra: int, m: int, chunks: int, shares: list[float]
) -> None:
    before = float("inf")
    layers = ranks * chunks + extra
    for share in sorted(shares):
        one = pipeline(layers=layers, ranks=ranks, chunks=chunks, m=m * ranks, share=share)
        found = solve(one, AUTO, AUTO)
        now = float(steps(one, found.layout)[0]) if fits(one, found) else float("inf")
        assert now <= before * (1 + 1e-9)
        before = now


def test_where_only_recompute_on_early_stages_fits_early_stages_recompute() -> None:
    # 1F1B keeps p - r micro-batches alive on rank r: 16 layers on 4 ranks, 4 each. What the even split
    # holds on rank 1 without recompute fits everywhere but on rank 0.
    one = pipeline(layers=16, ranks=4, m=16)
    even = one.peaks(Layout.plain(np.full((1, 4), 4)))
    assert even[0, 0] > even[0, 1] > even[0, 2]
    tight = evolve(one, budget=even[:, 1])
    found = solve(tight, Plan(kind="even"), AUTO)
    assert fits(tight, found)
    recomputed = (found.layout.selective + found.layout.full)[0]
    assert recomputed[0] > 0
    assert not recomputed[1:].any()
    free = solve(tight, AUTO, AUTO)
    assert steps(tight, free.layout)[0] <= steps(tight, found.layout)[0]


def test_layers_that_do_not_divide_and_few_micro_batches() -> None:
    # 126 layers on 16 ranks are 7.875 each
    for m in (4, 64):
        one = pipeline(layers=126, ranks=16, m=m, vocab=128256)
        found = solve(one, AUTO, AUTO)
        assert fits(one, found)
        assert found.layout.layers.sum() == 126
        even = solve(one, Plan(kind="even"), AUTO)
        assert steps(one, found.layout)[0] <= steps(one, even.layout)[0]
        assert found.layout.layers[0, -1] < found.layout.layers[0, 1:-1].min()


@pytest.mark.parametrize("framework", ["megatron", "generic"])
def test_more_virtual_stages_than_layers_leave_some_empty_where_that_is_legal(
    framework: str,
) -> None:
    one = pipeline(framework, layers=14, ranks=4, chunks=4, m=8)
    found = solve(one, AUTO, AUTO)
    if framework == "megatron":
        assert fits(one, found)
        assert found.layout.layers.sum() == 14
        assert (found.layout.layers == 0).any()
    else:
        assert not found.possible.any()


def test_one_layer_per_stage() -> None:
    one = pipeline(layers=4, ranks=4, m=4, tied=True)
    found = solve(one, AUTO, AUTO)
    assert found.layout.layers[0].tolist() == [1, 1, 1, 1]


def test_a_chunk_layout_that_alone_fits_is_found() -> None:
    # the even split over chunks keeps the most micro-batches alive on chunk 0
    one = pipeline(layers=12, ranks=2, chunks=2, m=8)
    plain = Plan(kind="none")
    uneven = Layout.plain(np.array([[1, 1, 5, 5]]))
    even = Layout.plain(np.array([[3, 3, 3, 3]]))
    least = float(one.peaks(uneven).max())
    assert least < one.peaks(even).max()
    tight = evolve(one, budget=np.array([least]))
    for found in (survey(tight, AUTO, plain), solve(tight, AUTO, plain)):
        assert fits(tight, found)


# Found by simulated annealing over all partitions: where a step is mostly filling and draining, the best
# ones rise or fall from stage to stage.
@pytest.mark.parametrize(
    ("case", "better"),
    [
        ({"ranks": 8, "m": 4}, [9, 9, 9, 9, 9, 7, 6, 3]),
        ({"ranks": 8, "m": 4, "schedule": "zb-h1"}, [7, 8, 9, 11, 11, 6, 6, 3]),
        ({"ranks": 8, "m": 2, "schedule": "zb-h1"}, [5, 6, 9, 10, 9, 10, 10, 2]),
        ({"ranks": 12, "m": 8, "layers": 80, "framework": "megatron"},
         [8, 8, 8, 8, 8, 7, 6, 6, 6, 6, 6, 3]),
    ],
)  # fmt: skip
def test_few_micro_batches(case: dict[str, Any], better: list[int]) -> None:
    one = pipeline(**{"layers": 61, "vocab": 151936, "hidden": 4096, "share": 20.0, **case})
    mine = steps(one, solve(one, AUTO, AUTO).layout)[0]
    assert mine <= 1.003 * steps(one, Layout.plain(np.array([better])))[0]


@pytest.mark.parametrize("difference", [0, 1, 2])
def test_stages_differ_by_no_more_than_asked(difference: int) -> None:
    one = pipeline(layers=24, ranks=4, m=16, vocab=256000)
    found = solve(one, Plan(difference=difference), AUTO)
    assert fits(one, found)
    layers = found.layout.layers[0]
    assert layers.sum() == 24
    assert layers.max() - layers.min() <= difference
    # no difference at all needs layers that divide
    odd = pipeline(layers=26, ranks=4, m=16)
    assert solve(odd, Plan(difference=difference), AUTO).possible.all() == (difference > 0)


def test_offsets_stay_in_their_range() -> None:
    one = pipeline(layers=24, ranks=4, m=16, vocab=256000)
    found = solve(one, Plan(offset=Range(min=-1, max=1)), AUTO)
    assert found.layout.layers.min() >= 5
    assert found.layout.layers.max() <= 7


def test_only_what_the_framework_can_spell_is_proposed() -> None:
    even = pipeline("megatron-2021", layers=24, ranks=4, m=16, vocab=256000)
    assert solve(even, AUTO, AUTO).layout.layers[0].tolist() == [6, 6, 6, 6]
    assert not solve(even, Plan(kind="given", given=[7, 6, 6, 5]), AUTO).possible.any()
    ends = pipeline(layers=26, ranks=4, m=16, vocab=256000)
    composer: Any = ends.composer
    speller = evolve(composer.speller, partitions="ends")
    ends = evolve(ends, composer=evolve(composer, speller=speller))
    layers = solve(ends, AUTO, AUTO).layout.layers[0]
    assert layers[1] == layers[2]
    assert layers.sum() == 26
    assert float(steps(ends, solve(ends, AUTO, AUTO).layout)[0]) == pytest.approx(
        fastest_by_counting(evolve(ends, modes=())), rel=1e-9
    )


def test_a_row_does_not_depend_on_the_rows_beside_it() -> None:
    one = pipeline(layers=20, ranks=4, m=8, share=0.8)
    row = np.zeros(5, np.int64)
    many = evolve(one.take(row), budget=one.budget[0] * np.array([0.8, 0.9, 1.0, 1.1, 1.2]))
    together = solve(many, AUTO, AUTO)
    for i in range(5):
        alone = solve(many.take(np.array([i])), AUTO, AUTO)
        assert np.array_equal(alone.layout.layers[0], together.layout.layers[i])
        assert np.array_equal(alone.layout.full[0], together.layout.full[i])
        assert np.array_equal(alone.peaks[0], together.peaks[i])


def test_uniform_recompute_is_one_count_for_all_stages() -> None:
    one = evolve(
        pipeline(layers=12, ranks=4, m=8, share=0.75), granularity="count"
    )  # fmt: skip
    found = solve(one, AUTO, AUTO)
    assert fits(one, found)
    layout = found.layout
    assert (layout.selective + layout.full).any()
    count = layout.full.max()
    assert (layout.full == np.minimum(count, layout.layers)).all()
    assert (layout.selective == layout.layers).all() or not layout.selective.any()
    assert float(steps(one, layout)[0]) == pytest.approx(fastest_by_counting(one), rel=1e-9)
