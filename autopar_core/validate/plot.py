"""Predicted against measured, one picture per quantity."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from autopar_core.builtin import chart_style as look
from autopar_core.units import counted
from autopar_core.validate.predict import Row
from autopar_core.validate.statistics import Pairs
from autopar_core.validate.summary import TITLES, by_source


UNITS = {"time": "seconds", "memory": "GiB", "reserved": "GiB"}
_MARKERS = ("o", "s", "^", "D")
_HEIGHT = 8.2
_MARGIN = 1.25


def pictures(rows: Sequence[Row]) -> dict[str, bytes]:
    """File name -> content, PNG and SVG, for every quantity that was measured."""
    files: dict[str, bytes] = {}
    for quantity in TITLES:
        groups = {s: Pairs.of(group, quantity) for s, group in by_source(rows).items()}
        groups = {source: pairs for source, pairs in groups.items() if len(pairs)}
        if groups:
            png, svg = look.render(*_picture(quantity, groups))
            files |= {f"{quantity}.png": png, f"{quantity}.svg": svg}
    return files


def _picture(quantity: str, groups: dict[str, Pairs]) -> tuple[str, float, Any]:
    count = sum(map(len, groups.values()))
    title = f"{TITLES[quantity]}: predicted against measured, {counted(count, 'run')}"

    def draw(figure: Any) -> None:
        axes = figure.add_subplot()
        for number, (source, pairs) in enumerate(groups.items()):
            axes.scatter(
                pairs.measured, pairs.predicted, s=16, alpha=0.7, linewidths=0,
                color=look.PALETTE[number % len(look.PALETTE)],
                marker=_MARKERS[number // len(look.PALETTE) % len(_MARKERS)],
                label=f"{source} ({len(pairs)})",
            )  # fmt: skip
        every = np.concatenate([np.append(p.measured, p.predicted) for p in groups.values()])
        ends = (float(every.min()) / _MARGIN, float(every.max()) * _MARGIN)
        axes.plot(ends, ends, color=look.INK, linewidth=0.9, label="equal")
        for share in (0.9, 1.1):
            axes.plot(
                ends, [share * end for end in ends], color=look.FAINT, linewidth=0.8,
                linestyle="--", label="±10 %" if share > 1 else "_",
            )  # fmt: skip
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlim(*ends)
        axes.set_ylim(*ends)
        axes.set_xlabel(f"measured, {UNITS[quantity]}")
        axes.set_ylabel(f"predicted, {UNITS[quantity]}")
        look.legend(figure, axes, columns=5)

    return title, _HEIGHT, draw
