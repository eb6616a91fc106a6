"""Reads a Picotron JSON configuration; the shape comes from the model's name on the hub."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autopar_core.api import FORMAT_DEFAULT, Document, Findings, Reader, read_json


_DEGREES = {"dp": "dp_size", "tp": "tp_size", "pp": "pp_size", "cp": "cp_size"}
_MODEL = {
    "num_layers": "num_hidden_layers", "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
}  # fmt: skip
_ENGINES = {"1f1b": "1f1b", "afab": "gpipe"}
_PRECISIONS = {"bfloat16": "bf16", "float16": "fp16"}


def recognises(path: Path, text: str) -> bool:
    """Its table of degrees."""
    del path
    return text.lstrip()[:1] == "{" and '"distributed"' in text and '"tp_size"' in text


def read(path: Path, text: str) -> Mapping[str, Any]:
    """Tables of a configuration.

    Raises:
        InputError: When it is wrong or Picotron would refuse it.
    """
    document = read_json(text, path.name)
    found = Findings(path.name)
    found.put("model.source", document.text("model.name"), document.place("model.name"))
    for field, key in _MODEL.items():
        full = f"model.{key}"
        if document.get(full) is not None:
            found.put(f"model.{field}", document.whole(full), document.place(full))
    # Picotron's Llama never ties its embeddings and has no biases.
    found.put("model.tied_embeddings", False, "inferred: Picotron builds no tied embeddings")
    _degrees(document, found)
    _batch(document, found)
    found.put("strategy.zero_stage", 0, "inferred: Picotron shards no states")
    found.put("strategy.layer_recompute", "none", "inferred: Picotron recomputes nothing")
    found.put("strategy.sequence_parallel", False, "inferred: Picotron has none")
    found.put("framework.name", "picotron", "tables of the file")
    return found.tables()


def _degrees(document: Document, found: Findings) -> None:
    world = 1
    for name, key in _DEGREES.items():
        full = f"distributed.{key}"
        stated = full in document
        degree = document.whole(full) if stated else 1
        world *= degree
        place = document.place(full) if stated else FORMAT_DEFAULT
        found.put(f"strategy.{name}_degree", degree, place)
    found.put("cluster.devices", world, "inferred: product of the degrees")
    tensor, stages = found.get("strategy.tp_degree"), found.get("strategy.pp_degree")
    kv_heads = found.get("model.kv_heads")
    if kv_heads and kv_heads % tensor:
        raise document.wrong(
            "distributed.tp_size", f"{tensor} does not divide the {kv_heads} KV heads"
        )
    if found.get("strategy.cp_degree") > 1:
        found.put("strategy.cp_comm_type", "p2p", "inferred: ring attention")
    layers = found.get("model.num_layers")
    if stages > 1:
        engine = document.get("distributed.pp_engine", "afab")
        if engine not in _ENGINES:
            raise document.wrong("distributed.pp_engine", f"expected {' or '.join(_ENGINES)}")
        found.put("strategy.schedule", _ENGINES[engine], document.place("distributed.pp_engine"))
        if layers:
            split = [layers // stages + (stage < layers % stages) for stage in range(stages)]
            found.put("strategy.stage_partition", split, "inferred: the first stages take the rest")


def _batch(document: Document, found: Findings) -> None:
    size = document.whole("training.micro_batch_size")
    number = document.whole("training.gradient_accumulation_steps")
    found.put("strategy.micro_batch_size", size, document.place("training.micro_batch_size"))
    place = document.place("training.gradient_accumulation_steps")
    found.put("strategy.micro_batch_num", number, place)
    found.put(
        "training.global_batch_size", size * number * found.get("strategy.dp_degree"),
        "inferred: micro_batch_size x gradient_accumulation_steps x dp_size",
    )  # fmt: skip
    key = "training.seq_length"
    length, context = document.whole(key), found.get("strategy.cp_degree")
    if length % context:
        raise document.wrong(key, f"{length} is no multiple of cp_size {context}")
    found.put("training.seq_len", length, document.place(key))
    if "model.dtype" in document:
        precision = _PRECISIONS.get(document.text("model.dtype"))
        if precision is None:
            raise document.wrong("model.dtype", f"expected {' or '.join(_PRECISIONS)}")
        found.put("training.precision", precision, document.place("model.dtype"))


READER = Reader("picotron", "Picotron JSON", recognises, read, "picotron")
