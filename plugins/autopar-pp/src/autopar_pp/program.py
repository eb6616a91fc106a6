"""Schedules laid out as waves of operations that may run together.

A schedule is a graph: every operation waits for the previous one of its rank and for messages.
Its waves (all operations whose inputs are ready after w steps) depend on the schedule only, so
they are laid out once, and candidates then run through them as array columns: the longest path
of all candidates, a wave at a time.

Two kinds of messages:

* Overlapped: a message takes ``hop`` seconds between two ranks and blocks neither of them.
* Synchronous (Megatron's 1F1B): both ranks wait for each other, then the message takes ``hop``
  seconds during which neither computes. Where a rank turns from a forward to a backward or back
  it exchanges both directions at once (``send_forward_recv_backward``).

Source: max-plus recurrence of a static schedule; Baccelli et al., "Synchronization and
Linearity" (1992), ch. 3.
"""

from __future__ import annotations

from collections import defaultdict
from functools import lru_cache

import numpy as np
from attrs import field, frozen

from autopar_pp.bounds import Floats
from autopar_pp.orders import Bools, Ints, Order, Steady, grouped_order, producers
from autopar_pp.zero_bubble import FORWARD, NOTHING


@frozen
class Wave:
    """Operations that may run together, those that wait for a message between ranks first.

    Attributes:
        start: First row of the wave in the table of end times.
        stop: Row after its last.
        inputs: [w, n] rows whose ends an operation waits for: of the rank's previous operation,
            then of those that the messages depend on.
        hops: Number of leading operations that wait for messages between ranks.
        duration: [n] row of the table of durations.
    """

    start: int
    stop: int
    inputs: Ints
    hops: int
    duration: Ints


@frozen(eq=False)
class Program:
    """A schedule laid out in waves.

    A node is an operation, or what a rank still sends after one; on synchronous messages it
    includes the exchange before it.

    Attributes:
        run: The order it was built from.
        synchronous: The kind of messages.
        row: [p, nodes] row of every node in the table of end times; row 0 is time zero.
        place: [p, L] node of every operation of the order.
        steady: The part that repeats, in nodes.
        waves: The waves in order.
        needs: [w, p, nodes] nodes (rank * nodes + place) that each node waits for besides the
            previous one of its rank, -1 for none.
        crosses: [p, nodes] nodes that wait for a message between ranks.
    """

    run: Order
    synchronous: bool
    row: Ints = field(repr=False)
    place: Ints = field(repr=False)
    steady: Steady = field(repr=False)
    waves: tuple[Wave, ...] = field(repr=False)
    needs: Ints = field(repr=False)
    crosses: Bools = field(repr=False)

    def ends(self, durations: Floats, hop: Floats) -> Floats:
        """End time of every node.

        Args:
            durations: [4S + 1, K] seconds of forwards, backwards, input gradients and weight
                gradients of all virtual stages, then a row of zeros.
            hop: [K] seconds per message between ranks.

        Returns:
            [rows, K] seconds. Only element-wise operations: columns cannot affect each other.
        """
        table = np.empty((self.row.size + 1, durations.shape[1]))
        table[0] = 0.0
        for wave in self.waves:
            ready = table.take(wave.inputs, axis=0)
            out = table[wave.start : wave.stop]
            if self.synchronous:
                ready.max(axis=0, out=out)
                out[: wave.hops] += hop
            else:
                ready[1, : wave.hops] += hop
                np.maximum(ready[0], ready[1], out=out)
            out += durations.take(wave.duration, axis=0)
        return table


@lru_cache(maxsize=128)
def program(
    schedule: str, p: int, v: int, m: int, group: int, synchronous: bool = False
) -> Program:
    """Lays out `autopar_pp.orders.grouped_order` in waves.

    Args:
        schedule, p, v, m, group: As there.
        synchronous: Messages of a schedule with one chunk occupy both ranks.

    Raises:
        ValueError: If the order waits for itself (dead-lock).
    """
    run = grouped_order(schedule, p, v, m, group)
    nodes = _exchanging(run) if synchronous else _overlapped(run)
    row, waves = _waves(nodes, f"{schedule}: the order dead-locks (p={p}, v={v}, m={m})")
    return Program(run, synchronous, row, nodes.place, nodes.steady, waves, nodes.needs,
                   nodes.crosses)  # fmt: skip


@frozen(eq=False)
class _Nodes:
    """The graph before it is laid out: node (rank * width + place) needs others, -1 for none.

    Attributes:
        needs: [w, p, width] nodes that a node needs besides the previous one of its rank.
        crosses: [p, width] whether its message crosses ranks.
        duration: [p, width] row of the table of durations.
        place: [p, L] place of every operation of the order.
        steady: The part that repeats.
    """

    needs: Ints
    crosses: Bools
    duration: Ints
    place: Ints
    steady: Steady


def durations_row(run: Order) -> Ints:
    """[p, L] row of the table of durations (see `Program.ends`) of every operation."""
    stages = len(run.kind) * run.chunks
    at = run.kind * stages + run.stage
    return np.where(run.kind == NOTHING, 4 * stages, at)


def _overlapped(run: Order) -> _Nodes:
    producer = producers(run)
    p, length = producer.shape
    crosses = (producer >= 0) & (producer // length != np.arange(p)[:, None])
    place = np.broadcast_to(np.arange(length), (p, length))
    return _Nodes(producer[None], crosses, durations_row(run), place, run.steady)


def _exchanging(run: Order) -> _Nodes:
    """Every message is an exchange that starts when both of its ranks have come to it.

    An exchange depends on the node before it on both ranks; a rank's node starts with the one or
    two exchanges that it waits for together.
    """
    p, length = run.kind.shape
    rows = durations_row(run)
    nothing = 4 * p * run.chunks
    lists: list[list[tuple[int, list[tuple[int, int, int]]]]] = []
    place = np.zeros((p, length), np.int64)
    for rank in range(p):
        nodes: list[tuple[int, list[tuple[int, int, int]]]] = []
        send: list[tuple[int, int, int]] = []
        for at in range(length):
            take, give = _messages(run, rank, at)
            # From the last warm-up forward on, a rank that turns round exchanges both at once.
            turns = at > run.warm_up[rank] and run.kind[rank, at] != run.kind[rank, at - 1]
            if send and not turns:
                nodes.append((nothing, send))
                send = []
            place[rank, at] = len(nodes)
            nodes.append((int(rows[rank, at]), send + take))
            send = give
        if send:
            nodes.append((nothing, send))
        lists.append(nodes)
    return _joined(lists, place, nothing, run.steady)


def _messages(
    run: Order, rank: int, at: int
) -> tuple[list[tuple[int, int, int]], list[tuple[int, int, int]]]:
    """(taken in before, sent after) an operation: (direction, rank above, micro-batch)."""
    kind, number = int(run.kind[rank, at]), int(run.micro_batch[rank, at])
    up = [(kind, rank - 1, number)] if rank > 0 else []
    down = [(kind, rank, number)] if rank < len(run.kind) - 1 else []
    return (up, down) if kind == FORWARD else (down, up)


def _joined(
    lists: list[list[tuple[int, list[tuple[int, int, int]]]]], place: Ints, nothing: int,
    steady: Steady,
) -> _Nodes:  # fmt: skip
    """Both ends of every message find each other."""
    p, width = len(lists), max(map(len, lists))
    met: dict[tuple[int, int, int], list[int]] = defaultdict(list)
    for rank, nodes in enumerate(lists):
        for at, (_, messages) in enumerate(nodes):
            for message in messages:
                met[message].append(rank * width + at)
    needs = np.full((2, p, width), -1, np.int64)
    crosses = np.zeros((p, width), np.bool_)
    duration = np.full((p, width), nothing, np.int64)
    for rank, nodes in enumerate(lists):
        for at, (row, messages) in enumerate(nodes):
            duration[rank, at] = row
            crosses[rank, at] = bool(messages)
            for number, message in enumerate(messages):
                other = sum(met[message]) - (rank * width + at)
                # What the other rank runs before it comes to the exchange.
                needs[number, rank, at] = other - 1 if other % width else -1
    pairs = steady.length // 2
    first = np.array([place[rank, w] for rank, w in enumerate(steady.cut - steady.length)])
    moved = Steady(cut=first + 2 * pairs, length=2 * pairs, window=2, period=2, unit=1)
    return _Nodes(needs, crosses, duration, place, moved)


def _waves(nodes: _Nodes, stuck: str) -> tuple[Ints, tuple[Wave, ...]]:
    """([p, width] rows, waves): a node is laid out once all that it needs is.

    Raises:
        ValueError: With the message ``stuck``, if none can be.
    """
    _, p, width = nodes.needs.shape
    level = _levels(nodes.needs, stuck)
    rank, at = np.divmod(np.arange(p * width), width)
    crosses, duration = nodes.crosses.ravel(), nodes.duration.ravel()
    order = np.lexsort((rank, ~crosses, level))
    row = np.zeros(p * width + 1, np.int64)  # the last element stands for "needs nothing"
    row[order] = np.arange(1, p * width + 1)
    needs = nodes.needs.reshape(len(nodes.needs), -1)[:, order]
    previous = np.where(at[order] > 0, row[order - 1], 0)
    inputs = np.concatenate([previous[None], row[needs]])
    starts = np.nonzero(np.diff(level[order], prepend=0))[0]
    hops = np.add.reduceat(crosses[order].astype(np.int64), starts)
    stops = np.append(starts[1:], len(order))
    waves = tuple(
        Wave(start + 1, stop + 1, inputs[:, start:stop].copy(), many, duration[order[start:stop]])
        for start, stop, many in zip(starts.tolist(), stops.tolist(), hops.tolist(), strict=True)
    )
    return row[:-1].reshape(p, width), waves


def _levels(needs: Ints, stuck: str) -> Ints:
    """[p * width] how many nodes the longest chain of needs up to a node has, itself included.

    Raises:
        ValueError: With the message ``stuck``, if nodes wait for each other.
    """
    _, p, width = needs.shape
    wanted = needs.reshape(len(needs), -1).T.tolist()
    level, at = [0] * (p * width + 1), [0] * p  # the last element stands for "needs nothing"
    waiting: dict[int, list[int]] = {}
    ranks = list(range(p))
    while ranks:
        rank = ranks.pop()
        while at[rank] < width:
            node = rank * width + at[rank]
            behind = level[node - 1] if at[rank] else 0
            for need in wanted[node]:
                if need >= 0 and not level[need]:
                    waiting.setdefault(need, []).append(rank)
                    break
                behind = max(behind, level[need])
            else:
                level[node] = behind + 1
                at[rank] += 1
                ranks += waiting.pop(node, [])
                continue
            break
    if min(at) < width:
        raise ValueError(stuck)
    return np.array(level[:-1])
