"""How a plugin introduces itself."""

from __future__ import annotations

from typing import Any

from attrs import frozen

from autopar_core.domain.fields import Dimension, Field


@frozen(kw_only=True)
class PluginInfo:
    """A plugin's introduction.

    Attributes:
        api: Plugin API version it was written against, ``(1, 0)``.
        summary: One sentence.
        dimension: The dimension it estimates, if any.
        fields: Further fields of a strategy that it owns.
        config: attrs class of ``[plugins.NAME]`` in the input file, every field with a default.
        profile: attrs class of its section in a framework profile, every field with a default.
    """

    api: tuple[int, int]
    summary: str
    dimension: Dimension | None = None
    fields: tuple[Field, ...] = ()
    config: type[Any] | None = None
    profile: type[Any] | None = None
