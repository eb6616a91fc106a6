"""Names that tie plugins to the core: project, entry-point group, API version."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import pluggy


PROJECT = "autopar"
ENTRY_POINT_GROUP = "autopar"
# (major, minor): a plugin loads when majors match and its minor is at most the core's.
API_VERSION = (1, 0)

F = TypeVar("F", bound=Callable[..., Any])

hookspec = cast("Callable[[F], F]", pluggy.HookspecMarker(PROJECT))
hookspec_first = cast(
    "Callable[[F], F]",
    lambda function: pluggy.HookspecMarker(PROJECT)(function, firstresult=True),
)
hookimpl = cast("Callable[[F], F]", pluggy.HookimplMarker(PROJECT))
