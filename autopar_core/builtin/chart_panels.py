"""Charts made of points: the distribution of candidates, and what each degree can reach."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from autopar_core.builtin import chart_style as look
from autopar_core.builtin import words
from autopar_core.builtin.chart_bars import limit_line


if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


Series = Mapping[str, Any]
TREND_COLUMNS = 4


def distribution(figure: Figure, series: Series) -> None:
    axes = figure.subplots()
    if not series["rows"]:
        return look.say(axes, look.NOTHING)
    unit, name = look.time_unit([min(series["seconds"])])
    memory = [value / words.GIB for value in series["memory_bytes"]]
    times = [value / unit for value in series["seconds"]]
    for wanted, label, color, layer in (
        (False, "infeasible", look.BAD, 1),
        (True, "feasible", look.GOOD, 2),
    ):
        rows = [i for i, fits in enumerate(series["row_feasible"]) if fits is wanted]
        if rows:
            axes.scatter(
                [memory[i] for i in rows], [times[i] for i in rows], s=13, color=color, alpha=0.65,
                linewidths=0, label=f"{label} ({len(rows):,} shown)", rasterized=True, zorder=layer,
            )  # fmt: skip
    front = sorted(zip(series["front_memory_bytes"], series["front_seconds"], strict=True))
    if front:
        axes.plot(
            [m / words.GIB for m, _ in front], [t / unit for _, t in front], color=look.FRONT,
            linewidth=1.3, marker="o", markersize=4, zorder=5, label="Pareto front",
            drawstyle="steps-post",
        )  # fmt: skip
    if series["best_seconds"] is not None:
        axes.plot(
            series["best_memory_bytes"] / words.GIB, series["best_seconds"] / unit,
            linestyle="none", marker="*", markersize=12, color="#DDAA33",
            markeredgecolor=look.INK, zorder=6, label="place 1",
        )  # fmt: skip
    number_scale(axes, "x", [*memory, series["limit_bytes"] / words.GIB], 8)
    number_scale(axes, "y", times, 8)
    limit_line(axes, series["limit_bytes"] / words.GIB, across=True)
    axes.set_xlabel("memory per device (GiB)")
    axes.set_ylabel(f"step time ({name}; a lower bound where not exact)")
    return look.legend(figure, axes, marker_scale=1.2)


def number_scale(axes: Axes, side: str, values: Sequence[float], wide: float) -> None:
    """A log scale with plain numbers where values span more than a factor."""
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    if not look.is_wide(values, wide):
        low, high = min(values), max(values)
        room = 0.06 * ((high - low) or high)
        axes.set(**{f"{side}lim": (max(0.0, low - room), high + room)})
        return
    axes.set(**{f"{side}scale": "log"})
    axis = axes.xaxis if side == "x" else axes.yaxis
    decades = math.log10(max(values) / min(value for value in values if value > 0))
    axis.set_major_locator(LogLocator(subs=(1.0,) if decades > 4 else (1.0, 2.0, 5.0), numticks=20))
    axis.set_major_formatter(StrMethodFormatter("{x:,.10g}"))
    axis.set_minor_formatter(NullFormatter())


def trends(figure: Figure, series: Series) -> None:
    panels = series["panels"]
    if not panels:
        return look.say(figure.subplots(), "No dimension has a degree to show.")
    columns = min(TREND_COLUMNS, len(panels))
    blocks = math.ceil(len(panels) / columns)
    grid = figure.subplots(2 * blocks, columns, squeeze=False, sharey="row")
    seconds = [t for panel in panels for t in panel["best_seconds"] if math.isfinite(t)]
    unit, name = look.time_unit(seconds)
    limit = series["limit_bytes"] / words.GIB
    memory = [b / words.GIB for panel in panels for b in panel["least_memory_bytes"] if b >= 0]
    for i in range(blocks * columns):
        upper, lower = (grid[2 * (i // columns) + k][i % columns] for k in (0, 1))
        if i >= len(panels):
            upper.set_axis_off()
            lower.set_axis_off()
            continue
        panel = panels[i]
        times = [value / unit for value in panel["best_seconds"]]
        least = [b / words.GIB if b >= 0 else math.nan for b in panel["least_memory_bytes"]]
        _trend(upper, panel["values"], times, look.FRONT, "none feasible")
        _trend(lower, panel["values"], least, "#117733", "none estimated")
        lower.axhline(limit, color=look.WARN, linewidth=1.2, linestyle=(0, (5, 3)))
        _from_zero(upper, [value / unit for value in seconds])
        _from_zero(lower, [*memory, limit])
        upper.set_title(look.wrapped(panel["field"], 26))
        lower.set_xlabel("degree")
        if i % columns == 0:
            upper.set_ylabel(f"best step time ({name})")
            lower.set_ylabel("least memory (GiB)\ndashed: limit")
    return None


def _from_zero(axes: Axes, values: Sequence[float]) -> None:
    """The same scale in every panel: from zero, or logarithmic where values differ widely."""
    if not values:
        axes.set_yticks([])
    elif look.is_wide(values, 20):
        number_scale(axes, "y", values, 20)
    else:
        axes.set_ylim(0, 1.08 * max(values))


def _trend(
    axes: Axes, values: Sequence[int], reached: Sequence[float], color: str, none: str
) -> None:
    places = range(len(values))
    axes.plot(places, reached, color=color, marker="o", markersize=4.5, linewidth=1.4)
    axes.set_xlim(-0.5, max(len(values), 2) - 0.5)
    step = max(1, math.ceil(len(values) / 8))
    axes.set_xticks(list(places)[::step], [str(value) for value in values[::step]])
    if all(math.isnan(value) for value in reached):
        axes.text(
            0.5, 0.5, none, ha="center", va="center", transform=axes.transAxes, color="#666666"
        )
