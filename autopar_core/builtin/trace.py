"""The timeline of a step as trace events for chrome://tracing and Perfetto.

Trace Event Format: complete events (``ph`` X) in microseconds with fractions, one process per rank,
and counters (``ph`` C) of its memory. Idle time is where nothing is.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from autopar_core.builtin.words import GIB
from autopar_core.domain import timeline as kinds
from autopar_core.domain.timeline import SEGMENT_KINDS, StepTimeline


MICRO = 1e6
_SHORT = {kinds.FORWARD: "F", kinds.BACKWARD: "B", kinds.WEIGHT: "W", kinds.RECOMPUTE: "R"}


def dump(timeline: StepTimeline, about: Mapping[str, Any]) -> bytes:
    """The whole trace, an event a line; ``about`` goes into ``otherData``."""
    data = {**about, "step_seconds": timeline.seconds, "bottleneck": timeline.bottleneck.sentence}
    lines = [json.dumps(event, ensure_ascii=False) for event in events(timeline)]
    head = json.dumps(data, ensure_ascii=False)
    body = ",\n".join(lines)
    text = f'{{"displayTimeUnit": "ms",\n"otherData": {head},\n"traceEvents": [\n{body}\n]}}\n'
    return text.encode()


def events(timeline: StepTimeline) -> Iterator[dict[str, Any]]:
    """Names of the ranks, what they do, and what they hold."""
    for rank in range(timeline.ranks):
        named = {"ph": "M", "pid": rank, "tid": 0}
        yield {**named, "name": "process_name", "args": {"name": f"rank {rank}"}}
        yield {**named, "name": "process_sort_index", "args": {"sort_index": rank}}
        yield {**named, "name": "thread_name", "args": {"name": "step"}}
    yield from _spans(timeline)
    trace = timeline.memory
    columns = zip(trace.rank.tolist(), trace.start.tolist(), trace.bytes.tolist(), strict=True)
    for rank, start, nbytes in columns:
        yield {
            "ph": "C", "pid": rank, "tid": 0, "name": "memory", "ts": start * MICRO,
            "args": {"GiB": nbytes / GIB},
        }  # fmt: skip


def _spans(timeline: StepTimeline) -> Iterator[dict[str, Any]]:
    found = timeline.segments
    columns = (found.rank, found.kind, found.start, found.end, found.chunk, found.micro_batch,
               found.part)  # fmt: skip
    rows = zip(*(column.tolist() for column in columns), strict=True)
    for rank, number, start, end, chunk, micro_batch, part in rows:
        kind = SEGMENT_KINDS[number]
        if kind == kinds.IDLE:
            continue
        arguments: dict[str, Any] = {}
        name = kind
        if micro_batch >= 0:
            name = f"{_SHORT.get(kind, kind)} {micro_batch + 1}"
            arguments = {"micro_batch": micro_batch + 1, "chunk": chunk}
        elif part >= 0:
            owner, name = found.parts[part]
            arguments = {"owner": owner}
        yield {
            "ph": "X", "pid": rank, "tid": 0, "cat": kind, "name": name, "ts": start * MICRO,
            "dur": end * MICRO - start * MICRO, "args": arguments,
        }  # fmt: skip
