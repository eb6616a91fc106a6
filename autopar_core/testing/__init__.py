"""Test kit for plugin authors: conformance classes for pytest, a small job, searches in process.

```python
from autopar_core.testing import DimensionConformance


class TestTp(DimensionConformance):
    plugin = "tp"
```
"""

from __future__ import annotations

from autopar_core.testing.bench import SMALL_JOB, Bench, run_search
from autopar_core.testing.dimension import DimensionConformance
from autopar_core.testing.framework import AskedRule, FrameworkBench
from autopar_core.testing.ranker import RankerConformance
from autopar_core.testing.round_trip import (
    Space,
    exported,
    read_back,
    requests,
    same_job,
    same_strategy,
)


__all__ = [
    "SMALL_JOB",
    "AskedRule",
    "Bench",
    "DimensionConformance",
    "FrameworkBench",
    "RankerConformance",
    "Space",
    "exported",
    "read_back",
    "requests",
    "run_search",
    "same_job",
    "same_strategy",
]
