"""The timeline as plain data, as sentences, and as the files of its folder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autopar_core.builtin import timeline_chart, trace, words
from autopar_core.builtin.json_text import dump, plain
from autopar_core.domain.timeline import SEGMENT_KINDS, StepTimeline


NAMES = ("timeline.png", "timeline.svg", "timeline.json", "trace.json")


def document(timeline: StepTimeline, about: Mapping[str, Any]) -> dict[str, Any]:
    """Everything as plain data; ``about`` names the strategy."""
    made = {
        **about,
        "schedule": timeline.schedule,
        "ranks": timeline.ranks,
        "chunks": timeline.chunks,
        "micro_batches": timeline.micro_batches,
        "step_seconds": timeline.seconds,
        "limit_bytes": timeline.limit_bytes,
        "bubble_share": timeline.bubble_share,
        "bottleneck": timeline.bottleneck,
        "by_rank": [
            {**plain(rank), "bubble_share": rank.bubble_seconds / timeline.seconds}
            for rank in timeline.by_rank
        ],
        "kinds": list(SEGMENT_KINDS),
        "segments": timeline.segments,
        "memory": timeline.memory,
    }
    whole: dict[str, Any] = plain(made)
    return whole


def files(
    timeline: StepTimeline, about: Mapping[str, Any], place: str, caption: str
) -> Mapping[str, bytes]:
    """Picture, data and trace, by name; ``caption`` tells model and strategy."""
    png, svg = timeline_chart.draw(timeline, title(timeline, place), caption)
    return {
        "timeline.png": png,
        "timeline.svg": svg,
        "timeline.json": dump(document(timeline, about)).encode(),
        "trace.json": trace.dump(timeline, about),
    }


def title(timeline: StepTimeline, place: str) -> str:
    """What the picture shows."""
    if timeline.ranks == 1:
        shape = f"one stage, {words.several(timeline.micro_batches, 'micro-batch')}"
    else:
        chunks = f" x {words.several(timeline.chunks, 'chunk')}" if timeline.chunks > 1 else ""
        shape = (
            f"{timeline.schedule}, {words.several(timeline.ranks, 'rank')}{chunks}, "
            f"{words.several(timeline.micro_batches, 'micro-batch')}, "
            f"bubble {words.percent(timeline.bubble_share)}"
        )
    return f"{place}: {words.seconds(timeline.seconds)}, {shape}"


def table(timeline: StepTimeline) -> list[dict[str, str]]:
    """A row for each rank: its parts, its bubble and its peak."""
    present = [
        kind for kind in SEGMENT_KINDS
        if any(rank.seconds[kind] for rank in timeline.by_rank)
    ]  # fmt: skip
    return [
        {
            "rank": str(rank.rank),
            **{kind: words.seconds(rank.seconds[kind]) for kind in present},
            "bubble": words.percent(rank.bubble_seconds / timeline.seconds),
            "ends": words.seconds(rank.end_seconds),
            "peak memory": words.gib(rank.peak_bytes),
        }
        for rank in timeline.by_rank
    ]
