"""The reader of MindFormers' YAML files: which family a file is of, and its tables."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autopar_core.api import Findings, InputError, Reader, read_yaml
from autopar_mindformers import read_graph, read_pynative
from autopar_mindformers.read_model import read_model, refuse_experts


_GRAPH = re.compile(r"^(?:parallel_config|parallel)[ \t]*:", re.MULTILINE)
_PYNATIVE = re.compile(r"^parallelism[ \t]*:", re.MULTILINE)
# Keys inside a section, in block or in flow style.
_DEGREE = re.compile(r"[\n{, \t](?:data_parallel|model_parallel|pipeline_stage)[ \t]*:")
_PYNATIVE_KEY = re.compile(
    r"[\n{, \t](?:data_parallel_shard|pipeline_parallel_[a-z_]+|context_parallel_method)[ \t]*:"
)


def recognises(path: Path, text: str) -> bool:
    """Sections and keys that no other framework's YAML has."""
    if path.suffix not in (".yaml", ".yml"):
        return False
    if _PYNATIVE.search(text):
        return bool(_PYNATIVE_KEY.search(text))
    return bool(_GRAPH.search(text)) and bool(_DEGREE.search(text))


def read(path: Path, text: str) -> Mapping[str, Any]:
    """Tables of a file of either family.

    Raises:
        InputError: When it is wrong, contradicts itself, is no dense model, or says what MindFormers
            silently does otherwise.
    """
    document = read_yaml(text, path.name)
    found = Findings(path.name)
    refuse_experts(document)
    if "parallelism" in document:
        if "parallel_config" in document:
            raise InputError(
                f"{path.name}: {document.place('parallelism')}",
                f"a section of PyNative beside {document.place('parallel_config')}, a section of graph "
                "mode; keep one",
            )  # fmt: skip
        read_model(document, found, "model", path.parent)
        read_pynative.read(document, found)
    else:
        read_model(document, found, "model.model_config", path.parent)
        read_graph.read(document, found)
    found.put("framework.name", "mindformers", "inferred: sections of the file")
    return found.tables()


READER = Reader("mindformers", "MindFormers YAML", recognises, read, "mindformers")
