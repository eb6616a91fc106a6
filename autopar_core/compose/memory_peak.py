"""Exact peak memory of every pipeline rank of many rows, as array expressions."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from attrs import frozen

from autopar_core.compose.memory_table import SITUATIONS, STAGE_SITUATIONS, MemoryTable
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
    MODES,
    STAGE_INSTANTS,
)


@frozen(eq=False)
class Layout:
    """Layers of each virtual stage and how many of them recompute, (K, stages).

    Recomputed layers are the first ones of a stage: fully recomputed first, then selectively. With
    ``every`` = k they are every k-th layer of a rank instead, counted through all its chunks.

    Attributes:
        layers: Layers of each stage.
        selective, full: Layers in that mode.
        every: 0, or the distance of fully recomputed layers; ``full`` counts them, ``selective`` is 0.
        start: (K, stages) layers that the rank has in earlier chunks; needed with ``every``.
    """

    layers: Ints
    selective: Ints
    full: Ints
    every: int = 0
    start: Ints | None = None

    @classmethod
    def plain(cls, layers: Ints) -> Layout:
        """No layer recomputes."""
        return cls(layers, np.zeros_like(layers), np.zeros_like(layers))

    @classmethod
    def alternating(cls, layers: Ints, every: int, ranks: int) -> Layout:
        """Every ``every``-th layer of a rank recomputes fully."""
        chunks = layers.reshape(len(layers), -1, ranks)
        start = (np.cumsum(chunks, axis=1) - chunks).reshape(layers.shape)
        full = (start + layers) // every - start // every
        return cls(layers, np.zeros_like(layers), full, every, start)

    def take(self, rows: Bools | Ints | slice) -> Layout:
        """The same of some rows."""
        start = None if self.start is None else self.start[rows]
        return Layout(self.layers[rows], self.selective[rows], self.full[rows], self.every, start)

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
        """(M of the rank, K) bytes: rows run along memory, so that maxima over moments are fast."""
        stages = slice(rank, None, situation.key.ranks)
        columns = [feature[:, stages] for feature, _ in self.by_rank]
        counts = [count[:, moments] for _, count in self.by_rank]
        columns += [feature[:, None] for feature, _ in self.alike]
        counts += [count[None, moments] for _, count in self.alike]
        return np.asarray(np.concatenate(counts, axis=0).T @ np.concatenate(columns, axis=1).T)


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
            number = (stages > 0).max(axis=1) if scale == "one" else stages.sum(axis=1)
            constant += nbytes[:, None] * number
        elif scale == "layer":
            shown = situation.shows(when, on)
            by_rank.append((nbytes[:, None] * layers, np.ascontiguousarray(shown.T)))
        else:
            shown = situation.shows(when, on)
            number = shown.max(axis=1) if scale == "one" else shown.sum(axis=1)
            alike.append((nbytes, np.asarray(number, dtype=np.float64)))
    return _Features(constant, tuple(by_rank), tuple(alike))


def _per_micro_batch(table: MemoryTable, situation: Situation, layout: Layout) -> Floats:
    """(K, stages) bytes that one micro-batch in flight holds on each virtual stage."""
    none, selective, full = (table.saved[:, i, None] for i in range(len(MODES)))
    plain = layout.layers - layout.selective - layout.full
    total = plain * none + layout.selective * selective + layout.full * full
    for on, nbytes in table.in_flight:
        total += nbytes[:, None] * situation.place[on]
    return np.asarray(total)


@frozen(eq=False)
class _First:
    """The first layers of a stage recompute, fully and then selectively; 0-d counts are "no layer"."""

    selective: Floats
    full: Floats

    def at(self, stages: Ints) -> _First:
        """The same of some stages."""
        return _First(*(x[:, stages] if x.ndim else x for x in (self.selective, self.full)))

    def saved(self, per_layer: Floats, below: Floats) -> Floats:
        """(K, S) bytes of the first ``below`` layers of a stage, from (K, modes) bytes of one."""
        none, some, most = (per_layer[:, i, None] for i in range(len(MODES)))
        if not self.full.ndim and not self.selective.ndim:
            return np.asarray(below * none)
        in_full = np.minimum(below, self.full)
        in_selective = np.minimum(below - in_full, self.selective)
        total = (below - in_full - in_selective) * none
        if self.full.ndim:
            total += in_full * most
        if self.selective.ndim:
            total += in_selective * some
        return np.asarray(total)

    def number(self, block: Floats) -> Ints:
        """(K, S) index of the block's mode in :data:`MODES`; 0-d where no layer recomputes."""
        if not self.full.ndim and not self.selective.ndim:
            return np.zeros((), np.int64)
        if self.full.ndim:
            return np.asarray((block <= self.full) * 1 + (block <= self.full + self.selective))
        return np.asarray((block <= self.selective) * 1)

    def positions(self, layers: Floats) -> list[Floats]:
        """Blocks at which a stage can peak: its ends, and both sides of every change of mode.

        Between them what is saved grows and what is done shrinks by the same bytes per block.
        """
        blocks = [layers, layers - 1, np.minimum(2.0, layers), np.minimum(1.0, layers)]
        if self.full.ndim:
            blocks += [self.full + 1, self.full]
        if self.selective.ndim:
            blocks += [self.full + self.selective + 1, self.full + self.selective]
        return blocks


@frozen(eq=False)
class _Every:
    """Every k-th layer of a rank recomputes fully; ``start`` layers lie in its earlier chunks."""

    every: int
    start: Floats

    def at(self, stages: Ints) -> _Every:
        """The same of some stages."""
        return _Every(self.every, self.start[:, stages])

    def saved(self, per_layer: Floats, below: Floats) -> Floats:
        """(K, S) bytes of the first ``below`` layers of a stage, from (K, modes) bytes of one."""
        full = (self.start + below) // self.every - self.start // self.every
        return np.asarray((below - full) * per_layer[:, 0, None] + full * per_layer[:, -1, None])

    def number(self, block: Floats) -> Ints:
        """(K, S) index of the block's mode in :data:`MODES`."""
        return np.asarray(((self.start + block) % self.every == 0) * (len(MODES) - 1))

    def positions(self, layers: Floats) -> list[Floats]:
        """Blocks at which a stage can peak.

        Blocks a whole period apart differ by a constant, so the first and the last period decide,
        with one block more for the ends, which are situations of their own.
        """
        near = range(self.every + 1)
        return [layers - x for x in near] + [np.minimum(1.0 + x, layers) for x in near]


_Modes = _First | _Every


def _modes(layout: Layout) -> _Modes:
    if layout.every and layout.start is not None:
        return _Every(layout.every, layout.start.astype(np.float64))
    counts = (
        layers.astype(np.float64) if layers.any() else np.zeros(())
        for layers in (layout.selective, layout.full)
    )  # fmt: skip
    return _First(*counts)


def _stage_value(
    table: MemoryTable, instant: str, kind: Ints, first: int, layers: Floats
) -> Floats:
    """(K, S) bytes at an instant of the whole stage."""
    column = (STAGE_INSTANTS.index(instant) * 4 + kind) * 2 + first
    at = table.at[:, None] * STAGE_SITUATIONS + column[None, :]
    value = table.stage.ravel().take(at)
    if table.layered:
        value += table.stage_layer.ravel().take(at) * layers
    return np.asarray(value)


def _forward(table: MemoryTable, kind: Ints, first: int, layers: Floats, modes: _Modes) -> Floats:
    """(K, S) over the base: the end of a forward whose top block does not recompute, else nothing."""
    value = modes.saved(table.saved, layers)
    value += _stage_value(table, FORWARD_END, kind, first, layers)
    return np.where((modes.number(layers) == 0) & (layers > 0), value, 0.0)


def _backward(table: MemoryTable, kind: Ints, first: int, layers: Floats, modes: _Modes) -> Floats:
    """(K, S) over the base: the largest instant of a backward of one chunk."""
    worst = np.zeros_like(layers)
    ends = (
        (np.nonzero(kind & 1)[0], (LOSS, HEAD_BACKWARD, HEAD_REDUCE), True),
        (np.nonzero(kind & 2)[0], (EMBEDDING_BACKWARD, EMBEDDING_REDUCE), False),
    )
    for at, instants, saved in ends:
        here = layers[:, at]
        base = modes.at(at).saved(table.saved, here) if saved else 0.0
        for instant in instants:
            value = base + _stage_value(table, instant, kind[at], first, here)
            worst[:, at] = np.maximum(worst[:, at], value)
    flat, rows = table.block.ravel(), table.at[:, None] * SITUATIONS
    situation = rows + ((kind * 2 + first) * 4 * len(MODES))[None, :]
    done = table.done[:, kind * 2 + first] if table.done.any() else None
    for block in modes.positions(layers):
        column = situation + 6 * (block == layers) + 3 * (block == 1)
        mode = modes.number(block)
        if mode.ndim:
            column += mode
        value = modes.saved(table.saved, np.maximum(block - 1, 0))
        value += flat.take(column)
        if done is not None:
            value += done * (layers - block)
        np.maximum(worst, value, out=worst, where=(block >= 1) & (block <= layers))
    return worst


def _at_work(table: MemoryTable, situation: Situation, layout: Layout, layers: Floats) -> Floats:
    """(segments, K) what the chunk at work adds: its stage and a first backward decide."""
    compact = _Compact.of(layout)
    numbers = np.arange(situation.key.stages)
    places = 2 * (numbers == 0) + (numbers == situation.key.stages - 1)
    if compact is not None:
        layout, places = compact.layout, compact.places
    shown = layout.layers.astype(np.float64)
    modes = _modes(layout)
    at = situation.segments
    kind, first, stage = situation.kind[at], situation.first[at].astype(int), situation.stage[at]
    added = np.zeros((len(at), len(layers)))
    for which in (FORWARD, BACKWARD, END):
        for flag in (0, 1):
            here = np.nonzero((kind == which) & (first == flag))[0]
            if not len(here):
                continue
            if which == END:
                parts = _stage_value(table, FINAL, places, 0, shown)
            else:
                evaluate = _forward if which == FORWARD else _backward
                parts = evaluate(table, places, flag, shown, modes)
                if table.working is not None:
                    parts = parts + modes.saved(table.working, shown)
            columns = parts.T
            added[here] = columns[stage[here]] if compact is None else compact.spread(
                columns, layers, stage[here])  # fmt: skip
    return added


@frozen(eq=False)
class _Compact:
    """Stages that are alike, evaluated once: first, last, and the two counts between them.

    Only for layouts whose inner stages differ by at most one layer and in which all layers share a
    recompute mode, as those that are tried for every row do.
    """

    layout: Layout
    places: Ints
    least: Ints

    @classmethod
    def of(cls, layout: Layout) -> _Compact | None:
        """The compact form, None where it does not apply."""
        layers = layout.layers
        if layers.shape[1] <= 4 or layout.every:
            return None
        inner = layers[:, 1:-1]
        low, high = inner.min(axis=1), inner.max(axis=1)
        if (high - low).max(initial=0) > 1:
            return None
        columns = np.stack([layers[:, 0], low, high, layers[:, -1]], axis=1)
        modes = []
        for mode in (layout.selective, layout.full):
            if not mode.any():
                modes.append(np.zeros_like(columns))
            elif np.array_equal(mode, layers):
                modes.append(columns)
            else:
                return None
        return cls(Layout(columns, modes[0], modes[1]), np.array([2, 0, 0, 1]), low)

    def spread(self, columns: Floats, layers: Floats, stage: Ints) -> Floats:
        """(stages asked for, K) from the four (4, K) columns."""
        last = layers.shape[1] - 1
        made = np.empty((len(stage), columns.shape[1]))
        for index, one in enumerate(stage.tolist()):
            if one in (0, last):
                made[index] = columns[0 if one == 0 else 3]
            else:
                made[index] = np.where(layers[:, one] == self.least, columns[1], columns[2])
        return made


def rank_peaks(table: MemoryTable, situation: Situation, layout: Layout) -> Floats:
    """(K, ranks) largest allocated bytes of every rank."""
    layers = layout.layers.astype(np.float64)
    features = _features(table, situation, layout, layers)
    added = _at_work(table, situation, layout, layers)
    peaks = features.constant
    for rank, moments, segments in _ranks(situation):
        held = features.of(situation, rank, moments)
        if len(held) > segments.stop - segments.start:
            runs = situation.segments[segments] - moments.start
            held = np.maximum.reduceat(held, runs, axis=0)
        held += added[segments]
        peaks[:, rank] += held.max(axis=0)
    return peaks


def peak_moment(table: MemoryTable, situation: Situation, layout: Layout, rank: int) -> int:
    """Moment at which a rank of the only row peaks."""
    layers = layout.layers.astype(np.float64)
    features = _features(table, situation, layout, layers)
    added = _at_work(table, situation, layout, layers)
    for one, moments, segments in _ranks(situation):
        if one == rank:
            ends = np.append(situation.segments[segments], moments.stop)
            lengths = np.diff(ends)
            value = features.of(situation, rank, moments)[:, 0] + np.repeat(
                added[segments, 0], lengths
            )
            return int(moments.start + value.argmax())
    raise ValueError(f"no rank {rank}")


def _ranks(situation: Situation) -> Iterator[tuple[int, slice, slice]]:
    """(rank, its moments, its segments)."""
    bounds = np.r_[situation.starts, len(situation.rank)]
    at = np.asarray(np.searchsorted(situation.segments, bounds))
    for rank in range(situation.key.ranks):
        moments = slice(int(bounds[rank]), int(bounds[rank + 1]))
        yield rank, moments, slice(int(at[rank]), int(at[rank + 1]))
