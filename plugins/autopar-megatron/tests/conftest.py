"""Texts read and strategies exported, for the tests of this plugin."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from autopar_core.api import ExportEstimate, ExportRequest, ModelConfig, Strategy
from autopar_core.testing.bench import load, run_search
from autopar_megatron.readers import readers


ROOT = Path(__file__).resolve().parents[3]
HEADER = ("autopar 0.1.0: place 1 of 3", "estimated step time 1.50 s")
FIELDS: Mapping[str, Any] = {
    "dp_degree": 1, "tp_degree": 1, "pp_degree": 1, "cp_degree": 1, "micro_batch_size": 1,
    "micro_batch_num": 8, "vpp_degree": 1, "schedule": "none", "sequence_parallel": False,
    "zero_stage": 0, "shard_degree": 1, "replicate_degree": 1, "cp_comm_type": "none",
}  # fmt: skip
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
def _job(framework: str) -> Any:
    changes = {
        "framework": {"name": framework},
        "search": {"tp": 1, "cp": 1, "pp": 1, "micro_batch_size": 1, "layer_recompute": "none"},
    }
    return run_search(changes).job


@pytest.fixture(scope="session")
def request_of() -> RequestOf:
    """An export request from the fields that matter; partition even and recompute none if absent."""
    assert "megatron" in load().active

    def made(
        framework: str = "megatron",
        *,
        model: ModelConfig | Mapping[str, Any] | None = None,
        seq_len: int = 4096,
        precision: str = "bf16",
        stages: Sequence[int] = (),
        full: Sequence[int] = (),
        selective: Sequence[int] = (),
        sections: Mapping[str, Mapping[str, Any]] | None = None,
        plugins: Mapping[str, Mapping[str, Any]] | None = None,
        **fields: Any,
    ) -> ExportRequest:
        job = _job(framework)
        values = {**FIELDS, **fields}
        chunks, ranks = values["vpp_degree"], values["pp_degree"]
        shape = model if isinstance(model, ModelConfig) else evolve(job.model, **(model or {}))
        even = [shape.num_layers // (chunks * ranks)] * (chunks * ranks)
        data = values["dp_degree"]
        total = values["micro_batch_size"] * values["micro_batch_num"] * data
        strategy = Strategy(
            fields=values,
            stage_partition=_rows(stages or even, chunks),
            layer_offset=_rows([0] * len(even), chunks),
            layer_recompute={
                "selective": _rows(selective or [0] * len(even), chunks),
                "full": _rows(full or [0] * len(even), chunks),
            },
        )
        devices = data * ranks * values["tp_degree"] * values["cp_degree"]
        merged = {
            name: {**job.framework.sections.get(name, {}), **table}
            for name, table in (sections or {}).items()
        }
        profile = evolve(job.framework, sections={**job.framework.sections, **merged})
        return ExportRequest(
            model=shape,
            training=evolve(
                job.training, global_batch_size=total, seq_len=seq_len, precision=precision
            ),
            cluster=evolve(job.cluster, devices=devices),
            system=job.system,
            framework=profile,
            strategy=strategy,
            estimate=ExportEstimate(
                seconds=1.5, low_seconds=1.3, high_seconds=1.7, memory_bytes=1 << 30,
                limit_bytes=1 << 36,
            ),
            plugins=plugins or {}, header=HEADER,
        )  # fmt: skip

    return made


def _rows(values: Sequence[int], chunks: int) -> list[Any]:
    if chunks == 1:
        return list(values)
    ranks = len(values) // chunks
    return [list(values[v * ranks : (v + 1) * ranks]) for v in range(chunks)]
