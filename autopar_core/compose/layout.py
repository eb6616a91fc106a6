"""Layers of every virtual stage and which of them recompute, for many rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from attrs import frozen

from autopar_core.domain.arrays import Bools, Floats, Ints
from autopar_core.domain.terms import MODES


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

    def each(self, pick: Callable[[Ints], Ints]) -> Layout:
        """The same function of every array."""
        start = None if self.start is None else pick(self.start)
        return Layout(pick(self.layers), pick(self.selective), pick(self.full), self.every, start)

    def take(self, rows: Bools | Ints | slice) -> Layout:
        """The same of some rows."""
        return self.each(lambda values: np.asarray(values[rows]))

    def put(self, rows: Bools | Ints, other: Layout) -> None:
        """Replace some rows in place (the arrays of a solver's own layout)."""
        self.layers[rows], self.selective[rows] = other.layers, other.selective
        self.full[rows] = other.full
        if self.start is not None and other.start is not None:
            self.start[rows] = other.start

    @staticmethod
    def concat(parts: Sequence[Layout]) -> Layout:
        """Layouts of one kind, one after another."""
        starts = [part.start for part in parts if part.start is not None]
        return Layout(
            np.concatenate([part.layers for part in parts]),
            np.concatenate([part.selective for part in parts]),
            np.concatenate([part.full for part in parts]), parts[0].every,
            np.concatenate(starts) if len(starts) == len(parts) else None,
        )  # fmt: skip


@frozen(eq=False)
class First:
    """The first layers of a stage recompute, fully and then selectively; 0-d counts are "no layer"."""

    selective: Floats
    full: Floats

    def at(self, stages: Ints) -> First:
        """The same of some stages."""
        return First(*(x[:, stages] if x.ndim else x for x in (self.selective, self.full)))

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
class Every:
    """Every k-th layer of a rank recomputes fully; ``start`` layers lie in its earlier chunks."""

    every: int
    start: Floats

    def at(self, stages: Ints) -> Every:
        """The same of some stages."""
        return Every(self.every, self.start[:, stages])

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


Modes = First | Every


def modes_of(layout: Layout) -> Modes:
    """The pattern in which the layers of a layout recompute."""
    if layout.every and layout.start is not None:
        return Every(layout.every, layout.start.astype(np.float64))
    counts = (
        layers.astype(np.float64) if layers.any() else np.zeros(())
        for layers in (layout.selective, layout.full)
    )  # fmt: skip
    return First(*counts)
