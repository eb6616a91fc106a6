"""Exact peak memory of every pipeline rank of many rows, as array expressions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from attrs import frozen

from autopar_core.compose.layout import Layout, Modes, modes_of
from autopar_core.compose.memory_table import SITUATIONS, STAGE_SITUATIONS, MemoryTable
from autopar_core.compose.situation import BACKWARD, END, FORWARD, INPUT, Situation
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
    table: MemoryTable, instant: str, kind: Ints, first: int, layers: Floats
) -> Floats:
    """(K, S) bytes at an instant of the whole stage."""
    column = (STAGE_INSTANTS.index(instant) * 4 + kind) * 2 + first
    at = table.at[:, None] * STAGE_SITUATIONS + column[None, :]
    value = table.stage.ravel().take(at)
    if table.layered:
        value += table.stage_layer.ravel().take(at) * layers
    return np.asarray(value)


def _forward(table: MemoryTable, kind: Ints, first: int, layers: Floats, modes: Modes) -> Floats:
    """(K, S) over the base: the end of a forward whose top block does not recompute, else nothing."""
    value = modes.saved(table.saved, layers)
    value += _stage_value(table, FORWARD_END, kind, first, layers)
    return np.where((modes.number(layers) == 0) & (layers > 0), value, 0.0)


def _backward(
    table: MemoryTable, kind: Ints, first: int, layers: Floats, modes: Modes, split: bool
) -> Floats:
    """(K, S) over the base: the largest instant of a backward of one chunk.

    With ``split`` only the inputs' gradients are computed: blocks that are done hold what their
    weight gradients need.
    """
    worst = np.zeros_like(layers)
    ends = (
        (np.nonzero(kind & 1)[0], (LOSS, HEAD_BACKWARD, HEAD_REDUCE), True),
        (np.nonzero(kind & 2)[0], (EMBEDDING_BACKWARD, EMBEDDING_REDUCE), False),
    )
    for at, instants, saved in ends:
        here = layers[:, at]
        base = modes.at(at).saved(table.saved, here) if saved else (
            table.saved[:, 0, None] * here if split else 0.0
        )  # fmt: skip
        for instant in instants:
            value = base + _stage_value(table, instant, kind[at], first, here)
            worst[:, at] = np.maximum(worst[:, at], value)
    flat, rows = table.block.ravel(), table.at[:, None] * SITUATIONS
    situation = rows + ((kind * 2 + first) * 4 * len(MODES))[None, :]
    done = table.done[:, kind * 2 + first] if table.done.any() else None
    if split:
        done = table.saved[:, 0, None] + (0.0 if done is None else done)
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
    rest = _per_micro_batch(table, _places_of(places), layout)
    modes = modes_of(layout)
    at = situation.segments
    kind, first, stage = situation.kind[at], situation.first[at].astype(int), situation.stage[at]
    added = np.zeros((len(at), len(layers)))
    for which in (FORWARD, BACKWARD, END, INPUT):
        for flag in (0, 1):
            here = np.nonzero((kind == which) & (first == flag))[0]
            if not len(here):
                continue
            if which == END:
                parts = _stage_value(table, FINAL, places, 0, shown)
            elif which == FORWARD:
                parts = np.maximum(rest, _forward(table, places, flag, shown, modes))
            else:
                split = which == INPUT
                parts = _backward(table, places, flag, shown, modes, split)
                np.maximum(parts, rest, out=parts)
            if which != END and table.working is not None:
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


def _places_of(kinds: Ints) -> dict[str, Bools]:
    """Place -> stages that it names, from 2 for the first stage plus 1 for the last."""
    first, last = kinds >= 2, kinds % 2 == 1
    return {"any": np.ones(len(kinds), bool), "first": first, "last": last, "not_first": ~first,
            "not_last": ~last}  # fmt: skip


def rank_peaks(table: MemoryTable, situation: Situation, layout: Layout) -> Floats:
    """(K, ranks) largest allocated bytes of every rank."""
    features, added = _parts(table, situation, layout)
    peaks = features.constant
    for rank, moments, segments in _ranks(situation):
        held = features.of(situation, rank, moments)
        if len(held) > segments.stop - segments.start:
            runs = situation.segments[segments] - moments.start
            held = np.maximum.reduceat(held, runs, axis=0)
        held += added[segments]
        peaks[:, rank] += held.max(axis=0)
    return peaks


def peak_moments(table: MemoryTable, situation: Situation, layout: Layout) -> list[int]:
    """Moment at which each rank of the only row peaks."""
    value = moment_bytes(table, situation, layout)
    return [int(moments.start + value[moments].argmax()) for _, moments, _ in _ranks(situation)]


def moment_bytes(table: MemoryTable, situation: Situation, layout: Layout) -> Floats:
    """(M,) largest allocated bytes during each moment of the only row."""
    features, added = _parts(table, situation, layout)
    value = np.empty(len(situation.rank))
    for rank, moments, segments in _ranks(situation):
        lengths = np.diff(np.append(situation.segments[segments], moments.stop))
        value[moments] = features.of(situation, rank, moments)[:, 0]
        value[moments] += np.repeat(added[segments, 0], lengths) + features.constant[0, rank]
    return value


def _parts(table: MemoryTable, situation: Situation, layout: Layout) -> tuple[_Features, Floats]:
    layers = layout.layers.astype(np.float64)
    return (
        _features(table, situation, layout, layers),
        _at_work(table, situation, layout, layers),
    )


def _ranks(situation: Situation) -> Iterator[tuple[int, slice, slice]]:
    """(rank, its moments, its segments)."""
    bounds = np.r_[situation.starts, len(situation.rank)]
    at = np.asarray(np.searchsorted(situation.segments, bounds))
    for rank in range(situation.key.ranks):
        moments = slice(int(bounds[rank]), int(bounds[rank + 1]))
        yield rank, moments, slice(int(at[rank]), int(at[rank + 1]))
