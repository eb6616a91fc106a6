"""Every example searches, and its result is what the schema says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from autopar_core.config.load import load_job
from autopar_core.config.overrides import Overrides
from autopar_core.search.contexts import Contexts


ROOT = Path(__file__).resolve().parents[2]
QUICK = {"only_tp"}
EXAMPLES = sorted((ROOT / "examples").glob("*.toml"))


def test_examples_are_there() -> None:
    assert len(EXAMPLES) >= 5


@pytest.mark.parametrize("path", EXAMPLES, ids=[path.stem for path in EXAMPLES])
def test_an_example_is_read(path: Path, kit: Any) -> None:
    """With the plugins that it names; the search itself is below."""
    manager = kit.manager()
    job = load_job(path, None, Overrides(), manager)
    assert job.cluster.devices >= 8
    assert len(Contexts.build(job, manager).dimensions) == 4


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, id=path.stem, marks=[] if path.stem in QUICK else [pytest.mark.slow])
        for path in EXAMPLES
    ],
)
def test_an_example(path: Path, search: Any, check_schema: Any, no_traceback: Any) -> None:
    answer = search(path, "--top-k", "2")
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
