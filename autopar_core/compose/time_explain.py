"""The parts of a step for one candidate: every time term on the rank that ends last."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from attrs import define, field, frozen

from autopar_core.compose.layout import Layout
from autopar_core.compose.time_table import (
    PhaseCost,
    compose_phase,
    exposed,
    merge_windows,
    mode_phases,
    select,
    window_mark,
)
from autopar_core.domain.cost import TimePart
from autopar_core.domain.terms import MODES, TimeTerm, inputs_of_row
from autopar_core.hooks.schedule import ScheduleKey


# Input of every time part: the calibrated factor that its formula is multiplied with.
TIME_SCALE = "time scale"


@frozen
class RankShare:
    """What one rank does in a step.

    Attributes:
        key: Schedule key.
        rank: The rank.
        layers: Recompute mode -> layers of the rank over all chunks.
        first_forward, last_backward: Capacities of the step windows.
    """

    key: ScheduleKey
    rank: int
    layers: dict[str, int]
    first_forward: float
    last_backward: float

    @classmethod
    def of(
        cls, key: ScheduleKey, rank: int, layout: Layout, first_forward: float, last_backward: float
    ) -> RankShare:
        """Count the layers of a rank (row 0 of the layout)."""
        stages = [chunk * key.ranks + rank for chunk in range(key.chunks)]
        total = int(layout.layers[0, stages].sum())
        selective = int(layout.selective[0, stages].sum())
        full = int(layout.full[0, stages].sum())
        layers = {"none": total - selective - full, "selective": selective, "full": full}
        return cls(key, rank, layers, first_forward, last_backward)


@define
class _Sums:
    """Parts by (owner, name, phase, seconds of one unit)."""

    time_scale: float
    parts: dict[tuple[str, str, str, float], TimePart] = field(factory=dict)

    def add(self, term: TimeTerm, phase: str, times: int, seconds: float, hidden: float) -> None:
        """Count a term ``times`` more; of that, ``seconds`` cost time and ``hidden`` do not."""
        unit = float(term.seconds[0])
        mark = (term.owner, term.name, phase, unit)
        before = self.parts.get(mark)
        self.parts[mark] = TimePart(
            owner=term.owner, name=term.name, phase=phase, resource=term.resource,
            seconds=seconds + (before.seconds if before else 0.0),
            hidden_seconds=hidden + (before.hidden_seconds if before else 0.0),
            count=times + (before.count if before else 0), unit_seconds=unit,
            formula=term.formula, source=term.source,
            inputs={**inputs_of_row(term.inputs, 0), TIME_SCALE: self.time_scale},
        )  # fmt: skip


def explain_time(
    terms: Sequence[TimeTerm], share: RankShare, total: float, owner: str, time_scale: float = 1.0
) -> tuple[TimePart, ...]:
    """Parts that sum to ``total``; what is left is idle time of the schedule's owner.

    ``time_scale`` is the factor that the seconds of all terms carry already.
    """
    sums = _Sums(time_scale)
    m = share.key.micro_batches
    forward = select(terms, "block", ("forward",))
    _spread(sums, forward, compose_phase(forward, 1), m * sum(share.layers.values()))
    for mode in MODES:
        if share.layers[mode]:
            chosen = select(terms, "block", mode_phases(mode))
            _spread(sums, chosen, compose_phase(chosen, 1), m * share.layers[mode])
    ends = [("embedding", 0), ("head", share.key.last % share.key.ranks)]
    for segment, rank in ends:
        if share.rank == rank:
            for phase in ("forward", "backward"):
                chosen = select(terms, segment, (phase,))
                _spread(sums, chosen, compose_phase(chosen, 1), m)
    if share.key.blocking:
        # a rank sends every activation but the last stage's, every gradient but the first's
        for phase, sends in (("forward", share.rank < share.key.ranks - 1),
                             ("backward", share.rank > 0)):  # fmt: skip
            for term in select(terms, "hop", (phase,)):
                if sends:
                    sums.add(term, phase, m, float(term.seconds[0]) * m, 0.0)
    _steps(sums, terms, share)
    parts = [p for p in sums.parts.values() if p.seconds or p.hidden_seconds]
    idle = total - sum(p.seconds for p in parts)
    if share.key.ranks > 1 or idle > 1e-9 * total:
        parts.append(
            TimePart(owner=owner, name="idle", phase="step", resource="schedule", seconds=idle,
                     formula="end of the rank that ends last - its own work",
                     source="exact replay of the schedule")
        )  # fmt: skip
    return tuple(parts)


def _phase_name(phase: str) -> str:
    return "recompute" if phase.startswith("recompute") else phase


def _spread(sums: _Sums, terms: Sequence[TimeTerm], cost: PhaseCost, times: int) -> None:
    """Add the terms of one segment and phase; exposed time of a window goes to its link terms."""
    if not times:
        return
    uses = {use.mark: use for use in cost.windows}
    counted = 0.0
    for term in terms:
        seconds = float(term.seconds[0])
        if term.resource == "host":
            continue
        shown = seconds
        if term.resource == "link" and term.window is not None:
            use = uses[window_mark(term)]
            whole = float(use.seconds[0])
            shown = float(use.exposed[0]) * seconds / whole if whole > 0 else 0.0
        counted += shown
        hidden = max(0.0, seconds - shown)
        sums.add(term, _phase_name(term.phase), times, shown * times, hidden * times)
    floor = float(cost.total[0]) - counted
    for term in (t for t in terms if t.resource == "host"):
        if floor > 0 and float(cost.host[0]) > 0:
            part = floor * float(term.seconds[0]) / float(cost.host[0])
            sums.add(term, _phase_name(term.phase), times, part * times, 0.0)


def _steps(sums: _Sums, terms: Sequence[TimeTerm], share: RankShare) -> None:
    """Step terms of the rank: reductions, gathers, optimizer."""
    for term, times, shown, hidden in step_shares(terms, share):
        sums.add(term, "step", times, shown, hidden)


def step_shares(
    terms: Sequence[TimeTerm], share: RankShare
) -> Iterator[tuple[TimeTerm, int, float, float]]:
    """(step term of the rank, its count, seconds that show, hidden ones), window by window."""
    layers = sum(share.layers.values())
    capacity = {"first_forward": share.first_forward, "last_backward": share.last_backward}
    groups: dict[str, list[tuple[TimeTerm, int, float]]] = {}
    last = share.key.last % share.key.ranks
    there = {"any": True, "first": share.rank == 0, "last": share.rank == last}
    for term in terms:
        if term.segment != "step" or not there[term.on]:
            continue
        times = layers if term.scale == "layer" else 1
        name = term.window.name if term.window else ""
        groups.setdefault(name, []).append((term, times, float(term.seconds[0]) * times))
    for name, members in sorted(groups.items()):
        total = sum(seconds for _, _, seconds in members)
        shown = total
        if name:
            window = merge_windows([t.window for t, _, _ in members if t.window is not None])
            room = np.array([capacity.get(name, 0.0)])
            shown = float(exposed(window, np.array([total]), room)[0])
        for term, times, seconds in members:
            part = shown * seconds / total if total > 0 else 0.0
            yield term, times, part, max(0.0, seconds - part)
