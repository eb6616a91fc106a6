"""Reads the job and the strategy of PyNative mode: ``training``, ``parallelism``, ``recompute``."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable
from typing import Any

from autopar_core.api import Document, Findings, InputError, counted
from autopar_mindformers.layers import MOST_STAGES, Rows, shaped
from autopar_mindformers.read_graph import flag_or, place_or, read_precision, whole_or
from autopar_mindformers.read_stages import put_recompute


LAYOUT, TRAINING = "parallelism", "training"
STAGES = f"{LAYOUT}.pipeline_parallel_layers_per_stage"
INTERLEAVE = f"{LAYOUT}.pipeline_parallel_interleave_num"
_METHODS = {"colossal": "all_gather", "ulysses": "a2a"}
# ZeRO stage that a reshard policy amounts to; "default" reshards without a pipeline.
_RESHARDS = {"always": 3, "never": 2, "default": 0}
_RANGE = re.compile(r"\s*(\d{1,6})(?:-(\d{1,6}))?\s*")


def read(document: Document, found: Findings) -> None:
    """Put job and strategy into ``found``, which has the model already.

    Raises:
        InputError: When the file is wrong or contradicts itself.
    """
    data, tensor, pipeline, context = _degrees(document, found)
    _batch(document, found, data)
    if document.get("model.seq_length") is not None:
        found.put(
            "training.seq_len",
            document.whole("model.seq_length"),
            document.place("model.seq_length"),
        )
    read_precision(document, found, "model", "bfloat16")
    _tokens(document, found, tensor)
    if context > 1:
        _exchange(document, found, context)
    _sharding(document, found, data, context, pipeline)
    counts = _stages(document, found, pipeline)
    _recompute(document, found, counts)


def _degrees(document: Document, found: Findings) -> tuple[int, int, int, int]:
    keys = {"tp": "tensor_parallel", "pp": "pipeline_parallel", "cp": "context_parallel"}
    sizes = {}
    for name, key in keys.items():
        full = f"{LAYOUT}.{key}"
        sizes[name] = whole_or(document, full, 1)
        found.put(f"strategy.{name}_degree", sizes[name], place_or(document, full))
    key = f"{LAYOUT}.data_parallel_shard"
    data = whole_or(document, key, -1, least=-1)
    if data < 1:
        if data == 0:
            raise document.wrong(key, "expected -1 (all ranks that are left) or 1 and more")
        found.note(
            f"{place_or(document, key)}: -1 takes the ranks that the launcher leaves, which the file "
            "does not say; give the devices"
        )
        return 0, sizes["tp"], sizes["pp"], sizes["cp"]
    found.put("strategy.dp_degree", data, document.place(key))
    world = data * sizes["tp"] * sizes["pp"] * sizes["cp"]
    found.put(
        "cluster.devices", world, "inferred: product of the degrees, one replica of the shards"
    )
    return data, sizes["tp"], sizes["pp"], sizes["cp"]


def _batch(document: Document, found: Findings, data: int) -> None:
    """The trainer sets the number of micro-batches itself (pynative/trainer/trainer.py)."""
    local, total = f"{TRAINING}.local_batch_size", f"{TRAINING}.global_batch_size"
    size, batch = whole_or(document, local, 1), whole_or(document, total, 1)
    found.put("training.global_batch_size", batch, place_or(document, total))
    found.put("strategy.micro_batch_size", size, place_or(document, local))
    key = f"{LAYOUT}.pipeline_parallel_microbatch_size"
    if document.get(key) is not None:
        found.note(f"{document.place(key)}: the trainer replaces it by the number of micro-batches")
    if not data:
        return
    number, rest = divmod(batch, size * data)
    if rest or not number:
        raise InputError(
            document.label, f"global_batch_size {batch} ({place_or(document, total)}) is no multiple of "
            f"local_batch_size {size} ({place_or(document, local)}) x data_parallel_shard {data} "
            f"({document.place(f'{LAYOUT}.data_parallel_shard')})",
        )  # fmt: skip
    source = "inferred: global_batch_size / (local_batch_size x data_parallel_shard)"
    found.put("strategy.micro_batch_num", number, source)


def _tokens(document: Document, found: Findings, tensor: int) -> None:
    key = f"{LAYOUT}.sequence_parallel"
    if tensor == 1:
        return
    if not flag_or(document, key, False):
        raise InputError(
            document.label, f"tensor_parallel is {tensor} "
            f"({document.place(f'{LAYOUT}.tensor_parallel')}), which needs sequence_parallel: true "
            f"({place_or(document, key)})",
        )  # fmt: skip
    found.put("strategy.sequence_parallel", True, document.place(key))


def _exchange(document: Document, found: Findings, context: int) -> None:
    key = f"{LAYOUT}.context_parallel_method"
    method = document.get(key, "colossal")
    if method == "hybrid":
        found.note(
            f"{document.place(key)}: hybrid is no exchange that autopar estimates; left open"
        )
    elif not isinstance(method, str) or method not in _METHODS:
        raise document.wrong(key, f"expected {', '.join(_METHODS)} or hybrid, for cp {context}")
    else:
        found.put("strategy.cp_comm_type", _METHODS[method], place_or(document, key))


def _sharding(document: Document, found: Findings, data: int, context: int, pipeline: int) -> None:
    key = f"{LAYOUT}.reshard_after_forward_policy"
    policy = document.get(key, "default")
    if not isinstance(policy, str) or policy not in _RESHARDS:
        raise document.wrong(key, f"expected {', '.join(_RESHARDS)}")
    if data * context == 1:
        return
    stage = _RESHARDS[policy] or (2 if pipeline > 1 else 3)
    found.put("strategy.zero_stage", stage, place_or(document, key))
    override = "framework.override.dp"
    why = "inferred: PyNative shards parameters, gradients and states"
    found.put(f"{override}.zero_stages", [2, 3], why)
    size = f"{LAYOUT}.dense_fsdp_shard_size"
    if not data or document.get(size) is None:
        if data:
            found.put("strategy.shard_degree", data, place_or(document, size))
        return
    shard, rest = divmod(document.whole(size), context)
    if rest or not shard or data % shard:
        raise document.wrong(
            size, f"must divide data_parallel_shard x context_parallel, {data * context}"
        )
    found.put("strategy.shard_degree", shard, document.place(size))
    found.put(f"{override}.hybrid_stages", [2, 3], why)


def _stages(document: Document, found: Findings, ranks: int) -> Rows | None:
    """Layers of every virtual stage, chunk by chunk; None where the model is not stated."""
    layers = found.get("model.num_layers")
    if ranks == 1:
        return [[layers]] if layers else None
    chunks = whole_or(document, INTERLEAVE, 1)
    if ranks * chunks > MOST_STAGES:
        raise InputError(
            document.label, f"{document.place(f'{LAYOUT}.pipeline_parallel')} x {chunks} virtual stages "
            f"are {ranks * chunks} stages; use at most {MOST_STAGES:,}",
        )  # fmt: skip
    _schedule(document, found, chunks)
    given = document.get(STAGES, "auto")
    if given == "auto" or given is None:
        if not layers:
            return None
        if layers % (ranks * chunks):
            raise InputError(
                document.label, f"{place_or(document, STAGES)}: auto deals {counted(layers, 'layer')} "
                f"({found.source('model.num_layers')}) to {ranks} x {chunks} stages, which is uneven; "
                "list the layers of each stage",
            )  # fmt: skip
        rows = [[layers // (ranks * chunks)] * ranks for _ in range(chunks)]
    else:
        rows = _listed(document, given, ranks, chunks, layers)
    found.put("strategy.stage_partition", shaped(rows), place_or(document, STAGES))
    return rows


def _schedule(document: Document, found: Findings, chunks: int) -> None:
    key = f"{LAYOUT}.pipeline_parallel_schedule"
    named = str(document.get(key, "1f1b")).lower()
    names = {"1f1b": "interleaved" if chunks > 1 else "1f1b", "gpipe": "gpipe",
             "interleaved_1f1b": "interleaved"}  # fmt: skip
    if named not in names:
        raise document.wrong(key, f"expected one of {', '.join(names)}")
    if (names[named] == "interleaved") != (chunks > 1):
        raise InputError(
            document.label, f"{document.place(key)} is {named}, but the virtual stages of a rank are "
            f"{chunks} ({place_or(document, INTERLEAVE)}); interleaving needs 2 or more, others 1",
        )  # fmt: skip
    found.put("strategy.schedule", names[named], place_or(document, key))
    if chunks > 1:
        found.put("strategy.vpp_degree", chunks, document.place(INTERLEAVE))


def _listed(document: Document, given: Any, ranks: int, chunks: int, layers: int | None) -> Rows:
    """``["0-6", "7-14"]``: an entry for each rank, in it a range for each virtual stage."""
    if not isinstance(given, list) or len(given) != ranks:
        many = len(given) if isinstance(given, list) else repr(given)[:40]
        raise InputError(
            document.label, f"{document.place(STAGES)} has {many} entries, but pipeline_parallel is "
            f"{ranks} ({document.place(f'{LAYOUT}.pipeline_parallel')})",
        )  # fmt: skip
    spans: list[tuple[int, int]] = [(0, -1)] * (ranks * chunks)
    for rank, entry in enumerate(given):
        parts = str(entry).split(",") if isinstance(entry, str | int) else []
        if len(parts) != chunks:
            raise document.wrong(
                STAGES, f"entry {rank} ({entry!r:.40}) has {counted(len(parts), 'range')}, but "
                f"a rank has "
                f"{counted(chunks, 'virtual stage')} ({place_or(document, INTERLEAVE)})",
            )  # fmt: skip
        for chunk, part in enumerate(parts):
            spans[chunk * ranks + rank] = span(document, STAGES, part)
    at = 0
    for first, last in spans:
        if first != at:
            raise document.wrong(
                STAGES, f"layer {min(at, first)} is {'lost' if first > at else 'given twice'}: a stage "
                f"begins with layer {first} where {at} is next",
            )  # fmt: skip
        at = last + 1
    if layers is not None and at != layers:
        raise document.wrong(
            STAGES, f"places {at} of {counted(layers, 'layer')} (num_hidden_layers)"
        )
    counts = [last - first + 1 for first, last in spans]
    return [counts[chunk * ranks : (chunk + 1) * ranks] for chunk in range(chunks)]


def span(document: Document, key: str, text: Any) -> tuple[int, int]:
    """First and last layer of ``"7-14"`` or ``"7"``.

    Raises:
        InputError: When it is no range.
    """
    match = _RANGE.fullmatch(str(text))
    if match is None or int(match[2] or match[1]) < int(match[1]):
        raise document.wrong(key, f"{text!r:.40} is no range of layers such as 0-6")
    return int(match[1]), int(match[2] or match[1])


def _recompute(document: Document, found: Findings, counts: Rows | None) -> None:
    key, listed = "recompute.mode", "recompute.full_recompute_layer"
    mode = document.get(key, "None")
    place = place_or(document, key)
    if mode in ("None", None):
        found.put("strategy.layer_recompute", "none", place)
    elif mode == "select":
        found.note(f"{place}: modules chosen for recompute are no mode of autopar; left open")
    elif mode != "full":
        raise document.wrong(key, "expected None, full or select")
    elif not isinstance(document.get(listed), list) or not document.get(listed):
        raise InputError(document.label, f"{place} is full, which needs a list {listed}")
    elif counts is not None:
        _full(document, found, listed, counts)


def _full(document: Document, found: Findings, key: str, counts: Rows) -> None:
    """Numbers of recomputed layers of each stage; which of its layers they are does not matter."""
    spans: list[tuple[int, int]] = []
    layers = sum(map(sum, counts))
    for entry in document.get(key):
        first, last = span(document, key, entry)
        if last >= layers:
            raise document.wrong(key, f"layer {last} is past the last, {layers - 1}")
        spans.append((first, last))
    below = _covered(spans)
    rows: Rows = []
    at = 0
    for row in counts:
        rows.append([])
        for count in row:
            rows[-1].append(below(at + count) - below(at))
            at += count
    put_recompute(found, rows, [[0] * len(row) for row in rows], counts, document.place(key))


def _covered(spans: list[tuple[int, int]]) -> Callable[[int], int]:
    """How many layers below a number lie in one of the ranges, which may overlap."""
    starts: list[int] = []
    ends: list[int] = []
    sums = [0]
    for first, last in sorted(spans):
        begin = max(first, ends[-1]) if ends else first
        if last < begin:
            continue
        starts.append(begin)
        ends.append(last + 1)
        sums.append(sums[-1] + last + 1 - begin)

    def below(layer: int) -> int:
        many = bisect_left(starts, layer)
        return sums[many] - (max(0, ends[many - 1] - layer) if many else 0)

    return below
