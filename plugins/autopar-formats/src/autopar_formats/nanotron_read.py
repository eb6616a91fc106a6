"""Reads nanotron's YAML: model, job, strategy."""

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
    ModelConfig,
    Reader,
    hugging_face_model,
    read_yaml,
)
from autopar_formats.nanotron_split import padded_vocab, split


MODEL, LAYOUT, TOKENS = "model.model_config", "parallelism", "tokens"
# Marker in model_config -> the model type whose keys it has.
FAMILIES = {"is_llama_config": "llama", "is_qwen2_config": "qwen2"}
ENGINES = {"1f1b": "1f1b", "afab": "gpipe"}
PRECISIONS = {"bfloat16": "bf16", "float16": "fp16"}
_SECTIONS = re.compile(r"^(?:parallelism|tokens|model)\s*:", re.MULTILINE)


def recognises(path: Path, text: str) -> bool:
    """Its three sections, and a model configuration inside."""
    del path
    return len(set(_SECTIONS.findall(text))) == 3 and "model_config" in text


def read(path: Path, text: str) -> Mapping[str, Any]:
    """Tables of a configuration.

    Raises:
        InputError: When it is wrong, no dense model, or says what nanotron silently ignores.
    """
    document = read_yaml(text, path.name)
    found = Findings(path.name)
    _model(document, found)
    degrees = _degrees(document, found)
    _batch(document, found, degrees)
    _strategy(document, found)
    found.put("framework.name", "nanotron", "sections of the file")
    model = found.tables()["model"]
    if degrees["pp"] > 1:
        shape = ModelConfig(**model)
        divisible = document.get("model.make_vocab_size_divisible_by", 1)
        vocab = padded_vocab(shape.vocab, divisible, degrees["tp"])
        layers = list(split(shape, degrees["pp"], vocab))
        found.put("strategy.stage_partition", layers, "inferred: nanotron deals layers by cost")
    return found.tables()


def _model(document: Document, found: Findings) -> None:
    config = document.section(MODEL)
    if not config:
        raise InputError(document.label, f"has no key {MODEL}; expected a table there")
    if config.get("moe_config"):
        raise document.wrong(
            f"{MODEL}.moe_config", "a mixture-of-experts model; autopar plans dense models only"
        )
    kinds = [kind for marker, kind in FAMILIES.items() if config.get(marker) is True]
    if len(kinds) != 1:
        raise document.wrong(
            MODEL, f"must hold one of {', '.join(FAMILIES)}: true; other families are not supported"
        )
    table = {key: value for key, value in config.items() if key not in FAMILIES}
    hugging_face_model(
        table, found, document.label, kind=kinds[0], place=lambda k: document.place(f"{MODEL}.{k}")
    )
    if kinds[0] == "qwen2":
        _qwen_biases(document, found)
    divisible, tensor = document.get("model.make_vocab_size_divisible_by", 1), f"{LAYOUT}.tp"
    vocab = found.get("model.vocab")
    padded = padded_vocab(vocab, divisible, document.whole(tensor))
    if padded != vocab:
        found.note(
            f"nanotron pads the vocabulary of {vocab:,} rows to {padded:,} "
            f"({document.place('model.make_vocab_size_divisible_by')}); set model.vocab = {padded} to "
            "plan with the padding"
        )


def _qwen_biases(document: Document, found: Findings) -> None:
    """Nanotron's Qwen2 has query, key and value biases only where the file says so."""
    key = f"{MODEL}.attention_bias"
    biased = document.flag(key) if key in document else False
    found.replace(
        "model.qkv_bias", biased, document.place(key) if key in document else FORMAT_DEFAULT
    )


def _degrees(document: Document, found: Findings) -> dict[str, int]:
    experts = document.get(f"{LAYOUT}.expert_parallel_size", 1)
    if experts != 1:
        raise document.wrong(f"{LAYOUT}.expert_parallel_size", "autopar plans dense models only")
    degrees = {}
    for name, key, needed in (
        ("dp", "dp", True), ("tp", "tp", True), ("pp", "pp", True),
        ("cp", "context_parallel_size", False),
    ):  # fmt: skip
        full = f"{LAYOUT}.{key}"
        if needed or full in document:
            degrees[name] = document.whole(full)
            found.put(f"strategy.{name}_degree", degrees[name], document.place(full))
        else:
            degrees[name] = 1
            found.put(f"strategy.{name}_degree", 1, FORMAT_DEFAULT)
    world = degrees["dp"] * degrees["tp"] * degrees["pp"] * degrees["cp"]
    found.put("cluster.devices", world, "inferred: product of the degrees")
    if degrees["cp"] > 1:
        if document.get(f"{MODEL}.is_llama_config") is True:
            raise document.wrong(
                f"{LAYOUT}.context_parallel_size",
                "nanotron's Llama ignores it; use is_qwen2_config, or 1",
            )
        found.put("strategy.cp_comm_type", "p2p", "inferred: nanotron's ring attention")
    return degrees


def _batch(document: Document, found: Findings, degrees: Mapping[str, int]) -> None:
    size = document.whole(f"{TOKENS}.micro_batch_size")
    number = document.whole(f"{TOKENS}.batch_accumulation_per_replica")
    found.put("strategy.micro_batch_size", size, document.place(f"{TOKENS}.micro_batch_size"))
    place = document.place(f"{TOKENS}.batch_accumulation_per_replica")
    found.put("strategy.micro_batch_num", number, place)
    found.put(
        "training.global_batch_size", size * number * degrees["dp"],
        "inferred: micro_batch_size x batch_accumulation_per_replica x dp",
    )  # fmt: skip
    key = f"{TOKENS}.sequence_length"
    length = document.whole(key)
    found.put("training.seq_len", length, document.place(key))
    longest = found.get("model.max_position_embeddings")
    if longest and length > longest:
        raise document.wrong(
            key, f"{length} tokens are more than the {longest} of max_position_embeddings"
        )
    if "model.dtype" in document:
        precision = PRECISIONS.get(document.text("model.dtype"))
        if precision is None:
            raise document.wrong("model.dtype", f"expected {' or '.join(PRECISIONS)}")
        found.put("training.precision", precision, document.place("model.dtype"))


def _strategy(document: Document, found: Findings) -> None:
    if found.get("strategy.pp_degree") > 1:
        engine = document.get(f"{LAYOUT}.pp_engine")
        if engine is None:
            found.put("strategy.schedule", "gpipe", f"{FORMAT_DEFAULT}: afab")
        elif engine not in ENGINES:
            raise document.wrong(f"{LAYOUT}.pp_engine", f"expected {' or '.join(ENGINES)}")
        else:
            place = document.place(f"{LAYOUT}.pp_engine")
            found.put("strategy.schedule", ENGINES[engine], place)
    if found.get("strategy.tp_degree") > 1:
        mode = document.get(f"{LAYOUT}.tp_mode")
        place = document.place(f"{LAYOUT}.tp_mode") if mode is not None else FORMAT_DEFAULT
        if mode is not None and str(mode).upper() not in ("REDUCE_SCATTER", "ALL_REDUCE"):
            raise document.wrong(f"{LAYOUT}.tp_mode", "expected REDUCE_SCATTER or ALL_REDUCE")
        parallel = mode is not None and str(mode).upper() == "REDUCE_SCATTER"
        found.put("strategy.sequence_parallel", parallel, place)
    _zero(document, found)
    key = f"{LAYOUT}.recompute_layer"
    full = document.flag(key) if key in document else False
    source = document.place(key) if key in document else FORMAT_DEFAULT
    found.put("strategy.layer_recompute", "full" if full else "none", source)


def _zero(document: Document, found: Findings) -> None:
    key = "optimizer.zero_stage"
    stage = document.whole(key, least=0)
    if stage > 1:
        raise document.wrong(
            key, f"nanotron accepts {stage} without a word and runs it as 1; write 0 or 1"
        )
    if found.get("strategy.dp_degree") * found.get("strategy.cp_degree") > 1:
        found.put("strategy.zero_stage", stage, document.place(key))


READER = Reader("nanotron", "Nanotron YAML", recognises, read, "nanotron")
