"""Numbers as people read them; the files for programs hold bytes and seconds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from autopar_core.domain.result import Detail
from autopar_core.units import many


GIB = 2**30


def gib(value: float, digits: int = 2) -> str:
    """Bytes, ``"71.25 GiB"``; whole MiB where GiB would round to nothing."""
    if 0 < abs(value) < 0.01 * GIB:
        return f"{value / 2**20:.{digits}f} MiB"
    return f"{value / GIB:,.{digits}f} GiB"


def seconds(value: float) -> str:
    """Seconds with three significant digits, ``"12.3 s"``, ``"45.6 ms"``; none below 1 ns."""
    if not math.isfinite(value):
        return "-"
    if abs(value) < 1e-9:
        return "0 s"
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if abs(value) >= size:
            return f"{value / size:,.{max(0, 2 - _power(value / size))}f} {unit}"
    return f"{value * 1e6:.{max(0, 2 - _power(value * 1e6))}f} us"


def hidden(value: float) -> str:
    """Seconds that compute covers; empty when there are none but rounding's."""
    return seconds(value) if abs(value) >= 1e-9 else ""


def _power(value: float) -> int:
    return math.floor(math.log10(abs(value))) if value else 0


def count(value: float) -> str:
    """A whole number with separators, ``"1,234"``."""
    return f"{int(value):,}" if math.isfinite(value) else "-"


def candidates(value: float) -> str:
    """A number of them, ``"1 candidate"``, ``"1,234 candidates"``."""
    return several(value, "candidate")


def several(value: float, noun: str) -> str:
    """A number of anything, ``"1 device"``, ``"1,234 devices"``."""
    return f"{count(value)} {noun if value == 1 else many(noun)}"


def percent(value: float, digits: int = 1) -> str:
    """A share as percent, ``"43.2 %"``."""
    return f"{100 * value:.{digits}f} %" if math.isfinite(value) else "-"


def large(value: float) -> str:
    """A count with a unit, ``"70.55 billion"``."""
    for unit, size in (("trillion", 1e12), ("billion", 1e9), ("million", 1e6)):
        if value >= size:
            return f"{value / size:.2f} {unit}"
    return count(value)


def stages(values: Sequence[Any]) -> str:
    """Layers of each stage, runs shortened, ``"4 x 20, 19"``; chunks apart."""
    if values and isinstance(values[0], (list, tuple)):
        return " | ".join(stages(chunk) for chunk in values)
    runs = [(value, len(list(run))) for value, run in groupby(values)]
    return ", ".join(f"{n} x {value}" if n > 1 else str(value) for value, n in runs)


def stage_totals(values: Sequence[Any]) -> str:
    """Layers of each stage, chunks of a stage added up, runs shortened."""
    if values and isinstance(values[0], (list, tuple)):
        return stages([sum(chunks) for chunks in zip(*values, strict=True)])
    return stages(values)


def recompute(modes: Mapping[str, Sequence[Any]]) -> str:
    """Recomputed layers by mode, ``"full 4 x 2"``; ``"none"`` when no layer is."""
    used = [f"{mode} {stages(n)}" for mode, n in modes.items() if any(_flat(n))]
    return "; ".join(used) or "none"


def _flat(values: Sequence[Any]) -> list[Any]:
    return [one for v in values for one in (_flat(v) if isinstance(v, (list, tuple)) else [v])]


def recompute_total(modes: Mapping[str, Sequence[Any]]) -> str:
    """Recomputed layers by mode over all stages, ``"full 8"``; ``"none"`` when no layer is."""
    used = [f"{mode} {sum(_flat(n))}" for mode, n in modes.items() if any(_flat(n))]
    return ", ".join(used) or "none"


def partition(detail: Detail) -> str:
    """What the search for layers of each stage brought; empty where they were given."""
    if detail.partition_gap is None:
        return ""
    gap = f"no other partition is more than {percent(detail.partition_gap)} faster"
    if detail.partition_gain is None:
        return f"Layers of place 1: the even split does not fit; {gap}."
    return f"Layers of place 1: partition gain over even split: {percent(detail.partition_gain)}; {gap}."
