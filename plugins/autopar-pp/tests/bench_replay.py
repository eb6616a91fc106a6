"""Prints timings of the pipeline functions: ``python bench_replay.py``. Nothing is asserted."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from autopar_pp.balance import balance
from autopar_pp.bounds import lower_bound
from autopar_pp.moments import moments
from autopar_pp.replay import replay


def best_of(call: Callable[[], object], repeats: int = 5) -> float:
    """Shortest of some runs, in milliseconds."""
    took = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        took.append(time.perf_counter() - start)
    return 1e3 * min(took)


def lines() -> Iterator[str]:
    """Times each function at the sizes a search meets."""
    rng = np.random.default_rng(0)
    for schedule, p, v, m, rows in (
        ("1f1b", 16, 1, 128, 256),
        ("1f1b", 8, 1, 1024, 4096),
        ("interleaved", 16, 4, 128, 256),
        ("interleaved", 8, 2, 512, 1024),
        ("gpipe", 16, 1, 128, 256),
        ("1f1b synchronous", 16, 1, 128, 256),
        ("zb-h1", 16, 1, 128, 256),
        ("zbv", 16, 2, 128, 256),
    ):
        f = rng.integers(3, 6, (rows, p * v)) + rng.uniform(0.0, 0.5, (rows, 1))
        f[:, -1] += rng.uniform(0.3, 2.0, rows)
        hop = 0.05 * rng.random(rows)
        name, _, how = schedule.partition(" ")
        options: dict[str, Any] = {"weight": f, "synchronous": bool(how)}
        exact_of = partial(replay, name, p, v, m, f, 2 * f, hop, **options)
        bound_of = partial(lower_bound, name, p, v, m, f, 2 * f, hop, **options)
        first = best_of(exact_of, 1)
        ratio = bound_of().max(axis=1) / exact_of().max(axis=1)
        yield (
            f"replay {schedule} p={p} v={v} m={m} K={rows}: {best_of(exact_of):.1f} ms"
            f" (first call {first:.0f} ms); bound {best_of(bound_of):.1f} ms,"
            f" tightness median {np.median(ratio):.4f}, worst {ratio.min():.4f}"
        )
    rows, stages = 65536, 16
    extra = rng.uniform(0.0, 2.0, (rows, stages))
    cap = rng.integers(4, 12, (rows, stages))
    took = best_of(partial(balance, 64, np.ones(rows), extra, cap))
    yield f"balance K={rows} S={stages} L=64: {took:.0f} ms"
    for sizes in (("1f1b", 64, 1, 2048), ("gpipe", 64, 1, 2048), ("interleaved", 16, 4, 128)):
        took = best_of(partial(moments.__wrapped__, *sizes))  # without the cache
        yield f"moments {sizes}: {took:.1f} ms, {len(moments(*sizes))} moments"


if __name__ == "__main__":
    for line in lines():
        sys.stdout.write(line + "\n")
