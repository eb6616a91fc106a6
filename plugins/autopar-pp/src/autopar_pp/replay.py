"""Exact end times of pipeline schedules, for many candidates at once.

Many micro-batches repeat one pattern, so most candidates need only the first few: see `replay`.

Times are whole numbers of ticks: every duration is rounded up to a power of two that is so small
that the longest sum of a step stays below 2^53 of them. Sums and maxima of such floats are exact
in any order, so a run that is extended by its period ends at the very time of the run that is
replayed whole, which the timeline shows.
"""

from __future__ import annotations

import math

import numpy as np

from autopar_pp.bounds import Floats, gpipe_ends
from autopar_pp.orders import Ints, group_size
from autopar_pp.program import Program, program
from autopar_pp.zero_bubble import SPLIT


# Cells (operations x candidates) replayed at once: 32 MiB of end times stay near the caches.
CELLS = 2**22


def in_ticks(
    m: int, forward: Floats, backward: Floats, weight: Floats, hop: Floats
) -> tuple[Floats, Floats]:
    """Durations as whole numbers of ticks, rounded up; every row has a tick of its own.

    Args:
        m: Micro-batches.
        forward, backward, weight: [K, S] seconds; ``weight`` is the part of the backward that
            computes weight gradients.
        hop: [K] seconds per message.

    Returns:
        [4S + 1, K] durations as `autopar_pp.program.Program.ends` takes them, and [K] hops.
    """
    stages = forward.shape[1]
    # No path holds an operation or a message twice.
    longest = m * (_total(forward) + _total(backward) + 4 * stages * hop)
    tick = np.exp2(np.ceil(np.log2(np.where(longest > 0, longest, 1.0))) - 52)[:, None]
    weight = np.minimum(weight, backward)
    rows = [np.ceil(x / tick) * tick for x in (forward, backward, backward - weight, weight)]
    table = np.concatenate([*rows, np.zeros_like(tick)], axis=1)
    return np.ascontiguousarray(table.T), np.ceil(hop / tick[:, 0]) * tick[:, 0]


def replay(
    schedule: str, p: int, v: int, m: int, forward: Floats, backward: Floats, hop: Floats,
    weight: Floats | None = None, *, group: int = 0, synchronous: bool = False,
) -> Floats:  # fmt: skip
    """End time of the last operation of every rank.

    Short runs stand for long ones where that is exact. In the steady part every operation is
    the same function of the ones before it, shifted by a period; if all ends of one period are
    those of an earlier one plus a constant, so are all later ones, and the drain, a function of
    the last period only, is shifted by the same constant per period left out (Baccelli et al.
    1992, ch. 3). Candidates that have not settled are replayed with twice the micro-batches, if
    need be with all of them.

    Args:
        schedule: One of `autopar_pp.orders.SCHEDULES`.
        p: Ranks.
        v: Chunks per rank.
        m: Micro-batches.
        forward: [K, S] seconds of one micro-batch's forward on each virtual stage.
        backward: [K, S] seconds of its backward.
        hop: [K] seconds per message between ranks.
        weight: [K, S] seconds of the backward that compute weight gradients; none by default.
        group: Megatron's group size for interleaving; 0 for the default.
        synchronous: Messages of "1f1b" and "gpipe" occupy both ranks.

    Returns:
        [K, p] seconds from the start of the step. A row depends on its own inputs only, bit for
        bit.

    Raises:
        ValueError: As `autopar_pp.orders.group_size`.
    """
    group = group_size(schedule, p, v, m, group)
    if p == 1:
        # A running sum adds from left to right whatever the memory layout, unlike np.sum.
        return m * np.cumsum(forward + backward, axis=1)[:, -1:]
    weight = np.zeros_like(backward) if weight is None else weight
    durations, hop = in_ticks(m, forward, backward, weight, hop)
    if schedule == "gpipe":
        if not synchronous:
            return gpipe_ends(m, durations[:p].T, durations[p : 2 * p].T, hop)
        plan = program(schedule, p, v, m, group, True)
        return plan.ends(durations, hop)[plan.row[:, -1]].T
    synchronous &= v == 1 and schedule not in SPLIT
    ends = np.empty((len(forward), p))
    waiting = {_length(4 * p if v == 1 else 8 * p, m, p, group): np.arange(len(forward))}
    while waiting:
        short = min(waiting)
        rows = waiting.pop(short)
        plan = program(schedule, p, v, short, group, synchronous)
        size = max(1, CELLS // plan.row.size)
        for part in (rows[i : i + size] for i in range(0, len(rows), size)):
            table = plan.ends(durations.take(part, axis=1), hop[part])
            ends[part], longer = _extend(plan, table, short, m - short, group)
            for more in np.unique(longer[longer > 0]):
                again = part[longer == more]
                old = waiting.get(int(more), again[:0])
                waiting[int(more)] = np.concatenate([old, again])
    return ends


def _total(times: Floats) -> Floats:
    """[K] sum over the stages, added in order: `np.sum` rounds by memory layout, rows must not."""
    running: Floats = times.cumsum(axis=1)
    return running[:, -1]


def _length(wanted: int, m: int, p: int, group: int) -> int:
    """Micro-batches of a short run of about ``wanted`` that ends as m does, or m itself."""
    # What is left out is a multiple of p and of 12, so that the common periods divide it.
    unit = math.lcm(p, 12) if group == 1 else 4 * group
    short = m - max(0, m - wanted) // unit * unit
    # A run of all m costs little more than a short one, the check and a second run for some.
    return m if short > 0.4 * m else short


def _extend(plan: Program, table: Floats, short: int, left: int, group: int) -> tuple[Floats, Ints]:
    """Extends settled candidates to the full run.

    Args:
        plan: The short run.
        table: [rows, K] its end times in seconds.
        short: Micro-batches of the short run.
        left: Micro-batches left out.
        group: Micro-batches run on one chunk in a row.

    Returns:
        ends [K, p] in seconds, and [K] the length of the next run, 0 when the ends are final.
    """
    last = table[plan.row[:, -1]].T
    longer = np.zeros(len(last), np.int64)
    if not left:
        return last, longer
    p, steady = len(plan.row), plan.steady
    periods = left // steady.unit
    window = (steady.cut[:, None] - steady.window + np.arange(steady.window)).ravel()
    rank = np.repeat(np.arange(p), steady.window)
    now = table[plan.row[rank, window]]
    open_rows = np.arange(len(last))
    # A critical cycle through L ranks repeats after L micro-batches, not after one.
    for q in range(1, min(p, (steady.length - steady.window) // steady.period) + 1):
        before = table[np.ix_(plan.row[rank, window - q * steady.period], open_rows)]
        shift = now[:, open_rows] - before
        settled = shift.max(axis=0) == shift.min(axis=0)
        rows, rest = open_rows[settled], periods % q
        last[rows] += periods // q * shift[0, settled, None]
        longer[rows] = short + rest * steady.unit if rest else 0
        open_rows = open_rows[~settled]
    longer[open_rows] = _length(2 * short, short + left, p, group)
    return last, longer
