"""All files of a run, from every renderer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from autopar_core.api import Renderer, SearchResult
from autopar_core.errors import PluginError


def render_all(result: SearchResult, manager_renderers: Sequence[Renderer]) -> dict[str, bytes]:
    """File name -> bytes of every renderer, in the order of file names.

    Raises:
        PluginError: When two renderers write the same file, or one leaves its folder.
    """
    files: dict[str, bytes] = {}
    writers: dict[str, str] = {}
    for renderer in manager_renderers:
        for name, content in _rendered(renderer, result).items():
            if name in files:
                raise PluginError(
                    f"renderers '{writers[name]}' and '{renderer.name}' both write {name};"
                    " disable the plugin of one of them"
                )
            parts = name.split("/")
            if "" in parts or ".." in parts or "." in parts or "\\" in name or ":" in name:
                raise PluginError(
                    f"renderer '{renderer.name}' names a file {name!r};"
                    " a name is relative, with / between folders and without . or .."
                )
            files[name], writers[name] = content, renderer.name
    return dict(sorted(files.items()))


def _rendered(renderer: Renderer, result: SearchResult) -> Mapping[str, bytes]:
    """Files of one renderer; whatever goes wrong in it is told with its name."""
    try:
        files: Any = renderer.render(result)
    except PluginError:
        raise
    except Exception as error:
        raise PluginError(
            f"renderer '{renderer.name}' failed: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(files, Mapping) or not all(isinstance(c, bytes) for c in files.values()):
        raise PluginError(f"renderer '{renderer.name}' must return file names with bytes")
    made: Mapping[str, bytes] = files
    return made
