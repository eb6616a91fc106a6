"""Reads the YAML of llm-foundry: MPT models by their own keys, values that point to other values."""

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
    hugging_face_model,
    read_yaml,
)


_POINTER = re.compile(r"\$\{([\w.]+)\}")
_SHARDING = {"FULL_SHARD": 3, "SHARD_GRAD_OP": 2, "NO_SHARD": 0, "HYBRID_SHARD": 3}
_LONGEST = 16


def recognises(path: Path, text: str) -> bool:
    """Its model class, or the width key of MPT in YAML."""
    del path
    return "mpt_causal_lm" in text and re.search(r"^model\s*:", text, re.MULTILINE) is not None


def read(path: Path, text: str) -> Mapping[str, Any]:
    """Tables of a configuration.

    Raises:
        InputError: When it is wrong, or a value points nowhere.
    """
    raw = read_yaml(text, path.name)
    document = Document(raw.label, _resolved(raw, raw.table, 0), raw.lines)
    found = Findings(path.name)
    hugging_face_model(
        document.section("model"), found, path.name, kind="mpt",
        place=lambda key: document.place(f"model.{key}"),
    )  # fmt: skip
    for key in ("max_seq_len", "variables.max_seq_len"):
        if document.get(key) is not None:
            found.put("training.seq_len", document.whole(key), document.place(key))
    key = "global_train_batch_size"
    if document.get(key) is not None:
        found.put("training.global_batch_size", document.whole(key), document.place(key))
    key = "device_train_microbatch_size"
    if isinstance(document.get(key), int):
        found.put("strategy.micro_batch_size", document.whole(key), document.place(key))
    if document.get("precision") == "amp_bf16":
        found.put("training.precision", "bf16", document.place("precision"))
    elif document.get("precision") == "amp_fp16":
        found.put("training.precision", "fp16", document.place("precision"))
    _fsdp(document, found)
    for name in ("tp", "pp", "cp"):
        found.put(f"strategy.{name}_degree", 1, "inferred: llm-foundry has FSDP only")
    found.put("framework.name", "llm-foundry", "model.name")
    return found.tables()


def _resolved(document: Document, value: Any, depth: int) -> Any:
    """The value with every ``${variables.x}`` replaced by what it points to."""
    if depth > _LONGEST:
        raise InputError(document.label, "values that point to each other in a circle")
    if isinstance(value, dict):
        return {key: _resolved(document, each, depth) for key, each in value.items()}
    if isinstance(value, list):
        return [_resolved(document, each, depth) for each in value]
    if not isinstance(value, str):
        return value
    whole = _POINTER.fullmatch(value)
    if whole is None:
        return value
    if whole[1] not in document:
        raise InputError(document.label, f"{value} points to a key that is not there")
    return _resolved(document, document.get(whole[1]), depth + 1)


def _fsdp(document: Document, found: Findings) -> None:
    key = "fsdp_config.sharding_strategy"
    if key in document:
        spelled = document.text(key)
        if spelled not in _SHARDING:
            raise document.wrong(key, f"expected one of {', '.join(_SHARDING)}")
        found.put("strategy.zero_stage", _SHARDING[spelled], document.place(key))
    key = "fsdp_config.activation_checkpointing"
    if "fsdp_config" in document:
        full = document.flag(key) if key in document else False
        place = document.place(key) if key in document else FORMAT_DEFAULT
        found.put("strategy.layer_recompute", "full" if full else "none", place)


READER = Reader("llm-foundry", "llm-foundry YAML", recognises, read, "llm-foundry")
