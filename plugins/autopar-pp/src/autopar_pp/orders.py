"""The order in which every pipeline rank runs its forwards and backwards.

Notation used by the whole package: p ranks, v chunks per rank, S = p * v virtual stages with
index ``chunk * p + rank``, m micro-batches. Every rank runs n = m * v forwards and n backwards;
forward (or backward) number k of a rank is called its k-th, whatever else runs in between.

Sources: Megatron-LM ``core/pipeline_parallel/schedules.py`` and PyTorch
``torch/distributed/pipelining/schedules.py`` (1F1B, GPipe, Interleaved1F1B).
"""

from __future__ import annotations

from functools import cache, lru_cache

import numpy as np
from attrs import field, frozen
from numpy.typing import NDArray


Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]

SCHEDULES = ("1f1b", "interleaved", "gpipe")


def _frozen_array(array: NDArray[np.generic]) -> NDArray[np.generic]:
    """Marks an array read-only: cached objects are shared by every caller."""
    array.setflags(write=False)
    return array


@frozen(eq=False)
class Order:
    """What each rank runs, one row per rank, one column per position.

    Attributes:
        backward: [p, 2n] whether the operation is a backward.
        micro_batch: [p, 2n] micro-batch, from 0.
        chunk: [p, 2n] chunk of the rank, from 0.
        warm_up: [p] forwards before the first forward-backward pair.
        group: Micro-batches a rank runs on one chunk before it turns to the next.
    """

    backward: Bools = field(converter=_frozen_array)
    micro_batch: Ints = field(converter=_frozen_array)
    chunk: Ints = field(converter=_frozen_array)
    warm_up: Ints = field(converter=_frozen_array)
    group: int


def group_size(schedule: str, p: int, v: int, m: int) -> int:
    """Micro-batches run on one chunk in a row.

    Args:
        schedule: One of `SCHEDULES`.
        p: Ranks.
        v: Chunks per rank.
        m: Micro-batches.

    Returns:
        ``m // max(1, m // p)`` for several chunks, as torch does (Megatron's default p when p
        divides m), and 1 for one chunk, where grouping has no effect.

    Raises:
        ValueError: For a combination that no framework runs: an unknown schedule, several chunks
            without "interleaved", or micro-batches that do not split into equal groups (torch
            refuses them at start; in Megatron's order they can dead-lock).
    """
    if schedule not in SCHEDULES:
        raise ValueError(f"unknown schedule {schedule!r}; known: {', '.join(SCHEDULES)}")
    if min(p, v, m) < 1:
        raise ValueError(f"p, v and m must be at least 1, got p={p}, v={v}, m={m}")
    if v == 1:
        return 1
    if schedule != "interleaved":
        raise ValueError(f"schedule {schedule!r} runs one chunk per rank, got v={v}")
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
        m: Micro-batches, a multiple of ``group``.
        group: Micro-batches run on one chunk in a row.
    """
    n = m * v
    warm = warm_up(schedule, p, v, m, group)
    forward, backward = positions(n, warm)
    k = np.arange(n)
    chunk = k // group % v
    micro_batch = k // (group * v) * group + k % group
    rank = np.arange(p)[:, None]
    is_backward = np.zeros((p, 2 * n), np.bool_)
    micro_batches, chunks = np.empty((2, p, 2 * n), np.int64)
    is_backward[rank, backward] = True
    for at, chunk_of_k in ((forward, chunk), (backward, v - 1 - chunk)):
        micro_batches[rank, at] = micro_batch
        chunks[rank, at] = chunk_of_k
    return Order(is_backward, micro_batches, chunks, warm, group)


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


def producers(run: Order) -> Ints:
    """[p, 2n] node (rank * 2n + position) whose message each operation needs, or -1.

    Ranks run the same sequence of forwards and of backwards, so the k-th of a rank comes from
    the k-th of its neighbour; where a chunk ends it comes from the end of the other side, one
    group earlier in that sequence.
    """
    p, length = run.backward.shape
    n, v = length // 2, int(run.chunk.max()) + 1
    forward, backward = positions(n, run.warm_up)
    rank, k = np.arange(p)[:, None], np.arange(n)
    node_f, node_b = rank * length + forward, rank * length + backward
    back = np.maximum(k - run.group, 0)
    first_chunk = k // run.group % v == 0
    need_f, need_b = np.empty_like(node_f), np.empty_like(node_b)
    need_f[1:] = node_f[:-1]
    need_f[0] = np.where(first_chunk, -1, node_f[-1, back])
    need_b[:-1] = node_b[1:]
    # The last chunk is the first to run backwards: it turns round its own forward.
    own = np.minimum(k + (v - 1) * run.group, n - 1)
    need_b[-1] = np.where(first_chunk, node_f[-1, own], node_b[0, back])
    need = np.empty((p, length), np.int64)
    need[rank, forward] = need_f
    need[rank, backward] = need_b
    return need
