"""Prints the speed and size of a search of about a million candidates; asserts nothing.

``python3 dev.py run`` cannot run it: use ``.venv/bin/python tests/benchmarks/bench_search.py [WORKERS]``.
"""

from __future__ import annotations

import os
import resource
import sys
import time


# One thread per process: the search brings its own processes.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

INPUT = {
    "model": {"source": "llama-3.1-405b"},
    "training": {"global_batch_size": 4096, "seq_len": 16384},
    "cluster": {"system": "h100-sxm-80gb", "devices": 16384},
    "framework": {"name": "generic"},
    "search": {
        "shard_degree": [8, 16, 32, 64, 128, 256, 512, 1024],
        "layer_recompute": ["auto", "none", "full"],
    },
}


def main() -> None:
    """Search, then print candidates, seconds, and memory of the process and its workers."""
    from autopar_core import builtin
    from autopar_core.config.load import load_job
    from autopar_core.config.overrides import Overrides
    from autopar_core.plugins import PluginManager
    from autopar_core.search.run import search

    workers = int(sys.argv[1]) if len(sys.argv) > 1 else 0
    manager = PluginManager.load(extra=(("builtin", builtin),))
    job = load_job(None, INPUT, Overrides(), manager)
    start, cpu = time.perf_counter(), _cpu_seconds()
    result = search(job, manager, workers=workers)
    wall, cpu = time.perf_counter() - start, _cpu_seconds() - cpu
    rows = len(result.batch)
    print(f"space {result.space_size:,}, estimated {rows:,}, feasible {result.feasible_count:,}")
    print(f"exact {int(result.exact.sum())}, Pareto front {len(result.pareto)}")
    print(f"{wall:.1f} s, {cpu:.1f} CPU s, {rows / cpu:,.0f} estimated candidates per CPU second")
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    worker = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    print(f"peak resident: {own / 2**20:.2f} GiB here, {worker / 2**20:.2f} GiB in a worker")


def _cpu_seconds() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in used)


if __name__ == "__main__":
    main()
