"""Every example searches, and its result is what the schema says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest


ROOT = Path(__file__).resolve().parents[2]
QUICK = {"llama2_7b_8xa100", "only_tp"}
EXAMPLES = sorted((ROOT / "examples").glob("*.toml"))


def test_examples_are_there() -> None:
    assert len(EXAMPLES) >= 5


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, id=path.stem, marks=[] if path.stem in QUICK else [pytest.mark.slow])
        for path in EXAMPLES
    ],
)
def test_an_example(path: Path, search: Any, check_schema: Any, no_traceback: Any) -> None:
    answer = search(path)
    no_traceback(answer)
    assert answer.code in (0, 1)
    check_schema(answer.document)
    assert bool(answer.best) == (answer.code == 0)
    summary = answer.document["all_candidate_summary"]
    assert summary["generated"] == len(answer.table("candidates.csv"))
    wanted = answer.document["inputs"]["search"]["settings"]["top_k"]["value"]
    assert len(answer.best) == min(wanted, summary["feasible"])
    # an example must show something: its plugins are installed, its spaces are not empty
    assert answer.code == 0
