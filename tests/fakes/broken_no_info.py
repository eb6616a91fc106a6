"""Does not introduce itself."""

from __future__ import annotations

from autopar_core.api import hookimpl


@hookimpl
def autopar_rankers():
    return []
