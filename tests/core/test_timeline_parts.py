"""Segments, sums, longest path and picture of a step, on timelines worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
from attrs import evolve

import autopar_core.builtin as builtin
from autopar_core.builtin.timeline_chart import _legends, _memory, draw, windows
from autopar_core.compose.timeline import TailPart, bottleneck, rank_times, segments
from autopar_core.config.load import load_job
from autopar_core.config.overrides import Overrides
from autopar_core.domain.timeline import (
    SEGMENT_KINDS,
    MemoryTrace,
    Segments,
    StepTimeline,
)
from autopar_core.hooks.schedule import Composer, ScheduleKey, Timeline
from autopar_core.plugins import PluginManager
from autopar_core.search.contexts import Contexts
from autopar_core.testing.bench import SMALL_JOB


PLUGINS = PluginManager.load(extra=(("builtin", builtin),))
COMPOSER: Composer = Contexts.build(
    load_job(None, SMALL_JOB, Overrides(), PLUGINS), PLUGINS
).composer
TAILS = [
    [
        TailPart("exposed communication", "dp", "reduce", 1.0),
        TailPart("optimizer", "core", "o", 0.5),
    ],
    [TailPart("optimizer", "core", "o", 0.25)],
]
Row = tuple[int, str, float, float, int]


def laid_out(key: ScheduleKey, f: list[float], b: list[float], hop: float) -> Timeline:
    one, two = np.array([f]), np.array([b])
    return COMPOSER.timeline(key, one, two, np.array([hop]), 0 * two)


def rows(found: Segments) -> list[Row]:
    return [
        (int(found.rank[i]), SEGMENT_KINDS[found.kind[i]], float(found.start[i]),
         float(found.end[i]), int(found.micro_batch[i]))
        for i in range(len(found))
    ]  # fmt: skip


def test_two_ranks_with_overlapped_messages() -> None:
    # Operations as in the replay's test by hand: rank 0 runs F0 0-1, F1 1-2, B0 5-8, B1 8-11, rank 1
    # F0 1.5-3.5, B0 3.5-4.5, F1 4.5-6.5, B1 6.5-7.5. Half a second of each backward of rank 0
    # recomputes. The tails end at 12.5 and 7.75.
    key = ScheduleKey("1f1b", 2, 1, 2)
    found = laid_out(key, [1.0, 2.0], [3.0, 1.0], 0.5)
    ends = np.array([12.5, 7.75])
    made = segments(found, np.array([0.5, 0.0]), ends, TAILS, key)
    assert rows(made) == [
        (0, "forward", 0.0, 1.0, 0), (0, "forward", 1.0, 2.0, 1), (0, "idle", 2.0, 4.5, -1),
        (0, "p2p", 4.5, 5.0, 0), (0, "recompute", 5.0, 5.5, 0), (0, "backward", 5.5, 8.0, 0),
        (0, "recompute", 8.0, 8.5, 1), (0, "backward", 8.5, 11.0, 1),
        (0, "exposed communication", 11.0, 12.0, -1), (0, "optimizer", 12.0, 12.5, -1),
        (1, "idle", 0.0, 1.0, -1), (1, "p2p", 1.0, 1.5, 0), (1, "forward", 1.5, 3.5, 0),
        (1, "backward", 3.5, 4.5, 0), (1, "forward", 4.5, 6.5, 1), (1, "backward", 6.5, 7.5, 1),
        (1, "optimizer", 7.5, 7.75, -1), (1, "idle", 7.75, 12.5, -1),
    ]  # fmt: skip
    assert [made.parts[i] for i in made.part[made.part >= 0]] == [
        ("dp", "reduce"), ("core", "o"), ("core", "o")
    ]  # fmt: skip
    sums = rank_times(made, ends, np.array([7, 9]))
    assert [rank.bubble_seconds for rank in sums] == [3.0, 6.25]
    assert [rank.peak_bytes for rank in sums] == [7, 9]


def test_the_longest_path_of_two_ranks() -> None:
    # Back from rank 0: B1 (8-11) after its B0 (5-8), which follows B0 of rank 1 (3.5-4.5) by a
    # message, that its F0 (1.5-3.5), that F0 of rank 0 (0-1) by a message. Rank 0: 1 + 3 + 3 and 1.5
    # of tail; rank 1: 3; messages 1.
    key = ScheduleKey("1f1b", 2, 1, 2)
    found = laid_out(key, [1.0, 2.0], [3.0, 1.0], 0.5)
    path = bottleneck(found, np.array([0.5, 0.0]), np.array([12.5, 7.75]), TAILS, key)
    assert path.rank == 0
    assert path.rank_seconds == (8.5, 3.0)
    assert path.share == 8.5 / 12.5
    kinds = {kind: seconds for kind, seconds in path.path_seconds.items() if seconds}
    assert kinds == {"forward": 3.0, "backward": 6.0, "recompute": 1.0, "p2p": 1.0,
                     "exposed communication": 1.0, "optimizer": 0.5}  # fmt: skip


def test_a_pipeline_that_never_fills_is_bound_by_its_ends() -> None:
    # Two micro-batches on four even ranks of F = 1, B = 2: (2 + 3) x 3 = 15 in all, 6 of work on each
    # rank, so each waits for 9 / 15 = 60 %.
    key = ScheduleKey("1f1b", 4, 1, 2)
    found = laid_out(key, [1.0] * 4, [2.0] * 4, 0.0)
    path = bottleneck(found, np.zeros(4), np.array([15.0, 13.0, 11.0, 9.0]), [[]] * 4, key)
    assert sum(path.rank_seconds) == 15.0
    assert path.sentence.startswith(
        "filling and draining bound the step: with 2 micro-batches for 4 ranks every rank waits for "
        f"60% of it or more, and none holds more than {path.share:.0%} of the longest path"
    )
    # A rank with most of the layers is named all the same, and so is one of a pipeline that fills.
    found = laid_out(key, [1.0, 1.0, 9.0, 1.0], [2.0, 2.0, 18.0, 2.0], 0.0)
    ends = np.array([found.released[found.rank == rank].max() for rank in range(4)])
    path = bottleneck(found, np.zeros(4), ends, [[]] * 4, key)
    assert path.sentence.startswith("rank 2 holds")
    assert "rank" in step(4, 8).bottleneck.sentence.split()[0]


@pytest.mark.parametrize(
    ("limit", "top"), [(7, 7.84), (6, 6.72), (8, 8.96), (9, 4.48), (192, 4.48)]
)
def test_memory_is_readable_under_a_limit_far_above(limit: int, top: float) -> None:
    # The largest is 4 GiB: an axis up to 1.12 x the limit where 4 is half of it or more, else 1.12 x 4.
    from matplotlib.figure import Figure

    made = evolve(step(4, 8), limit_bytes=limit << 30)
    axes = Figure().subplots()
    _memory(axes, made, (0.0, made.seconds), 1.0)
    assert axes.get_ylim() == pytest.approx((0.0, top))
    figure = Figure()
    _legends(figure, grid := figure.subplots(2, 1, squeeze=False), made)
    said = grid[1][-1].get_legend().get_texts()[-1].get_text()
    assert said == f"limit {limit}.00 GiB" + (",\nfar above" if top < limit else "")


def test_two_ranks_that_exchange() -> None:
    # As in the replay's test by hand: rank 1 sends B1's gradient from 8 to 8.5 before it goes on.
    key = ScheduleKey("1f1b", 2, 1, 2, blocking=True)
    found = laid_out(key, [1.0, 2.0], [3.0, 1.0], 0.5)
    made = segments(found, np.zeros(2), np.array([11.5, 8.5]), [[], []], key)
    assert [row for row in rows(made) if row[1] in ("p2p", "idle")] == [
        (0, "p2p", 1.0, 1.5, 0), (0, "idle", 2.5, 4.5, -1), (0, "p2p", 4.5, 5.0, 0),
        (0, "p2p", 8.0, 8.5, 1), (1, "idle", 0.0, 1.0, -1), (1, "p2p", 1.0, 1.5, 0),
        (1, "p2p", 4.5, 5.0, 1), (1, "p2p", 8.0, 8.5, 1), (1, "idle", 8.5, 11.5, -1),
    ]  # fmt: skip


def step(ranks: int, micro_batches: int, schedule: str = "1f1b") -> StepTimeline:
    """A step of even stages, memory of one GiB per micro-batch in flight."""
    key = ScheduleKey(schedule, ranks, 1, micro_batches)
    found = laid_out(key, [1.0] * ranks, [2.0] * ranks, 0.1)
    ends = np.array([found.released[found.rank == rank].max() for rank in range(ranks)])
    made = segments(found, np.zeros(ranks), ends, [[]] * ranks, key)
    held = found.moments.in_flight[:, 0] << 30
    trace = MemoryTrace(rank=found.rank, start=found.start, bytes=held)
    peaks = np.array([held[found.rank == rank].max() for rank in range(ranks)])
    return StepTimeline(
        seconds=float(ends.max()), schedule=schedule, ranks=ranks, chunks=1,
        micro_batches=micro_batches, segments=made, memory=trace, limit_bytes=40 << 30,
        by_rank=rank_times(made, ends, peaks),
        bottleneck=bottleneck(found, np.zeros(ranks), ends, [[]] * ranks, key),
    )  # fmt: skip


def test_a_long_step_shows_its_fill_and_its_drain() -> None:
    short = step(4, 8)
    assert windows(short) == [(0.0, short.seconds)]
    long = step(16, 512)
    (start, filled), (drained, end) = windows(long)
    assert (start, end) == (0.0, long.seconds)
    # The first micro-batch is back on rank 0 after 16 forwards and backwards; so long takes the drain.
    assert filled > 16 * 3
    assert long.seconds - drained == pytest.approx(filled)
    assert filled < long.seconds / 4


def test_a_long_step_shows_where_memory_is_largest() -> None:
    # GPipe holds most when forwards turn into backwards, far from both ends of a long step.
    made = step(4, 400, "gpipe")
    (_, filled), (start, stop), (drained, end) = windows(made)
    turn = made.memory.start[made.memory.bytes == made.memory.bytes.max()]
    assert filled <= start < turn[0] < stop <= drained < end == made.seconds
    assert stop - start == pytest.approx(filled)


def test_a_legend_of_two_lines_is_read_line_by_line() -> None:
    from matplotlib.figure import Figure

    made = step(4, 8)
    # Every kind occurs, and two chunks make the legend's tenth entry.
    kind = np.arange(len(made.segments)) % len(SEGMENT_KINDS)
    made = evolve(made, chunks=2, segments=evolve(made.segments, kind=kind))
    figure = Figure()
    _legends(figure, figure.subplots(2, 1, squeeze=False), made)
    texts = figure.legends[0].get_texts()
    # Five columns of two: matplotlib goes down a column first.
    down = [text.get_text() for text in texts]
    assert down[0::2] == list(SEGMENT_KINDS[:5])
    assert down[1::2] == [*SEGMENT_KINDS[5:], "(lighter: later chunks)"]


@pytest.mark.parametrize(("ranks", "micro_batches"), [(2, 3), (16, 512), (40, 90)])
def test_pictures_are_the_same_every_time(ranks: int, micro_batches: int) -> None:
    made = step(ranks, micro_batches)
    png, svg = draw(made, "A step")
    assert png.startswith(b"\x89PNG")
    assert svg.count(b"<path") > 10
    assert len(svg) < 3_000_000
    if ranks == 2:
        assert draw(made, "A step") == (png, svg)
