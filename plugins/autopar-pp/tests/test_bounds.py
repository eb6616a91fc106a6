"""Lower bounds never exceed the replay, and are tight where they should be."""

from __future__ import annotations

import numpy as np
import pytest

from autopar_pp.bounds import lower_bound
from autopar_pp.replay import replay
from autopar_pp.zero_bubble import V_SHAPED


# Rounding only: the proofs hold for real numbers, and many bounds equal the replay.
ROUNDING = 1 + 1e-12


@pytest.mark.parametrize(
    "schedule", ["1f1b", "interleaved", "gpipe", "zb-h1", "zbv", "dualpipev", "1f1b synchronous"]
)
def test_bounds_hold(schedule: str) -> None:
    rng = np.random.default_rng(len(schedule))
    schedule, _, synchronous = schedule.partition(" ")
    for _ in range(60):
        p, m = int(rng.integers(1, 10)), int(rng.integers(1, 33))
        v = int(rng.integers(2, 5)) if schedule == "interleaved" else 1
        if v > 1:
            m = p * max(1, m // p) if m >= p else m
        if schedule in V_SHAPED:
            p, v = max(2, p), 2
            m = max(m, 2 * p)
        spread = rng.choice([0.1, 1.0, 3.0])
        f = np.exp(spread * rng.normal(size=(100, p * v)))
        b = f * rng.uniform(0.5, 3.0, (100, p * v))
        hop = rng.choice([0.0, 0.1, 1.0]) * rng.random(100)
        w = b * rng.uniform(0.0, 1.0, (100, p * v))
        exact = replay(schedule, p, v, m, f, b, hop, w, synchronous=bool(synchronous))
        low = lower_bound(schedule, p, v, m, f, b, hop, w, synchronous=bool(synchronous))
        assert (low <= exact * ROUNDING).all()


@pytest.mark.parametrize(
    ("schedule", "p", "v", "m"),
    [("1f1b", 4, 1, 8), ("1f1b", 4, 1, 2), ("interleaved", 4, 2, 8), ("1f1b", 1, 1, 3)],
)
def test_even_stages_are_exact(schedule: str, p: int, v: int, m: int) -> None:
    times = np.ones((1, p * v)), np.full((1, p * v), 2.0), np.zeros(1)
    bound, exact = lower_bound(schedule, p, v, m, *times), replay(schedule, p, v, m, *times)
    np.testing.assert_allclose(bound, exact, rtol=1e-12)


def test_gpipe_is_exact() -> None:
    # Two stages, f = 1, 3, b = 2, 1, hop 1, m = 2. Forwards of stage 1: 2 to 5, 5 to 8.
    # Its backwards: 9, 10. Stage 0: the first arrives at 10, ends 12; the second ends 14.
    bound = lower_bound("gpipe", 2, 1, 2, np.array([[1.0, 3.0]]), np.array([[2.0, 1.0]]),
                        np.ones(1))  # fmt: skip
    np.testing.assert_allclose(bound, [[14.0, 10.0]])


def test_uneven_1f1b_is_close() -> None:
    # Whole layers with a heavier last stage, messages 5 % of a forward at most.
    rng = np.random.default_rng(0)
    f = rng.integers(4, 7, (500, 8)).astype(float)
    f[:, -1] += rng.uniform(0.3, 2.0, 500)
    hop = 0.25 * rng.random(500)
    ratio = lower_bound("1f1b", 8, 1, 32, f, 2 * f, hop) / replay("1f1b", 8, 1, 32, f, 2 * f, hop)
    assert np.median(ratio.max(axis=1)) > 0.99
    assert ratio.min() > 0.9


@pytest.mark.parametrize(("schedule", "v"), [("zb-h1", 1), ("zbv", 2), ("dualpipev", 2)])
def test_split_bounds_are_close(schedule: str, v: int) -> None:
    rng = np.random.default_rng(2)
    f = rng.integers(4, 7, (300, 6 * v)).astype(float)
    hop = 0.25 * rng.random(300)
    times = (schedule, 6, v, 24, f, 2 * f, hop, f)
    ratio = lower_bound(*times).max(axis=1) / replay(*times).max(axis=1)
    assert np.median(ratio) > 0.96
    assert ratio.min() > 0.85


def test_rows_are_independent() -> None:
    rng = np.random.default_rng(0)
    f, b, hop = rng.random((32, 8)), rng.random((32, 8)), rng.random(32)
    whole = lower_bound("interleaved", 4, 2, 8, f, b, hop)
    alone = [lower_bound("interleaved", 4, 2, 8, f[[k]], b[[k]], hop[[k]])[0] for k in range(32)]
    np.testing.assert_array_equal(whole, alone)
