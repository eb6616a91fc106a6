"""Moments that can be largest under some non-negative weighting."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from autopar_core.compose.corners import corners


def test_only_the_ends_of_a_line_stay() -> None:
    # from (4, 0) to (0, 4) one by one, and one more group with a point inside and one outside the line
    line = [[4, 0], [3, 1], [2, 2], [1, 3], [0, 4]]
    group = np.array([0] * 5 + [1] * 4)
    points = np.array([*line, [4, 0], [0, 4], [1, 2], [3, 3]], float)
    assert corners(group, points).tolist() == [0, 4, 5, 6, 8]


@settings(deadline=None, derandomize=True, max_examples=60)
@given(st.data())
def test_no_maximum_is_lost(data: st.DataObject) -> None:
    dimensions, size = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 12))
    coordinate = st.lists(st.integers(0, 6), min_size=dimensions, max_size=dimensions)
    points = np.array(data.draw(st.lists(coordinate, min_size=size, max_size=size)), float)
    group = np.array(data.draw(st.lists(st.integers(0, 1), min_size=size, max_size=size)))
    kept = corners(group, points)
    weights = np.random.default_rng(size).integers(0, 9, (50, dimensions)).astype(float)
    for number in np.unique(group).tolist():
        inside, stay = points[group == number], points[kept[group[kept] == number]]
        assert ((inside @ weights.T).max(axis=0) == (stay @ weights.T).max(axis=0)).all()
