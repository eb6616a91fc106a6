"""The order in which every pipeline rank runs its operations.

Notation used by the whole package: p ranks, v chunks per rank, S = p * v virtual stages with
index ``chunk * p + rank``, m micro-batches. Every rank runs n = m * v forwards and n backwards;
forward (or backward) number k of a rank is called its k-th, whatever else runs in between.

Sources: Megatron-LM ``core/pipeline_parallel/schedules.py`` and PyTorch
``torch/distributed/pipelining/schedules.py`` (1F1B, GPipe, Interleaved1F1B). Schedules that split
the backward are listed in `autopar_pp.zero_bubble`.
"""

from __future__ import annotations

from functools import cache, lru_cache

import numpy as np
from attrs import field, frozen
from numpy.typing import NDArray

from autopar_pp import zero_bubble
from autopar_pp.zero_bubble import BACKWARD, FORWARD, INPUT, NOTHING, SPLIT, Listed


Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]

SCHEDULES = ("1f1b", "interleaved", "gpipe", *SPLIT)


def _frozen_array(array: NDArray[np.generic]) -> NDArray[np.generic]:
    """Marks an array read-only: cached objects are shared by every caller."""
    array.setflags(write=False)
    return array


@frozen(eq=False, kw_only=True)
class Steady:
    """The part of a schedule that repeats itself.

    Attributes:
        cut: [p] position after the last repetition on each rank. Whatever runs later refers to
            operations of the last ``window`` positions before it, or to later ones.
        length: Positions before the cut that repeat, on the rank with the fewest.
        window: Positions.
        period: Positions of one repetition.
        unit: Micro-batches of one repetition.
    """

    cut: Ints = field(converter=_frozen_array)
    length: int
    window: int
    period: int
    unit: int


@frozen(eq=False, kw_only=True)
class Order:
    """What each rank runs, one row per rank, one column per position.

    Attributes:
        kind: [p, L] FORWARD, BACKWARD, INPUT or WEIGHT gradient, or NOTHING at the end of a
            rank with fewer operations than others.
        micro_batch: [p, L] micro-batch, from 0.
        chunk: [p, L] chunk of the rank, from 0.
        chunks: Chunks per rank.
        micro_batches: Micro-batches.
        warm_up: [p] forwards before the first backward.
        mirrored: Every second chunk runs through the ranks from the last to the first.
        steady: Its repeating part.
    """

    kind: Ints = field(converter=_frozen_array)
    micro_batch: Ints = field(converter=_frozen_array)
    chunk: Ints = field(converter=_frozen_array)
    chunks: int
    micro_batches: int
    warm_up: Ints = field(converter=_frozen_array)
    mirrored: bool
    steady: Steady

    @property
    def backward(self) -> Bools:
        """[p, L] operations that take a gradient in and send one on."""
        return np.asarray((self.kind == BACKWARD) | (self.kind == INPUT))

    @property
    def stage(self) -> Ints:
        """[p, L] virtual stage (index ``chunk * p + rank``) of every operation."""
        ranks = len(self.kind)
        return np.asarray(self.chunk * ranks + np.arange(ranks)[:, None])


def group_size(schedule: str, p: int, v: int, m: int, wanted: int = 0) -> int:
    """Micro-batches run on one chunk in a row.

    Args:
        schedule: One of `SCHEDULES`.
        p: Ranks.
        v: Chunks per rank.
        m: Micro-batches.
        wanted: Megatron's ``microbatch_group_size_per_vp_stage``; 0 for the default.

    Returns:
        ``m // max(1, m // p)`` for several chunks, as torch does (Megatron's default p when p
        divides m), and 1 for one chunk, where grouping has no effect.

    Raises:
        ValueError: For a combination that no framework runs: an unknown schedule, several chunks
            where the schedule has one, micro-batches that do not split into equal groups (torch
            refuses them at start), or a group size that Megatron refuses: outside p..m, or with
            fewer than p micro-batches in the last group.
    """
    if schedule not in SCHEDULES:
        raise ValueError(f"unknown schedule {schedule!r}; known: {', '.join(SCHEDULES)}")
    if min(p, v, m) < 1:
        raise ValueError(f"p, v and m must be at least 1, got p={p}, v={v}, m={m}")
    if schedule in SPLIT:
        zero_bubble.check(schedule, p, v, m)
        return 1
    if v == 1:
        return 1
    if schedule != "interleaved":
        raise ValueError(f"schedule {schedule!r} runs one chunk per rank, got v={v}")
    if wanted:
        if not p <= wanted <= m or 0 < m % wanted < p:
            raise ValueError(
                f"interleaved: groups of {wanted} do not suit {m} micro-batches (p={p})"
            )
        return wanted
    rounds = max(1, m // p)
    if m % rounds:
        raise ValueError(
            f"interleaved: {m} micro-batches do not split into {rounds} equal groups (p={p})"
        )
    return m // rounds


@cache
def order(schedule: str, p: int, v: int, m: int) -> Order:
    """The order of one schedule; see `group_size` for arguments and errors."""
    return grouped_order(schedule, p, v, m, group_size(schedule, p, v, m))


@lru_cache(maxsize=128)
def grouped_order(schedule: str, p: int, v: int, m: int, group: int) -> Order:
    """As `order`, with the group size given: it is kept when m is shortened or lengthened.

    Args:
        schedule: One of `SCHEDULES`.
        p: Ranks.
        v: Chunks per rank.
        m: Micro-batches; the last group may be smaller than the others.
        group: Micro-batches run on one chunk in a row.
    """
    if schedule in SPLIT:
        return _from_lists(zero_bubble.listed(schedule, p, m), p, m)
    n = m * v
    warm = warm_up(schedule, p, v, m, group)
    forward, backward = positions(n, warm)
    micro_batch, chunk = _sequence(n, v, group)
    rank = np.arange(p)[:, None]
    kind = np.full((p, 2 * n), FORWARD, np.int64)
    micro_batches, chunks = np.empty((2, p, 2 * n), np.int64)
    kind[rank, backward] = BACKWARD
    for at, chunk_of_k in ((forward, chunk), (backward, v - 1 - chunk)):
        micro_batches[rank, at] = micro_batch
        chunks[rank, at] = chunk_of_k
    # Rank 0 runs the fewest pairs; those of a smaller last group are not like the others.
    pairs = n - m % group * v - int(warm[0])
    steady = Steady(cut=warm + 2 * pairs, length=2 * pairs, window=2 * group,
                    period=2 * group * v, unit=group)  # fmt: skip
    return Order(kind=kind, micro_batch=micro_batches, chunk=chunks, chunks=v, micro_batches=m,
                 warm_up=warm, mirrored=False, steady=steady)  # fmt: skip


def _sequence(n: int, v: int, group: int) -> tuple[Ints, Ints]:
    """(micro-batch, chunk) of the k-th forward: group by group over all chunks."""
    k, m = np.arange(n), n // v
    whole = m // group * group
    rest = max(1, m - whole)
    late = k - whole * v
    micro_batch = np.where(late < 0, k // (group * v) * group + k % group, whole + late % rest)
    chunk = np.where(late < 0, k // group % v, late // rest)
    return micro_batch, chunk


def _from_lists(lists: Listed, p: int, m: int) -> Order:
    """The order of schedules that are given as lists of (kind, chunk, micro-batch)."""
    length = max(map(len, lists.ranks))
    table = np.zeros((p, length, 3), np.int64)
    table[:, :, 0] = NOTHING
    for rank, operations in enumerate(lists.ranks):
        table[rank, : len(operations)] = operations
    kind, chunk, micro_batch = (np.ascontiguousarray(table[:, :, i]) for i in range(3))
    first = np.array([int(np.nonzero(row != FORWARD)[0][0]) for row in kind])
    steady = Steady(cut=np.array(lists.cut), length=lists.length, window=lists.period,
                    period=lists.period, unit=1)  # fmt: skip
    return Order(kind=kind, micro_batch=micro_batch, chunk=chunk, chunks=lists.chunks,
                 micro_batches=m, warm_up=first, mirrored=lists.chunks == 2, steady=steady)  # fmt: skip


def warm_up(schedule: str, p: int, v: int, m: int, group: int) -> Ints:
    """[p] forwards that each rank runs before it starts to alternate."""
    rank = np.arange(p)
    if schedule == "gpipe" and p > 1:
        return np.full(p, m * v)
    # Interleaved waits for two hops per rank below, since both directions pass every chunk.
    ahead = p - 1 - rank if v == 1 else (v - 1) * group + 2 * (p - 1 - rank)
    return np.minimum(ahead, m * v)


def positions(n: int, warm: Ints) -> tuple[Ints, Ints]:
    """Where the k-th forward and the k-th backward stand in their rank's list.

    Args:
        n: Forwards (and backwards) per rank.
        warm: [p] warm-up forwards.

    Returns:
        Two arrays [p, n]: warm-up, then pairs "forward w+k, backward k", then backwards.
    """
    k = np.arange(n)
    w = warm[:, None]
    forward = np.where(k < w, k, 2 * k - w)
    backward = np.where(k < n - w, w + 2 * k + 1, n + k)
    return forward, backward


def model_order(p: int, v: int, mirrored: bool) -> Ints:
    """[S] virtual stages (index ``chunk * p + rank``) in the order of the model's layers."""
    stages = np.arange(p * v).reshape(v, p)
    if mirrored:
        stages[1::2] = stages[1::2, ::-1].copy()
    return stages.reshape(-1)


def producers(run: Order) -> Ints:
    """[p, L] node (rank * L + position) whose message each operation needs, or -1.

    A forward needs the one of the virtual stage before, a backward that of the stage behind; on
    the last stage it needs its own forward. Weight gradients follow their own rank's backward,
    which stands before them in its list.
    """
    p, length = run.kind.shape
    node = np.arange(p * length).reshape(p, length)
    places = model_order(p, run.chunks, run.mirrored)
    stages = len(places)
    position = np.empty(stages, np.int64)
    position[places] = np.arange(stages)
    at = position[run.stage]
    # One row more at either end: the first forward needs nothing, the last stage turns round.
    forward = np.full((stages + 1, run.micro_batches), -1, np.int64)
    back = np.full((stages + 1, run.micro_batches), -1, np.int64)
    is_forward, is_back = run.kind == FORWARD, run.backward
    forward[at[is_forward] + 1, run.micro_batch[is_forward]] = node[is_forward]
    back[at[is_back], run.micro_batch[is_back]] = node[is_back]
    back[stages] = forward[stages]
    need = np.where(is_forward, forward[at, run.micro_batch], -1)
    return np.where(is_back, back[at + 1, run.micro_batch], need)
