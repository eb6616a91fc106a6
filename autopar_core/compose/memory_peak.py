"""Exact peak memory of every pipeline rank of many rows, as array expressions."""

from __future__ import annotations

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


def _static(table: MemoryTable, situation: Situation, layers: Floats) -> Floats:
    """(K, M) bytes that live through the step."""
    total = np.zeros((len(layers), len(situation.stage)))
    for (scale, on, when), nbytes in table.static:
        flags = situation.shows(when, on)
        if scale == "one":
            total += nbytes[:, None] * flags.any(axis=1)
        elif scale == "chunk":
            total += nbytes[:, None] * flags.sum(axis=1)
        else:
            for chunk in range(situation.key.chunks):
                if flags[:, chunk].any():
                    held = layers[:, situation.stage_of(chunk)] * flags[:, chunk]
                    total += nbytes[:, None] * held
    return total


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


def moment_values(table: MemoryTable, situation: Situation, layout: Layout) -> Floats:
    """(K, M) largest allocated bytes at each moment.

    What the chunk at work adds depends on its stage and on whether it is a first backward, not on the
    moment: it is computed per stage and gathered.
    """
    layers, selective, full = (
        x.astype(np.float64) for x in (layout.layers, layout.selective, layout.full)
    )
    value = _static(table, situation, layers)
    held = _per_micro_batch(table, situation, layout)
    for chunk in range(situation.key.chunks):
        value += held[:, situation.stage_of(chunk)] * situation.others[:, chunk]
    numbers = np.arange(situation.key.stages)
    kind = 2 * (numbers == 0) + (numbers == situation.key.stages - 1)
    first = situation.first.astype(np.int64)
    for which, evaluate in ((FORWARD, _forward), (BACKWARD, _backward)):
        for flag in (0, 1):
            at = np.nonzero((situation.kind == which) & (first == flag))[0]
            if len(at):
                parts = evaluate(table, kind, flag, layers, selective, full)
                value[:, at] += parts[:, situation.stage[at]]
    at = np.nonzero(situation.kind == END)[0]
    if len(at):
        final = _stage_value(table, FINAL, kind, 0, layers)
        value[:, at] += final[:, situation.stage[at]]
    return value


def rank_peaks(table: MemoryTable, situation: Situation, layout: Layout) -> Floats:
    """(K, ranks) largest allocated bytes of every rank."""
    value = moment_values(table, situation, layout)
    return np.asarray(np.maximum.reduceat(value, situation.starts, axis=1))
