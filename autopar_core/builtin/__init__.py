"""The plugin that ships with the core: rankers, every file of a run, Hugging Face models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from autopar_core.api import (
    API_VERSION,
    Generator,
    PluginInfo,
    Ranker,
    Reader,
    Renderer,
    SearchResult,
    hookimpl,
)
from autopar_core.builtin import csv_files, grid, huggingface, rankers, result_json, search_log


def _charts(result: SearchResult) -> Mapping[str, bytes]:
    from autopar_core.builtin import charts

    return charts.files(result)


def _report(result: SearchResult) -> Mapping[str, bytes]:
    from autopar_core.builtin import report

    return report.files(result)


@hookimpl
def autopar_plugin_info() -> PluginInfo:
    """Introduce the plugin."""
    return PluginInfo(
        api=API_VERSION, summary="Rankers; JSON, CSV, log, charts and report; Hugging Face models."
    )


@hookimpl
def autopar_generators() -> Sequence[Generator]:
    """The grid."""
    return (grid.GRID,)


@hookimpl
def autopar_rankers() -> Sequence[Ranker]:
    """Step time, memory headroom, and a weighted sum of the two."""
    return rankers.RANKERS


@hookimpl
def autopar_renderers() -> Sequence[Renderer]:
    """One renderer per kind of file."""
    return (
        Renderer("json", "result.json: everything, for programs.", result_json.files),
        Renderer("csv", "candidates.csv and rejected.csv: a line per row.", csv_files.files),
        Renderer("log", "search.log: what each level and rule took.", search_log.files),
        Renderer("charts", "charts/*.png and *.svg.", _charts),
        Renderer("report", "report.html: everything on one page, for people.", _report),
    )


@hookimpl
def autopar_readers() -> Sequence[Reader]:
    """Model files that every framework's users have."""
    return huggingface.READERS
