"""Memory terms of many rows, gathered by what decides where they count.

A block of a stage runs backward in one of a few *situations*: kind of stage (first, last), first or
later backward of the chunk, top or bottom block, recompute mode. For each situation the largest sum
over the parts of a block's backward is one number per row, so a matrix product over all rows and
situations replaces loops. Sums are of whole numbers below 2^53 in float64: exact in any order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from itertools import product
from typing import Any, TypeVar

import numpy as np
from attrs import evolve, frozen

from autopar_core.domain.arrays import Bools, Floats, Ints
from autopar_core.domain.terms import (
    ALWAYS,
    BLOCK_INSTANTS,
    FORWARD_END,
    MODES,
    STAGE_INSTANTS,
    MemoryTerm,
)


K = TypeVar("K")

# Situations of a block: index = (((stage type * 2 + first) * 2 + top) * 2 + bottom) * 3 + mode.
SITUATIONS = 4 * 2 * 2 * 2 * len(MODES)
# Situations of a stage instant: index = (instant * 4 + stage type) * 2 + first.
STAGE_SITUATIONS = len(STAGE_INSTANTS) * 4 * 2


def stage_type(first: bool, last: bool) -> int:
    """0 middle, 1 last, 2 first, 3 the only stage."""
    return 2 * first + last


def placed(on: str, first: bool, last: bool) -> bool:
    """Whether a stage has a term."""
    return {"any": True, "first": first, "last": last, "not_first": not first,
            "not_last": not last}[on]  # fmt: skip


def timely(when: str, first_backward: bool) -> bool:
    """Whether a term of single instants exists in the first or a later backward."""
    return when == "always" or (when == "first") == first_backward


def positioned(position: str, top: bool, bottom: bool, last: bool) -> bool:
    """Whether a block of the stage has a term; a top block that is not on the last stage receives."""
    return {"any": True, "top": top, "below_top": not top, "bottom": bottom,
            "above_bottom": not bottom, "not_received": last or not top}[position]  # fmt: skip


def is_static(term: MemoryTerm) -> bool:
    """Lives through the whole step on every chunk of the rank."""
    return term.live == ALWAYS and term.scale in ("one", "chunk", "layer")


@cache
def block_coefficients(
    live: frozenset[str], scale: str, on: str, position: str, when: str, modes: frozenset[str]
) -> Floats:
    """(block instants, situations) 0 or 1: where one term counts during a block's backward."""
    table = np.zeros((len(BLOCK_INSTANTS), SITUATIONS))
    situations = product(range(4), (0, 1), (0, 1), (0, 1), MODES)
    for column, (kind, first, top, bottom, mode) in enumerate(situations):
        on_first, on_last = bool(kind & 2), bool(kind & 1)
        here = placed(on, on_first, on_last) and timely(when, bool(first))
        here = here and positioned(position, bool(top), bool(bottom), on_last)
        if scale != "saved_layer":
            here = here and mode in modes
        if here:
            for index, instant in enumerate(BLOCK_INSTANTS):
                table[index, column] = instant in live
    return table


@cache
def stage_coefficients(live: frozenset[str], on: str, when: str) -> Floats:
    """(stage situations,) 0 or 1: where one term counts at the instants of a whole stage."""
    table = np.zeros(STAGE_SITUATIONS)
    for column, (instant, kind, first) in enumerate(product(STAGE_INSTANTS, range(4), (0, 1))):
        here = placed(on, bool(kind & 2), bool(kind & 1)) and timely(when, bool(first))
        table[column] = here and instant in live
    return table


@frozen(eq=False)
class MemoryTable:
    """Terms of N rows by signature; every array is float64 with whole numbers.

    Attributes:
        static: ((scale, on, when), (N,)) of terms that live through the step.
        saved: (N, modes) bytes per layer and micro-batch in flight.
        working: (N, modes) bytes per layer of the chunk that works; None where nothing counts so.
        in_flight: (on, (N,)) bytes per chunk and micro-batch in flight.
        pending: (on, (N,)) bytes per chunk and micro-batch whose weight gradients wait.
        block: (rows, situations) largest sum over the parts of a block's backward, without what other
            blocks have saved.
        done: (N, 8) bytes per layer whose backward is done, index = stage type * 2 + first.
        stage: (rows, stage situations) bytes at the instants of a whole stage.
        stage_layer: The same per layer of the chunk.
        reserve: (N,) bytes outside the allocator.
        at: (N,) rows of ``block``, ``stage`` and ``stage_layer`` that stand for these rows; the wide
            tables are shared by all selections of rows.
        whens: Values of ``when`` that occur: the only states of a chunk that matter.
        forward_end: Whether the end of a forward may hold what no backward holds at once.
        layered: Whether ``stage_layer`` holds anything.
    """

    static: tuple[tuple[tuple[str, str, str], Floats], ...]
    saved: Floats
    working: Floats | None
    in_flight: tuple[tuple[str, Floats], ...]
    pending: tuple[tuple[str, Floats], ...]
    block: Floats
    done: Floats
    stage: Floats
    stage_layer: Floats
    reserve: Floats
    at: Ints
    whens: frozenset[str]
    forward_end: bool
    layered: bool

    @classmethod
    def build(cls, terms: Sequence[MemoryTerm], size: int) -> MemoryTable:
        """Gather the terms of N = ``size`` rows."""
        # conditions of a profile leave many terms empty in all rows at hand
        inside = [t for t in terms if not t.reserve and t.bytes.any()]
        static = _sum_by(inside, is_static, lambda t: (t.scale, t.on, t.when))
        flight = _sum_by(inside, lambda t: t.scale == "micro_batch", lambda t: t.on)
        pending = _sum_by(inside, lambda t: t.scale == "pending", lambda t: t.on)
        saved = _by_mode(inside, "saved_layer", size)
        working = _by_mode(inside, "working_layer", size)
        done = np.zeros((size, 8))
        reserve = np.zeros(size)
        for term in terms:
            if term.reserve:
                reserve += term.bytes
            elif term.scale == "layer_done":
                for kind, first in product(range(4), (0, 1)):
                    here = placed(term.on, bool(kind & 2), bool(kind & 1))
                    if here and timely(term.when, bool(first)):
                        done[:, kind * 2 + first] += term.bytes
        stage, stage_layer = _stage_sums(inside, size)
        held = [t.live for t in inside if t.scale in ("saved_layer", "micro_batch")]
        # instants of a backward at which the block at work still holds everything it has saved
        whole = frozenset(BLOCK_INSTANTS).intersection(*held)
        ends = not whole or any(
            FORWARD_END in t.live and not is_static(t) and t.scale != "pending" for t in inside
        )
        return cls(
            static=tuple(static.items()), saved=saved,
            working=working if working.any() else None, in_flight=tuple(flight.items()),
            pending=tuple(pending.items()), block=_block_sums(inside, size), done=done,
            stage=stage, stage_layer=stage_layer,
            reserve=reserve, at=np.arange(size), whens=frozenset(t.when for t in inside),
            forward_end=ends, layered=bool(stage_layer.any()),
        )  # fmt: skip

    def take(self, rows: slice | Ints | Bools) -> MemoryTable:
        """The same of some rows."""
        return evolve(
            self,
            static=tuple((key, value[rows]) for key, value in self.static),
            saved=self.saved[rows],
            working=None if self.working is None else self.working[rows],
            in_flight=tuple((key, value[rows]) for key, value in self.in_flight),
            pending=tuple((key, value[rows]) for key, value in self.pending),
            done=self.done[rows],
            reserve=self.reserve[rows],
            at=self.at[rows],
        )


def _sum_by(
    terms: Sequence[MemoryTerm], which: Callable[[MemoryTerm], bool], key: Callable[[MemoryTerm], K]
) -> dict[K, Floats]:
    sums: dict[K, Floats] = {}
    for term in filter(which, terms):
        at = key(term)
        sums[at] = sums[at] + term.bytes if at in sums else term.bytes.astype(np.float64)
    return sums


def _by_mode(terms: Sequence[MemoryTerm], scale: str, size: int) -> Floats:
    """(N, modes) bytes of the terms of a scale in each recompute mode."""
    sums = np.zeros((size, len(MODES)))
    for term in terms:
        if term.scale == scale:
            for index, mode in enumerate(MODES):
                if mode in term.modes:
                    sums[:, index] += term.bytes
    return sums


def _block_sums(terms: Sequence[MemoryTerm], size: int) -> Floats:
    """(N, situations): matrix product over terms, then the largest instant."""
    grouped = _sum_by(
        terms,
        lambda t: (
            not is_static(t) and t.scale not in ("layer_done", "layer", "working_layer", "pending")
            and not t.live.isdisjoint(BLOCK_INSTANTS)
        ),
        lambda t: (t.live & frozenset(BLOCK_INSTANTS), t.scale, t.on, t.position, t.when, t.modes),
    )  # fmt: skip
    if not grouped:
        return np.zeros((size, SITUATIONS))
    values = np.stack(list(grouped.values()), axis=1)
    tables, column = _distinct(tuple(grouped))
    best = values @ tables[:, 0]
    for instant in range(1, len(BLOCK_INSTANTS)):
        np.maximum(best, values @ tables[:, instant], out=best)
    return np.ascontiguousarray(best[:, column])  # taken from flat, row by row


@cache
def _distinct(signatures: tuple[Any, ...]) -> tuple[Floats, Ints]:
    """((signatures, instants, columns), (situations,) column): situations that no term tells apart."""
    tables = np.stack([block_coefficients(*signature) for signature in signatures])
    flat = tables.reshape(-1, SITUATIONS)
    columns, column = np.unique(flat, axis=1, return_inverse=True)
    shape = (len(signatures), len(BLOCK_INSTANTS), columns.shape[1])
    return columns.reshape(shape), column.reshape(-1).astype(np.int64)


def _stage_sums(terms: Sequence[MemoryTerm], size: int) -> tuple[Floats, Floats]:
    """Two (N, stage situations): per stage and per layer of the stage."""
    sums = []
    for wanted in (("one", "chunk", "micro_batch"), ("layer",)):
        grouped = _sum_by(
            terms,
            lambda t, wanted=wanted: (  # type: ignore[misc]
                not is_static(t) and t.scale in wanted and not t.live.isdisjoint(STAGE_INSTANTS)
            ),
            lambda t: (t.live & frozenset(STAGE_INSTANTS), t.on, t.when),
        )
        if grouped:
            values = np.stack(list(grouped.values()), axis=1)
            sums.append(values @ np.stack([stage_coefficients(*key) for key in grouped]))
        else:
            sums.append(np.zeros((size, STAGE_SITUATIONS)))
    return sums[0], sums[1]
