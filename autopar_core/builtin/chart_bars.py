"""Charts made of bars: step time, memory, stages, rules."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from autopar_core.builtin import chart_style as look
from autopar_core.builtin import words


if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


Series = Mapping[str, Any]

# A number stays beside its bar and covers the limit line where it lies on it.
_OVER_LINES: dict[str, Any] = {
    "bbox": {"facecolor": "white", "edgecolor": "none", "pad": 0.6},
    "zorder": 5,
}


def bars_height(series: Series) -> float:
    lines = sum(look.wrapped(label, 44).count("\n") + 1 for label in series["labels"])
    return max(3.2, 1.9 + 0.30 * lines + 0.14 * len(series["labels"]) + 0.09 * len(series["bars"]))


def step_time(figure: Figure, series: Series) -> None:
    axes = figure.subplots()
    if not series["labels"]:
        return look.say(axes, look.NOTHING)
    unit, name = look.time_unit([*series["total_seconds"], *series["high_seconds"]])
    totals = [value / unit for value in series["total_seconds"]]
    _horizontal(axes, series["labels"], [(b["name"], b["seconds"]) for b in series["bars"]], unit)
    low = [value / unit for value in series["low_seconds"]]
    high = [value / unit for value in series["high_seconds"]]
    _whiskers(axes, totals, low, high)
    ends = [
        max(total, end) if end < math.inf else total
        for total, end in zip(totals, high, strict=True)
    ]
    _say_ends(axes, ends, [words.seconds(value) for value in series["total_seconds"]])
    axes.set_xlabel(f"step time ({name}); whiskers: band of the estimate")
    return look.legend(figure, axes)


def memory(figure: Figure, series: Series) -> None:
    axes = figure.subplots()
    if not series["labels"]:
        return look.say(axes, look.NOTHING)
    _horizontal(
        axes, series["labels"], [(b["name"], b["bytes"]) for b in series["bars"]], words.GIB
    )
    totals = [value / words.GIB for value in series["total_bytes"]]
    reserved = [value / words.GIB for value in series["reserved_bytes"]]
    _whiskers(axes, totals, totals, reserved)
    limit = series["limit_bytes"] / words.GIB
    ends = [max(pair) for pair in zip(totals, reserved, strict=True)]
    _say_ends(axes, ends, [words.gib(value, 1) for value in series["total_bytes"]])
    limit_line(axes, limit, across=True)
    axes.set_xlabel(
        "memory per device on the largest stage (GiB); whiskers: what the allocator may reserve"
    )
    return look.legend(figure, axes, 3)


def _whiskers(
    axes: Axes, totals: Sequence[float], low: Sequence[float], high: Sequence[float]
) -> None:
    """A band at the end of each bar, where there is one."""
    for i, (total, left, right) in enumerate(zip(totals, low, high, strict=True)):
        if left < right < math.inf:
            sides = [[max(0.0, total - left)], [max(0.0, right - total)]]
            axes.errorbar(total, i, xerr=sides, color=look.INK, capsize=2.5, elinewidth=0.9)


def _horizontal(
    axes: Axes, labels: Sequence[str], bars: Sequence[tuple[str, Sequence[float]]], unit: float
) -> None:
    places = range(len(labels))
    left = [0.0] * len(labels)
    for (name, values), fill in zip(bars, look.fills([name for name, _ in bars]), strict=True):
        sizes = [value / unit for value in values]
        axes.barh(
            places,
            sizes,
            left=left,
            height=0.68,
            label=name,
            edgecolor="white",
            linewidth=0.5,
            **fill,
        )
        left = [a + b for a, b in zip(left, sizes, strict=True)]
    axes.set_yticks(places, [look.wrapped(label, 44) for label in labels])
    axes.set_ylim(len(labels) - 0.45, -0.55)
    axes.tick_params(axis="y", length=0)
    axes.grid(False, axis="y")


def _say_ends(axes: Axes, ends: Sequence[float], texts: Sequence[str]) -> None:
    """A text right of each bar; of a bar without a length, at zero."""
    known = [end if math.isfinite(end) else 0.0 for end in ends]
    top = max(known, default=0.0) or 1.0
    for i, (end, text) in enumerate(zip(known, texts, strict=True)):
        axes.text(end + 0.012 * top, i, text, va="center", fontsize=8.5, **_OVER_LINES)
    axes.set_xlim(0, 1.13 * max(top, axes.get_xlim()[1] / 1.05))


def limit_line(axes: Axes, limit: float, across: bool) -> None:
    """A dashed line at the memory limit, named at its end, outside the bars."""
    style: dict[str, Any] = {
        "color": look.WARN,
        "linewidth": 1.3,
        "linestyle": (0, (5, 3)),
        "zorder": 4,
    }
    text: dict[str, Any] = {"color": look.WARN, "fontsize": 8.5, "textcoords": "offset points"}
    said = f"limit {limit:.1f} GiB"
    if across:
        axes.axvline(limit, **style)
        low, high = axes.get_xlim()
        axes.set_xlim(low, max(high, 1.05 * limit))
        where = (limit, 1.0), (0, 3)
        side: dict[str, Any] = {
            "ha": "right" if limit > 0.8 * axes.get_xlim()[1] else "center",
            "va": "bottom",
        }
        axes.annotate(said, where[0], where[1], xycoords=("data", "axes fraction"), **side, **text)
        return
    axes.axhline(limit, **style)
    low, high = axes.get_ylim()
    axes.set_ylim(low, max(high, 1.12 * limit))
    axes.annotate(
        said,
        (1.0, limit),
        (0, 3),
        xycoords=("axes fraction", "data"),
        ha="right",
        va="bottom",
        **text,
    )


def stages(figure: Figure, series: Series) -> None:
    ranks = series["ranks"]
    if not ranks:
        return look.say(figure.subplots(), look.NOTHING)
    upper, lower = figure.subplots(2, 1, sharex=True)
    _vertical(upper, ranks, [(b["name"], b["bytes"]) for b in series["bars"]], words.GIB)
    limit_line(upper, series["limit_bytes"] / words.GIB, across=False)
    upper.set_title("memory per device")
    upper.set_ylabel("GiB")
    both = [("forward", series["forward_seconds"]), ("backward", series["backward_seconds"])]
    top = [a + b for a, b in zip(both[0][1], both[1][1], strict=True)]
    unit, name = look.time_unit(top)
    _vertical(lower, ranks, both, unit, [{"facecolor": look.GOOD}, {"facecolor": look.SECOND}])
    lower.set_title("time per micro-batch")
    lower.set_ylabel(name)
    step = max(1, math.ceil(len(ranks) / 32))
    ticks = list(zip(ranks, series["layers"], strict=True))[::step]
    lower.set_xticks([rank for rank, _ in ticks], [f"{rank}\n{layers}" for rank, layers in ticks])
    lower.set_xlabel("stage, and below it its number of layers")
    lower.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    handles, names = upper.get_legend_handles_labels()
    upper.legend(
        handles[::-1],
        [look.wrapped(name, 28) for name in names[::-1]],
        loc="upper left",
        bbox_to_anchor=(1.0, 1.05),
    )
    return None


def _vertical(
    axes: Axes,
    places: Sequence[int],
    bars: Sequence[tuple[str, Sequence[float]]],
    unit: float,
    fills: Sequence[Mapping[str, Any]] = (),
) -> None:
    bottom = [0.0] * len(places)
    for (name, values), fill in zip(
        bars, fills or look.fills([name for name, _ in bars]), strict=True
    ):
        sizes = [value / unit for value in values]
        line = 0.5 if len(places) <= 32 else 0.0
        axes.bar(
            places,
            sizes,
            bottom=bottom,
            width=0.78,
            label=name,
            edgecolor="white",
            linewidth=line,
            **fill,
        )
        bottom = [a + b for a, b in zip(bottom, sizes, strict=True)]
    axes.grid(False, axis="x")
    half = max(0.6, (6 - len(places)) / 2)  # few stages are no wide slabs
    axes.set_xlim(min(places) - half, max(places) + half)


def reasons(figure: Figure, series: Series) -> None:
    from matplotlib.ticker import StrMethodFormatter

    axes = figure.subplots()
    codes, candidates = series["codes"], series["candidates"]
    if not codes:
        return look.say(axes, "No rule took a candidate.")
    axes.barh(range(len(codes)), candidates, height=0.66, color=look.GOOD)
    axes.set_yticks(range(len(codes)), [look.wrapped(code, 44) for code in codes])
    axes.set_ylim(len(codes) - 0.45, -0.55)
    axes.tick_params(axis="y", length=0)
    axes.grid(False, axis="y")
    scale = "candidates that break the rule (one may break several)"
    if look.is_wide(candidates, 100):
        axes.set_xscale("log")
        low = 0.5 * min(value for value in candidates if value > 0)
        axes.set_xlim(low, max(candidates) * (max(candidates) / low) ** 0.12)
        scale += ", log scale"
    else:
        axes.set_xlim(0, 1.14 * max(candidates))
        axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.10g}"))
    for i, number in enumerate(candidates):
        axes.annotate(
            f"{number:,}", (max(number, axes.get_xlim()[0]), i), (4, 0),
            textcoords="offset points", va="center", fontsize=8.5,
        )  # fmt: skip
    axes.set_xlabel(scale)
    return None
