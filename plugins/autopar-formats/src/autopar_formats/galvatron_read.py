"""Reads a Hetu-Galvatron strategy file: a value for every layer, which must be the same for all."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autopar_core.api import (
    FORMAT_DEFAULT,
    Document,
    Findings,
    InputError,
    Reader,
    counted,
    read_json,
)


_SCHEDULES = {"gpipe": "gpipe", "pipedream_flush": "1f1b"}
_STAGES = {"ddp": 0, "zero2": 2, "zero3": 3}
_DEVICES = re.compile(r"(?:(\d+)nodes?_)?(\d+)gpus?", re.IGNORECASE)


def recognises(path: Path, text: str) -> bool:
    """Its degree of pipelining beside a list of degrees per layer."""
    del path
    return '"pp_deg"' in text and '"tp_sizes_enc"' in text


def read(path: Path, text: str) -> Mapping[str, Any]:
    """Tables of a strategy file.

    Raises:
        InputError: When it is wrong, or layers differ in what autopar plans once for all.
    """
    document = read_json(text, path.name)
    found = Findings(path.name)
    tensor = _row(document, "tp_sizes_enc")
    layers = len(tensor)
    found.put("model.num_layers", layers, f"{document.place('tp_sizes_enc')}, one entry per layer")
    found.put("model.source", path.stem, "inferred: name of the file")
    stages = document.whole("pp_deg")
    found.put("strategy.pp_degree", stages, document.place("pp_deg"))
    _degrees(document, found, layers)
    division = _division(document, found, stages, layers)
    _sharding(document, found, layers)
    _recompute(document, found, division, layers)
    _batch(document, found, path, stages)
    if stages > 1:
        spelled = document.text("pipeline_type")
        if spelled not in _SCHEDULES:
            raise document.wrong("pipeline_type", f"expected {' or '.join(_SCHEDULES)}")
        found.put("strategy.schedule", _SCHEDULES[spelled], document.place("pipeline_type"))
    if "embed_sdp" in document:
        found.note(f"{document.place('embed_sdp')} is ignored by Galvatron, which reads vocab_sdp")
    found.put("framework.name", "galvatron", "keys of the file")
    return found.tables()


def _row(document: Document, key: str) -> list[int]:
    """A list of numbers that the file spells as one text.

    Raises:
        InputError: When it is something else.
    """
    text = document.text(key)
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdigit() for part in parts):
        raise document.wrong(key, "expected whole numbers with commas between them")
    return [int(part) for part in parts]


def _same(document: Document, key: str, layers: int, default: int) -> int:
    """The value that every layer has.

    Raises:
        InputError: When a layer is missing, or layers differ.
    """
    if key not in document:
        return default
    row = _row(document, key)
    if len(row) != layers:
        raise document.wrong(
            key, f"has {counted(len(row), 'entry')}, but tp_sizes_enc has {layers}"
        )
    if len(set(row)) > 1:
        raise document.wrong(key, "differs between layers; autopar plans one value for all layers")
    return row[0]


def _degrees(document: Document, found: Findings, layers: int) -> None:
    tensor = _same(document, "tp_sizes_enc", layers, 1)
    context = _same(document, "cp_sizes_enc", layers, 1)
    ulysses = _same(document, "use_sp", layers, 0)
    place = document.place("tp_sizes_enc")
    if ulysses and context > 1 and tensor > 1:
        raise document.wrong("use_sp", "is on beside context parallelism, which is not planned")
    if ulysses and tensor > 1:
        found.put("strategy.cp_degree", tensor, f"{place}, use_sp is on")
        found.put("strategy.cp_comm_type", "a2a", document.place("use_sp"))
        found.put("strategy.tp_degree", 1, document.place("use_sp"))
    else:
        found.put("strategy.tp_degree", tensor, place)
        stated = "cp_sizes_enc" in document
        found.put(
            "strategy.cp_degree", context,
            document.place("cp_sizes_enc") if stated else FORMAT_DEFAULT,
        )  # fmt: skip
        if context > 1:
            found.put("strategy.cp_comm_type", "p2p", "inferred: ring attention")
    vocabulary = document.get("vtp", tensor)
    if vocabulary != tensor:
        found.note(
            f"{document.place('vtp')}: {vocabulary} ranks share the vocabulary, {tensor} the layers; "
            f"the estimate has {tensor} for both"
        )


def _division(document: Document, found: Findings, stages: int, layers: int) -> list[int]:
    key = "pp_division"
    if key in document:
        division, place = _row(document, key), document.place(key)
    else:
        division = [layers // stages] * stages
        division[-1] += layers % stages
        place = f"{FORMAT_DEFAULT}: the last stage takes the rest"
    if len(division) != stages:
        raise document.wrong(key, f"has {counted(len(division), 'stage')}, but pp_deg is {stages}")
    if sum(division) != layers:
        raise document.wrong(
            key, f"places {counted(sum(division), 'layer')}, but there are {layers}"
        )
    if stages > 1:
        found.put("strategy.stage_partition", division, place)
    return division


def _sharding(document: Document, found: Findings, layers: int) -> None:
    sharded = _same(document, "dp_types_enc", layers, 0)
    if sharded:
        found.put("strategy.zero_stage", 3, document.place("dp_types_enc"))
        return
    spelled = document.get("default_dp_type", "ddp")
    if spelled not in _STAGES:
        raise document.wrong("default_dp_type", f"expected one of {', '.join(_STAGES)}")
    place = "default_dp_type"
    found.put(
        "strategy.zero_stage", _STAGES[spelled],
        document.place(place) if place in document else FORMAT_DEFAULT,
    )  # fmt: skip


def _recompute(document: Document, found: Findings, division: list[int], layers: int) -> None:
    key = "checkpoint"
    if key not in document:
        found.put("strategy.layer_recompute", "none", FORMAT_DEFAULT)
        return
    flags = _row(document, key)
    if len(flags) != layers or not set(flags) <= {0, 1}:
        raise document.wrong(key, f"expected {counted(layers, 'entry')}, each 0 or 1")
    counts, start = [], 0
    for size in division:
        counts.append(sum(flags[start : start + size]))
        start += size
    found.put("strategy.layer_recompute", {"full": counts}, document.place(key))


def _batch(document: Document, found: Findings, path: Path, stages: int) -> None:
    batch, number = document.whole("global_bsz"), document.whole("chunks")
    found.put("training.global_batch_size", batch, document.place("global_bsz"))
    found.put("strategy.micro_batch_num", number, document.place("chunks"))
    named = _DEVICES.search(path.stem)
    if named is None:
        found.note(f"{path.name} does not say the number of devices; give cluster.devices")
        return
    devices = int(named[1] or 1) * int(named[2])
    found.put("cluster.devices", devices, "inferred: name of the file")
    share = stages * found.get("strategy.tp_degree") * found.get("strategy.cp_degree")
    if devices % share:
        raise InputError(
            path.name,
            f"names {counted(devices, 'device')}, no multiple of the {share} of one replica",
        )
    replicas = devices // share
    if batch % (replicas * number):
        raise document.wrong(
            "global_bsz",
            f"{batch} is no multiple of {counted(replicas, 'replica')} x {counted(number, 'chunk')}",
        )
    found.put("strategy.dp_degree", replicas, "inferred: devices over the other degrees")
    size = batch // (replicas * number)
    found.put("strategy.micro_batch_size", size, "inferred: global_bsz / chunks / replicas")


READER = Reader("galvatron", "Hetu-Galvatron strategy JSON", recognises, read, "galvatron")
