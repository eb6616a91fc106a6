"""Reads the JSON of the HyperParallel fast-tuner: a search request that names a launch file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autopar_core.api import Findings, InputError, Reader, read_json


_FILES = ("yaml_path", "shell_path", "toml_path")
_KNOWN = frozenset((
    *_FILES, "rank_num", "gbs", "output_path", "strategy", "mindformers_dir", "mindspeed_path",
    "torchtitan_path", "dataset", "env_json", "npus_per_node", "nnodes", "max_expert_parallel",
))  # fmt: skip


def recognises(path: Path, text: str) -> bool:
    """A number of ranks beside the path of a launch file."""
    del path
    return '"rank_num"' in text and any(f'"{key}"' in text for key in _FILES)


def read(path: Path, text: str) -> Mapping[str, Any]:
    """Tables of a request; the launch file that it names says the rest.

    Raises:
        InputError: When it is wrong, names no file, or names several.
    """
    document = read_json(text, path.name)
    found = Findings(path.name)
    found.put("cluster.devices", document.whole("rank_num"), document.place("rank_num"))
    found.put("training.global_batch_size", document.whole("gbs"), document.place("gbs"))
    named = [key for key in _FILES if key in document]
    if len(named) > 1:
        raise InputError(path.name, f"names several launch files: {', '.join(named)}; keep one")
    found.name_file(document.place(named[0]), document.text(named[0]))
    found.leave_open(
        "strategy.micro_batch_num",
        f"the global batch is that of {path.name} ({document.place('gbs')})",
    )
    nodes, each = document.get("nnodes"), document.get("npus_per_node")
    if (
        isinstance(nodes, int)
        and isinstance(each, int)
        and nodes * each != document.get("rank_num")
    ):
        raise InputError(
            path.name,
            f"{document.place('rank_num')} is {document.get('rank_num')}, but nnodes x npus_per_node "
            f"is {nodes * each}; only one of them can hold",
        )
    for key in document.table:
        if key not in _KNOWN:
            found.note(f"{document.place(key)} is unknown to fast-tuner, which ignores it")
    if "strategy" in document:
        found.note(
            f"{document.place('strategy')} says which dimensions fast-tuner may search, no strategy"
        )
    return found.tables()


READER = Reader("fast-tuner", "HyperParallel fast-tuner JSON", recognises, read)
