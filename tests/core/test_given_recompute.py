"""Recompute that names the layers of each stage: what it leaves of the partitions."""

from __future__ import annotations

from typing import Any

import pytest

import autopar_core.builtin as builtin
from autopar_core.config.load import load_job
from autopar_core.config.overrides import Overrides
from autopar_core.domain.space import Plan
from autopar_core.hooks.schedule import ScheduleKey
from autopar_core.plugins import PluginManager
from autopar_core.search.boxes import fits_stages, space
from autopar_core.search.contexts import Contexts
from autopar_core.testing.bench import SMALL_JOB


PLUGINS = PluginManager.load(extra=(("builtin", builtin),))
COMPOSER = Contexts.build(load_job(None, SMALL_JOB, Overrides(), PLUGINS), PLUGINS).composer
FOUR = ScheduleKey("1f1b", 4, 1, 8)
TWO_BY_TWO = ScheduleKey("interleaved", 2, 2, 8)


def recompute(**modes: Any) -> Plan:
    return Plan(kind="given", given=modes)


def test_stages_hold_the_layers_that_recompute_there() -> None:
    found = space(COMPOSER, FOUR, 32, Plan(), recompute(full=[9, 0, 0, 0], selective=[0, 2, 0, 0]))
    assert found.possible
    assert found.boxes[0].low.tolist() == [9, 2, 1, 1]
    # 30 + 1 + 1 + 1 layers at least.
    assert not space(COMPOSER, FOUR, 32, Plan(), recompute(full=[30, 0, 0, 0])).possible
    other = space(COMPOSER, TWO_BY_TWO, 32, Plan(), recompute(full=[9, 0, 0, 0]))
    assert other.boxes[0].low.tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize(
    ("counts", "four", "two_by_two"),
    [
        ([1, 2, 3, 4], True, False), ([[1, 2], [3, 4]], False, True), ([1, 2], False, False),
        (3, True, True), ([3], True, True),
    ],
)  # fmt: skip
def test_lists_have_the_shape_of_the_stages(counts: Any, four: bool, two_by_two: bool) -> None:
    assert fits_stages(counts, FOUR) == four
    assert fits_stages(counts, TWO_BY_TWO) == two_by_two
    if isinstance(counts, list) and len(counts) > 1 and not isinstance(counts[0], int):
        given = Plan(kind="given", given=counts)
        assert space(COMPOSER, TWO_BY_TWO, 10, given).possible
        assert not space(COMPOSER, FOUR, 10, given).possible
