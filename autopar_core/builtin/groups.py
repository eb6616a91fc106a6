"""Parts put into few groups with names, for bars that people can read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from autopar_core.api import Detail, SearchResult, TimePart


OTHER, IDLE, COMPUTE, HOST = "other", "idle", "compute", "host"
CORE_OWNERS = ("", "core")


def stack(
    bars: Sequence[Iterable[tuple[str, Any]]],
    groups: int,
    order: Callable[[str], Any] | None = None,
) -> tuple[list[str], list[list[Any]]]:
    """(names, values[name][bar]): parts of equal name summed, small groups in ``other``.

    Values are never negative and each bar keeps its sum: a negative part (a tensor shared with a
    counted one) is taken off ``other``, then off the largest group of its bar.
    """
    sums: list[dict[str, Any]] = []
    for bar in bars:
        one: dict[str, Any] = {}
        for name, value in bar:
            one[name] = one.get(name, 0) + value
        sums.append(one)
    largest: dict[str, Any] = {}
    for one in sums:
        for name, value in one.items():
            largest[name] = max(largest.get(name, 0), value)
    ranked = sorted((n for n, v in largest.items() if v > 0), key=lambda n: (-largest[n], n))
    kept = ranked if len(ranked) <= groups + 1 else ranked[:groups]
    names = kept
    rows = [[max(0, one.get(name, 0)) for one in sums] for name in names]
    rest = [sum(one.values()) - sum(r[i] for r in rows) for i, one in enumerate(sums)]
    for i, value in enumerate(rest):
        while value < 0 and any(row[i] > 0 for row in rows):
            row = max(rows, key=lambda r: r[i])
            taken = min(-value, row[i])
            row[i] -= taken
            value += taken
        rest[i] = value
    floats = any(isinstance(value, float) for value in rest)
    dust = 1e-9 * max((abs(sum(one.values())) for one in sums), default=0) if floats else 0
    if any(value > dust for value in rest):
        if OTHER in names:
            row = rows[names.index(OTHER)]
            row[:] = [a + b for a, b in zip(row, rest, strict=True)]
        else:
            names, rows = [*names, OTHER], [*rows, rest]
    if order:
        pairs = sorted(zip(names, rows, strict=True), key=lambda pair: order(pair[0]))
        names, rows = [name for name, _ in pairs], [row for _, row in pairs]
    return names, rows


def time_group(part: TimePart) -> str:
    """Whose time a part is, for people: compute, a plugin, the host, or nobody's."""
    name = part.name.lower()
    if IDLE in name or "bubble" in name:
        return IDLE
    if part.resource == HOST:
        return HOST
    return COMPUTE if part.owner in CORE_OWNERS else str(part.owner)


def time_order(result: SearchResult) -> Callable[[str], Any]:
    """Compute first, then dimensions in output order, other plugins, host, idle."""
    known = [COMPUTE, *(dimension.name for dimension in result.dimensions)]
    last = [HOST, OTHER, IDLE]

    def key(name: str) -> tuple[int, int, str]:
        if name in last:
            return (2, last.index(name), name)
        return (0, known.index(name), name) if name in known else (1, 0, name)

    return key


def memory_parts(detail: Detail, rank: int) -> list[tuple[str, int]]:
    stages = [stage for stage in detail.memory.stages if stage.rank == rank]
    parts = [part for stage in stages for part in stage.parts] + list(detail.memory.reserves)
    return [
        (f"{p.name} ({p.owner})" if p.owner not in CORE_OWNERS else p.name, p.bytes) for p in parts
    ]
