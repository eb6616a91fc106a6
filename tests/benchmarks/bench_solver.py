"""Prints how long layers and recompute of one candidate take; asserts nothing.

``python3 dev.py run`` cannot run it: use ``.venv/bin/python tests/benchmarks/bench_solver.py``.
"""

from __future__ import annotations

import os
import sys
import time
from functools import partial
from pathlib import Path


# One thread: what is measured is one process.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "core"))

LAYERS, RANKS = 128, 16
# Candidates that share a schedule key, as a search hands them over.
CANDIDATES = 64


def main() -> None:
    """CPU milliseconds per candidate at 16 ranks and 128 layers, with budgets from tight to loose."""
    import numpy as np
    from attrs import evolve
    from pipelines import pipeline

    from autopar_core.domain.space import Plan
    from autopar_core.search.solve import solve
    from autopar_core.search.survey import survey

    for framework in ("generic", "megatron"):
        for chunks, m in ((1, 64), (1, 256), (2, 64), (4, 64)):
            one = pipeline(
                framework, layers=LAYERS, ranks=RANKS, chunks=chunks, m=m, vocab=128256, hidden=8192,
                seq=8192,
            )  # fmt: skip
            shares = np.random.default_rng(0).uniform(0.3, 0.55, CANDIDATES)
            many = evolve(
                one.take(np.zeros(CANDIDATES, np.int64)), budget=np.floor(one.budget[0] * shares)
            )
            solve(many.take(np.arange(2)), Plan(), Plan())
            took = []
            for run in (survey, partial(solve, thorough=False), solve):
                start = time.process_time()
                found = run(many, Plan(), Plan())
                took.append(1e3 * (time.process_time() - start) / CANDIDATES)
            fits = int((found.peaks <= many.budget[:, None]).all(axis=1).sum())
            print(
                f"{framework}, {chunks} chunks, {m} micro-batches: {took[0]:.2f} ms balanced, "
                f"{took[1]:.2f} ms searched, {took[2]:.2f} ms cell by cell; {fits} of {CANDIDATES} fit"
            )


if __name__ == "__main__":
    main()
