"""Texts read and strategies exported, for the tests of this plugin."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from autopar_core.api import ExportRequest, ModelConfig
from autopar_core.testing import FrameworkBench
from autopar_megatron.readers import readers


ROOT = Path(__file__).resolve().parents[3]
HEADER = ("autopar 0.1.0: place 1 of 3", "estimated step time 1.50 s")
Read = Callable[..., Mapping[str, Any]]
RequestOf = Callable[..., ExportRequest]


@pytest.fixture(scope="session")
def samples() -> Path:
    """Real files with their parameter counts in INDEX.tsv."""
    return ROOT / "tests" / "data" / "samples"


@pytest.fixture(scope="session")
def read() -> Read:
    """Tables of a text as a file of some name; the reader is chosen by content."""

    def tables(text: str, name: str = "run.sh") -> Mapping[str, Any]:
        path = Path(name)
        known = [reader for reader in readers() if reader.recognises(path, text)]
        assert len(known) == 1, f"{len(known)} readers know {name}"
        return known[0].read(path, text)

    return tables


@cache
def _bench(framework: str) -> FrameworkBench:
    return FrameworkBench.of("megatron", {"framework": {"name": framework}})


@pytest.fixture(scope="session")
def request_of() -> RequestOf:
    """An export request from the fields that matter; partition even and recompute none if absent."""

    def made(
        framework: str = "megatron",
        *,
        model: ModelConfig | Mapping[str, Any] | None = None,
        seq_len: int = 4096,
        precision: str = "bf16",
        sections: Mapping[str, Mapping[str, Any]] | None = None,
        **fields: Any,
    ) -> ExportRequest:
        bench = _bench(framework)
        own = bench.job.framework.sections
        merged = {name: {**own.get(name, {}), **table} for name, table in (sections or {}).items()}
        changes: dict[str, Any] = {
            "model": model or {},
            "training": {"seq_len": seq_len, "precision": precision},
            "framework": {"sections": {**own, **merged}},
        }
        values = {"micro_batch_num": 8, **fields}
        return bench.request(
            chunks=values.get("vpp_degree", 1), header=HEADER, changes=changes, **values
        )

    return made
