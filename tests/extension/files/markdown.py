"""A person's own renderer: the best strategies as a table for a wiki."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from autopar_core.api import PluginInfo, Renderer, SearchResult, hookimpl


def render(result: SearchResult) -> Mapping[str, bytes]:
    """File name -> content; a name may have folders, with ``/`` between them."""
    degrees = [dimension.degree for dimension in result.dimensions]
    head = ["place", *(degree.short for degree in degrees), "seconds", "bytes"]
    lines = [head, ["---"] * len(head)]
    for detail in result.top:
        values = [str(detail.strategy.fields[degree.name]) for degree in degrees]
        costs = [f"{detail.performance.seconds:.6g}", str(detail.memory.total_bytes)]
        lines.append([str(detail.place), *values, *costs])
    text = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    return {"wiki/best.md": text.encode()}


@hookimpl
def autopar_plugin_info() -> PluginInfo:
    """Introduce the plugin."""
    return PluginInfo(api=(1, 0), summary="Renderer markdown: wiki/best.md")


@hookimpl
def autopar_renderers() -> Sequence[Renderer]:
    """Every renderer writes its files into ``--out``."""
    return (Renderer("markdown", "wiki/best.md: the best strategies.", render),)
