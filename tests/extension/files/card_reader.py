"""A reader for a file format of one's own: lines like ``layers=16`` under a first line ``card``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from autopar_core.api import PluginInfo, Reader, hookimpl


KEYS = {
    "layers": "num_layers", "width": "hidden", "ffn": "ffn_hidden", "heads": "heads",
    "kv": "kv_heads", "words": "vocab",
}  # fmt: skip


def recognises(path: Path, text: str) -> bool:
    """The content decides, not the name."""
    del path
    return text.startswith("card\n")


def read(path: Path, text: str) -> Mapping[str, Mapping[str, Any]]:
    """Tables as in an input file; ``ValueError`` becomes one sentence for the person."""
    del path
    model: dict[str, Any] = {}
    training: dict[str, Any] = {}
    for line in text.splitlines()[1:]:
        key, _, value = line.partition("=")
        if key == "tokens":
            training["seq_len"] = int(value)
        elif key in KEYS:
            model[KEYS[key]] = int(value)
        else:
            raise ValueError(f"a card has no line {key!r}")
    return {"model": model, "training": training}


@hookimpl
def autopar_plugin_info() -> PluginInfo:
    """Introduce the plugin."""
    return PluginInfo(api=(1, 0), summary="Reader card")


@hookimpl
def autopar_readers() -> Sequence[Reader]:
    """Asked for every file that ``model.source`` names."""
    return (Reader("card", "Model cards of our lab.", recognises, read),)
