"""Fixtures of the comparisons with measured runs."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from autopar_core.plugins import PluginManager


@pytest.fixture(scope="session")
def rows() -> ModuleType:
    """The module that turns rows of measured runs into jobs."""
    spec = importlib.util.spec_from_file_location("rows", Path(__file__).with_name("rows.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def plugins(rows: ModuleType) -> PluginManager:
    """All plugins, loaded once."""
    manager: PluginManager = rows.manager()
    return manager
