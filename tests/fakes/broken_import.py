"""Needs a module that nobody has."""

from __future__ import annotations

import nosuchmodule  # noqa: F401
