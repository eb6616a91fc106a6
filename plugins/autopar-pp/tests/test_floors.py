"""Bounds of all partitions never exceed the replay of any."""

from __future__ import annotations

import numpy as np
import pytest

from autopar_pp.floors import floor, glance
from autopar_pp.orders import group_size
from autopar_pp.replay import replay


CASES = [
    ("1f1b", 1), ("gpipe", 1), ("interleaved", 2), ("interleaved", 4), ("zb-h1", 1), ("zbv", 2),
]  # fmt: skip


@pytest.mark.parametrize(("schedule", "chunks"), CASES)
def test_no_partition_ends_before_the_floor(schedule: str, chunks: int) -> None:
    rng = np.random.default_rng(len(schedule) + chunks)
    closest = np.inf
    for _ in range(40):
        p = int(rng.integers(2, 7))
        m = int(p * rng.integers(1, 7)) if chunks > 1 else int(rng.integers(1, 6 * p))
        m = max(m, 2 * p) if schedule == "zbv" else m
        uneven = rng.choice([0.0, 0.1, 1.0, 3.0])
        f = rng.uniform(1, 1 + uneven, (30, p * chunks))
        if rng.random() < 0.3:
            f[:, 1:] *= rng.random(f[:, 1:].shape) < 0.7  # empty stages
        b = f * rng.uniform(0.5, 3.0)
        hop = np.full(30, rng.choice([0.0, 0.2]))
        weight = 0.4 * b
        ends = replay(schedule, p, chunks, m, f, b, hop, weight)
        step = ends.max(axis=1)
        busy = (f + b).reshape(30, chunks, p).sum(axis=1)
        seen = glance(schedule, m, busy, f[:, :p] + b[:, :p])
        assert (seen <= ends * (1 + 1e-12)).all(), (p, m)
        group = group_size(schedule, p, chunks, m)
        forward, row = f.reshape(30, chunks, p).sum(axis=1), np.arange(30)
        share = forward[row, busy.argmax(axis=1)] / busy.max(axis=1)
        longer = np.maximum(share, 1 - share)
        found = floor(schedule, p, chunks, m, group, busy.max(1), busy.sum(1), longer)
        bound = np.maximum(found.flat, found.steep)
        assert (bound <= step * (1 + 1e-12)).all(), (p, m)
        # less work on the slowest rank, and in all, is a weaker statement
        weaker = floor(schedule, p, chunks, m, group, 0.9 * busy.max(1), 0.9 * busy.sum(1),
                       0.5 + 0.9 * (longer - 0.5))  # fmt: skip
        assert (np.maximum(weaker.flat, weaker.steep) <= bound * (1 + 1e-12)).all()
        closest = min(closest, float((step / bound).min()))
    assert closest < 1.3


def test_even_1f1b_is_nearly_exact() -> None:
    # 4 ranks of 1 + 2 seconds, 16 micro-batches: (16 + 3) x 3 = 57
    share = np.array([2 / 3])
    found = floor("1f1b", 4, 1, 16, 1, np.array([3.0]), np.array([12.0]), share)
    assert found.steep[0] == 57.0
    # a second more on the slowest rank lengthens the step by 16 - 1 - 4 at least
    more = floor("1f1b", 4, 1, 16, 1, np.array([4.0]), np.array([12.0]), share)
    assert more.steep[0] >= 57.0 + found.rise == 57.0 + 11


def test_few_micro_batches_pass_the_longer_of_both() -> None:
    # 8 ranks of 1 + 2 seconds, 4 micro-batches: filling and draining take 8 x 3 = 24, and the other
    # three micro-batches pass a rank backwards, 3 x 2: no less than 30
    found = floor("1f1b", 8, 1, 4, 1, np.array([3.0]), np.array([24.0]), np.array([2 / 3]))
    assert found.steep[0] == pytest.approx(30.0)
    ones = np.ones((1, 8))
    ends = replay("1f1b", 8, 1, 4, ones, 2 * ones, np.zeros(1), 0 * ones)
    assert ends.max() == pytest.approx(33.0)
