"""Replay against an independent event simulator and against known answers."""

from __future__ import annotations

import heapq

import numpy as np
import pytest
from numpy.typing import NDArray

from autopar_pp.orders import group_size, order
from autopar_pp.program import program
from autopar_pp.replay import in_ticks, replay
from autopar_pp.timeline import timeline


Floats = NDArray[np.float64]
Times = tuple[Floats, Floats, Floats]


def simulate(schedule: str, p: int, v: int, m: int, f: Floats, b: Floats, hop: float) -> Floats:
    """Ends [p, 2mv] of one candidate's operations: ranks pick up messages from a queue."""
    run, last = order(schedule, p, v, m), p * v - 1
    arrived: set[tuple[bool, int, int]] = set()
    at, busy = [0] * p, [False] * p
    ends = np.zeros((p, 2 * m * v))
    events: list[tuple[float, int, str, int, tuple[bool, int, int]]] = []
    serial = 0

    def push(time: float, what: str, rank: int, key: tuple[bool, int, int]) -> None:
        nonlocal serial
        serial += 1
        heapq.heappush(events, (time, serial, what, rank, key))

    def start(rank: int, now: float) -> None:
        if busy[rank] or at[rank] == 2 * m * v:
            return
        back = bool(run.backward[rank, at[rank]])
        stage = int(run.chunk[rank, at[rank]]) * p + rank
        key = (back, stage, int(run.micro_batch[rank, at[rank]]))
        if key in arrived or (not back and stage == 0):
            busy[rank] = True
            push(now + (b if back else f)[stage], "done", rank, key)

    for rank in range(p):
        start(rank, 0.0)
    while events:
        now, _, what, rank, key = heapq.heappop(events)
        if what == "done":
            ends[rank, at[rank]] = now
            busy[rank] = False
            at[rank] += 1
            back, stage, i = key
            if not back and stage == last:
                arrived.add((True, last, i))
            elif not (back and stage == 0):
                to = stage - 1 if back else stage + 1
                push(now + (hop if to % p != rank else 0.0), "message", to % p, (back, to, i))
        else:
            arrived.add(key)
        start(rank, now)
    assert at == [2 * m * v] * p, "dead-lock"
    return ends


def draw(rng: np.random.Generator, rows: int, stages: int) -> Times:
    """Uneven times; a third of the rows are whole layers, which tie often."""
    f, b = rng.uniform(0.2, 2.0, (rows, stages)), rng.uniform(0.3, 4.0, (rows, stages))
    whole = rng.random(rows) < 0.33
    f[whole] = np.ceil(2 * f[whole])
    b[whole] = 2 * f[whole]
    return f, b, rng.choice([0.0, 0.05, 0.7], rows) * rng.uniform(0.5, 1.0, rows)


def legal_case(rng: np.random.Generator) -> tuple[str, int, int, int]:
    """A random schedule and sizes that frameworks run."""
    while True:
        schedule = str(rng.choice(["1f1b", "interleaved", "interleaved", "gpipe"]))
        p, m = int(rng.integers(1, 9)), int(rng.integers(1, 25))
        v = int(rng.integers(1, 5)) if schedule == "interleaved" else 1
        if v == 1 or m % max(1, m // p) == 0:
            return schedule, p, v, m


def test_replay_equals_event_simulator() -> None:
    rng = np.random.default_rng(5)
    for _ in range(350):
        schedule, p, v, m = legal_case(rng)
        f, b, hop = draw(rng, 3, p * v)
        got = replay(schedule, p, v, m, f, b, hop)
        for k in range(3):
            want = simulate(schedule, p, v, m, f[k], b[k], hop[k])[:, -1]
            np.testing.assert_allclose(got[k], want, rtol=1e-9)


@pytest.mark.parametrize(
    ("schedule", "p", "v", "m"),
    [("1f1b", 2, 1, 90), ("1f1b", 5, 1, 143), ("1f1b", 7, 1, 300), ("interleaved", 2, 2, 128),
     ("interleaved", 3, 4, 210), ("interleaved", 4, 3, 160), ("interleaved", 6, 2, 180)],
)  # fmt: skip
def test_short_runs_extend_exactly(schedule: str, p: int, v: int, m: int) -> None:
    rng = np.random.default_rng(m)
    f, b, hop = draw(rng, 300, p * v)
    f[:50], b[:50] = 1 + 1e-4 * f[:50], 2 + 1e-4 * b[:50]  # slow to settle
    plan = program(schedule, p, v, m, group_size(schedule, p, v, m))
    durations, hops = in_ticks(m, f, b, np.zeros_like(b), hop)
    full = plan.ends(durations, hops)[plan.row[:, -1]].T
    np.testing.assert_array_equal(replay(schedule, p, v, m, f, b, hop), full)
    # A tick is 2^-52 of at most twice the sum of all durations, which is some p times the step.
    exact = plan.ends(np.concatenate([f, b, b, 0 * b, 0 * b[:, :1]], axis=1).T, hop)
    np.testing.assert_allclose(full, exact[plan.row[:, -1]].T, rtol=1e-11)


def test_extension_equals_event_simulator() -> None:
    rng = np.random.default_rng(2)
    f, b, hop = draw(rng, 4, 8)
    for schedule, p, v, m in (("1f1b", 8, 1, 200), ("interleaved", 4, 2, 128)):
        got = replay(schedule, p, v, m, f, b, hop)
        for k in range(4):
            want = simulate(schedule, p, v, m, f[k], b[k], hop[k])[:, -1]
            np.testing.assert_allclose(got[k], want, rtol=1e-9)


@pytest.mark.parametrize(
    ("schedule", "p", "v", "m"),
    [("1f1b", 4, 1, 9), ("1f1b", 6, 1, 200), ("interleaved", 4, 2, 12),
     ("interleaved", 3, 2, 120), ("gpipe", 5, 1, 7), ("1f1b", 1, 1, 5)],
)  # fmt: skip
def test_rows_are_independent(schedule: str, p: int, v: int, m: int) -> None:
    f, b, hop = draw(np.random.default_rng(1), 64, p * v)
    whole = replay(schedule, p, v, m, f, b, hop)
    alone = [replay(schedule, p, v, m, f[[k]], b[[k]], hop[[k]])[0] for k in range(64)]
    np.testing.assert_array_equal(whole, alone)  # bit for bit
    shuffle = np.random.default_rng(3).permutation(64)
    again = replay(schedule, p, v, m, np.asfortranarray(f[shuffle]), b[shuffle], hop[shuffle])
    np.testing.assert_array_equal(whole[shuffle], again)


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_even_stages_known_answer(schedule: str) -> None:
    # Narayanan et al. 2021, section 2.2: (m + p - 1)(f + b) = (8 + 4 - 1) * (1 + 2) = 33.
    # Rank r ends r backwards before rank 0.
    ends = replay(schedule, 4, 1, 8, np.ones((1, 4)), np.full((1, 4), 2.0), np.zeros(1))
    np.testing.assert_allclose(ends, [[33.0, 31.0, 29.0, 27.0]], rtol=1e-12)
    # Same with micro-batches left out: (500 + 3) * 3 = 1509.
    ends = replay(schedule, 4, 1, 500, np.ones((1, 4)), np.full((1, 4), 2.0), np.zeros(1))
    np.testing.assert_allclose(ends[0, 0], 1509.0, rtol=1e-12)


def test_even_chunks_known_answer() -> None:
    # Narayanan et al. 2021, section 2.3, in chunk times: the bubble is p - 1 chunks, so
    # (m v + p - 1)(f + b) = (8 * 2 + 4 - 1) * (1 + 2) = 57.
    ends = replay("interleaved", 4, 2, 8, np.ones((1, 8)), np.full((1, 8), 2.0), np.zeros(1))
    np.testing.assert_allclose(ends[0], [57.0, 55.0, 53.0, 51.0], rtol=1e-12)


def test_two_uneven_ranks_by_hand() -> None:
    # Rank 1: F0 waits for 1 + 0.5, ends 3.5; B0 4.5; F1 6.5; B1 7.5.
    # Rank 0: F0 1, F1 2; B0 waits for 4.5 + 0.5, ends 8; B1 (arrived at 8.0) ends 11.
    f, b, hop = np.array([1.0, 2.0]), np.array([3.0, 1.0]), 0.5
    ends = replay("1f1b", 2, 1, 2, f[None], b[None], np.array([hop]))
    np.testing.assert_allclose(ends, [[11.0, 7.5]], rtol=1e-15)
    seen = timeline("1f1b", 2, 1, 2, f, b, hop, 0 * b)
    assert seen.rank.tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
    assert seen.kind.tolist() == [0, 0, 1, 1, 0, 1, 0, 1]
    assert seen.micro_batch.tolist() == [0, 1, 0, 1, 0, 0, 1, 1]
    np.testing.assert_allclose(seen.start, [0, 1, 5, 8, 1.5, 3.5, 4.5, 6.5])
    np.testing.assert_allclose(seen.end, [1, 2, 8, 11, 3.5, 4.5, 6.5, 7.5])
    # Rank 0 waits for B0's message, which is under way for half a second; B1 has come before.
    np.testing.assert_allclose(seen.message, [0, 0, 0.5, 0, 0.5, 0, 0, 0])
    # Its B0 follows from rank 1's (the 6th operation), its B1 from its own B0.
    assert seen.cause.tolist() == [-1, 0, 5, 2, 0, 4, 5, 6]
    assert seen.released.tolist() == seen.end.tolist()


def test_two_ranks_that_exchange_by_hand() -> None:
    # Rank 0 sends F0 from 1 to 1.5, then runs F1 to 2.5. Rank 1 runs F0 from 1.5 to 3.5, B0 to 4.5.
    # Rank 0 has waited since 2.5 to send F1 and to take B0 in; both are exchanged from 4.5 to 5.
    # Rank 0 runs B0 to 8; rank 1 runs F1 to 7, B1 to 8. B1's message goes from 8 to 8.5, and
    # rank 0 runs B1 to 11.5.
    f, b, hop = np.array([1.0, 2.0]), np.array([3.0, 1.0]), 0.5
    ends = replay("1f1b", 2, 1, 2, f[None], b[None], np.array([hop]), synchronous=True)
    np.testing.assert_allclose(ends, [[11.5, 8.5]], rtol=1e-15)
    seen = timeline("1f1b", 2, 1, 2, f, b, hop, 0 * b, synchronous=True)
    np.testing.assert_allclose(seen.start, [0, 1.5, 5, 8.5, 1.5, 3.5, 5, 7])
    np.testing.assert_allclose(seen.end, [1, 2.5, 8, 11.5, 3.5, 4.5, 7, 8])
    np.testing.assert_allclose(seen.message, [0, 0, 0.5, 0.5, 0.5, 0, 0.5, 0])
    np.testing.assert_allclose(seen.released, [1.5, 2.5, 8, 11.5, 3.5, 4.5, 7, 8.5])
    np.testing.assert_allclose(seen.sending, [0.5, 0, 0, 0, 0, 0, 0, 0.5])


def test_one_micro_batch_passes_every_stage_twice() -> None:
    # Sum of all times plus a hop between neighbours: 2 * (S - 1) of them, S = 6.
    f, b, hop = draw(np.random.default_rng(8), 5, 6)
    for schedule, p, v in (("1f1b", 6, 1), ("gpipe", 6, 1), ("interleaved", 3, 2)):
        got = replay(schedule, p, v, 1, f, b, hop)[:, 0]
        np.testing.assert_allclose(got, (f + b).sum(axis=1) + 10 * hop, rtol=1e-12)


def test_one_rank_just_works_through() -> None:
    f, b, hop = draw(np.random.default_rng(9), 5, 1)
    np.testing.assert_allclose(replay("1f1b", 1, 1, 7, f, b, hop), 7 * (f + b))


@pytest.mark.parametrize("case", [("1f1b", 4, 1, 9), ("interleaved", 3, 2, 6), ("gpipe", 3, 1, 4)])
def test_timeline_is_the_simulated_one(case: tuple[str, int, int, int]) -> None:
    schedule, p, v, m = case
    f, b, hop = draw(np.random.default_rng(4), 1, p * v)
    seen = timeline(schedule, p, v, m, f[0], b[0], float(hop[0]), 0 * b[0])
    want = simulate(schedule, p, v, m, f[0], b[0], float(hop[0]))
    np.testing.assert_allclose(seen.end, want.ravel(), rtol=1e-12)
    assert (np.diff(seen.end.reshape(p, -1), axis=1) > 0).all()


def test_an_order_that_waits_for_itself_is_refused() -> None:
    # Groups of two on four ranks turn to the next chunk before the first one is back.
    with pytest.raises(ValueError, match="dead-lock"):
        program("interleaved", 4, 2, 8, 2)
