"""Orders against a plain Python reading of Megatron's and torch's rules."""

from __future__ import annotations

import numpy as np
import pytest

from autopar_pp.orders import group_size, grouped_order, order


Operation = tuple[str, int, int]  # kind, chunk, micro-batch


def listed(schedule: str, p: int, v: int, m: int, rank: int) -> list[Operation]:
    """The operations of one rank, appended one by one."""
    if schedule == "gpipe" and p > 1:
        return [(kind, 0, i) for kind in "FB" for i in range(m)]
    group = m // max(1, m // p)
    warm = p - 1 - rank if v == 1 else (v - 1) * group + 2 * (p - 1 - rank)
    warm, total = min(warm, m * v), m * v
    seen = {"F": [0] * v, "B": [0] * v}
    out: list[Operation] = []

    def add(kind: str, chunk: int) -> None:
        out.append((kind, chunk, seen[kind][chunk]))
        seen[kind][chunk] += 1

    for step in range(warm + total):
        if step < total:
            add("F", step // group % v)
        if step >= warm:
            add("B", v - 1 - (step - warm) // group % v)
    return out


@pytest.mark.parametrize(
    ("schedule", "p", "v", "m"),
    [
        ("1f1b", 1, 1, 3),
        ("1f1b", 4, 1, 8),
        ("1f1b", 5, 1, 2),  # fewer micro-batches than warm-up forwards
        ("gpipe", 3, 1, 4),
        ("gpipe", 1, 1, 4),
        ("interleaved", 4, 1, 6),
        ("interleaved", 4, 2, 8),
        ("interleaved", 4, 3, 10),  # two groups of five
        ("interleaved", 4, 2, 3),  # one group, smaller than p
        ("interleaved", 2, 4, 7 * 2),
        ("interleaved", 1, 2, 3),
    ],
)
def test_order_is_the_listed_one(schedule: str, p: int, v: int, m: int) -> None:
    got = order(schedule, p, v, m)
    for rank in range(p):
        operations = [
            ("B" if backward else "F", int(chunk), int(micro_batch))
            for backward, chunk, micro_batch in zip(
                got.backward[rank], got.chunk[rank], got.micro_batch[rank], strict=True
            )
        ]
        assert operations == listed(schedule, p, v, m, rank)


def test_1f1b_by_hand() -> None:
    # Two ranks, three micro-batches: rank 0 runs F0 F1 B0 F2 B1 B2, rank 1 F0 B0 F1 B1 F2 B2.
    got = order("1f1b", 2, 1, 3)
    np.testing.assert_array_equal(got.backward, [[0, 0, 1, 0, 1, 1], [0, 1, 0, 1, 0, 1]])
    np.testing.assert_array_equal(got.micro_batch, [[0, 1, 0, 2, 1, 2], [0, 0, 1, 1, 2, 2]])


def test_one_chunk_interleaved_is_1f1b() -> None:
    a, b = order("interleaved", 3, 1, 7), order("1f1b", 3, 1, 7)
    np.testing.assert_array_equal(a.backward, b.backward)
    np.testing.assert_array_equal(a.micro_batch, b.micro_batch)


@pytest.mark.parametrize(
    ("schedule", "p", "v", "m", "message"),
    [
        ("zigzag", 2, 1, 2, "unknown schedule"),
        ("1f1b", 2, 2, 4, "one chunk per rank"),
        ("1f1b", 0, 1, 4, "at least 1"),
        ("interleaved", 2, 2, 5, "equal groups"),
    ],
)
def test_impossible_orders_are_refused(schedule: str, p: int, v: int, m: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        order(schedule, p, v, m)


def test_group_size_follows_torch() -> None:
    assert group_size("interleaved", 4, 2, 8) == 4
    assert group_size("interleaved", 4, 2, 10) == 5
    assert group_size("interleaved", 4, 2, 3) == 3


def test_orders_are_shared_and_read_only() -> None:
    assert order("1f1b", 4, 1, 8) is order("1f1b", 4, 1, 8)
    with pytest.raises(ValueError, match="read-only"):
        grouped_order("1f1b", 4, 1, 8, 1).chunk[0, 0] = 1
