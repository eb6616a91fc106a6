"""Balanced splits against exhaustive search, and the rules for ties."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from autopar_pp.balance import balance, balance_chunks, even, offset


Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def exhaustive(layers: int, unit: float, extra: Floats, cap: Ints, floor: int) -> float:
    """Smallest largest cost over all splits; infinite when there is none."""
    choices = [range(floor, min(int(c), layers) + 1) for c in cap]
    splits = [n for n in itertools.product(*choices) if sum(n) == layers]
    return min((float((np.array(n) * unit + extra).max()) for n in splits), default=np.inf)


@pytest.mark.parametrize("stages", [1, 2, 3, 4])
def test_largest_cost_is_the_exhaustive_minimum(stages: int) -> None:
    rng = np.random.default_rng(stages)
    for layers, floor in itertools.product(range(11), (0, 1, 2)):
        unit = rng.uniform(0.2, 3.0, 40)
        extra = rng.uniform(0.0, 8.0, (40, stages)) * (rng.random((40, stages)) < 0.6)
        extra[:20] = np.round(extra[:20])  # ties
        unit[:20] = np.ceil(unit[:20])
        cap = rng.integers(0, 8, (40, stages))
        counts, ok = balance(layers, unit, extra, cap, floor)
        for k in range(40):
            best = exhaustive(layers, unit[k], extra[k], cap[k], floor)
            assert ok[k] == np.isfinite(best)
            if ok[k]:
                assert counts[k].sum() == layers
                assert ((floor <= counts[k]) & (counts[k] <= cap[k])).all()
                cost = (counts[k] * unit[k] + extra[k]).max()
                assert cost == pytest.approx(best, rel=1e-12)
            else:
                assert not counts[k].any()


rows = st.integers(1, 6).flatmap(
    lambda s: st.lists(
        st.tuples(
            st.floats(1e-6, 1e3),
            st.lists(st.floats(0.0, 1e4), min_size=s, max_size=s),
            st.lists(st.integers(0, 40), min_size=s, max_size=s),
        ),
        min_size=1,
        max_size=5,
    )
)


@settings(deadline=None, derandomize=True, max_examples=200)
@given(rows=rows, layers=st.integers(0, 60), floor=st.integers(0, 2))
def test_properties(
    rows: list[tuple[float, list[float], list[int]]], layers: int, floor: int
) -> None:
    unit, extra, cap = (np.array(x) for x in zip(*rows, strict=True))
    counts, ok = balance(layers, unit, extra, cap, floor)
    possible = (cap >= floor).all(axis=1) & (np.minimum(cap, layers).sum(axis=1) >= layers)
    np.testing.assert_array_equal(ok, possible & (floor * cap.shape[1] <= layers))
    assert (counts[ok].sum(axis=1) == layers).all()
    assert ((counts[ok] >= floor) & (counts[ok] <= cap[ok])).all()
    for k in range(len(rows)):
        alone, _ = balance(layers, unit[[k]], extra[[k]], cap[[k]], floor)
        np.testing.assert_array_equal(alone[0], counts[k])
        # No single layer can move to a place where it would cost clearly less.
        after = (counts[k] + 1) * unit[k] + extra[k]
        now = counts[k] * unit[k] + extra[k]
        to, source = counts[k] < cap[k], counts[k] > floor
        if ok[k] and to.any() and source.any():
            assert after[to].min() >= now[source].max() * (1 - 1e-9)


@pytest.mark.parametrize(
    ("layers", "want"),
    [(8, [2, 2, 2, 2]), (9, [2, 3, 2, 2]), (10, [2, 3, 3, 2]), (11, [3, 3, 3, 2])],
)
def test_ties_spare_the_last_stage_then_the_first(layers: int, want: list[int]) -> None:
    counts, _ = balance(layers, np.ones(1), np.zeros((1, 4)), np.full((1, 4), 99))
    assert counts[0].tolist() == want


def test_head_takes_layers_from_the_last_stage() -> None:
    # 32 layers on 4 stages, the head costs 2.5 layers: (32 + 2.5) / 4 = 8.6. The last stage
    # gets 6 (6 + 2.5 = 8.5); 26 layers on three stages are 9, 9 and 8, the first one sparing.
    counts, _ = balance(32, np.ones(1), np.array([[0, 0, 0, 2.5]]), np.full((1, 4), 99))
    assert counts[0].tolist() == [8, 9, 9, 6]


def test_full_stages_pass_layers_on() -> None:
    counts, ok = balance(12, np.ones(2), np.zeros((2, 3)), np.array([[2, 9, 9], [2, 4, 5]]))
    assert ok.tolist() == [True, False]
    assert counts.tolist() == [[2, 5, 5], [0, 0, 0]]


def test_a_layer_must_cost_something() -> None:
    with pytest.raises(ValueError, match="above 0"):
        balance(4, np.zeros(1), np.zeros((1, 2)), np.full((1, 2), 4))


def test_chunks_put_the_remainder_on_the_later_ones() -> None:
    # 4 ranks, 2 chunks, 28 layers, no extra: 7 per rank, 3 on chunk 0 and 4 on chunk 1.
    counts, _ = balance_chunks(28, 4, 2, np.ones(1), np.zeros((1, 8)), np.full((1, 8), 99))
    assert counts[0].tolist() == [3, 3, 3, 3, 4, 4, 4, 4]
    # A head of 1.6 layers: 26 layers are 7, 7, 7 and 5; the last rank splits into 3 and 2 + 1.6.
    extra = np.array([[0, 0, 0, 0, 0, 0, 0, 1.6]])
    counts, _ = balance_chunks(26, 4, 2, np.ones(1), extra, np.full((1, 8), 99))
    assert counts[0].tolist() == [3, 3, 3, 3, 4, 4, 4, 2]


def test_chunks_are_exact_for_ranks_and_within_each() -> None:
    rng = np.random.default_rng(7)
    p, v, layers = 2, 2, 9
    unit, extra = rng.uniform(0.5, 2.0, 60), rng.uniform(0.0, 5.0, (60, p * v))
    cap = rng.integers(0, 6, (60, p * v))
    counts, ok = balance_chunks(layers, p, v, unit, extra, cap)
    for k in range(60):
        extra_k, cap_k, counts_k = (x[k].reshape(v, p) for x in (extra, cap, counts))
        best = exhaustive(layers, unit[k], extra_k.sum(axis=0), cap_k.sum(axis=0), v)
        assert ok[k] == (np.isfinite(best) and bool((cap_k >= 1).all()))
        if not ok[k]:
            assert not counts[k].any()
            continue
        cost = counts_k * unit[k] + extra_k
        assert cost.sum(axis=0).max() == pytest.approx(best, rel=1e-12)
        for r in range(p):
            own = exhaustive(counts_k[:, r].sum(), unit[k], extra_k[:, r], cap_k[:, r], 1)
            assert cost[:, r].max() == pytest.approx(own, rel=1e-12)
    assert 0.1 < ok.mean() < 1.0  # both outcomes occur


def test_even_and_offset() -> None:
    assert even(10, 4).tolist() == [3, 3, 2, 2]
    # Two chunks of four ranks: rows are chunks, the base is 26 // 8 = 3.
    assert offset(np.array([3, 3, 3, 3, 4, 4, 4, 2])).tolist() == [0, 0, 0, 0, 1, 1, 1, -1]
    assert offset(np.array([[3, 3, 2, 2], [2, 3, 3, 2]])).tolist() == [[1, 1, 0, 0], [0, 1, 1, 0]]
