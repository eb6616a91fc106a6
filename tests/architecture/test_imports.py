"""Who may import whom: the import-linter contracts of pyproject.toml, as a test."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import tomli
from importlinter.cli import lint_imports


ROOT = Path(__file__).resolve().parents[2]


def test_contracts_hold(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "path", list(sys.path))  # the linter prepends the current folder
    code = lint_imports(no_cache=True, no_logo=True)
    assert code == 0, capfd.readouterr().out


def test_contracts_cover_every_distribution() -> None:
    settings = tomli.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    linter = settings["tool"]["importlinter"]
    plugins = {folder.name.replace("-", "_") for folder in ROOT.glob("plugins/autopar-*")}
    assert set(linter["root_packages"]) == {"autopar_core", *plugins}
    contracts = {contract["id"]: contract for contract in linter["contracts"]}
    assert set(contracts["independence"]["modules"]) == plugins
    assert set(contracts["api-only"]["source_modules"]) == plugins
    assert set(contracts["core-knows-no-plugin"]["forbidden_modules"]) == plugins
    assert set(contracts["matplotlib"]["source_modules"]) == {"autopar_core", *plugins}
