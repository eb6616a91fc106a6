"""Reads how graph mode deals layers to stages, and which of them it recomputes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autopar_core.api import FORMAT_DEFAULT, Document, Findings, InputError, counted
from autopar_mindformers.layers import (
    MOST_STAGES,
    Rows,
    offset_fault,
    offset_rows,
    recompute_rows,
    shaped,
    stage_rows,
)


OFFSET, CHUNKS = "model.model_config.offset", "model.model_config.pp_interleave_num"
SWITCH = "parallel.pipeline_config.pipeline_interleave"
SCHEDULER = "parallel.pipeline_config.pipeline_scheduler"
FULL, SELECT = "recompute_config.recompute", "recompute_config.select_recompute"
# What select_recompute repeats where it names no operators: the products of the gated MLP
# (training_graph/transformer/utils.py, LayerSetting: default patterns of both families).
SELECTED = frozenset((
    r"feed_forward\.mul", r"feed_forward\.w1\.activation\.silu", r"mlp\.mul",
    r"mlp\.activation_func\.silu", r"mlp\.shared_experts\.mul",
    r"mlp\.shared_experts\.activation_func\.silu",
))  # fmt: skip
_NEEDED = (
    frozenset((r"feed_forward\.mul", r"feed_forward\.w1\.activation\.silu")),
    frozenset((r"mlp\.mul", r"mlp\.activation_func\.silu")),
)
# Schedulers that MindSpore has and autopar estimates as another: they cut sequences, not layers.
_SEQUENCE = ("seqpipe", "seqvpp", "seqsmartvpp")
_ZERO_BUBBLE = "zero_bubble_v"


def read_stages(document: Document, found: Findings, ranks: int, *, older: bool) -> None:
    """Put virtual stages, schedule, partition and recompute into ``found``.

    Args:
        document: The file.
        found: Has the model already, if the file states one.
        ranks: Pipeline ranks.
        older: The model is of an older class.

    Raises:
        InputError: When layers are lost, or two keys disagree.
    """
    chunks = _chunks(document, found, ranks)
    if ranks > 1:
        _schedule(document, found, chunks)
    counts = _partition(document, found, ranks, chunks)
    if flag(document, "swap_config.swap") and isinstance(document.get(FULL), list):
        found.note(
            f"{document.place('swap_config.swap')}: with swapping, {document.place(FULL)} lists layers, "
            "not numbers of layers; recompute is left open"
        )
        return
    _recompute(document, found, counts)
    if not older and flag(document, "recompute_config.recompute_slice_activation"):
        raise document.wrong(
            "recompute_config.recompute_slice_activation",
            "the newer classes refuse it; write False",
        )


def flag(document: Document, key: str) -> bool:
    """Whether a key is there and true.

    Raises:
        InputError: When it is neither true nor false.
    """
    return document.get(key) is not None and document.flag(key)


def _chunks(document: Document, found: Findings, ranks: int) -> int:
    """Virtual stages of a rank: two keys must both say so."""
    number = document.whole(CHUNKS) if document.get(CHUNKS) is not None else 1
    if number == 1:
        return 1
    if ranks == 1:
        found.note(f"{document.place(CHUNKS)} has no effect without pipeline parallelism")
        return 1
    if not flag(document, SWITCH):
        there = document.place(SWITCH) if SWITCH in document else f"no key {SWITCH}"
        raise InputError(
            document.label, f"{document.place(CHUNKS)} is {number}, but pipeline_interleave is not on "
            f"({there}): MindFormers runs without virtual stages and does not say so; write "
            f"pipeline_interleave: True, or pp_interleave_num: 1",
        )  # fmt: skip
    return number


def _schedule(document: Document, found: Findings, chunks: int) -> None:
    named = document.get(SCHEDULER, "1f1b")
    if named == _ZERO_BUBBLE:
        _zero_bubble(document, found, chunks)
        return
    own = "interleaved" if chunks > 1 else "1f1b"
    place = document.place(CHUNKS) if chunks > 1 else FORMAT_DEFAULT
    if SCHEDULER in document and chunks == 1:
        place = document.place(SCHEDULER)
    if named == "gpipe" and chunks == 1:
        own = "gpipe"
    elif named in _SEQUENCE:
        found.note(
            f"{document.place(SCHEDULER)}: {named} cuts sequences into parts, which autopar does not "
            f"estimate; the schedule is taken as {own}"
        )
        place = f"inferred: {named} without its parts ({document.place(SCHEDULER)})"
    elif named != "1f1b":
        raise document.wrong(
            SCHEDULER,
            f"{named!r:.40} is none of 1f1b, gpipe, {', '.join(_SEQUENCE)}, {_ZERO_BUBBLE}",
        )
    found.put("strategy.schedule", own, place)
    if chunks > 1:
        found.put("strategy.vpp_degree", chunks, document.place(CHUNKS))


def _zero_bubble(document: Document, found: Findings, chunks: int) -> None:
    """Two chunks on every rank, the second in reverse; lists stay by chunk and rank (LayerSetting)."""
    if chunks != 2:
        there = document.place(CHUNKS) if CHUNKS in document else f"no key {CHUNKS}"
        raise document.wrong(
            SCHEDULER, f"{_ZERO_BUBBLE} needs two virtual stages on every rank, not {chunks} ({there}); "
            "write pipeline_interleave: True and pp_interleave_num: 2",
        )  # fmt: skip
    found.put("strategy.schedule", "zbv", document.place(SCHEDULER))


def _partition(document: Document, found: Findings, ranks: int, chunks: int) -> Rows | None:
    """Layers of every virtual stage; None where the file states no model."""
    offset = document.get(OFFSET)
    offset = 0 if offset is None else offset
    layers = found.get("model.num_layers")
    if ranks == 1:
        if offset:
            found.note(f"{document.place(OFFSET)} has no effect without pipeline parallelism")
        return [[layers]] if layers else None
    if not layers:
        if offset:
            found.put("strategy.layer_offset", offset, document.place(OFFSET))
        return None
    if ranks * chunks > min(layers, MOST_STAGES):
        stages = f"{document.place('parallel_config.pipeline_stage')} x {chunks} virtual stages"
        raise InputError(
            document.label, f"{stages} are {ranks * chunks} stages, more than the "
            f"{counted(layers, 'layer')} "
            f"({found.source('model.num_layers')}) or than {MOST_STAGES:,}; use fewer",
        )  # fmt: skip
    fault = offset_fault(offset, layers, ranks, chunks)
    if fault:
        raise _wrong_offset(document, found, fault, chunks)
    rows = stage_rows(layers, offset_rows(offset, ranks, chunks))
    place = document.place(OFFSET) if OFFSET in document else FORMAT_DEFAULT
    found.put("strategy.stage_partition", shaped(rows), place)
    return rows


def _wrong_offset(document: Document, found: Findings, fault: str, chunks: int) -> InputError:
    """Names the offset, and what it contradicts."""
    places = [found.source("model.num_layers"), document.place("parallel_config.pipeline_stage")]
    if chunks > 1:
        places.append(document.place(CHUNKS))
    where = document.place(OFFSET) if OFFSET in document else f"offset 0 ({FORMAT_DEFAULT})"
    return InputError(f"{document.label}: {where}", f"{fault} (see {'; '.join(places)})")


def _recompute(document: Document, found: Findings, counts: Rows | None) -> None:
    full, select = document.get(FULL, False), document.get(SELECT, False)
    full = False if full is None else full
    place = ", ".join(
        document.place(key) for key in (FULL, SELECT) if document.get(key) is not None
    )
    place = place or FORMAT_DEFAULT
    if counts is None:
        if isinstance(full, bool) and (full or not select):
            found.put("strategy.layer_recompute", "full" if full else "none", place)
        else:
            found.note(f"{place}: recompute of a model that the file does not state is left open")
        return
    whole = _rows(document, FULL, full, counts)
    some = _selected(document, found, select, counts)
    # The first layers of a stage are recomputed, and a layer in full is not also in part.
    part = [
        [max(0, min(s, n) - f) for s, f, n in zip(some_row, full_row, row, strict=True)]
        for some_row, full_row, row in zip(some, whole, counts, strict=True)
    ]
    put_recompute(found, whole, part, counts, place)


def put_recompute(found: Findings, full: Rows, part: Rows, counts: Rows, place: str) -> None:
    """Put layers recomputed in full and in part: one word where it is all of them or none."""
    key = "strategy.layer_recompute"
    words = {"full": full == counts, "selective": part == counts,
             "none": not any(map(any, full)) and not any(map(any, part))}  # fmt: skip
    word = next((word for word, holds in words.items() if holds), "")
    if word:
        found.put(key, word, place)
        return
    found.put(f"{key}.full", shaped(full), place)
    found.put(f"{key}.selective", shaped(part), place)


def _rows(document: Document, key: str, value: Any, counts: Rows) -> Rows:
    rows = recompute_rows(value, counts)
    flat = isinstance(value, list) and not all(isinstance(each, list) for each in value)
    if flat and document.get(SCHEDULER) == _ZERO_BUBBLE:  # LayerSetting turns the second row around
        rows = None
    if rows is None:
        chunks, ranks = len(counts), len(counts[0])
        rather = f", or {chunks} rows of {ranks}" if chunks > 1 else ""
        raise InputError(
            f"{document.label}: {document.place(key)}",
            f"expected true, false, or {ranks} whole numbers, one for each stage{rather} "
            f"({document.place('parallel_config.pipeline_stage')})",
        )  # fmt: skip
    return rows


def _selected(document: Document, found: Findings, value: Any, counts: Rows) -> Rows:
    """Layers with recomputed MLP products; nothing where other operators are named."""
    nothing = [[0] * len(row) for row in counts]
    if value is None:
        return nothing
    if isinstance(value, list) and value and all(isinstance(each, str) for each in value):
        value = dict.fromkeys(value, True)
    if not isinstance(value, Mapping):
        rows = _rows(document, SELECT, value, counts)
        if rows != nothing:
            _fused(document, found)
        return rows
    patterns = {str(key): _rows(document, SELECT, each, counts) for key, each in value.items()}
    named = {key for key, rows in patterns.items() if rows != nothing}
    mine = [patterns[key] for key in named & SELECTED]
    if not any(needed <= named for needed in _NEEDED) or any(rows != mine[0] for rows in mine):
        if named:
            found.note(
                f"{document.place(SELECT)}: operators other than the products of the MLP, or only some "
                "of these, are recomputed; the estimate leaves them out"
            )
        return nothing
    _fused(document, found)
    if named - SELECTED:
        found.note(
            f"{document.place(SELECT)}: {', '.join(sorted(named - SELECTED))} are recomputed beside the "
            "products of the MLP; the estimate leaves them out"
        )
    return mine[0]


def _fused(document: Document, found: Findings) -> None:
    """``swiglu`` holds its product inside, where the pattern of ``mlp.mul`` does not find it."""
    key = "model.model_config.hidden_act"
    if document.get(key) == "swiglu":
        found.note(
            f"{document.place(key)}: with swiglu, {document.place(SELECT)} repeats silu alone; the "
            "estimate counts silu and mul"
        )
