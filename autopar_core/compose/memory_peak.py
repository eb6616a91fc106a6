"""Exact peak memory of every pipeline rank of many rows, as array expressions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np
from attrs import frozen

from autopar_core.compose.layout import Layout, Modes, modes_of
from autopar_core.compose.memory_table import SITUATIONS, STAGE_SITUATIONS, MemoryTable
from autopar_core.compose.situation import END, FORWARD, INPUT, Situation
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


# Cells (moments x rows) that are compared at once: arrays of this size stay in a core's cache.
CELLS = 2**18


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

    def of(self, situation: Situation, moments: Ints) -> Floats:
        """(ranks, W, K) bytes at moments (ranks, W): rows run along memory, for maxima over moments."""
        ranks, chunks = situation.key.ranks, situation.key.chunks
        columns = [
            feature.T.reshape(chunks, ranks, -1).transpose(1, 0, 2) for feature, _ in self.by_rank
        ]
        counts = [count for _, count in self.by_rank]
        for feature, count in self.alike:
            columns.append(np.broadcast_to(feature, (ranks, 1, len(feature))))
            counts.append(count[None])
        number = np.concatenate(counts, axis=0).T[moments]
        return np.asarray(np.matmul(number, np.concatenate(columns, axis=1)))


def _features(
    table: MemoryTable, situation: Situation, layout: Layout, layers: Floats
) -> _Features:
    """Everything that does not depend on the block at work."""
    key = situation.key
    constant = np.zeros((len(layers), key.ranks))
    held = _per_micro_batch(table, situation.place, layout)
    by_rank = [(held, np.ascontiguousarray(situation.others.T))]
    if situation.pending.any():
        waiting = _per_pending(table, situation, layers)
        by_rank.append((waiting, np.ascontiguousarray(situation.pending.T.astype(np.float64))))
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


def _per_micro_batch(table: MemoryTable, place: Mapping[str, Bools], layout: Layout) -> Floats:
    """(K, S) bytes that one micro-batch in flight holds on each virtual stage."""
    none, selective, full = (table.saved[:, i, None] for i in range(len(MODES)))
    plain = layout.layers - layout.selective - layout.full
    total = plain * none + layout.selective * selective + layout.full * full
    for on, nbytes in table.in_flight:
        total += nbytes[:, None] * place[on]
    return np.asarray(total)


def _per_pending(table: MemoryTable, situation: Situation, layers: Floats) -> Floats:
    """(K, stages) bytes that a micro-batch holds whose weight gradients are still to be computed.

    Every product keeps its input and the gradient of its output, which is what its layer saved
    without recompute; see ADR 10.
    """
    total = layers * table.saved[:, 0, None]
    for on, nbytes in table.pending:
        total = total + nbytes[:, None] * situation.place[on]
    return np.asarray(total)


def _stage_value(
    table: MemoryTable, instants: Sequence[str], kind: Ints, flags: Sequence[int], layers: Floats
) -> Floats:
    """(flags, K, S) largest of some instants of the whole stage, in first or later backwards."""
    number = np.array([STAGE_INSTANTS.index(name) for name in instants])[:, None, None, None]
    column = (number * 4 + kind) * 2 + np.array(flags)[:, None, None]
    at = table.at[:, None] * STAGE_SITUATIONS + column
    value = table.stage.ravel().take(at)
    if table.layered:
        value += table.stage_layer.ravel().take(at) * layers
    return np.asarray(value[0] if len(instants) == 1 else value.max(axis=0))


def _forward(
    table: MemoryTable, kind: Ints, flags: Sequence[int], layers: Floats, modes: Modes
) -> Floats:
    """(flags, K, S) over the base: the end of a forward whose top block does not recompute."""
    value = _stage_value(table, (FORWARD_END,), kind, flags, layers)
    value += modes.saved(table.saved, layers)
    return np.where((modes.number(layers) == 0) & (layers > 0), value, 0.0)


def _backward(
    table: MemoryTable, kind: Ints, flags: Sequence[int], layers: Floats, modes: Modes, split: bool
) -> Floats:
    """(flags, K, S) over the base: the largest instant of a backward of one chunk.

    With ``split`` only the inputs' gradients are computed: blocks that are done hold what their
    weight gradients need.
    """
    worst = np.zeros((len(flags), *layers.shape))
    ends = (
        (np.nonzero(kind & 1)[0], (LOSS, HEAD_BACKWARD, HEAD_REDUCE), True),
        (np.nonzero(kind & 2)[0], (EMBEDDING_BACKWARD, EMBEDDING_REDUCE), False),
    )
    for at, instants, saved in ends:
        here = layers[:, at]
        base = modes.at(at).saved(table.saved, here) if saved else (
            table.saved[:, 0, None] * here if split else 0.0
        )  # fmt: skip
        value = base + _stage_value(table, instants, kind[at], flags, here)
        worst[:, :, at] = np.maximum(worst[:, :, at], value)
    flat, width = table.block.ravel(), 4 * len(MODES)
    situation = table.at[:, None] * SITUATIONS + (kind * 2 * width)[None, :]
    done = [table.done[:, kind * 2 + flag] for flag in flags] if table.done.any() else None
    if split:
        none = table.saved[:, 0, None]
        done = [none + (done[i] if done else 0.0) for i in range(len(flags))]
    for block in modes.positions(layers):
        column = situation + 6 * (block == layers) + 3 * (block == 1)
        mode = modes.number(block)
        if mode.ndim:
            column += mode
        saved_below = modes.saved(table.saved, np.maximum(block - 1, 0))
        inside = (block >= 1) & (block <= layers)
        for i, flag in enumerate(flags):
            value = flat.take(column + flag * width)
            value += saved_below
            if done is not None:
                value += done[i] * (layers - block)
            np.maximum(worst[i], value, out=worst[i], where=inside)
    return worst


def _at_work(table: MemoryTable, situation: Situation, layout: Layout, layers: Floats) -> Floats:
    """(segments, K) what the chunk at work adds: its stage and a first backward decide.

    At the end of its forward and at the start of its backward the micro-batch at work holds what
    every other one does.
    """
    key = situation.key
    compact = None if key.mirrored else _Compact.of(layout)
    numbers = np.arange(key.stages)
    places = 2 * (numbers == 0) + (numbers == key.last)
    if compact is not None:
        layout, places = compact.layout, compact.places
    shown = layout.layers.astype(np.float64)
    modes = modes_of(layout)
    parts: list[Floats] = []
    which = np.full(len(situation.segments), -1)
    working = None if table.working is None else modes.saved(table.working, shown)
    rest = _per_micro_batch(table, _places_of(places), layout)
    for kind, flags, segments in situation.works():
        if kind == END:
            part = _stage_value(table, (FINAL,), places, (0,), shown)
        elif kind == FORWARD:
            part = np.maximum(rest, _forward(table, places, flags, shown, modes))
        else:
            part = _backward(table, places, flags, shown, modes, kind == INPUT)
            np.maximum(part, rest, out=part)
        if kind != END and working is not None:
            part = part + working
        for i, at in enumerate(segments):
            which[at] = len(parts)
            parts.append(part[i].T)
    columns, stage = np.stack(parts), situation.stage[situation.segments]
    if compact is None:
        added = np.asarray(columns[which, stage])
    else:
        added = compact.spread(columns, which, layers, stage)
    added[which < 0] = 0.0  # weight gradients hold nothing that a pending micro-batch does not
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

    def spread(self, columns: Floats, which: Ints, layers: Floats, stage: Ints) -> Floats:
        """(segments, K) of tables (T, 4, K): the stage of each segment in the table that it names."""
        last = layers.shape[1] - 1
        column = np.where(stage == 0, 0, np.where(stage == last, 3, 1))
        made = columns[which, column]
        inner = np.nonzero(column == 1)[0]
        more = layers.T[stage[inner]] != self.least
        if more.any():
            made[inner] = np.where(more, columns[which[inner], 2], made[inner])
        return np.asarray(made)


def _places_of(kinds: Ints) -> dict[str, Bools]:
    """Place -> stages that it names, from 2 for the first stage plus 1 for the last."""
    first, last = kinds >= 2, kinds % 2 == 1
    return {"any": np.ones(len(kinds), bool), "first": first, "last": last, "not_first": ~first,
            "not_last": ~last}  # fmt: skip


def rank_peaks(table: MemoryTable, situation: Situation, layout: Layout) -> Floats:
    """(K, ranks) largest allocated bytes of every rank."""
    moments, runs, firsts = situation.grid()
    size = max(1, CELLS // moments.size)
    if len(layout.layers) > size:
        parts = [slice(i, i + size) for i in range(0, len(layout.layers), size)]
        return np.concatenate(
            [rank_peaks(table.take(rows), situation, layout.take(rows)) for rows in parts]
        )
    features, added = _parts(table, situation, layout)
    held = features.of(situation, moments).reshape(moments.size, -1)
    if len(held) > len(runs):
        held = np.maximum.reduceat(held, runs, axis=0)
    held += added
    return features.constant + np.maximum.reduceat(held, firsts, axis=0).T


def peak_moments(table: MemoryTable, situation: Situation, layout: Layout) -> list[int]:
    """Moment at which each rank of the only row peaks."""
    value = moment_bytes(table, situation, layout)
    bounds = np.append(situation.starts, len(value)).tolist()
    return [a + int(value[a:b].argmax()) for a, b in pairwise(bounds)]


def moment_bytes(table: MemoryTable, situation: Situation, layout: Layout) -> Floats:
    """(M,) largest allocated bytes during each moment of the only row."""
    features, added = _parts(table, situation, layout)
    moments, _, _ = situation.grid()
    value = np.empty(len(situation.rank))
    value[moments] = features.of(situation, moments)[:, :, 0]
    value += features.constant[0, situation.rank]
    lengths = np.diff(np.append(situation.segments, len(value)))
    return np.asarray(value + np.repeat(added[:, 0], lengths))


def _parts(table: MemoryTable, situation: Situation, layout: Layout) -> tuple[_Features, Floats]:
    layers = layout.layers.astype(np.float64)
    return (
        _features(table, situation, layout, layers),
        _at_work(table, situation, layout, layers),
    )
