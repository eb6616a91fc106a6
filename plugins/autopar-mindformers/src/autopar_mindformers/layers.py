"""How MindFormers deals layers, and their recompute, to stages: offsets and lists.

Rows are chunks in the order of execution, columns are pipeline ranks. Semantics as in
``parallel_core/training_graph/transformer/utils.py``, class ``LayerSetting`` (2.1.0).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from autopar_core.api import counted


Rows = list[list[int]]
# The largest published pipeline has 64 ranks; more virtual stages than this are a slip of a key.
MOST_STAGES = 4096


def even(layers: int, ranks: int, chunks: int) -> int:
    """Layers of a virtual stage before its offset."""
    return layers // (ranks * chunks)


def offset_fault(offset: Any, layers: int, ranks: int, chunks: int) -> str:
    """Why an offset is impossible, with what would be right; empty when it is fine.

    Args:
        offset: A number, ``[rank]`` or ``[chunk][rank]``.
        layers: Of the model.
        ranks: Pipeline ranks.
        chunks: Virtual stages of a rank.
    """
    shape = shape_of(offset)
    rest = layers % (ranks * chunks)
    if shape is None:
        return "must be a number, a list, or a list of equally long lists of whole numbers"
    if shape and shape[-1] != ranks:
        return f"has {counted(shape[-1], 'stage')}, but the pipeline has {ranks}"
    if len(shape) == 2 and shape[0] != chunks:
        return f"has {counted(shape[0], 'row')}, but a rank has {counted(chunks, 'virtual stage')}"
    if len(shape) == 1 and chunks > 1 and any(offset):
        return (
            f"has one dimension and is repeated for each of the {chunks} virtual stages of a rank; "
            f"write {chunks} rows of {ranks}"
        )
    rows = offset_rows(offset, ranks, chunks)
    total = sum(map(sum, rows))
    if total != rest:
        base = even(layers, ranks, chunks)
        placed = layers - rest + total
        return (
            f"places {placed} of {layers} layers: the sum of the offsets is {total} and must be {rest} "
            f"({layers} - {ranks * chunks} x {base})"
        )
    counts = stage_rows(layers, rows)
    flat = [count for row in counts for count in row]
    if min(flat[0], flat[-1]) < 0 or any(count < 1 for count in flat[1:-1]):
        return f"gives the stages {flat} layers; only the first and the last may have none"
    return ""


def shape_of(value: Any) -> tuple[int, ...] | None:
    """Shape of a number, list or list of equally long lists of whole numbers; None otherwise."""
    if type(value) is int:
        return ()
    if not isinstance(value, list) or not value:
        return None
    if all(type(each) is int for each in value):
        return (len(value),)
    inner = {shape_of(each) if isinstance(each, list) else None for each in value}
    only = inner.pop()
    return (len(value), *only) if not inner and only is not None and len(only) == 1 else None


def offset_rows(offset: Any, ranks: int, chunks: int) -> Rows:
    """An offset of any shape as rows."""
    if isinstance(offset, int):
        return [[offset] * ranks for _ in range(chunks)]
    if isinstance(offset[0], int):
        return [list(offset) for _ in range(chunks)]
    return [list(row) for row in offset]


def stage_rows(layers: int, offsets: Rows) -> Rows:
    """Layers of every virtual stage."""
    base = even(layers, len(offsets[0]), len(offsets))
    return [[base + one for one in row] for row in offsets]


def recompute_rows(value: Any, counts: Rows) -> Rows | None:
    """Recomputed layers of every virtual stage; None for a value that has no such meaning.

    Args:
        value: True, False, ``[rank]`` (layers of a rank, dealt in turn to its virtual stages), or
            ``[chunk][rank]``; entries may be true (all) or false.
        counts: Layers of every virtual stage.
    """
    if isinstance(value, bool):
        return [list(row) if value else [0] * len(row) for row in counts]
    if not isinstance(value, list):
        return None
    if len(value) == len(counts[0]) and all(isinstance(each, int) for each in value):
        columns = [deal(each, [row[rank] for row in counts]) for rank, each in enumerate(value)]
        return [list(row) for row in zip(*columns, strict=True)]
    if len(value) != len(counts):
        return None
    rows = []
    for given, row in zip(value, counts, strict=True):
        if isinstance(given, bool):
            given = [given] * len(row)
        if not isinstance(given, list) or len(given) != len(row):
            return None
        if not all(isinstance(each, int) for each in given):
            return None
        rows.append([_clipped(each, most) for each, most in zip(given, row, strict=True)])
    return rows


def deal(count: int, room: Sequence[int]) -> list[int]:
    """Layers dealt in turn to chunks with so much room, the first chunk first."""
    count = _clipped(count, sum(room))
    # Whole rounds first: the most of them that the count pays for.
    rounds, above = 0, max(room) + 1
    while above - rounds > 1:
        middle = (rounds + above) // 2
        fits = sum(min(most, middle) for most in room) <= count
        rounds, above = (middle, above) if fits else (rounds, middle)
    dealt = [min(most, rounds) for most in room]
    left = count - sum(dealt)
    for chunk, most in enumerate(room):
        if left and dealt[chunk] < most:
            dealt[chunk] += 1
            left -= 1
    return dealt


def _clipped(value: int, most: int) -> int:
    if value is True:
        return most
    return max(0, min(int(value), most))


def shaped(rows: Rows) -> list[Any]:
    """Rows as MindFormers and autopar write them: a plain list for one chunk."""
    return rows if len(rows) > 1 else list(rows[0])
