"""Makespans and memory of every schedule against an event simulator that shares no code with them.

Ranks are coroutines that compute, send and receive; the schedules are written down from their
definitions as words like "F0 I0 W0" (kind and chunk). The simulator counts what is alive as it goes.
"""

from __future__ import annotations

import csv
import heapq
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from attrs import define, field

from autopar_pp.bounds import Floats, lower_bound
from autopar_pp.moments import moments
from autopar_pp.orders import group_size
from autopar_pp.replay import replay
from autopar_pp.timeline import timeline


DATA = Path(__file__).parent / "data" / "makespans.tsv"
KINDS = "FBIW"


def words(schedule: str, p: int, v: int, m: int, group: int, rank: int) -> list[str]:
    """What a rank runs: F forward, B backward, I input and W weight gradients, and the chunk."""
    above = p - 1 - rank
    if schedule == "gpipe":
        return ["F0"] * m + ["B0"] * m
    if schedule == "1f1b":
        warm = min(above, m)
        return ["F0"] * warm + ["F0", "B0"] * (m - warm) + ["B0"] * warm
    if schedule == "interleaved":
        return interleaved(p, v, m, group, rank)
    if schedule == "zb-h1":
        # in flight at most p - rank; every weight gradient comes rank micro-batches late
        run, forwards = [], 0
        for k in range(m):
            while forwards < m and forwards - k < p - rank:
                run.append("F0")
                forwards += 1
            run += ["I0", "W0"] if k >= rank else ["I0"]
        return run + ["W0"] * min(rank, m)
    if schedule == "zbv":
        long = max(m, 2 * p - 1)
        steady = long - 2 * p + rank + 1
        return (
            ["F0"] * (2 * (p - rank) - 1) + ["F1", "F0"] * rank + ["F1", "I1", "W1"] * (p - rank)
            + ["F0", "I0", "W0", "F1", "I1", "W1"] * steady
            + ["I0", "W0", "F1", "I1", "W1"] * above + ["I0", "I1"] * rank
            + ["I0", "W0"] * (p - rank) + ["W1"] * rank + ["W0"] * rank
        )  # fmt: skip
    half = rank + 1
    tail = [("B" if turn <= rank else "I") + str(1 - turn % 2) for turn in range(2 * half)]
    late = [word.replace("I", "W") for word in tail if word[0] == "I"]
    weights = late + ["W0"] * above
    mixed = [word for turn in range(above) for word in (weights[turn], "I0")]
    return (
        ["F0"] * (2 * above) + ["F0", "F1"] * half + ["I1", "W1", "F1"] * above
        + ["F0", "B1", "F1", "B0"] * (m - 2 * p + half) + ["B1", "F1", "B0"] * above + tail
        + mixed + weights[above:]
    )  # fmt: skip


def interleaved(p: int, v: int, m: int, group: int, rank: int) -> list[str]:
    """Groups of micro-batches over all chunks; a backward for every forward after the warm-up."""
    forward = [c for start in range(0, m, group) for c in range(v)
               for _ in range(start, min(start + group, m))]  # fmt: skip
    backward = [v - 1 - c for c in forward]
    warm = min((v - 1) * group + 2 * (p - 1 - rank), m * v)
    run = [f"F{c}" for c in forward[:warm]]
    for place in range(m * v - warm):
        run += [f"F{forward[warm + place]}", f"B{backward[place]}"]
    return run + [f"B{c}" for c in backward[m * v - warm :]]


@define
class Pipeline:
    """Runs the ranks; times are [kind][chunk][rank]."""

    schedule: str
    p: int
    v: int
    m: int
    group: int
    seconds: dict[str, list[list[float]]]
    hop: float
    synchronous: bool = False
    ends: list[float] = field(init=False)
    alive: list[set[tuple[str, int, tuple[int, ...], tuple[int, ...]]]] = field(init=False)
    spans: list[list[tuple[str, int, int, float, float]]] = field(init=False)

    def place(self, chunk: int, rank: int) -> int:
        """Position of a chunk in the model."""
        shaped = self.schedule in ("zbv", "dualpipev") and chunk == 1
        return chunk * self.p + (self.p - 1 - rank if shaped else rank)

    def home(self, place: int) -> int:
        """Rank of a position in the model."""
        shaped = self.schedule in ("zbv", "dualpipev") and place >= self.p
        return self.p - 1 - place % self.p if shaped else place % self.p

    def run(self) -> Pipeline:
        self.ends = [0.0] * self.p
        self.alive = [set() for _ in range(self.p)]
        self.spans = [[] for _ in range(self.p)]
        arrived: set[tuple[str, int, int]] = set()
        waiting: dict[tuple[str, int, int], int] = {}
        meeting: dict[tuple[str, int, int], list[int]] = defaultdict(list)
        ranks = [self.rank(r) for r in range(self.p)]
        events: list[tuple[float, int, int | tuple[str, int, int]]] = []
        count, missing = 0, [0] * self.p

        def at(time: float, what: int | tuple[str, int, int]) -> None:
            nonlocal count
            count += 1
            heapq.heappush(events, (time, count, what))

        for r in range(self.p):
            at(0.0, r)
        while events:
            now, _, what = heapq.heappop(events)
            if isinstance(what, tuple):
                arrived.add(what)
                if self.synchronous:
                    for r in meeting.pop(what):
                        missing[r] -= 1
                        if not missing[r]:
                            at(now, r)
                elif what in waiting:
                    at(now, waiting.pop(what))
                continue
            for order in ranks[what]:
                verb, value = order
                if verb == "compute":
                    self.spans[what][-1] = (*self.spans[what][-1][:3], now, now + value)
                    at(now + value, what)
                elif verb == "send":
                    key, lag = value
                    at(now + lag, key)
                    continue
                elif verb == "receive":
                    if value in arrived:
                        continue
                    waiting[value] = what
                elif verb == "meet":
                    missing[what] = len(value)
                    for key in value:
                        meeting[key].append(what)
                        if len(meeting[key]) == 2:
                            at(now + self.hop, key)
                    if not value:
                        continue
                break
            else:
                self.ends[what] = now
        assert all(not any(True for _ in rank) for rank in ranks), "dead-lock"
        return self

    def rank(self, rank: int) -> Iterator[tuple[str, Any]]:
        """What one rank does, and what it holds while it does."""
        number: dict[str, int] = defaultdict(int)
        last = self.p * self.v - 1
        flight, pending = [0] * self.v, [0] * self.v
        send: list[tuple[str, int, int]] = []
        run = words(self.schedule, self.p, self.v, self.m, self.group, rank)
        before = ""
        backwards = 0
        for word in run:
            kind, chunk = word[0], int(word[1])
            count = ("G" if kind in "BI" else kind) + word[1]
            i = number[count] if kind != "W" else number["W" + word[1]]
            number[count] += 1
            if kind == "B":
                number["W" + word[1]] += 1
            if i >= self.m:
                continue
            place = self.place(chunk, rank)
            back = kind in "BI"
            needs = {"F": ("F", place - 1, i), "W": None}.get(kind, ("G", place + 1, i))
            if (kind == "F" and place == 0) or (back and place == last):
                needs = None
            if self.synchronous:
                take = [needs] if needs else []
                # Megatron: in the steady part a send and the receive of the other direction are one
                turns = (
                    bool(before) and before != kind and backwards + flight[0] > self.p - 1 - rank
                )
                if send and not (turns and self.schedule == "1f1b"):
                    yield "meet", send
                    send = []
                yield "meet", send + take
            elif needs and self.home(needs[1]) != rank:
                yield "receive", needs
            if kind == "F":
                flight[chunk] += 1
            self.alive[rank].add((kind, chunk, tuple(flight), tuple(pending)))
            self.spans[rank].append((kind, chunk, i, 0.0, 0.0))
            yield "compute", self.seconds[kind][chunk][rank]
            if back:
                flight[chunk] -= 1
                backwards += 1
            if kind == "I":
                pending[chunk] += 1
            if kind == "W":
                pending[chunk] -= 1
            gives = {"F": ("F", place, i), "W": None}.get(kind, ("G", place, i))
            end = place == (last if kind == "F" else 0)
            send = []
            if gives and not end:
                to = self.home(place + 1 if kind == "F" else place - 1)
                if self.synchronous:
                    send = [gives]
                elif to != rank:
                    yield "send", (gives, self.hop)
            before = kind
        if send:
            yield "meet", send
        assert flight == pending == [0] * self.v


Case = tuple[str, int, int, int, int, bool]


def any_case(rng: np.random.Generator, largest: int, batches: int) -> Case:
    """Schedule, ranks, chunks, micro-batches, group size asked for, synchronous."""
    while True:
        schedule = str(rng.choice(["1f1b", "interleaved", "gpipe", "zb-h1", "zbv", "dualpipev"]))
        p, m = int(rng.integers(2, largest)), int(rng.integers(1, batches))
        v = {"interleaved": int(rng.integers(2, 5)), "zbv": 2, "dualpipev": 2}.get(schedule, 1)
        wanted = int(rng.integers(p, p + 4)) if schedule == "interleaved" else 0
        wanted = wanted if rng.random() < 0.5 else 0
        synchronous = schedule in ("1f1b", "gpipe") and rng.random() < 0.5
        try:
            group_size(schedule, p, v, m, wanted)
        except ValueError:
            continue
        return schedule, p, v, m, wanted, synchronous


def times(rng: np.random.Generator, stages: int) -> tuple[Floats, ...]:
    """Uneven seconds; a third are whole numbers, which tie often."""
    f, b = rng.uniform(0.2, 2.0, stages), rng.uniform(0.5, 4.0, stages)
    w = b * rng.uniform(0.0, 0.9, stages)
    if rng.random() < 0.33:
        f = np.ceil(2 * f)
        b, w = 2 * f, f
    return f, b, w, np.array(rng.choice([0.0, 0.05, 0.7]) * rng.uniform(0.5, 1.0))


def simulated(case: Case, f: Floats, b: Floats, w: Floats, hop: float) -> Pipeline:
    schedule, p, v, m, wanted, synchronous = case
    shaped = {"F": f, "B": b, "I": b - w, "W": w}
    seconds = {kind: value.reshape(v, p).tolist() for kind, value in shaped.items()}
    group = group_size(schedule, p, v, m, wanted)
    return Pipeline(schedule, p, v, m, group, seconds, hop, synchronous).run()


def check(case: Case, rng: np.random.Generator) -> None:
    """Ends, timeline, bound and memory of one case."""
    schedule, p, v, m, wanted, synchronous = case
    f, b, w, hop = times(rng, p * v)
    want = simulated(case, f, b, w, float(hop))
    options: dict[str, Any] = {"group": wanted, "synchronous": synchronous}
    row = (f[None], b[None], hop[None], w[None])
    ends = replay(schedule, p, v, m, *row, **options)[0]
    np.testing.assert_allclose(ends, want.ends, rtol=1e-10, err_msg=str(case))
    assert (lower_bound(schedule, p, v, m, *row, **options)[0] <= ends * (1 + 1e-12)).all(), case
    seen = timeline(schedule, p, v, m, f, b, float(hop), w, **options)
    last = np.r_[np.diff(seen.rank) != 0, True]
    assert seen.released[last].tolist() == ends.tolist(), case  # the same bits
    spans = [span for rank in want.spans for span in rank]
    assert [KINDS[k] for k in seen.kind] == [span[0] for span in spans]
    assert seen.micro_batch.tolist() == [span[2] for span in spans]
    np.testing.assert_allclose(seen.start, [span[3] for span in spans], rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(seen.end, [span[4] for span in spans], rtol=1e-9, atol=1e-9)
    check_memory(want, seen.moments, moments(schedule, p, v, m, wanted))


def check_memory(want: Pipeline, every: Any, kept: Any) -> None:
    """The operations' counts are the simulated ones, and those that were kept cover them all."""
    number = {"F": 0, "B": 1, "I": 3, "W": 4}
    for rank in range(want.p):
        held = {(number[kind], chunk, *flight, *pending)
                for kind, chunk, flight, pending in want.alive[rank]}  # fmt: skip
        assert vectors(every, rank) == held
        few = vectors(kept, rank)
        for one in held:
            alike = (each for each in few if each[:2] == one[:2])
            assert any(all(x >= y for x, y in zip(e, one, strict=True)) for e in alike), one
        assert {each for each in few if each[0] != 2} <= held


def vectors(found: Any, rank: int) -> set[tuple[int, ...]]:
    mine = found.rank == rank
    columns = (found.kind[mine, None], found.chunk[mine, None], found.in_flight[mine],
               found.pending[mine])  # fmt: skip
    return set(map(tuple, np.concatenate(columns, axis=1).tolist()))


def test_schedules_are_the_simulated_ones() -> None:
    rng = np.random.default_rng(7)
    for _ in range(120):
        check(any_case(rng, 7, 22), rng)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_thousands_of_schedules_are_the_simulated_ones() -> None:
    rng = np.random.default_rng(11)
    for _ in range(6000):
        check(any_case(rng, 11, 40), rng)


@pytest.mark.parametrize("schedule", ["zb-h1", "zbv", "dualpipev"])
def test_long_runs_are_the_simulated_ones(schedule: str) -> None:
    rng = np.random.default_rng(3)
    for p, m in ((3, 90), (4, 131)):
        check((schedule, p, 1 if schedule == "zb-h1" else 2, m, 0, False), rng)


@pytest.mark.parametrize(
    ("schedule", "v", "synchronous"),
    [("1f1b", 1, False), ("1f1b", 1, True), ("zb-h1", 1, False), ("zbv", 2, False),
     ("dualpipev", 2, False), ("interleaved", 3, False)],
)  # fmt: skip
def test_short_runs_stand_for_long_ones_bit_for_bit(
    schedule: str, v: int, synchronous: bool
) -> None:
    rng = np.random.default_rng(v)
    for p, m in ((2, 160), (5, 300)):
        rows = 60
        f, b = rng.uniform(0.2, 2.0, (rows, p * v)), rng.uniform(0.5, 4.0, (rows, p * v))
        f[:20] = np.ceil(2 * f[:20])
        b[:20], hop = 2 * f[:20], rng.uniform(0.0, 0.5, rows)
        w = b * rng.uniform(0.2, 0.8, (rows, p * v))
        got = replay(schedule, p, v, m, f, b, hop, w, synchronous=synchronous)
        for k in range(0, rows, 7):
            seen = timeline(schedule, p, v, m, f[k], b[k], float(hop[k]), w[k],
                            synchronous=synchronous)  # fmt: skip
            last = np.r_[np.diff(seen.rank) != 0, True]
            assert seen.released[last].tolist() == got[k].tolist()


def test_makespans_of_another_simulator() -> None:
    with DATA.open(encoding="utf-8") as lines:
        rows = list(csv.DictReader((line for line in lines if line[0] != "#"), delimiter="\t"))
    assert len(rows) > 100
    for row in rows:
        f, b = (np.array([[float(x) for x in row[name].split(",")]])
                for name in ("forward_s", "backward_s"))  # fmt: skip
        p, v, m, group = (int(row[n]) for n in ("ranks", "chunks", "micro_batches", "group"))
        synchronous = row["schedule"] == "synchronous"
        schedule = "1f1b" if synchronous else row["schedule"]
        ends = replay(schedule, p, v, m, f, b, np.array([float(row["hop_s"])]), group=group,
                      synchronous=synchronous)  # fmt: skip
        np.testing.assert_allclose(ends.max(), float(row["makespan_s"]), rtol=1e-11)


@pytest.mark.parametrize("p", [2, 4, 8])
def test_zero_bubble_known_answers(p: int) -> None:
    # Qi et al. 2023, table 1: ZB-H1's bubble is (p - 1)(F + B - W) per rank, here (p - 1) x 1 with
    # F = B = W = 1, so 3 m + p - 1. The V shape's chunks take half of that each: the first one
    # reaches the last rank after (p - 1)/2, and then no rank waits.
    m = 4 * p
    whole, half = np.ones((1, p)), np.full((1, 2 * p), 0.5)
    hop = np.zeros(1)
    assert replay("zb-h1", p, 1, m, whole, 2 * whole, hop, whole).max() == 3 * m + p - 1
    assert replay("zbv", p, 2, m, half, 2 * half, hop, half).max() == 3 * m + (p - 1) / 2
    assert replay("1f1b", p, 1, m, whole, 2 * whole, hop).max() == 3 * (m + p - 1)


@pytest.mark.parametrize(("p", "m"), [(4, 16), (6, 24)])
def test_zero_bubble_memory_known_answers(p: int, m: int) -> None:
    # Qi et al. 2023: ZB-H1 holds p micro-batches on every rank (in flight or waiting for their
    # weights), ZB-V 2 p half-sized ones.
    for schedule, v, most in (("zb-h1", 1, p), ("zbv", 2, 2 * p)):
        found = moments(schedule, p, v, m)
        total = (found.in_flight + found.pending).sum(axis=1)
        peaks = [int(total[found.rank == rank].max()) for rank in range(p)]
        assert peaks == [most] * p


def test_without_weights_a_split_backward_is_a_whole_one() -> None:
    # Weight gradients of no seconds: ZB-H1 takes as long as 1F1B.
    rng = np.random.default_rng(1)
    f, b, hop = rng.uniform(0.5, 1.5, (20, 6)), rng.uniform(1, 3, (20, 6)), rng.uniform(0, 1, 20)
    plain = replay("1f1b", 6, 1, 30, f, b, hop)
    np.testing.assert_allclose(replay("zb-h1", 6, 1, 30, f, b, hop), plain, rtol=1e-12)
