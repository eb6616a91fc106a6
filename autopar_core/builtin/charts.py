"""The charts of a run, each drawn from nothing but its series."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from autopar_core.api import SearchResult
from autopar_core.builtin import chart_bars, chart_panels
from autopar_core.builtin import chart_style as look
from autopar_core.builtin.series import ChartData, chart_data


if TYPE_CHECKING:
    from matplotlib.figure import Figure


Series = Mapping[str, Any]

_DRAWN: WeakKeyDictionary[SearchResult, dict[str, bytes]] = WeakKeyDictionary()


def files(result: SearchResult) -> Mapping[str, bytes]:
    """``charts/NAME.png`` and ``charts/NAME.svg`` of every chart; drawn once per result."""
    if result not in _DRAWN:
        drawn: dict[str, bytes] = {}
        for chart in chart_data(result):
            drawn.update(draw(chart))
        _DRAWN[result] = drawn
    return _DRAWN[result]


def draw(chart: ChartData) -> dict[str, bytes]:
    """Both files of one chart."""
    height, paint = _PAINTERS[chart.name]
    series = chart.series
    png, svg = look.render(chart.title, height(series), lambda figure: paint(figure, series))
    return {f"charts/{chart.name}.png": png, f"charts/{chart.name}.svg": svg}


def _stages_height(series: Series) -> float:
    return 6.4 + 0.12 * max(0, len(series["bars"]) - 8)


def _reasons_height(series: Series) -> float:
    return max(2.8, 1.4 + 0.36 * len(series["codes"]))


def _trends_height(series: Series) -> float:
    return 0.8 + 4.6 * max(1, -(-len(series["panels"]) // chart_panels.TREND_COLUMNS))


_Painter = Callable[["Figure", Series], None]
_PAINTERS: Mapping[str, tuple[Callable[[Series], float], _Painter]] = {
    "step_time": (chart_bars.bars_height, chart_bars.step_time),
    "memory": (chart_bars.bars_height, chart_bars.memory),
    "stages": (_stages_height, chart_bars.stages),
    "distribution": (lambda _: 5.6, chart_panels.distribution),
    "reasons": (_reasons_height, chart_bars.reasons),
    "trends": (_trends_height, chart_panels.trends),
}
