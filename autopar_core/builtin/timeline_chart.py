"""The picture of one step: what every rank does over time, and the memory that it holds."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from autopar_core.builtin import chart_style as look
from autopar_core.builtin import words
from autopar_core.domain import timeline as kinds
from autopar_core.domain.arrays import Floats
from autopar_core.domain.timeline import SEGMENT_KINDS, StepTimeline, kinds_of


if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D


COLORS = {
    kinds.FORWARD: "#88CCEE", kinds.BACKWARD: "#4477AA", kinds.WEIGHT: "#44AA99",
    kinds.RECOMPUTE: "#DDCC77", kinds.MESSAGE: "#CC6677", kinds.EXPOSED: "#882255",
    kinds.OPTIMIZER: "#117733", kinds.HOST: look.FIXED["host"], kinds.IDLE: "#F0F0F0",
}  # fmt: skip
NUMBERED = (kinds.FORWARD, kinds.BACKWARD, kinds.WEIGHT)
DARK = (kinds.BACKWARD,)
# Operations of a rank that the width can show apart, and that a part of a longer step may have.
MOST_OPERATIONS, LONGEST = 170, 120.0
# A part of a long step that shows this share of the largest memory shows enough.
NEARLY = 0.95
# Lanes and lines that can all be named.
MOST_LANES, NAMED_LINES = 24, 8
# The named lines of many: first, largest, last.
FIRST, LARGEST, LAST, OTHERS = "#332288", "#CC6677", "#117733", "#BBBBBB"
# Sizes of numbers, the one that is preferred first. A digit is 0.64 of it wide (DejaVu Sans), in
# points, with what keeps two numbers apart.
SIZES, DIGIT, POINTS = (6.0, 5.0), 0.68, 72.0
LANE = 0.82
LIMIT = (0, (5, 3))
# Share of the limit from which on the memory's axis reaches up to it: below, the curves would lie flat.
NEAR = 0.5
# Letters of a line of the caption, entries of a line of the legend.
CAPTION, ENTRIES = 110, 6


def draw(timeline: StepTimeline, title: str, caption: str = "") -> tuple[bytes, bytes]:
    """(PNG, SVG), the same bytes on every run; ``caption`` says under the title whose step it is."""
    return look.render(title, _height(timeline), lambda figure: _paint(figure, timeline, caption))


def _height(timeline: StepTimeline) -> float:
    return 4.4 + min(7.0, 0.30 * timeline.ranks)


def windows(timeline: StepTimeline) -> list[tuple[float, float]]:
    """Spans of time to show: the whole step, or parts of it when it has too many operations to tell
    apart: its beginning and its end, and between them where memory is largest if they do not have it.
    """
    found = timeline.segments
    busy = np.isin(found.kind, [kinds.index_of(kind) for kind in NUMBERED])
    each = int(busy.sum()) / timeline.ranks
    if each <= MOST_OPERATIONS:
        return [(0.0, timeline.seconds)]
    # Long enough for the fill and the drain, which grow with ranks and chunks.
    shown = min(LONGEST, max(40.0, 2.5 * timeline.ranks * (timeline.chunks + 1)))
    end = timeline.seconds
    width = min(0.45, shown / each) * end
    high = _high(timeline, NEARLY)
    if (high < width).any() or (high >= end - width).any():
        return [(0.0, width), (end - width, end)]
    width = min(0.3, 2 / 3 * shown / each) * end
    middle = float(np.clip(_high(timeline, 1.0)[0] - width / 2, width, end - 2 * width))
    return [(0.0, width), (middle, middle + width), (end - width, end)]


def _high(timeline: StepTimeline, share: float) -> Floats:
    """Times from which on a rank holds that share of the largest memory, or more."""
    trace = timeline.memory
    return np.asarray(trace.start[trace.bytes >= share * trace.bytes.max()])


def _paint(figure: Figure, timeline: StepTimeline, caption: str) -> None:
    spans = windows(timeline)
    unit, name = look.time_unit([timeline.seconds])
    lanes = max(1.6, min(7.0, 0.30 * timeline.ranks))
    grid = figure.subplots(
        2, len(spans), squeeze=False, sharex="col", sharey="row",
        gridspec_kw={"height_ratios": [lanes, 2.2]},
    )  # fmt: skip
    for column, span in enumerate(spans):
        _lanes(grid[0][column], timeline, span, unit, 8.0 / len(spans))
        _memory(grid[1][column], timeline, span, unit)
        grid[1][column].set_xlim(span[0] / unit, span[1] / unit)
    _frame(grid, timeline, spans, name, unit)
    if caption:
        lines = [look.wrapped(line, CAPTION) for line in caption.splitlines()]
        _caption(grid[0][0], "\n".join(lines))
    _legends(figure, grid, timeline)


def _caption(axes: Axes, text: str) -> None:
    """Lines above the lanes; they take height, and no width from the parts of a long step."""
    axes.set_title("\n".join(" " for _ in text.splitlines()), fontsize=8.5, pad=10)
    axes.annotate(
        text, (0.0, 1.0), (0, 10), xycoords="axes fraction", textcoords="offset points",
        va="bottom", fontsize=8.5, annotation_clip=False,
    ).set_in_layout(False)  # fmt: skip


def _frame(
    grid: Any, timeline: StepTimeline, spans: Sequence[tuple[float, float]], name: str, unit: float
) -> None:
    step = max(1, -(-timeline.ranks // MOST_LANES))
    ranks = list(range(0, timeline.ranks, step))
    grid[0][0].set_yticks(ranks, [f"rank {rank}" for rank in ranks])
    grid[0][0].set_ylim(timeline.ranks - 0.5, -0.6)
    grid[1][0].set_ylabel("memory (GiB)")
    right = grid[0][-1]
    for rank in ranks:
        share = timeline.by_rank[rank].bubble_seconds / timeline.seconds
        right.annotate(
            words.percent(share), (1.0, rank), (5, 0), xycoords=("axes fraction", "data"),
            textcoords="offset points", va="center", fontsize=8, annotation_clip=False,
        )  # fmt: skip
    right.annotate(
        "bubble", (1.0, 1.0), (5, 4), xycoords="axes fraction", textcoords="offset points",
        va="bottom", fontsize=8.5, annotation_clip=False,
    )  # fmt: skip
    if len(spans) == 1:
        grid[1][0].set_xlabel(f"time since the start of the step ({name})")
        return
    left_out = (timeline.seconds - sum(stop - start for start, stop in spans)) / unit
    between = "; " if len(spans) == 2 else "\n"
    grid[1][0].set_xlabel(f"start of the step ({name})")
    grid[1][-1].set_xlabel(
        f"end of the step ({name}){between}{left_out:,.4g} {name} between are left out"
    )
    if len(spans) > 2:
        grid[1][1].set_xlabel(f"where memory is largest ({name})")
    for left, right in (pair for row in grid for pair in pairwise(row)):
        left.spines["right"].set_visible(False)
        right.spines["left"].set_visible(False)
        right.tick_params(axis="y", length=0)
        _break_marks(left, 1.0)
        _break_marks(right, 0.0)


def _break_marks(axes: Axes, at: float) -> None:
    """Slanted strokes where the time axis is cut."""
    axes.plot(
        [at, at], [0, 1], transform=axes.transAxes, marker=[(-1, -1.6), (1, 1.6)], markersize=9,
        linestyle="none", color="#777777", mec="#777777", mew=1, clip_on=False,
    )  # fmt: skip


def _lanes(
    axes: Axes, timeline: StepTimeline, span: tuple[float, float], unit: float, width: float
) -> None:
    from matplotlib.collections import PolyCollection

    found = timeline.segments
    inside = (found.end > span[0]) & (found.start < span[1])
    for number, kind in enumerate(SEGMENT_KINDS):
        rows = np.nonzero(inside & (found.kind == number))[0]
        if not len(rows):
            continue
        left, right = found.start[rows] / unit, found.end[rows] / unit
        top, bottom = found.rank[rows] - LANE / 2, found.rank[rows] + LANE / 2
        corners = np.stack([left, bottom, right, bottom, right, top, left, top], axis=1)
        boxes = PolyCollection(
            list(corners.reshape(-1, 4, 2)), facecolors=_shades(timeline, kind, rows),
            edgecolors="white", linewidths=0.0 if kind == kinds.IDLE else 0.3,
        )  # fmt: skip
        axes.add_collection(boxes, autolim=False)
        if kind in NUMBERED:
            _numbers(axes, timeline, rows, span, unit, width)
    axes.grid(False)
    axes.tick_params(axis="y", length=0)


def _shades(timeline: StepTimeline, kind: str, rows: Any) -> Any:
    """Colour of each box: later chunks are lighter."""
    from matplotlib.colors import to_rgb

    base = np.array(to_rgb(COLORS[kind]))
    chunk = np.maximum(timeline.segments.chunk[rows], 0)
    white = 0.45 * chunk / max(1, timeline.chunks - 1)
    return base + (1 - base) * white[:, None]


def _numbers(
    axes: Axes, timeline: StepTimeline, rows: Any, span: tuple[float, float], unit: float,
    width: float,
) -> None:  # fmt: skip
    """Micro-batch of each box that is wide enough for the longest of them."""
    found = timeline.segments
    inches = width / (span[1] - span[0])
    took = (found.end[rows] - found.start[rows]) * inches
    # Of the sizes the largest that fits, 0 for none.
    fits = np.zeros(len(rows))
    for points in reversed(SIZES):
        needed = (2 + points * DIGIT * len(str(timeline.micro_batches))) / POINTS
        fits = np.where(took >= needed, points, fits)
    for row, points in zip(rows[fits > 0].tolist(), fits[fits > 0].tolist(), strict=True):
        text = str(int(found.micro_batch[row]) + 1)
        middle = (found.start[row] + found.end[row]) / 2
        if not span[0] < middle < span[1]:
            continue
        dark = SEGMENT_KINDS[found.kind[row]] in DARK and found.chunk[row] < 1
        axes.text(
            middle / unit, found.rank[row], text, ha="center", va="center", fontsize=points,
            color="white" if dark else look.INK, clip_on=True,
        )  # fmt: skip


def _memory(axes: Axes, timeline: StepTimeline, span: tuple[float, float], unit: float) -> None:
    trace = timeline.memory
    for rank, style in zip(range(timeline.ranks), _lines(timeline), strict=True):
        rows = trace.rank == rank
        times, values = trace.start[rows], trace.bytes[rows] / words.GIB
        first = max(0, int(np.searchsorted(times, span[0], side="right")) - 1)
        last = int(np.searchsorted(times, span[1], side="right"))
        times, values = times[first:last], values[first:last]
        axes.step(
            np.append(np.maximum(times, span[0]), span[1]) / unit, np.append(values, values[-1:]),
            where="post", **style,
        )  # fmt: skip
    largest = max(rank.peak_bytes for rank in timeline.by_rank) / words.GIB
    if not _near(timeline):
        axes.set_ylim(0, 1.12 * largest)
        return
    limit = timeline.limit_bytes / words.GIB
    axes.axhline(limit, color=look.WARN, linewidth=1.3, linestyle=LIMIT)
    axes.set_ylim(0, 1.12 * max(limit, largest))


def _near(timeline: StepTimeline) -> bool:
    """Whether the limit is near enough to what is held to be drawn with it."""
    return max(rank.peak_bytes for rank in timeline.by_rank) >= NEAR * timeline.limit_bytes


def _limit(timeline: StepTimeline) -> tuple[Line2D, str]:
    """Entry of the legend: the line, or a mark that points at a limit far above the panel."""
    from matplotlib.lines import Line2D

    said = f"limit {words.gib(timeline.limit_bytes)}"
    if _near(timeline):
        return Line2D([], [], color=look.WARN, linewidth=1.3, linestyle=LIMIT), said
    mark = Line2D([], [], color=look.WARN, marker="^", markersize=6, linestyle="none")
    return mark, f"{said},\nfar above"


def _lines(timeline: StepTimeline) -> list[dict[str, Any]]:
    """How the memory of each rank is drawn: few ranks by name, of many the ends and the largest."""
    from matplotlib import colormaps

    ranks = timeline.ranks
    peaks = [rank.peak_bytes for rank in timeline.by_rank]
    worst = peaks.index(max(peaks))
    if ranks <= NAMED_LINES:
        shades = colormaps["viridis"](np.linspace(0.0, 0.88, ranks))
        colors: dict[int, Any] = {rank: tuple(shades[rank]) for rank in range(ranks)}
    else:
        colors = {0: FIRST, ranks - 1: LAST, worst: LARGEST}
    most = f" (largest,\n{words.gib(peaks[worst])})"
    return [
        {"color": colors[rank], "linewidth": 1.1, "zorder": 3,
         "label": f"rank {rank}{most if rank == worst else ''}"}
        if rank in colors
        else {"color": OTHERS, "linewidth": 0.5, "label": f"_rank {rank}"}
        for rank in range(ranks)
    ]  # fmt: skip


def _legends(figure: Figure, grid: Any, timeline: StepTimeline) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    present = kinds_of(timeline.segments)
    handles: list[Any] = [
        Patch(facecolor=COLORS[kind], edgecolor="#999999", linewidth=0.4, label=kind)
        for kind in present
    ]
    if timeline.chunks > 1:
        handles.append(Line2D([], [], linestyle="none", label="(lighter: later chunks)"))
    lines_of = -(-len(handles) // ENTRIES)
    columns = -(-len(handles) // lines_of)
    # A legend is filled column by column; it is read line by line.
    handles = [one for column in range(columns) for one in handles[column::columns]]
    figure.legend(handles=handles, loc="outside lower left", ncols=columns)
    lines, names = grid[1][-1].get_legend_handles_labels()
    limit, said = _limit(timeline)
    grid[1][-1].legend(
        [*lines, limit], [*names, said], loc="upper left", bbox_to_anchor=(1.0, 1.04), fontsize=8
    )
