"""How charts look, and how a figure becomes the same bytes every time."""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any


if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


# Paul Tol's "muted" scheme, safe for colour-blind people; neighbours differ in lightness.
PALETTE = (
    "#332288", "#88CCEE", "#44AA99", "#DDCC77", "#CC6677",
    "#117733", "#AA4499", "#999933", "#882255",
)  # fmt: skip
FIXED = {"other": "#BBBBBB", "idle": "#E4E4E4", "host": "#8A8A8A"}
HATCHED = {"idle": "////"}
INK, FAINT, GRID, WARN = "#222222", "#9A9A9A", "#E3E3E3", "#B2182B"
GOOD, SECOND, BAD, FRONT = "#4477AA", "#EE9955", "#B4B4B4", "#332288"
WIDTH = 10.0
DPI = 150
NOTHING = "No feasible strategy, and no candidate came as far as an estimate."

STYLE: dict[str, Any] = {
    "axes.axisbelow": True,
    "axes.edgecolor": "#777777",
    "axes.grid": True,
    "axes.labelcolor": INK,
    "axes.labelsize": 9.5,
    "axes.linewidth": 0.8,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 10,
    "figure.dpi": 100,
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "hatch.color": "#9A9A9A",
    "hatch.linewidth": 0.6,
    "legend.fontsize": 8.5,
    "legend.frameon": False,
    "legend.handleheight": 1.0,
    "legend.handlelength": 1.2,
    "svg.fonttype": "path",
    "svg.hashsalt": "autopar",
    "text.color": INK,
    "xtick.color": "#555555",
    "xtick.labelcolor": INK,
    "ytick.color": "#555555",
    "ytick.labelcolor": INK,
}


@contextmanager
def styled() -> Iterator[None]:
    """The style inside, whatever the person's own settings are."""
    from matplotlib import style

    with style.context(["default", STYLE]):
        yield


def render(title: str, height: float, draw: Callable[[Figure], None]) -> tuple[bytes, bytes]:
    """(PNG, SVG) of a figure; the same bytes on every run with the same matplotlib."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with styled():
        figure = Figure(figsize=(WIDTH, height), layout="constrained")
        FigureCanvasAgg(figure)
        figure.suptitle(
            "\n".join(textwrap.wrap(title, 88)), x=0.012, ha="left", fontsize=12, weight="bold"
        )
        draw(figure)
        png, svg = io.BytesIO(), io.BytesIO()
        figure.savefig(png, format="png", dpi=DPI, metadata={"Software": None})
        figure.set_layout_engine("none")  # keep the layout, and the time to find it again
        nameless = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(svg, format="svg", dpi=DPI, metadata=nameless)
    return png.getvalue(), svg.getvalue()


def fills(names: Sequence[str]) -> list[dict[str, Any]]:
    """Colour and hatch of each group; groups beyond the palette repeat it with a hatch."""
    made: list[dict[str, Any]] = []
    used = 0
    for name in names:
        if name in FIXED:
            made.append({"facecolor": FIXED[name], "hatch": HATCHED.get(name)})
            continue
        hatch = "...." if used >= len(PALETTE) else None
        made.append({"facecolor": PALETTE[used % len(PALETTE)], "hatch": hatch})
        used += 1
    return made


def wrapped(text: str, width: int) -> str:
    """The text on several lines, words kept whole where they can be."""
    return "\n".join(textwrap.wrap(text, width)) or text


def legend(figure: Figure, axes: Axes, columns: int = 4, marker_scale: float = 1.0) -> None:
    """A legend under the axes, so that long names cost no width."""
    handles, names = axes.get_legend_handles_labels()
    if handles:
        longest = max(map(len, names))
        columns = max(1, min(columns, len(names), 130 // (min(longest, 40) + 6)))
        figure.legend(
            handles,
            [wrapped(name, 40) for name in names],
            loc="outside lower left",
            ncols=columns,
            markerscale=marker_scale,
        )


def say(axes: Axes, text: str) -> None:
    """A sentence in the middle of axes that have nothing to draw."""
    axes.set_axis_off()
    axes.text(
        0.5, 0.5, text, ha="center", va="center", transform=axes.transAxes, fontsize=11,
        color="#666666",
    )  # fmt: skip


def time_unit(values: Sequence[float]) -> tuple[float, str]:
    """(seconds of the unit, its name) that suits the largest value."""
    top = max((value for value in values if math.isfinite(value)), default=1.0)
    if top >= 1:
        return 1.0, "s"
    return (1e-3, "ms") if top >= 1e-3 else (1e-6, "us")


def is_wide(values: Sequence[float], factor: float) -> bool:
    """Whether positive values span more than a factor, so that a log scale reads better."""
    positive = [value for value in values if value > 0 and math.isfinite(value)]
    return bool(positive) and max(positive) > factor * min(positive)
