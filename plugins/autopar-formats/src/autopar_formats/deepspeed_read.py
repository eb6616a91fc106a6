"""Reads a DeepSpeed JSON configuration: batch, precision, sharding; it says no model."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autopar_core.api import FORMAT_DEFAULT, Document, Findings, InputError, Reader, read_json
from autopar_formats.deepspeed_keys import REMOVED, TOP_KEYS, ZERO_KEYS


AUTO = "auto"
ZERO = "zero_optimization"
BATCH, MICRO, NUMBER = (
    "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps",
)  # fmt: skip
_SIGNS = re.compile(r'"(?:zero_optimization|train_batch_size|train_micro_batch_size_per_gpu)"\s*:')


def recognises(path: Path, text: str) -> bool:
    """A table with one of the keys that every DeepSpeed configuration has."""
    del path
    return text.lstrip()[:1] == "{" and _SIGNS.search(text) is not None


def read(path: Path, text: str) -> Mapping[str, Any]:
    """Tables of a configuration.

    Raises:
        InputError: When it is wrong or contradicts itself.
    """
    document = read_json(text, path.name)
    found = Findings(path.name)
    _keys(document, found)
    _batch(document, found)
    _precision(document, found)
    _zero(document, found)
    _degrees(document, found)
    found.put("framework.name", "deepspeed-zero3", "keys of the file")
    found.note(f"{path.name} says neither model nor sequence length; give both beside it")
    if "activation_checkpointing" in document:
        found.note(
            "activation_checkpointing does not choose layers, the training script does; say it with "
            "layer_recompute"
        )
    return found.tables()


def _keys(document: Document, found: Findings) -> None:
    for key in document.table:
        if key not in TOP_KEYS:
            found.note(f"{document.place(key)} is unknown to DeepSpeed, which ignores it")
    for key in document.section(ZERO):
        place = f"{ZERO}.{key}"
        if key in REMOVED:
            raise document.wrong(place, "was removed from DeepSpeed; MiCS is no longer there")
        if key not in ZERO_KEYS:
            raise document.wrong(place, "is a key that DeepSpeed refuses")


def _whole(document: Document, key: str, found: Findings, *, least: int = 1) -> int | None:
    """A number; None where it is absent or left to the Trainer."""
    value = document.get(key)
    if value == AUTO:
        found.note(
            f"{document.place(key)} is 'auto': the Trainer's arguments decide it, so it is open here"
        )
        return None
    return None if value is None else document.whole(key, least=least)


def _batch(document: Document, found: Findings) -> None:
    whole, micro, number = (_whole(document, key, found) for key in (BATCH, MICRO, NUMBER))
    if whole is None and micro is None and not _any_auto(document):
        raise InputError(document.label, f"has neither {BATCH} nor {MICRO}; DeepSpeed needs one")
    if whole is not None:
        found.put("training.global_batch_size", whole, document.place(BATCH))
    if micro is not None:
        found.put("strategy.micro_batch_size", micro, document.place(MICRO))
    if number is not None:
        found.put("strategy.micro_batch_num", number, document.place(NUMBER))
    elif document.get(NUMBER) != AUTO and (whole is None) != (micro is None):
        found.put("strategy.micro_batch_num", 1, FORMAT_DEFAULT)
    if whole is not None and micro is not None and number is not None:
        if whole % (micro * number):
            raise InputError(
                document.label,
                f"{document.place(BATCH)} is {whole}, which is no multiple of {MICRO} x {NUMBER} = "
                f"{micro * number}",
            )
        replicas = whole // (micro * number)
        found.put("strategy.dp_degree", replicas, f"inferred: {BATCH} / {MICRO} / {NUMBER}")


def _any_auto(document: Document) -> bool:
    return any(document.get(key) == AUTO for key in (BATCH, MICRO))


def _enabled(document: Document, key: str, found: Findings) -> bool:
    value = document.get(f"{key}.enabled", False)
    if value == AUTO:
        found.note(f"{document.place(f'{key}.enabled')} is 'auto': say it with training.precision")
        return False
    if not isinstance(value, bool):
        raise document.wrong(f"{key}.enabled", "expected true or false")
    return value


def _precision(document: Document, found: Findings) -> None:
    short = [name for name in ("bf16", "fp16") if _enabled(document, name, found)]
    if len(short) > 1:
        raise InputError(
            document.label,
            f"{document.place('bf16.enabled')} and {document.place('fp16.enabled')} are both true; "
            "only one of them can hold",
        )
    if short:
        found.put("training.precision", short[0], document.place(f"{short[0]}.enabled"))


def _zero(document: Document, found: Findings) -> None:
    key = f"{ZERO}.stage"
    stage = _whole(document, key, found, least=0) if key in document else 0
    if stage is None:
        return
    if stage > 3:
        raise document.wrong(key, f"expected 0 to 3, got {stage}")
    place = document.place(key) if key in document else FORMAT_DEFAULT
    found.put("strategy.zero_stage", stage, place)
    for part in ("offload_optimizer", "offload_param"):
        device = document.get(f"{ZERO}.{part}.device", "none")
        if device not in (None, "none"):
            found.note(
                f"{document.place(f'{ZERO}.{part}')}: offload to {device} is not modelled; device "
                "memory and step time are those without it"
            )
    hpz = document.get(f"{ZERO}.zero_hpz_partition_size", 1)
    if isinstance(hpz, int) and hpz > 1:
        found.note(
            f"{document.place(f'{ZERO}.zero_hpz_partition_size')}: a second copy of the weights for "
            f"groups of {hpz} is not modelled"
        )


def _degrees(document: Document, found: Findings) -> None:
    for key, name in (
        ("tensor_parallel.autotp_size", "tp"), ("sequence_parallel_size", "cp"),
    ):  # fmt: skip
        if key not in document:
            continue
        degree = document.whole(key, least=0) or 1
        found.put(f"strategy.{name}_degree", degree, document.place(key))
        if name == "cp" and degree > 1:
            found.put("strategy.cp_comm_type", "a2a", "inferred: DeepSpeed-Ulysses")
    if "data_parallel_size" in document:
        key = "data_parallel_size"
        found.put("strategy.dp_degree", document.whole(key), document.place(key))
    found.put("strategy.pp_degree", 1, "inferred: a configuration file cannot say stages")


READER = Reader("deepspeed", "DeepSpeed JSON", recognises, read, "deepspeed-zero3")
