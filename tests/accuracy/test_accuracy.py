"""The accuracy page, the residuals, and the ceilings under which errors must stay."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from autopar_core.cli.session import load_plugins
from autopar_core.config.catalogue import shipped
from autopar_core.validate.residuals import as_toml


HERE = Path(__file__).parent
ROOT = HERE.parents[1]
# Another processor may round a sum differently; nothing else moves an error.
SLACK_SHARE, SLACK_POINTS = 0.02, 0.05
pytestmark = [pytest.mark.physics, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def made() -> Any:
    """Everything measured, and the modules that show it."""
    sys.path.insert(0, str(HERE))
    try:
        measure, page, make = map(importlib.import_module, ("measure", "page", "make"))
        plugins = load_plugins()
        answer = measure.predict_all(plugins)
        found = measure.measure(plugins, answer)
        return SimpleNamespace(
            answer=answer, pages=page.pages(found), numbers=measure.numbers(found),
            ceilings=make.ceilings(),
        )  # fmt: skip
    finally:
        sys.path.remove(str(HERE))


def test_no_error_grew(made: Any) -> None:
    assert set(made.ceilings) == set(made.numbers)
    grown = {
        f"{line}, {name}": (most, made.numbers[line][name])
        for line, values in made.ceilings.items()
        for name, most in values.items()
        if made.numbers[line][name] > most * (1 + SLACK_SHARE) + SLACK_POINTS
    }
    assert not grown, "run `python3 dev.py accuracy --raise` if this is meant"


@pytest.mark.parametrize("name", ["accuracy.md", "zh/accuracy.md"])
def test_page_is_fresh(made: Any, name: str) -> None:
    shown = (ROOT / "docs" / name).read_text(encoding="utf-8")
    assert shown == made.pages[name], "run `python3 dev.py accuracy`"


def test_residuals_are_fresh(made: Any) -> None:
    text = shipped("residuals.toml").read_text(encoding="utf-8")
    assert text == as_toml(made.answer), "run `python3 dev.py accuracy`"


def test_every_source_says_how_it_was_measured(made: Any) -> None:
    words = importlib.import_module("page").WORDS
    assert {row.source for row in made.answer.rows} <= set(words["source"])
    assert set(words["en"]) == set(words["zh"])
