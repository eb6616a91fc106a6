"""Time terms of many rows, composed into costs of a layer, the ends of the model, hops and the tail.

Exposed communication is computed once per window, against the sum of that window's link terms.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import numpy as np
from attrs import evolve, frozen

from autopar_core.domain.arrays import Bools, Floats, Ints
from autopar_core.domain.terms import MODES, TimeTerm, Window
from autopar_core.hooks.schedule import ScheduleKey


RANK_WINDOWS = ("first_forward", "last_backward")
# How sharply the slower of device and host rules: 1/k-th root of the sum of k-th powers. Fitted on 87
# runs of one H200 (4.8); a maximum, which a queue that never runs empty would give, is nearly as good.
HOST_SHARPNESS = 5


def with_host(device: Floats, host: Floats) -> Floats:
    """Time of work that the device needs ``device`` and the host ``host`` seconds for."""
    if not np.any(host):
        return device
    longer, shorter = np.maximum(device, host), np.minimum(device, host)
    share = np.divide(shorter, longer, out=np.zeros_like(longer), where=longer > 0)
    return np.asarray(longer * (1 + share**HOST_SHARPNESS) ** (1 / HOST_SHARPNESS))


def exposed(window: Window, seconds: Floats, capacity: Floats) -> Floats:
    """Exposed part of link time behind a window: max(floor T, T - share capacity) + contention."""
    if window.name == "hidden":
        return np.zeros_like(seconds)
    left = np.maximum(window.floor * seconds, seconds - window.share * capacity)
    return np.asarray(left + window.contention * np.minimum(seconds, capacity))


@frozen(eq=False)
class WindowUse:
    """One window of a segment: total link time that names it, and what of it shows.

    ``mark`` is the window's name and the phase of its cover; blocks are one window for all phases.
    """

    mark: tuple[str, str]
    seconds: Floats
    exposed: Floats


@frozen(eq=False)
class PhaseCost:
    """Composition of one segment and phase: device, fully exposed links, windows, host floor.

    ``total`` = slower of (device + exposed + fine windows) and host (``with_host``) + block windows;
    ``weight`` is the part of it that computes weight gradients alone.
    """

    device: Floats
    bare_link: Floats
    host: Floats
    windows: tuple[WindowUse, ...]
    total: Floats
    weight: Floats


def merge_windows(windows: Sequence[Window]) -> Window:
    """Parameters of a shared window: the largest of each, so no order matters."""
    return Window(
        name=windows[0].name,
        share=reduce(np.maximum, [w.share for w in windows]),
        floor=max(w.floor for w in windows),
        contention=max(w.contention for w in windows),
    )


def window_mark(term: TimeTerm) -> tuple[str, str]:
    """(name, phase of the cover) of a link term's window: recomputed work covers its own phase."""
    name = term.window.name if term.window is not None else ""
    return name, "" if name == "block" else term.phase


def compose_phase(terms: Sequence[TimeTerm], size: int) -> PhaseCost:
    """Combine the terms of one segment and phase for N = ``size`` rows."""
    zero = np.zeros(size)
    device = sum((t.seconds for t in terms if t.resource == "device"), start=zero)
    host = sum((t.seconds for t in terms if t.resource == "host"), start=zero)
    links = [t for t in terms if t.resource == "link"]
    bare = sum((t.seconds for t in links if t.window is None), start=zero)
    named: dict[tuple[str, str], list[TimeTerm]] = {}
    for term in links:
        if term.window is not None:
            named.setdefault(window_mark(term), []).append(term)
    uses = []
    total = free = device + bare
    floored = False
    for mark in sorted(named, key=lambda m: (m[0] == "block", m)):
        (name, phase), group = mark, named[mark]
        window = merge_windows([t.window for t in group if t.window is not None])
        seconds = sum((t.seconds for t in group), start=zero)
        if name == "block":
            total, floored = with_host(total, host), True
            capacity = total
        else:
            cover = [t.seconds for t in terms
                     if t.resource == "device" and t.kind == name and t.phase == phase]  # fmt: skip
            capacity = sum(cover, start=zero)
        shown = exposed(window, seconds, capacity)
        uses.append(WindowUse(mark, seconds, shown))
        total = total + shown
        free = free if name == "block" else total
    if not floored:
        total = with_host(total, host)
    pace = with_host(free, host) / np.where(free > 0, free, 1.0)
    return PhaseCost(device, bare, host, tuple(uses), total, _weight(terms, pace))


def _weight(terms: Sequence[TimeTerm], pace: Floats) -> Floats:
    """Device seconds of weight gradients, stretched where the host sets the pace."""
    shares = [
        t.seconds * t.weight_share for t in terms
        if t.resource == "device" and t.phase == "backward" and np.any(t.weight_share)
    ]  # fmt: skip
    if not shares:
        return np.zeros_like(pace)
    return np.asarray(sum(shares, start=np.zeros_like(pace)) * pace)


def select(terms: Sequence[TimeTerm], segment: str, phases: Sequence[str]) -> list[TimeTerm]:
    """Terms of a segment in any of some phases."""
    return [t for t in terms if t.segment == segment and t.phase in phases]


def mode_phases(mode: str) -> tuple[str, ...]:
    """Phases that the backward of a layer in a recompute mode consists of."""
    return ("backward",) if mode == "none" else ("backward", f"recompute_{mode}")


@frozen(eq=False)
class StepPart:
    """Step terms with one window: fixed, per layer, on the first and on the last rank; (N,) each."""

    window: Window | None
    fixed: Floats
    layer: Floats
    first: Floats
    last: Floats

    def take(self, rows: slice | Ints | Bools) -> StepPart:
        """The same of some rows; a window's share may differ from row to row."""
        window = self.window
        if window is not None and np.ndim(window.share):
            window = evolve(window, share=np.asarray(window.share)[rows])
        return StepPart(
            window, self.fixed[rows], self.layer[rows], self.first[rows], self.last[rows]
        )

    def on_ranks(self, layers: Ints, first: Ints, last: Ints) -> Floats:
        """(K, ranks) seconds, from (K, ranks) layers and the ranks that hold the model's ends."""
        total = self.fixed[:, None] + self.layer[:, None] * layers
        return np.asarray(total + self.first[:, None] * first + self.last[:, None] * last)


@frozen(eq=False)
class TimeTable:
    """Composed costs of N rows.

    Attributes:
        forward: (N,) one layer's forward.
        backward: (N, modes) one layer's backward with what its recompute mode adds.
        ends: {"embedding" | "head": ((N,) forward, (N,) backward)}.
        hop: ((N,) forward message, (N,) backward message).
        steps: Step terms by window.
        weight: (N,) part of one layer's backward that computes weight gradients alone.
        head_weight: (N,) the same of the head's backward.
    """

    forward: Floats
    backward: Floats
    ends: dict[str, tuple[Floats, Floats]]
    hop: tuple[Floats, Floats]
    steps: tuple[StepPart, ...]
    weight: Floats
    head_weight: Floats

    @classmethod
    def build(cls, terms: Sequence[TimeTerm], size: int) -> TimeTable:
        """Compose the terms of N = ``size`` rows."""
        forward = compose_phase(select(terms, "block", ("forward",)), size).total
        blocks = [compose_phase(select(terms, "block", mode_phases(m)), size) for m in MODES]
        backward = np.stack([cost.total for cost in blocks], axis=1)
        costs = {
            (part, phase): compose_phase(select(terms, part, (phase,)), size)
            for part in ("embedding", "head")
            for phase in ("forward", "backward")
        }
        ends = {
            part: (costs[part, "forward"].total, costs[part, "backward"].total)
            for part in ("embedding", "head")
        }
        hop = (
            compose_phase(select(terms, "hop", ("forward",)), size).total,
            compose_phase(select(terms, "hop", ("backward",)), size).total,
        )
        return cls(forward, backward, ends, hop, step_parts(terms, size), blocks[0].weight,
                   costs["head", "backward"].weight)  # fmt: skip

    def take(self, rows: slice | Ints | Bools) -> TimeTable:
        """The same of some rows."""
        return TimeTable(
            self.forward[rows], self.backward[rows],
            {k: (f[rows], b[rows]) for k, (f, b) in self.ends.items()},
            (self.hop[0][rows], self.hop[1][rows]),
            tuple(s.take(rows) for s in self.steps), self.weight[rows], self.head_weight[rows],
        )  # fmt: skip


def step_parts(terms: Sequence[TimeTerm], size: int) -> tuple[StepPart, ...]:
    """Step terms gathered by window, windows in name order."""
    named: dict[str, list[TimeTerm]] = {}
    for term in terms:
        if term.segment == "step":
            named.setdefault(term.window.name if term.window else "", []).append(term)
    parts = []
    for name in sorted(named):
        group = named[name]
        sums = {"fixed": np.zeros(size), "layer": np.zeros(size), "first": np.zeros(size),
                "last": np.zeros(size)}  # fmt: skip
        for term in group:
            at = "layer" if term.scale == "layer" else "fixed" if term.on == "any" else term.on
            sums[at] = sums[at] + term.seconds
        window = merge_windows([t.window for t in group if t.window is not None]) if name else None
        parts.append(StepPart(window, **sums))
    return tuple(parts)


def tail_seconds(
    steps: Sequence[StepPart], rank_layers: Ints, key: ScheduleKey, first_forward: Floats,
    last_backward: Floats,
) -> Floats:  # fmt: skip
    """(K, ranks) seconds after a rank's last work: reductions, gathers, optimizer."""
    first, last = np.zeros(key.ranks, np.int64), np.zeros(key.ranks, np.int64)
    first[0], last[key.last % key.ranks] = 1, 1
    total = np.zeros(rank_layers.shape)
    capacity = {"first_forward": first_forward, "last_backward": last_backward}
    for part in steps:
        seconds = part.on_ranks(rank_layers, first, last)
        if part.window is None:
            total += seconds
        else:
            window = part.window
            if np.ndim(window.share):
                window = evolve(window, share=np.asarray(window.share)[:, None])
            total += exposed(window, seconds, capacity.get(window.name, 0 * seconds))
    return total
