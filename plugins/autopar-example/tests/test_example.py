"""What to test in a plugin: numbers by hand, the contract, and that it stays out of the way."""

from __future__ import annotations

import numpy as np
import pytest

from autopar_core.api import InputError
from autopar_core.testing import RankerConformance, run_search


class TestRanker(RankerConformance):
    plugin = "example"
    name = "time_then_memory"


def test_changes_nothing_unless_asked() -> None:
    changes = {"search": {"stage_partition": "even"}}
    with_it, without = run_search(changes), run_search(changes, disable=["example"])
    assert np.array_equal(with_it.memory_bytes, without.memory_bytes)
    assert np.array_equal(with_it.seconds, without.seconds)
    assert [d.strategy for d in with_it.top] == [d.strategy for d in without.top]
    assert "example-thin" not in with_it.warnings


def test_warns_of_thin_micro_batches() -> None:
    """One sequence of 4096 tokens on the 8 devices of a replica: 512 each, fewer than 600."""
    one = {"dp": 1, "tp": 8, "pp": 1, "cp": 1, "micro_batch_size": 1}
    result = run_search({"search": one, "plugins": {"example": {"min_tokens": 600}}})
    sentence = "micro_batch_size 1 on 8 devices is 512 tokens of work for each, fewer than 600"
    assert result.warnings["example-thin"][1] == sentence
    assert result.feasible_count == len(result.batch)
    assert sentence in result.top[0].warnings
    enough = run_search({"search": one, "plugins": {"example": {"min_tokens": 512}}})
    assert "example-thin" not in enough.warnings


def test_prunes_where_the_person_turns_the_habit_on() -> None:
    search = {"micro_batch_size": 1, "habits": ["example-thin"], "stage_partition": "even"}
    result = run_search({"search": search, "plugins": {"example": {"min_tokens": 600}}})
    assert result.feasible_count > 0
    devices = 8 // result.batch["dp_degree"]
    assert (4096 // devices >= 600).all()
    fallen = [code for cut in result.cuts for code, _, _ in cut.reasons]
    assert "example-thin" in fallen


def test_ranks_least_memory_among_equally_fast() -> None:
    """Times on one step of the ladder go by memory; a slower step comes after all of them."""
    search = {"rank_by": "time_then_memory", "top_k": 20, "stage_partition": "even"}
    result = run_search({"search": search})
    steps = [int(np.floor(np.log(d.performance.seconds) / np.log(1.02))) for d in result.top]
    memory = [d.memory.total_bytes for d in result.top]
    assert steps == sorted(steps)
    assert len(set(steps)) > 1
    for k in range(1, len(steps)):
        assert steps[k - 1] < steps[k] or memory[k - 1] <= memory[k]


def test_refuses_a_wrong_section() -> None:
    with pytest.raises(InputError, match="min_tokens"):
        run_search({"plugins": {"example": {"min_tokens": -1}}})
