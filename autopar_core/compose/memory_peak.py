"""Exact peak memory of every pipeline rank of many rows, as array expressions."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from attrs import frozen

from autopar_core.compose.memory_table import MODES, SITUATIONS, MemoryTable
from autopar_core.compose.situation import BACKWARD, END, FORWARD, Situation
from autopar_core.domain.arrays import Bools, Floats, Ints
from autopar_core.domain.terms import (
    EMBEDDING_BACKWARD,
    EMBEDDING_REDUCE,
    FINAL,
    FORWARD_END,
    HEAD_BACKWARD,
    HEAD_REDUCE,
    LOSS,
    STAGE_INSTANTS,
)


@frozen(eq=False)
class Layout:
    """Layers of each virtual stage and how many of them recompute, (K, stages).

    Recomputed layers are the first ones of a stage: fully recomputed first, then selectively.
    """

    layers: Ints
    selective: Ints
    full: Ints

    @classmethod
    def plain(cls, layers: Ints) -> Layout:
        """No layer recomputes."""
        return cls(layers, np.zeros_like(layers), np.zeros_like(layers))

    def take(self, rows: Bools | Ints | slice) -> Layout:
        """The same of some rows."""
        return Layout(self.layers[rows], self.selective[rows], self.full[rows])

    def put(self, rows: Bools | Ints, other: Layout) -> None:
        """Replace some rows in place (the arrays of a solver's own layout)."""
        self.layers[rows], self.selective[rows] = other.layers, other.selective
        self.full[rows] = other.full


@frozen(eq=False)
class _Features:
    """Bytes on a rank as a linear form: features (K, F) of a rank times counts (F, M) of moments.

    Attributes:
        constant: (K, ranks) bytes that live through the whole step whatever the moment.
        by_rank: (K, stages) features of which a rank takes its chunks' columns, with (chunks, M)
            counts.
        alike: (K,) features that are the same on every rank, with (M,) counts.
    """

    constant: Floats
    by_rank: tuple[tuple[Floats, Floats], ...]
    alike: tuple[tuple[Floats, Floats], ...]

    def of(self, situation: Situation, rank: int, moments: slice) -> Floats:
        """(K, M of the rank) bytes."""
        key = situation.key
        stages = slice(rank, None, key.ranks)
        columns = [feature[:, stages] for feature, _ in self.by_rank]
        counts = [count[:, moments] for _, count in self.by_rank]
        columns += [feature[:, None] for feature, _ in self.alike]
        counts += [count[None, moments] for _, count in self.alike]
        return np.asarray(np.concatenate(columns, axis=1) @ np.concatenate(counts, axis=0))


def _features(
    table: MemoryTable, situation: Situation, layout: Layout, layers: Floats
) -> _Features:
    """Everything that does not depend on the block at work."""
    key = situation.key
    constant = np.zeros((len(layers), key.ranks))
    held = _per_micro_batch(table, situation, layout)
    by_rank = [(held, np.ascontiguousarray(situation.others.T))]
    alike = []
    for (scale, on, when), nbytes in table.static:
        place = situation.place[on]
        if when == "always":
            count = (layers if scale == "layer" else 1.0) * place
            stages = np.broadcast_to(count, layers.shape).reshape(-1, key.chunks, key.ranks)
            number = stages.any(axis=1) if scale == "one" else stages.sum(axis=1)
            constant += nbytes[:, None] * number
        elif scale == "layer":
            shown = situation.shows(when, on)
            by_rank.append((nbytes[:, None] * layers, np.ascontiguousarray(shown.T)))
        else:
            shown = situation.shows(when, on)
            count = shown.any(axis=1) if scale == "one" else shown.sum(axis=1)
            alike.append((nbytes, count.astype(np.float64)))
    return _Features(constant, tuple(by_rank), tuple(alike))


def _per_micro_batch(table: MemoryTable, situation: Situation, layout: Layout) -> Floats:
    """(K, stages) bytes that one micro-batch in flight holds on each virtual stage."""
    none, selective, full = (table.saved[:, i, None] for i in range(len(MODES)))
    plain = layout.layers - layout.selective - layout.full
    total = plain * none + layout.selective * selective + layout.full * full
    for on, nbytes in table.in_flight:
        total += nbytes[:, None] * situation.place[on]
    return np.asarray(total)


def _saved_below(table: MemoryTable, below: Floats, selective: Floats, full: Floats) -> Floats:
    """(K, S) bytes saved by the first ``below`` layers of a stage."""
    in_full = np.minimum(below, full)
    in_selective = np.minimum(below - in_full, selective)
    rest = below - in_full - in_selective
    return np.asarray(
        in_full * table.saved[:, 2, None]
        + in_selective * table.saved[:, 1, None]
        + rest * table.saved[:, 0, None]
    )


def _stage_value(
    table: MemoryTable, instant: str, kind: Ints, first: int, layers: Floats
) -> Floats:
    """(K, S) bytes at an instant of the whole stage."""
    column = (STAGE_INSTANTS.index(instant) * 4 + kind) * 2 + first
    return np.asarray(table.stage[:, column] + table.stage_layer[:, column] * layers)


def _forward(
    table: MemoryTable, kind: Ints, first: int, layers: Floats, selective: Floats, full: Floats
) -> Floats:
    """(K, S) over the base: the end of a forward whose top block does not recompute, else nothing."""
    value = _saved_below(table, layers, selective, full)
    value += _stage_value(table, FORWARD_END, kind, first, layers)
    return np.where((selective + full < layers) & (layers > 0), value, 0.0)


def _backward(
    table: MemoryTable, kind: Ints, first: int, layers: Floats, selective: Floats, full: Floats
) -> Floats:
    """(K, S) over the base: the largest instant of a backward of one chunk."""
    worst = np.zeros_like(layers)
    ends = (
        (np.nonzero(kind & 1)[0], (LOSS, HEAD_BACKWARD, HEAD_REDUCE), True),
        (np.nonzero(kind & 2)[0], (EMBEDDING_BACKWARD, EMBEDDING_REDUCE), False),
    )
    for at, instants, saved in ends:
        here = layers[:, at]
        base = _saved_below(table, here, selective[:, at], full[:, at]) if saved else 0.0
        for instant in instants:
            value = base + _stage_value(table, instant, kind[at], first, here)
            worst[:, at] = np.maximum(worst[:, at], value)
    changed = full + selective
    positions = [layers, layers - 1, np.minimum(2.0, layers), np.minimum(1.0, layers)]
    if changed.any():
        positions += [changed + 1, changed, full + 1, full]
    done = table.done[:, kind * 2 + first]
    situation = ((kind * 2 + first) * 4)[None, :]
    for block in positions:
        mode = np.where(block <= full, 2, np.where(block <= changed, 1, 0))
        column = (situation + 2 * (block == layers) + (block == 1)) * len(MODES) + mode
        value = _saved_below(table, np.maximum(block - 1, 0), selective, full)
        value += done * (layers - block)
        value += np.take_along_axis(table.block, np.minimum(column, SITUATIONS - 1), axis=1)
        np.maximum(worst, value, out=worst, where=(block >= 1) & (block <= layers))
    return worst


def _at_work(
    table: MemoryTable, situation: Situation, layout: Layout, layers: Floats
) -> Floats:
    """(K, segments) what the chunk at work adds: its stage and whether it is a first backward decide."""
    selective, full = layout.selective.astype(np.float64), layout.full.astype(np.float64)
    numbers = np.arange(situation.key.stages)
    places = 2 * (numbers == 0) + (numbers == situation.key.stages - 1)
    at = situation.segments
    kind, first, stage = situation.kind[at], situation.first[at].astype(int), situation.stage[at]
    added = np.zeros((len(layers), len(at)))
    for which, evaluate in ((FORWARD, _forward), (BACKWARD, _backward)):
        for flag in (0, 1):
            here = np.nonzero((kind == which) & (first == flag))[0]
            if len(here):
                parts = evaluate(table, places, flag, layers, selective, full)
                added[:, here] = parts[:, stage[here]]
    here = np.nonzero(kind == END)[0]
    if len(here):
        added[:, here] = _stage_value(table, FINAL, places, 0, layers)[:, stage[here]]
    return added


def rank_peaks(table: MemoryTable, situation: Situation, layout: Layout) -> Floats:
    """(K, ranks) largest allocated bytes of every rank."""
    layers = layout.layers.astype(np.float64)
    features = _features(table, situation, layout, layers)
    added = _at_work(table, situation, layout, layers)
    peaks = features.constant
    for rank, moments, segments in _ranks(situation):
        held = features.of(situation, rank, moments)
        runs = situation.segments[segments] - moments.start
        most = np.maximum.reduceat(held, runs, axis=1) + added[:, segments]
        peaks[:, rank] += most.max(axis=1)
    return peaks


def peak_moment(table: MemoryTable, situation: Situation, layout: Layout, rank: int) -> int:
    """Moment at which a rank of the only row peaks."""
    layers = layout.layers.astype(np.float64)
    features = _features(table, situation, layout, layers)
    added = _at_work(table, situation, layout, layers)
    for one, moments, segments in _ranks(situation):
        if one == rank:
            lengths = np.diff(np.r_[situation.segments[segments], moments.stop])
            value = features.of(situation, rank, moments)[0] + np.repeat(added[0, segments], lengths)
            return int(moments.start + value.argmax())
    raise ValueError(f"no rank {rank}")


def _ranks(situation: Situation) -> Iterator[tuple[int, slice, slice]]:
    """(rank, its moments, its segments)."""
    bounds = np.r_[situation.starts, len(situation.rank)]
    at = np.searchsorted(situation.segments, bounds)
    for rank in range(situation.key.ranks):
        moments = slice(int(bounds[rank]), int(bounds[rank + 1]))
        yield rank, moments, slice(int(at[rank]), int(at[rank + 1]))
