"""The parts of a rank's peak for one candidate: every term with its count at the instant of the peak.

Counts are worked out one by one here, not by the tables that find the peak, so equality of the two sums
is a check of both (a test compares them).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from attrs import frozen

from autopar_core.compose.layout import Layout
from autopar_core.compose.memory_table import is_static, placed, positioned, timely
from autopar_core.compose.situation import END, FORWARD, INPUT, WEIGHT, Situation
from autopar_core.domain.cost import MemoryPart, StageMemory
from autopar_core.domain.terms import (
    BLOCK_INSTANTS,
    EMBEDDING_BACKWARD,
    EMBEDDING_REDUCE,
    FINAL,
    FORWARD_END,
    HEAD_BACKWARD,
    HEAD_REDUCE,
    LOSS,
    MemoryTerm,
    inputs_of_row,
)


# The end of a forward or start of a backward: the micro-batch at work holds what others do.
_START = "start"
_WHOLE_STAGE = (FORWARD_END, LOSS, HEAD_BACKWARD, HEAD_REDUCE, _START)
_EMBEDDING = (EMBEDDING_BACKWARD, EMBEDDING_REDUCE)


@frozen
class Point:
    """A point of the step: moment, instant, and the block that runs backward (0 for none)."""

    moment: int
    instant: str
    block: int = 0


def part_of(term: MemoryTerm, count: int) -> MemoryPart:
    """A term of one candidate (row 0), counted so many times."""
    unit = int(term.bytes[0])
    return MemoryPart(
        owner=term.owner, name=term.name, bytes=count * unit, count=count, unit_bytes=unit,
        formula=term.formula, inputs=inputs_of_row(term.inputs, 0), source=term.source,
    )  # fmt: skip


class RankExplainer:
    """Explains the ranks of one candidate (row 0 of the terms and of the layout)."""

    def __init__(self, terms: Sequence[MemoryTerm], situation: Situation, layout: Layout) -> None:
        self.terms = [t for t in terms if not t.reserve and t.bytes[0]]
        self.situation = situation
        self.layers = layout.layers[0].tolist()
        self.selective = layout.selective[0].tolist()
        self.full = layout.full[0].tolist()
        self.every = layout.every
        self.start = [0] * len(self.layers) if layout.start is None else layout.start[0].tolist()
        self._shown = {
            (t.when, t.on): situation.shows(t.when, t.on) for t in self.terms if is_static(t)
        }

    def rank(self, moment: int) -> StageMemory:
        """Parts of a rank at the moment of its peak."""
        best: tuple[int, Point] | None = None
        for point in self._points(moment):
            total = sum(self.count(t, point) * int(t.bytes[0]) for t in self.terms)
            if best is None or total > best[0]:
                best = (total, point)
        if best is None:
            raise ValueError(f"moment {moment} has no point")
        total, point = best
        parts = []
        for term in self.terms:
            count = self.count(term, point)
            if count:
                parts.append(part_of(term, count))
        s = self.situation
        return StageMemory(
            rank=int(s.rank[moment]), allocated_bytes=total, instant=self._text(point),
            in_flight=tuple((s.in_flight[moment] + s.pending[moment]).tolist()), parts=tuple(parts),
        )  # fmt: skip

    def _text(self, point: Point) -> str:
        s = self.situation
        chunk = f" of chunk {int(s.chunk[point.moment])}" if s.key.chunks > 1 else ""
        which = "first " if s.first[point.moment] else ""
        if s.kind[point.moment] == END:
            return "end of the step"
        if s.kind[point.moment] == FORWARD:
            return f"end of a forward{chunk}"
        if s.kind[point.moment] == WEIGHT:
            return f"weight gradients{chunk}"
        if point.instant == _START:
            return f"start of a {which}backward{chunk}"
        where = f", block {point.block}" if point.block else ""
        return f"{which}backward{chunk}{where}: {point.instant.replace('_', ' ')}"

    def _points(self, moment: int) -> Iterator[Point]:
        s = self.situation
        stage, kind = int(s.stage[moment]), int(s.kind[moment])
        layers = self.layers[stage]
        if kind == END:
            yield Point(moment, FINAL)
        elif kind == WEIGHT:
            yield Point(moment, "nothing")
        elif kind == FORWARD:
            if layers and self._mode(stage, layers) == "none":
                yield Point(moment, FORWARD_END)
            yield Point(moment, _START)
        else:
            if stage == s.key.last:
                yield from (Point(moment, i) for i in (LOSS, HEAD_BACKWARD, HEAD_REDUCE))
            changed = self.full[stage] + self.selective[stage]
            blocks = {layers, layers - 1, 2, 1, changed + 1, changed, self.full[stage] + 1,
                      self.full[stage]}  # fmt: skip
            if self.every:
                blocks = set(range(1, layers + 1))
            for block in sorted(b for b in blocks if 1 <= b <= layers):
                yield from (Point(moment, instant, block) for instant in BLOCK_INSTANTS)
            if stage == 0:
                yield from (Point(moment, i) for i in (EMBEDDING_BACKWARD, EMBEDDING_REDUCE))
            yield Point(moment, _START)

    def _mode(self, stage: int, block: int) -> str:
        if self.every:
            return "none" if (self.start[stage] + block) % self.every else "full"
        if block <= self.full[stage]:
            return "full"
        return "selective" if block <= self.full[stage] + self.selective[stage] else "none"

    def _in_modes(self, stage: int, modes: frozenset[str], below: int | None = None) -> int:
        """Layers of a stage in some modes, counted from the first up to ``below``."""
        end = self.layers[stage] if below is None else below
        if self.every:
            return sum(self._mode(stage, block) in modes for block in range(1, end + 1))
        full = min(end, self.full[stage])
        selective = min(end - full, self.selective[stage])
        by_mode = {"full": full, "selective": selective, "none": end - full - selective}
        return sum(by_mode[mode] for mode in modes)

    def count(self, term: MemoryTerm, point: Point) -> int:
        """How many times a term counts at a point."""
        s = self.situation
        stage = int(s.stage[point.moment])
        first, last = stage == 0, stage == s.key.last
        if is_static(term):
            return self._static(term, point)
        if term.scale == "working_layer":
            works = s.kind[point.moment] not in (END, WEIGHT)
            return self._in_modes(stage, term.modes) if works else 0
        if term.scale in ("saved_layer", "micro_batch", "pending"):
            return self._held(term, point, stage, first, last)
        if point.instant not in term.live and term.scale != "layer_done":
            return 0
        if not placed(term.on, first, last) or not timely(term.when, bool(s.first[point.moment])):
            return 0
        if term.scale == "layer_done":
            return self.layers[stage] - point.block if point.block else 0
        if point.block:
            top, bottom = point.block == self.layers[stage], point.block == 1
            if not positioned(term.position, top, bottom, last):
                return 0
            return int(self._mode(stage, point.block) in term.modes)
        return self.layers[stage] if term.scale == "layer" else 1

    def _static(self, term: MemoryTerm, point: Point) -> int:
        s = self.situation
        flags = self._shown[(term.when, term.on)][point.moment]
        if term.scale == "one":
            return int(flags.any())
        if term.scale == "chunk":
            return int(flags.sum())
        rank = int(s.rank[point.moment])
        return sum(
            self.layers[chunk * s.key.ranks + rank] for chunk in range(s.key.chunks) if flags[chunk]
        )

    def _held(self, term: MemoryTerm, point: Point, stage: int, first: bool, last: bool) -> int:
        s = self.situation
        rank, total = int(s.rank[point.moment]), 0
        for chunk in range(s.key.chunks):
            other = chunk * s.key.ranks + rank
            number = int(s.others[point.moment, chunk])
            waiting = int(s.pending[point.moment, chunk])
            if term.scale == "pending":
                total += waiting * bool(s.place[term.on][other])
            elif term.scale == "micro_batch":
                total += number * bool(s.place[term.on][other])
            else:
                total += number * self._in_modes(other, term.modes)
                total += waiting * self.layers[other] * ("none" in term.modes)
        if term.scale == "pending" or s.kind[point.moment] == WEIGHT:
            return total
        if term.scale == "micro_batch":
            held = point.instant == _START or point.instant in term.live
            return total + (placed(term.on, first, last) and held)
        return total + self._saved_here(term, point, stage)

    def _saved_here(self, term: MemoryTerm, point: Point, stage: int) -> int:
        """Layers of the stage at work that hold a saved tensor; without the inputs' gradients alone
        a layer that is done holds none."""
        kind = self.situation.kind[point.moment]
        kept = (kind == INPUT) * ("none" in term.modes)
        if point.block:
            below = self._in_modes(stage, term.modes, point.block - 1)
            done = (self.layers[stage] - point.block) * kept
            return int(below + (point.instant in term.live) + done)
        if point.instant in _WHOLE_STAGE:
            return self._in_modes(stage, term.modes)
        return int(self.layers[stage] * kept) if point.instant in _EMBEDDING else 0
