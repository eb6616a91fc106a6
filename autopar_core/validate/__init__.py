"""Measured runs against their predictions."""

from __future__ import annotations
