"""Moments against a plain walk of the order that keeps Python lists."""

from __future__ import annotations

import numpy as np
import pytest

from autopar_pp.moments import Moments, distinct, enough, moments, prune, walk
from autopar_pp.orders import group_size, grouped_order, order, warm_up


Situation = tuple[int, int, int, tuple[int, ...], bool, tuple[int, ...], tuple[int, ...],
                  tuple[int, ...], bool]  # fmt: skip

CASES = [
    ("1f1b", 2, 1, 1),
    ("1f1b", 4, 1, 2),
    ("1f1b", 4, 1, 11),
    ("gpipe", 3, 1, 1),
    ("gpipe", 3, 1, 5),
    ("interleaved", 2, 2, 1),
    ("interleaved", 3, 2, 2),
    ("interleaved", 4, 2, 8),
    ("interleaved", 4, 2, 24),
    ("interleaved", 2, 3, 10),
    ("interleaved", 4, 3, 10),  # groups of five
    ("interleaved", 4, 3, 15),  # groups of five
    ("interleaved", 3, 4, 9),
]


def walked(schedule: str, p: int, v: int, m: int) -> list[Situation]:
    """Situations of every rank, one operation at a time."""
    run, out = order(schedule, p, v, m), []
    for rank in range(p):
        alive, entered, accumulated, reduced = [0] * v, [0] * v, [0] * v, [0] * v
        finished = [0] * v
        for backward, c in zip(run.backward[rank], run.chunk[rank], strict=True):
            if not backward:
                alive[c] += 1
                entered[c] = 1
            out.append((rank, int(backward), int(c), tuple(alive), finished[c] == 0,
                        tuple(entered), tuple(accumulated), tuple(reduced),
                        any(finished)))  # fmt: skip
            if backward:
                alive[c] -= 1
                finished[c] += 1
                accumulated[c] = 1
                if v > 1 and finished[c] == m:
                    accumulated[c], entered[c], reduced[c] = 0, 0, 1
        one, several = (int(v == 1),) * v, (int(v > 1),) * v
        out.append((rank, 2, 0, (0,) * v, False, one, one, several, True))
    return list(dict.fromkeys(out))


def covers(big: Situation, small: Situation) -> bool:
    """Whether one situation makes the other superfluous."""
    same = big[:3] == small[:3] and big[4] == small[4]
    if big[1] == 1:
        same &= big[6][big[2]] == small[6][small[2]]
    pairs = zip(big[3] + big[5] + big[6], small[3] + small[5] + small[6], strict=True)
    at_least = all(x >= y for x, y in pairs)
    return same and at_least and big[7] == small[7] and big[8] >= small[8]


def listed(found: Moments) -> list[Situation]:
    """Moments as tuples."""
    columns = (found.in_flight, found.entered, found.accumulated, found.reduced)
    alive, entered, accumulated, reduced = (
        list(map(tuple, x.astype(int).tolist())) for x in columns
    )
    return [
        (int(found.rank[i]), int(found.kind[i]), int(found.chunk[i]),
         alive[i] + tuple(x for x in found.pending[i].tolist() if found.pending.any()),
         bool(found.first[i]), entered[i], accumulated[i], reduced[i], bool(found.sent[i]))
        for i in range(len(found))
    ]  # fmt: skip


@pytest.mark.parametrize(("schedule", "p", "v", "m"), CASES)
def test_moments_are_the_maximal_situations_of_a_plain_walk(
    schedule: str, p: int, v: int, m: int
) -> None:
    every = walked(schedule, p, v, m)
    maximal = [x for x in every if not any(covers(y, x) for y in every if y != x)]
    got = listed(moments(schedule, p, v, m))
    assert len(set(got)) == len(got)
    assert set(got) == set(maximal)


@pytest.mark.parametrize("v", [1, 2, 3, 4])
@pytest.mark.parametrize("p", [2, 3, 4, 6])
def test_long_runs_show_nothing_new(p: int, v: int) -> None:
    schedule = "interleaved" if v > 1 else "1f1b"
    for m in range(p, 8 * p + 1):
        try:
            group = group_size(schedule, p, v, m)
        except ValueError:
            continue
        short = enough(schedule, p, v, m, group)
        runs = (grouped_order(schedule, p, v, length, group) for length in (short, m))
        capped, full = (listed(prune(distinct(walk(run, p)))) for run in runs)
        assert capped == full


def test_1f1b_by_hand() -> None:
    # Rank 0 of two, many micro-batches: two alive at the end of a forward and in a backward, before
    # the first backward has ended and after it.
    found = moments("1f1b", 2, 1, 8)
    mine = found.take(found.rank == 0)
    assert mine.kind.tolist() == [0, 0, 1, 1, 2]
    assert mine.in_flight.ravel().tolist() == [2, 2, 2, 2, 0]
    assert mine.first.tolist() == [False, True, False, True, False]
    # what runs after the first backward also holds a sent gradient
    assert mine.sent.tolist() == [True, False, True, False, True]


def test_interleaved_rank_0_known_vectors() -> None:
    # Four ranks, two chunks: warm-up 4 + 2 * 3 = 10 forwards, one more before a backward, so
    # 11 alive: 8 of chunk 0 and 3 of chunk 1, or 7 and 4 once chunk 1's group is complete.
    found = moments("interleaved", 4, 2, 32)
    vectors = found.in_flight[(found.rank == 0) & (found.kind == 0)]
    assert {tuple(x) for x in vectors.tolist() if sum(x) > 8} == {(8, 3), (7, 4)}
    # Before the first backward of chunk 1 there are at most 4 + 4 when it runs a forward.
    assert {tuple(x) for x in vectors.tolist() if sum(x) <= 8} == {(4, 4)}


def test_one_rank_has_no_pipeline() -> None:
    found = moments("1f1b", 1, 1, 4)
    assert found.kind.tolist() == [0, 1, 0, 1]
    assert found.first.tolist() == [True, True, False, False]
    assert found.in_flight.ravel().tolist() == [1, 1, 1, 1]
    assert not found.accumulated.any()
    assert moments("gpipe", 1, 1, 1).first.tolist() == [True, True]
    with pytest.raises(ValueError, match="no pipeline"):
        moments("interleaved", 1, 2, 4)


@pytest.mark.parametrize(("schedule", "p", "v", "m"), [*CASES, ("1f1b", 1, 1, 3)])
def test_peak_is_the_largest_number_in_flight(schedule: str, p: int, v: int, m: int) -> None:
    # The last warm-up forward is followed by one more before the first backward.
    found = moments(schedule, p, v, m)
    total = found.in_flight.sum(axis=1)
    peaks = [total[found.rank == rank].max() for rank in range(p)]
    group = group_size(schedule, p, v, m)
    ahead = warm_up(schedule, p, v, m, group) + 1 if p > 1 else np.ones(1)
    np.testing.assert_array_equal(np.minimum(ahead, m * v), peaks)


@pytest.mark.parametrize("schedule", ["zb-h1", "zbv", "dualpipev"])
@pytest.mark.parametrize("p", [2, 3, 5])
def test_long_split_runs_show_nothing_new(schedule: str, p: int) -> None:
    v = 1 if schedule == "zb-h1" else 2
    for m in range(2 * p, 8 * p):
        short = enough(schedule, p, v, m, 1)
        runs = (grouped_order(schedule, p, v, length, 1) for length in (short, m))
        capped, full = (listed(prune(distinct(walk(run, p)))) for run in runs)
        assert capped == full


@pytest.mark.parametrize(("p", "group", "rest"), [(3, 4, 3), (4, 6, 5), (2, 5, 2)])
def test_a_smaller_last_group_shows_nothing_new_in_long_runs(p: int, group: int, rest: int) -> None:
    for v in (2, 3):
        m = 9 * group + rest
        short = enough("interleaved", p, v, m, group)
        assert short < m
        runs = (grouped_order("interleaved", p, v, length, group) for length in (short, m))
        capped, full = (listed(prune(distinct(walk(run, p)))) for run in runs)
        assert capped == full


def test_number_of_moments_does_not_grow_with_micro_batches() -> None:
    assert len(moments("1f1b", 64, 1, 2048)) == 5 * 64
    assert len(moments("gpipe", 64, 1, 2048)) == 4 * 64
    assert not moments("1f1b", 64, 1, 2048).rank.flags.writeable
