"""Partitions that frameworks can spell."""

from __future__ import annotations

from autopar_core.api import ScheduleKey
from autopar_pp.partitions import Speller, ends


def test_ends_are_megatrons_splits_without_a_layout() -> None:
    found = {tuple(row) for row in ends(4, 1, 26).tolist()}
    # first 5, last 5, two of 8; the last may differ from the first
    assert (5, 8, 8, 5) in found
    assert (7, 8, 8, 3) in found
    # embedding and loss as a layer each: 28 / 4 = 7, one less at both ends
    assert (6, 7, 7, 6) in found
    assert all(row[1] == row[2] for row in found)
    assert (7, 7, 6, 6) not in found
    # 126 layers on 8 ranks of 2 chunks with both places: 7 and then 8s, and 7 at the end
    split = (7, *[8] * 14, 7)
    assert split in {tuple(row) for row in ends(8, 2, 126).tolist()}


def test_what_may_be_empty() -> None:
    key = ScheduleKey("1f1b", 4, 1, 8)
    assert Speller().fewest(key).tolist() == [1, 1, 1, 1]
    assert Speller(empty="ends").fewest(key).tolist() == [0, 1, 1, 0]
    assert Speller(empty="any").fewest(key).tolist() == [0, 0, 0, 0]
    assert Speller(empty="any").fewest(ScheduleKey("none", 1, 1, 8)).tolist() == [1]


def test_even_needs_layers_that_divide() -> None:
    speller = Speller(partitions="even")
    found = speller.listed(4, 2, 24)
    assert found is not None
    assert found.tolist() == [[3] * 8]
    none = speller.listed(4, 2, 26)
    assert none is not None
    assert none.shape == (0, 8)
    assert speller.rule
    assert Speller().listed(4, 2, 26) is None
