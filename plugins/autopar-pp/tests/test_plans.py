"""Why a partition plan suits no partition, against all partitions of small models."""

from __future__ import annotations

from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest

from autopar_core.api import ScheduleKey
from autopar_pp.partitions import Speller
from autopar_pp.plans import fault


def plan(kind: str = "auto", given: Any = None, least: int | None = None, most: int | None = None,
         difference: int | None = None) -> Any:  # fmt: skip
    return SimpleNamespace(
        kind=kind, given=given, offset=SimpleNamespace(min=least, max=most), difference=difference
    )


def said(asked: Any, ranks: int, chunks: int = 1, layers: int = 8, empty: str = "none",
         mirrored: bool = False) -> str:  # fmt: skip
    key = ScheduleKey("zbv" if mirrored else "1f1b", ranks, chunks, 1, mirrored=mirrored)
    return fault(asked, key, layers, Speller(empty=empty), "F")


@pytest.mark.parametrize("empty", ["none", "ends", "any"])
@pytest.mark.parametrize("layers", [3, 7, 8])
def test_limits_are_refused_only_where_no_partition_keeps_them(layers: int, empty: str) -> None:
    spells = Speller(empty=empty)
    key = ScheduleKey("1f1b", 3, 1, 1)
    low = spells.fewest(key)
    every = [
        counts
        for counts in product(range(layers + 1), repeat=3)
        if sum(counts) == layers and all(n >= few for n, few in zip(counts, low, strict=True))
    ]
    base = layers // 3
    limits = [None, -2, -1, 0, 1, 2]
    for least, most, difference in product(limits, limits, [None, 0, 1, 2]):
        fits = any(
            (least is None or min(counts) >= base + least)
            and (most is None or max(counts) <= base + most)
            and (difference is None or max(counts) - min(counts) <= difference)
            for counts in every
        )
        why = said(plan(least=least, most=most, difference=difference), 3, 1, layers, empty)
        assert (why == "") == fits, (least, most, difference)


def test_the_limit_that_is_in_the_way_is_named() -> None:
    assert said(plan(least=1, most=2), 3) == (
        "no partition of 8 layers on 3 stages gives every stage 3 to 4 layers, as layer_offset wants"
    )
    assert "at most 2 layers" in said(plan(most=0), 3)
    assert "at least 3 layers" in said(plan(least=1), 3)
    assert said(plan(difference=0), 3) == (
        "no partition of 8 layers on 3 stages has stages that differ by at most 0, as "
        "max_layer_diff wants"
    )


def test_a_given_partition_has_the_stages_of_the_row() -> None:
    assert said(plan("given", [4, 4]), 2) == ""
    assert said(plan("given", [2, 2, 2, 2]), 2, 2) == (
        "the partition lists 4 stages, and here are 2 chunks of 2 stages"
    )
    assert said(plan("given", [[2, 2], [2, 2]]), 2, 2) == ""
    assert said(plan("given", [3, 3, 2]), 2) == (
        "the partition lists 3 stages, and here are 2 stages"
    )
    assert said(plan("given", [[2, 2], [2, 2]]), 4) == (
        "the partition lists 2 chunks of 2 stages, and here are 4 stages"
    )
    assert said(plan("given", [4, 4]), 1) == "the partition lists 2 stages, and here are 1 stage"


def test_empty_stages_are_the_framework_s_to_allow() -> None:
    middle, ends = plan("given", [4, 0, 4]), plan("given", [0, 8, 0])
    assert said(middle, 3, empty="any") == said(ends, 3, empty="any") == ""
    assert said(ends, 3, empty="ends") == ""
    assert said(middle, 3, empty="ends") == (
        "F leaves only the first and the last stage without layers, and stage 1 of the partition "
        "has none"
    )
    assert said(ends, 3) == "F needs a layer on every stage, and stage 0 of the partition has none"
    # The model of a V-shaped placement ends on rank 0.
    assert said(plan("given", [[4, 4], [0, 0]]), 2, 2, empty="ends", mirrored=True).endswith(
        "stage 1 of chunk 1 of the partition has none"
    )


def test_one_layer_is_said_as_one() -> None:
    assert said(plan(most=-1), 3, layers=7) == (
        "no partition of 7 layers on 3 stages gives every stage at most 1 layer, as layer_offset wants"
    )
