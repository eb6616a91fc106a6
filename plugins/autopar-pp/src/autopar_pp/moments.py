"""The memory situations that each pipeline rank passes through during a step.

Which micro-batches are alive, and which chunks hold unsharded parameters or accumulated
gradients, depends on the schedule only. A rank repeats few distinct situations; those that
another one exceeds in every respect can never be the peak and are dropped.

Source: order of operations as in `autopar_pp.orders`; a chunk's gradients are reduced right
after its last backward (its last weight gradient, where the backward is split) when a rank has
several chunks, and at the end of the step otherwise (torchtitan's pipeline runtime).
"""

from __future__ import annotations

from functools import cache

import numpy as np
from attrs import fields_dict, frozen
from numpy.typing import NDArray

from autopar_pp import zero_bubble
from autopar_pp.orders import Bools, Ints, Order, group_size, grouped_order
from autopar_pp.zero_bubble import NOTHING, SPLIT


FORWARD_END, BACKWARD, END_OF_STEP, INPUT_GRADIENT, WEIGHT_GRADIENT = range(5)
# Kind of an operation -> kind of the situation during it.
_SITUATION = np.array([FORWARD_END, BACKWARD, INPUT_GRADIENT, WEIGHT_GRADIENT])


@frozen(eq=False)
class Moments:
    """M situations of all p ranks, sorted by rank, kind and chunk.

    Attributes:
        rank: [M] pipeline rank.
        kind: [M] 0 end of a forward, 1 during a backward, 2 end of the step, 3 during the backward
            of the inputs alone, 4 during that of the weights.
        chunk: [M] chunk whose block runs.
        in_flight: [M, v] micro-batches whose activations are alive, the current one included.
        pending: [M, v] micro-batches whose weight gradients are still to be computed, the current
            one included.
        first: [M] no backward of this chunk has finished before.
        entered: [M, v] the chunk has run a forward and is not reduced.
        accumulated: [M, v] the chunk has finished a backward and is not reduced.
        reduced: [M, v] all backwards of the chunk are done and its gradients reduced (v > 1).
        sent: [M] the rank has finished a backward.
    """

    rank: Ints
    kind: Ints
    chunk: Ints
    in_flight: Ints
    pending: Ints
    first: Bools
    entered: Bools
    accumulated: Bools
    reduced: Bools
    sent: Bools

    def __len__(self) -> int:
        """Number of situations M."""
        return len(self.rank)

    def take(self, rows: NDArray[np.generic]) -> Moments:
        """The situations at some rows (indices or a mask)."""
        return Moments(**{name: getattr(self, name)[rows] for name in fields_dict(Moments)})


@cache
def moments(schedule: str, p: int, v: int, m: int, group: int = 0) -> Moments:
    """The distinct situations of every rank that no other situation exceeds.

    Args:
        schedule: One of `autopar_pp.orders.SCHEDULES`.
        p: Ranks. One rank means no pipeline: forward and backward alternate, gradients are
            reduced in every micro-batch, so nothing counts as accumulated, reduced or sent.
        v: Chunks per rank, 1 when p is 1.
        m: Micro-batches.
        group: Megatron's group size for interleaving; 0 for the default.

    Returns:
        Read-only arrays; their number does not grow with m.

    Raises:
        ValueError: As `autopar_pp.orders.group_size`, and for several chunks on one rank.
    """
    group = group_size(schedule, p, v, m, group)
    if p == 1:
        found = _without_pipeline(v, m)
    else:
        # Every rank of GPipe runs the same list, so the first of two stands for all.
        same = schedule == "gpipe"
        run = grouped_order(schedule, 2 if same else p, v, enough(schedule, p, v, m, group), group)
        walked = prune(distinct(walk(run, 1 if same else p)))
        found = _with_end_of_step(_every_rank(walked, p) if same else walked, p, v)
    for name in fields_dict(Moments):
        getattr(found, name).setflags(write=False)
    return found


def enough(schedule: str, p: int, v: int, m: int, group: int) -> int:
    """Micro-batches that already show every situation of m micro-batches.

    Args:
        schedule: One of `autopar_pp.orders.SCHEDULES`.
        p: Ranks.
        v: Chunks per rank.
        m: Micro-batches.
        group: Micro-batches run on one chunk in a row.

    Returns:
        m itself for GPipe (all m stay alive). 1F1B repeats one pair once the p - 1 warm-up
        forwards are over. Interleaved repeats a group over all chunks; its warm-up is shorter
        than two groups, then one passes until all chunks have accumulated, and one whole
        steady group follows: four in all, and a smaller last one. ZB-H1 repeats itself once p - 1
        weight gradients wait, the V-shaped schedules from micro-batch 2 p on.
    """
    if schedule == "gpipe":
        return m
    if schedule in SPLIT:
        return min(m, 4 * p)
    return min(m, p + 2 if v == 1 else 4 * group + m % group)


def walk(run: Order, ranks: int) -> Moments:
    """Every operation of the first ranks of an order, as situations (before pruning)."""
    there = run.kind[:ranks] != NOTHING
    kind = run.kind[:ranks, :, None]
    v, m = run.chunks, run.micro_batches
    mine = (run.chunk[:ranks, :, None] == np.arange(v)) & there[:, :, None]
    forward = mine & (kind == zero_bubble.FORWARD)
    gradient = mine & run.backward[:ranks, :, None]
    finished = mine & ((kind == zero_bubble.BACKWARD) | (kind == zero_bubble.WEIGHT))
    started = np.cumsum(forward, axis=1, dtype=np.int64)
    # What has finished before this operation: the current one still holds its activations.
    left = np.cumsum(gradient, axis=1, dtype=np.int64) - gradient
    done = np.cumsum(finished, axis=1, dtype=np.int64) - finished
    reduced = (done == m) & (v > 1)
    rank = np.broadcast_to(np.arange(ranks)[:, None], there.shape)
    first = np.where(kind == zero_bubble.WEIGHT, done, left)
    return Moments(
        rank=rank[there],
        kind=_SITUATION[run.kind[:ranks][there]],
        chunk=run.chunk[:ranks][there],
        in_flight=(started - left)[there],
        pending=(left - done)[there],
        first=((first * mine).sum(axis=2) == 0)[there],
        entered=((started > 0) & ~reduced)[there],
        accumulated=((done > 0) & ~reduced)[there],
        reduced=reduced[there],
        sent=(left.sum(axis=2) > 0)[there],
    )


def distinct(found: Moments) -> Moments:
    """One of each situation, sorted by the attributes in their order."""
    key, span = np.zeros(len(found), np.int64), 1
    for name in fields_dict(Moments):
        for column in getattr(found, name).reshape(len(found), -1).T:
            radix = int(column.max()) + 1
            if span * radix >= 2**62:  # renumber, so that the mixed-radix key stays exact
                key = np.unique(key, return_inverse=True)[1].astype(np.int64)
                span = int(key.max()) + 1
            key = key * radix + column
            span *= radix
    return found.take(np.unique(key, return_index=True)[1])


def prune(found: Moments) -> Moments:
    """Drops situations that another one of the same rank, kind and chunk exceeds or equals.

    Exceeding means at least as many micro-batches of every chunk in flight and at least as many
    pending, at least the same chunks entered and accumulated, the same chunks reduced, and sent
    if the other was. What runs until the first backward of a chunk and after it is kept apart:
    gradient buffers differ. In a backward, whether the chunk's own gradients are accumulated is the
    same distinction.
    """
    current = (found.kind == BACKWARD) | (found.kind == INPUT_GRADIENT)
    own = found.accumulated[np.arange(len(found)), found.chunk]
    group = np.stack([found.rank, found.kind, found.chunk, found.first, own & current])
    label = np.unique(group, axis=1, return_inverse=True)[1].ravel()
    level = np.hstack([found.in_flight, found.pending, found.entered, found.accumulated,
                       found.reduced, ~found.reduced, found.sent[:, None]])  # fmt: skip
    # Within a group, whatever has the largest sum is exceeded by nothing: keep it, drop what it
    # covers (its equals too), repeat with the rest. Few survive, so few repeats are needed.
    descending = np.lexsort((-level.sum(axis=1, dtype=np.int64), label))
    keep: list[int] = []
    for rest in np.split(descending, np.flatnonzero(np.diff(label[descending])) + 1):
        while rest.size:
            keep.append(int(rest[0]))
            rest = rest[(level[rest] > level[rest[0]]).any(axis=1)]
    return found.take(np.sort(np.array(keep)))


def one_stage(m: int) -> Moments:
    """One rank without a pipeline: every forward and backward in turn."""
    rows = np.arange(2 * m)
    # A later forward meets everything that the first one does, and the earlier gradients.
    return _single(rows % 2, rows < 2)


def _without_pipeline(v: int, m: int) -> Moments:
    """One rank: a first forward and backward and, with several micro-batches, later ones."""
    if v > 1:
        raise ValueError(f"one rank has no pipeline to interleave, got v={v}")
    return one_stage(min(m, 2))


def _single(kind: Ints, first: Bools) -> Moments:
    zero, no = np.zeros(len(first), np.int64), np.zeros(len(first), np.bool_)
    columns, nothing = np.ones((len(first), 1), np.int64), no[:, None]
    return Moments(zero, kind, zero, columns, 0 * columns, first, columns > 0, nothing, nothing, no)


def _every_rank(found: Moments, p: int) -> Moments:
    """Repeats the situations of rank 0 on p ranks."""
    rows = np.tile(np.arange(len(found)), p)
    repeated = {name: getattr(found, name)[rows] for name in fields_dict(Moments)}
    return Moments(**(repeated | {"rank": np.repeat(np.arange(p), len(found))}))


def _with_end_of_step(found: Moments, p: int, v: int) -> Moments:
    """Adds, per rank, the end of the step: nothing in flight, all gradients accumulated, or reduced
    where a rank has several chunks."""
    yes, zero, none = np.ones((p, v), np.bool_), np.zeros(p, np.int64), np.zeros((p, v), np.int64)
    one, several = yes & (v == 1), yes & (v > 1)
    end = Moments(np.arange(p), zero + END_OF_STEP, zero, none, none, ~yes[:, 0],
                  one, one, several, yes[:, 0])  # fmt: skip
    both = {n: np.concatenate([getattr(found, n), getattr(end, n)]) for n in fields_dict(Moments)}
    joined = Moments(**both)
    return joined.take(np.lexsort((joined.kind, joined.rank)))
