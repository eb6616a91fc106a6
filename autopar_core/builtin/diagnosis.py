"""What to say when nothing is feasible: how far off the nearest misses are, and what would help."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from autopar_core.api import Detail, SearchResult
from autopar_core.builtin import words
from autopar_core.builtin.tables import labels, reasons, scalar_fields


def excess_bytes(detail: Detail) -> int:
    """Bytes above the memory limit, 0 when it fits."""
    return max(0, detail.memory.total_bytes - detail.memory.limit_bytes)


def advice(result: SearchResult) -> list[str]:
    """Sentences for an empty answer, the change that costs least first; empty when one fits."""
    if result.top:
        return []
    return list(_advice(result))


def _advice(result: SearchResult) -> Iterator[str]:
    if not len(result.batch) and not len(result.cuts):
        names = [dimension.degree.name for dimension in result.dimensions]
        yield (
            f"No feasible strategy: no product of wanted degrees ({', '.join(names) or 'none'})"
            f" is the {words.several(result.job.cluster.devices, 'device')} of the cluster; widen a"
            " range, enable the plugin of another dimension, or change cluster.devices."
        )
        return
    judged = len(result.batch)
    yield (
        f"No feasible strategy: {words.candidates(judged)} {'was' if judged == 1 else 'were'} judged,"
        f" {words.count(result.cuts.stands_for)} fell before that."
    )
    over = sorted(
        (detail for detail in result.misses if excess_bytes(detail)),
        key=lambda detail: (excess_bytes(detail), detail.row),
    )
    if over:
        yield from _memory(result, over)
    for reason in reasons(result)[:3]:
        if not over or reason.code != _code(result, over[0]):
            yield (
                f"Rule {reason.code} took {words.candidates(reason.candidates)}: {reason.example}"
            )


def _memory(result: SearchResult, over: list[Detail]) -> Iterator[str]:
    nearest = over[0]
    memory = nearest.memory
    name = labels(result, [nearest])[0]
    yield (
        f"Nearest miss: {name} needs {words.gib(memory.total_bytes)} per device,"
        f" {words.gib(excess_bytes(nearest))} over the limit of {words.gib(memory.limit_bytes)}."
    )
    device = result.job.system.memory_bytes
    devices = result.job.cluster.devices * -(-memory.total_bytes // memory.limit_bytes)
    if memory.total_bytes <= device:
        yield (
            f"Least change: a memory_limit of {words.gib(memory.total_bytes)} admits it;"
            f" the device has {words.gib(device)}."
        )
    else:
        yield (
            f"The whole device has {words.gib(device)},"
            f" {words.gib(memory.total_bytes - device)} too little for it; if memory split evenly,"
            f" {words.several(devices, 'device')} would hold it under this limit."
        )
    parts = [part for s in memory.stages if s.rank == memory.worst_rank for part in s.parts]
    largest = sorted([*parts, *memory.reserves], key=lambda p: (-p.bytes, p.name))[:3]
    if largest:
        listed = ", ".join(f"{p.name} {words.gib(p.bytes)} ({p.owner})" for p in largest)
        yield f"Most of it on stage {memory.worst_rank}: {listed}."
    yield from _limited_fields(result)
    plans = set(result.recompute_plans)
    if plans and not plans & {"auto", "full"}:
        yield (
            f"Recompute was limited to {', '.join(sorted(plans))};"
            ' layer_recompute = "auto" may drop saved activations.'
        )


def _limited_fields(result: SearchResult) -> Iterator[str]:
    """Fields whose wanted values end where memory is still falling, steepest fall first."""
    judged = result.memory_bytes >= 0
    found = []
    for name, field in scalar_fields(result).items():
        if name not in result.job.space.wanted or field.choices or field.boolean:
            continue
        column = result.batch[name][judged]
        memory = result.memory_bytes[judged]
        values = np.unique(column)
        least = [int(memory[column == value].min()) for value in values]
        if len(values) == 1:
            found.append((0, f"{name} was fixed to {values[0]}; other values were not tried."))
        elif len(values) and np.argmin(least) in (0, len(values) - 1):
            best, other = (0, -1) if least[0] <= least[-1] else (-1, 0)
            if values[best] == 1:
                continue  # there is nothing below one
            found.append(
                (
                    least[best] - least[other],
                    f"Least memory falls from {words.gib(least[other])} at"
                    f" {name} {values[other]} to {words.gib(least[best])} at {values[best]},"
                    f" where search.{field.short} ends.",
                )
            )
    yield from (sentence for _, sentence in sorted(found))


def _code(result: SearchResult, detail: Detail) -> str:
    return result.verdicts.codes[int(result.verdicts.code[detail.row])]
