"""Exact end times of pipeline schedules, for many candidates at once.

A schedule is a graph: every operation waits for the previous one of its rank and for one
message. Its waves (all operations whose inputs are ready after w steps) depend on the schedule
only, so they are laid out once, and candidates then run through them as array columns: the
longest path of all candidates, a wave at a time.

Many micro-batches repeat one pattern, so most candidates need only the first few: see `replay`.

Model: a message takes ``hop`` seconds between two ranks and blocks neither of them
(asynchronous p2p); the backward of the last virtual stage follows its own forward without one.
Source: max-plus recurrence of a static schedule; Baccelli et al., "Synchronization and
Linearity" (1992), ch. 3, for the periodic regime.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from attrs import field, frozen

from autopar_pp.bounds import Floats, gpipe_ends
from autopar_pp.orders import Bools, Ints, Order, group_size, grouped_order, producers


# Two states are one constant apart when no element differs by more than this share of the time
# elapsed. Max-plus maps do not expand differences, so n repeats err by at most n times as much.
TOLERANCE = 1e-13
# Cells (operations x candidates) replayed at once: 32 MiB of end times stay near the caches.
CELLS = 2**22


@frozen
class Wave:
    """Operations that may run together, those that wait for a message between ranks first.

    Attributes:
        start: First row of the wave in the table of end times.
        stop: Row after its last.
        inputs: [2n] rows of the previous operations of the ranks, then rows of the producers.
        hops: Number of leading operations whose message crosses ranks.
        duration: [n] row of the table of durations: virtual stage, plus S for a backward.
    """

    start: int
    stop: int
    inputs: Ints
    hops: int
    duration: Ints


@frozen(eq=False)
class Program:
    """A schedule laid out in waves.

    Attributes:
        run: The order it was built from.
        row: [p, 2n] row of every operation in the table of end times; row 0 is time zero.
        waves: The waves in order.
    """

    run: Order
    row: Ints = field(repr=False)
    waves: tuple[Wave, ...] = field(repr=False)

    def ends(self, durations: Floats, hop: Floats) -> Floats:
        """End time of every operation.

        Args:
            durations: [2S, K] seconds, forwards of all virtual stages, then backwards.
            hop: [K] seconds per message between ranks.

        Returns:
            [rows, K] seconds. Only element-wise operations: columns cannot affect each other.
        """
        table = np.empty((self.row.size + 1, durations.shape[1]))
        table[0] = 0.0
        for wave in self.waves:
            ready = table.take(wave.inputs, axis=0)
            n = wave.stop - wave.start
            ready[n : n + wave.hops] += hop
            out = table[wave.start : wave.stop]
            np.maximum(ready[:n], ready[n:], out=out)
            out += durations.take(wave.duration, axis=0)
        return table


@lru_cache(maxsize=128)
def program(schedule: str, p: int, v: int, m: int, group: int) -> Program:
    """Lays out `autopar_pp.orders.grouped_order` in waves.

    Raises:
        ValueError: If the order waits for itself (dead-lock).
    """
    run = grouped_order(schedule, p, v, m, group)
    length = 2 * m * v
    producer = producers(run)
    crosses = (producer >= 0) & (producer // length != np.arange(p)[:, None])
    stage = run.chunk * p + np.arange(p)[:, None] + run.backward * (p * v)
    row = np.zeros(p * length + 1, np.int64)  # the last element stands for "no producer"
    done = np.zeros(p * length + 1, np.bool_)
    done[-1] = True
    at, rank, waves, count = np.zeros(p, np.int64), np.arange(p), [], 1
    while (live := rank[at < length]).size:
        live = live[done[producer[live, at[live]]]]
        if not live.size:
            raise ValueError(f"{schedule}: the order dead-locks (p={p}, v={v}, m={m})")
        live = live[np.argsort(~crosses[live, at[live]], kind="stable")]
        now = at[live]
        node = live * length + now
        previous = np.where(now > 0, row[node - 1], 0)
        inputs = np.concatenate([previous, row[producer[live, now]]])
        stop = count + live.size
        waves.append(Wave(count, stop, inputs, int(crosses[live, now].sum()), stage[live, now]))
        row[node] = np.arange(count, stop)
        done[node] = True
        at[live] += 1
        count = stop
    return Program(run, row[:-1].reshape(p, length), tuple(waves))


def replay(schedule: str, p: int, v: int, m: int, forward: Floats, backward: Floats,
           hop: Floats) -> Floats:  # fmt: skip
    """End time of the last operation of every rank.

    Short runs stand for long ones where that is exact. In the steady part every operation is
    the same function of the ones before it, shifted by a period; if all ends of one period are
    those of an earlier one plus a constant, so are all later ones, and the drain, a function of
    the last period only, is shifted by the same constant per period left out. Candidates that
    have not settled are replayed with twice the micro-batches, if need be with all of them.

    Args:
        schedule: "1f1b", "interleaved" or "gpipe".
        p: Ranks.
        v: Chunks per rank.
        m: Micro-batches.
        forward: [K, S] seconds of one micro-batch's forward on each virtual stage.
        backward: [K, S] seconds of its backward.
        hop: [K] seconds per message between ranks.

    Returns:
        [K, p] seconds from the start of the step. A row depends on its own inputs only, bit for
        bit.

    Raises:
        ValueError: As `autopar_pp.orders.group_size`.
    """
    group = group_size(schedule, p, v, m)
    if p == 1:
        # A running sum adds from left to right whatever the memory layout, unlike np.sum.
        return m * np.cumsum(forward + backward, axis=1)[:, -1:]
    if schedule == "gpipe":
        return gpipe_ends(m, forward, backward, hop)
    ends = np.empty((len(forward), p))
    durations = np.ascontiguousarray(np.concatenate([forward, backward], axis=1).T)
    waiting = {_length(4 * p if v == 1 else 8 * p, m, p, group): np.arange(len(forward))}
    while waiting:
        short = min(waiting)
        rows = waiting.pop(short)
        plan = program(schedule, p, v, short, group)
        size = max(1, CELLS // plan.row.size)
        for part in (rows[i : i + size] for i in range(0, len(rows), size)):
            table = plan.ends(durations.take(part, axis=1), hop[part])
            ends[part], longer = _extend(plan, table, short, m - short)
            for more in np.unique(longer[longer > 0]):
                again = part[longer == more]
                old = waiting.get(int(more), again[:0])
                waiting[int(more)] = np.concatenate([old, again])
    return ends


def _length(wanted: int, m: int, p: int, group: int) -> int:
    """Micro-batches of a short run of about ``wanted`` that ends as m does, or m itself."""
    # What is left out is a multiple of p and of 12, so that the common periods divide it.
    unit = math.lcm(p, 12) if group == 1 else 4 * group
    short = m - max(0, m - wanted) // unit * unit
    # A run of all m costs little more than a short one, the check and a second run for some.
    return m if short > 0.4 * m else short


def _extend(plan: Program, table: Floats, short: int, left: int) -> tuple[Floats, Ints]:
    """Extends settled candidates to the full run.

    Args:
        plan: The short run.
        table: [rows, K] its end times in seconds.
        short: Micro-batches of the short run.
        left: Micro-batches left out.

    Returns:
        ends [K, p] in seconds, and [K] the length of the next run, 0 when the ends are final.
    """
    last = table[plan.row[:, -1]].T
    longer = np.zeros(len(last), np.int64)
    if not left:
        return last, longer
    p, group, warm = len(plan.row), plan.run.group, plan.run.warm_up
    v = int(plan.run.chunk.max()) + 1
    pairs = plan.row.shape[1] // 2 - int(warm[0])  # rank 0 runs the fewest
    # One period is one pair for one chunk, and one group over all chunks otherwise. All that
    # later operations refer to ended in the last `group` pairs: cut rank r after its pair c + r,
    # then its last operation and the messages under way are at most that old on every rank.
    step, periods = group * v, left // group
    window = np.concatenate([np.arange(w + 2 * (pairs - group), w + 2 * pairs) for w in warm])
    rank = np.repeat(np.arange(p), 2 * group)
    now, close = table[plan.row[rank, window]], TOLERANCE * last.max(axis=1)
    open_rows = np.arange(len(last))
    # A critical cycle through L ranks repeats after L micro-batches, not after one.
    for q in range(1, min(p, (pairs - group) // step) + 1):
        before = table[np.ix_(plan.row[rank, window - 2 * q * step], open_rows)]
        shift = now[:, open_rows] - before
        settled = shift.max(axis=0) - shift.min(axis=0) <= close[open_rows]
        rows, rest = open_rows[settled], periods % q
        last[rows] += periods // q * shift[0, settled, None]
        longer[rows] = short + rest * group if rest else 0
        open_rows = open_rows[~settled]
    longer[open_rows] = _length(2 * short, short + left, p, group)
    return last, longer


@frozen(eq=False)
class Timeline:
    """All operations of one candidate, rank by rank in the order they run; arrays [2n * p].

    Attributes:
        rank: Pipeline rank.
        chunk: Chunk of the rank.
        micro_batch: Micro-batch.
        backward: Whether it is a backward.
        start: Start in seconds from the start of the step.
        end: End in seconds.
    """

    rank: Ints
    chunk: Ints
    micro_batch: Ints
    backward: Bools
    start: Floats
    end: Floats


def timeline(schedule: str, p: int, v: int, m: int, forward: Floats, backward: Floats,
             hop: float) -> Timeline:  # fmt: skip
    """Start and end of every operation of one candidate, all m micro-batches.

    Args:
        schedule: "1f1b", "interleaved" or "gpipe".
        p: Ranks.
        v: Chunks per rank.
        m: Micro-batches.
        forward: [S] seconds of one micro-batch's forward on each virtual stage.
        backward: [S] seconds of its backward.
        hop: Seconds per message between ranks.

    Raises:
        ValueError: As `autopar_pp.orders.group_size`.
    """
    plan = program(schedule, p, v, m, group_size(schedule, p, v, m))
    durations = np.concatenate([forward, backward])
    end = plan.ends(durations[:, None], np.array([hop]))[plan.row.ravel(), 0]
    run = plan.run
    rank = np.repeat(np.arange(p), plan.row.shape[1])
    chunk, is_backward = run.chunk.ravel(), run.backward.ravel()
    took = durations[chunk * p + rank + is_backward * (p * v)]
    return Timeline(rank, chunk, run.micro_batch.ravel(), is_backward, end - took, end)
