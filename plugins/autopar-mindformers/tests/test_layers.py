"""Offsets and recompute lists, by hand and against another way of counting."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autopar_mindformers.layers import (
    deal,
    offset_fault,
    offset_rows,
    recompute_rows,
    shape_of,
    stage_rows,
)


def test_offsets_by_hand() -> None:
    # 96 layers over 8 ranks x 3 chunks: 96 // 24 = 4 each, remainder 0, so the offsets sum to 0.
    offset = [[-1, -1, 0, 0, 0, 0, 0, 0], [-1, 0, 0, 0, 0, 0, 0, 0], [0, 0, 0, 1, 1, 1, 1, -1]]
    assert offset_fault(offset, 96, 8, 3) == ""
    rows = stage_rows(96, offset_rows(offset, 8, 3))
    assert rows[0] == [3, 3, 4, 4, 4, 4, 4, 4]
    assert sum(map(sum, rows)) == 96
    # 64 layers over 4 ranks: 16 each; 15, 15, 17, 17.
    assert stage_rows(64, offset_rows([-1, -1, 1, 1], 4, 1)) == [[15, 15, 17, 17]]


@pytest.mark.parametrize(
    ("offset", "layers", "ranks", "chunks", "part"),
    [
        (0, 18, 4, 1, "places 16 of 18 layers: the sum of the offsets is 0 and must be 2"),
        ([1, 0, 0, 0], 18, 4, 1, "places 17 of 18"),
        ([1, 1, 0, 0], 18, 4, 2, "one dimension"),
        ([1, -1, 0, 0], 16, 4, 2, "write 2 rows of 4"),
        ([1, 1], 18, 4, 1, "has 2 stages, but the pipeline has 4"),
        ([[1, 1, 0, 0]], 18, 4, 2, "has 1 row, but a rank has 2 virtual stages"),
        ([[1, 1], [0]], 18, 2, 2, "equally long"),
        ("1", 18, 2, 1, "must be a number"),
        ([4, -4, 0, 0], 16, 4, 1, "may have none"),
        ([-5, 5, 0, 0], 16, 4, 1, "gives the stages [-1, 9, 4, 4]"),
        (1, 18, 2, 1, "places 20 of 18"),
    ],
)
def test_impossible_offsets(offset: Any, layers: int, ranks: int, chunks: int, part: str) -> None:
    assert part in offset_fault(offset, layers, ranks, chunks)


def test_ends_may_be_empty() -> None:
    # 2.1.0 allows no layer on the first and the last stage, and on no other.
    assert offset_fault([-4, 4, 4, -4], 16, 4, 1) == ""


@pytest.mark.parametrize(
    ("value", "shape"),
    [(3, ()), ([1, 2], (2,)), ([[1, 2], [3, 4]], (2, 2)), (True, None), ([], None), ([1, [2]], None),
     ([[1], [1, 2]], None), ([[[1]]], None), ([True, 1], None)],
)  # fmt: skip
def test_shapes(value: Any, shape: Any) -> None:
    assert shape_of(value) == shape


def test_layers_are_dealt_in_turn() -> None:
    # 5 layers to chunks with room for 3, 1, 4: 1+1+1, then 1+0+1.
    assert deal(5, [3, 1, 4]) == [2, 1, 2]
    assert deal(99, [3, 1, 4]) == [3, 1, 4]
    assert deal(10**9, [10**8, 10**9]) == [10**8, 9 * 10**8]


def test_recompute_by_hand() -> None:
    counts = [[3, 4], [4, 3]]
    assert recompute_rows(True, counts) == counts
    assert recompute_rows(False, counts) == [[0, 0], [0, 0]]
    assert recompute_rows([5, 1], counts) == [[3, 1], [2, 0]]
    assert recompute_rows([True, 0], counts) == [[3, 0], [4, 0]]
    assert recompute_rows([[9, 1], [0, 2]], counts) == [[3, 1], [0, 2]]
    assert recompute_rows([True, [1, 2]], counts) == [[3, 4], [1, 2]]
    for wrong in ("full", [1], [1, 2, 3], [[1, 2]], [[1, 2], [1]], [[1, "a"], [1, 1]], {}):
        assert recompute_rows(wrong, counts) is None, wrong


@given(st.data())
def test_dealing_loses_no_layer(data: Any) -> None:
    room = data.draw(st.lists(st.integers(0, 9), min_size=1, max_size=4))
    count = data.draw(st.integers(0, 40))
    dealt = deal(count, room)
    assert sum(dealt) == min(count, sum(room))
    assert all(0 <= one <= most for one, most in zip(dealt, room, strict=True))
    one_by_one = [0] * len(room)
    while sum(one_by_one) < min(count, sum(room)):
        for chunk, most in enumerate(room):
            if one_by_one[chunk] < most and sum(one_by_one) < count:
                one_by_one[chunk] += 1
    assert dealt == one_by_one
