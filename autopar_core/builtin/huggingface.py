"""Readers of Hugging Face ``config.json`` files."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autopar_core.api import Findings, InputError, Reader, hugging_face_model, read_json


_SIGNS = re.compile(r'"(?:model_type|architectures|hidden_size|num_hidden_layers|n_embd)"\s*:')
# Keys at the top of configurations of other programs that hold model keys inside.
_OTHERS = re.compile(r'"(?:distributed|zero_optimization|train_batch_size)"\s*:')
_NESTED = ("text_config", "llm_config")


def _recognises(path: Path, text: str) -> bool:
    del path
    start = text.lstrip()[:1] == "{"
    return start and _SIGNS.search(text) is not None and _OTHERS.search(text) is None


def _never(path: Path, text: str) -> bool:
    del path, text
    return False


def _read(path: Path, text: str) -> Mapping[str, Any]:
    found = Findings(path.name)
    hugging_face_model(read_json(text, path.name).table, found, path.name)
    return found.tables()


def _read_text(path: Path, text: str) -> Mapping[str, Any]:
    document = read_json(text, path.name)
    inside = next((name for name in _NESTED if isinstance(document.get(name), Mapping)), "")
    if not inside:
        raise InputError(path.name, f"has no table {' or '.join(_NESTED)}; use reader huggingface")
    found = Findings(path.name)
    hugging_face_model(
        document.table[inside], found, path.name, place=lambda key: f"key {inside}.{key}"
    )
    found.note(f"only the language model of {path.name} is planned, without the rest of it")
    return found.tables()


READERS = (
    Reader("huggingface", "config.json of a Hugging Face model", _recognises, _read),
    Reader(
        "huggingface-text", "language model inside a multimodal config.json; only when named",
        _never, _read_text,
    ),
)  # fmt: skip
