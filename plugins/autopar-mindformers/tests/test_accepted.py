"""MindFormers' own configuration classes and layer dealer take what is written, and mean the same.

MindSpore and MindFormers come from the package index, and MindSpore runs without an accelerator.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from autopar_core.testing.environments import Unavailable, python_with, unpacked
from autopar_mindformers.layers import offset_fault, offset_rows, recompute_rows, stage_rows
from autopar_mindformers.write import CONFIG, EXPORTER


pytestmark = [pytest.mark.frameworks, pytest.mark.timeout(1800)]
MINDFORMERS = "mindformers==2.1.0"
# MindFormers 2.1.0 asks for MindSpore 2.11, which the index may lack; its configuration code runs on
# 2.10. The others are what that code imports.
NEEDS = (
    "mindspore==2.10.0", "numpy<2", "regex", "pyyaml", "setproctitle", "deprecated", "requests",
)  # fmt: skip
CHILD = Path(__file__).with_name("mindformers_child.py")
SECONDS = 900
Judge = Callable[[Sequence[dict[str, Any]]], list[dict[str, Any]]]


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Judge:
    """MindFormers' verdicts on cases."""
    try:
        home, python = unpacked(MINDFORMERS), python_with("mindspore", NEEDS)
    except Unavailable as reason:
        pytest.skip(str(reason))
    folder = tmp_path_factory.mktemp("verdicts")

    def verdicts(cases: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        out = folder / "verdicts.json"
        done = subprocess.run(
            [str(python), str(CHILD), str(out), str(home)], input=json.dumps(cases), cwd=folder,
            capture_output=True, text=True, timeout=SECONDS, check=False,
            env={**os.environ, "PYTHONWARNINGS": "ignore", "LOCAL_DEFAULT_PATH": str(folder)},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-2000:]
        found: list[dict[str, Any]] = json.loads(out.read_text())
        return found

    return verdicts


def random_strategies(count: int) -> Iterator[dict[str, Any]]:
    """Arguments of ``request_of``: degrees, virtual stages, partitions, both recompute modes."""
    draw = random.Random(5)
    models: list[dict[str, Any]] = [
        {"qkv_bias": True}, {"tied_embeddings": True}, {"qk_norm": "head"},
        {"qk_norm": "head", "qkv_bias": True, "tied_embeddings": True}, {"head_dim": 64},
    ]  # fmt: skip
    for _ in range(count):
        tp, pp, cp, dp = (
            draw.choice(each) for each in ([1, 2, 4], [1, 2, 3, 4], [1, 2], [1, 2, 4])
        )
        vpp = draw.choice([1, 2, 3]) if pp > 1 else 1
        even = draw.random() < 0.3
        stages = [draw.randint(1, 5)] * (pp * vpp) if even else [
            draw.randint(1, 6) for _ in range(pp * vpp)
        ]  # fmt: skip
        full = [draw.randint(0, n) if draw.random() < 0.6 else 0 for n in stages]
        part = [draw.randint(0, n - f) for n, f in zip(stages, full, strict=True)]
        if draw.random() < 0.3:
            full, part = draw.choice([(stages, [0] * len(stages)), ([0] * len(stages), stages)])
        stage = draw.choice([0, 1]) if dp > 1 else 0
        shard = draw.choice([dp, 2]) if stage else 1
        yield {
            "model": {**draw.choice(models), "num_layers": sum(stages)}, "stages": stages,
            "full": full, "selective": part, "precision": draw.choice(["bf16", "fp16", "fp32"]),
            "dp_degree": dp, "tp_degree": tp, "pp_degree": pp, "cp_degree": cp, "vpp_degree": vpp,
            "micro_batch_size": draw.choice([1, 2]), "micro_batch_num": pp * draw.randint(1, 3),
            "schedule": "none" if pp == 1 else "interleaved" if vpp > 1 else "1f1b",
            "sequence_parallel": tp > 1 and draw.random() < 0.7, "zero_stage": stage,
            "shard_degree": shard, "replicate_degree": dp // shard,
            "cp_comm_type": draw.choice(["p2p", "a2a", "all_gather"]) if cp > 1 else "none",
        }  # fmt: skip


def flat(rows: Sequence[Sequence[int]]) -> tuple[int, ...]:
    return tuple(each for row in rows for each in row)


def test_files_are_accepted_as_meant(judge: Judge, request_of: Any) -> None:
    requests = [request_of(**case) for case in random_strategies(60)]
    found = judge([{"yaml": EXPORTER.export(request)[CONFIG]} for request in requests])
    for request, verdict in zip(requests, found, strict=True):
        assert verdict["ok"], (verdict, request.strategy, request.model)
        assert flat(verdict["stages"]) == request.stages
        assert flat(verdict["full"]) == request.recomputed("full")
        assert flat(verdict["selective"]) == request.recomputed("selective")
        assert len(verdict["patterns"]) == 2
        names = ("dp_degree", "tp_degree", "pp_degree", "cp_degree")
        assert verdict["degrees"] == [request.count(name) for name in names]
        assert verdict["batch"] == request.training.global_batch_size
        model = request.model
        assert verdict["shape"] == [model.num_layers, model.hidden, model.heads, model.kv_heads]


def test_offsets_are_judged_alike(judge: Judge) -> None:
    """Random offsets, most of them impossible: the same verdict, and the same layers."""
    draw = random.Random(3)
    cases = []
    for _ in range(300):
        ranks, chunks = draw.randint(2, 5), draw.randint(1, 3)
        count = draw.randint(ranks * chunks, 40)
        rest = count % (ranks * chunks)
        rows = [[draw.randint(-1, 2) for _ in range(ranks)] for _ in range(chunks)]
        if draw.random() < 0.7:
            rows[-1][-1] += rest - sum(map(sum, rows))
        offset: Any = rows if chunks > 1 else rows[0]
        shape = draw.random()
        if shape < 0.1:
            offset = draw.randint(0, 1)
        elif shape < 0.15:
            offset = [row[:-1] for row in rows] if chunks > 1 else rows[0][:-1]
        recompute = [draw.randint(0, 8) for _ in range(ranks)]
        cases.append({"offset": offset, "layers": count, "ranks": ranks, "chunks": chunks,
                      "recompute": recompute})  # fmt: skip
    accepted = 0
    for case, verdict in zip(cases, judge(cases), strict=True):
        offset, count, ranks, chunks = (case[k] for k in ("offset", "layers", "ranks", "chunks"))
        fault = offset_fault(offset, count, ranks, chunks)
        # a single number other than zero is added to every stage after their sum was checked
        if isinstance(offset, int) and offset:
            assert fault
            continue
        assert verdict["ok"] is not bool(fault), (case, verdict, fault)
        if not fault:
            accepted += 1
            rows = stage_rows(count, offset_rows(offset, ranks, chunks))
            assert verdict["stages"] == rows
            assert verdict["full"] == recompute_rows(case["recompute"], rows)
    assert 50 < accepted < 290


def test_what_we_refuse_it_refuses_or_gets_wrong(judge: Judge, request_of: Any) -> None:
    """A one-dimensional offset with virtual stages passes its check and loses layers."""
    (trap, uneven, slices, unknown) = judge(
        [
            {"offset": [1, 1, 0, 0], "layers": 18, "ranks": 4, "chunks": 2},
            {"offset": 0, "layers": 18, "ranks": 4, "chunks": 1},
            {
                "yaml": newer(request_of).replace(
                    "slice_activation: false", "slice_activation: true"
                )
            },
            {"yaml": newer(request_of).replace("pipeline_stage:", "pipeline_stages:")},
        ]
    )
    assert trap["ok"]
    assert sum(flat(trap["stages"])) == 20
    assert "The sum of `offset` (0) should equal" in uneven["error"]
    assert "recompute_slice_activation" in slices["error"]
    assert "pipeline_stages" in unknown["error"]


def newer(request_of: Any) -> str:
    return str(EXPORTER.export(request_of(model={"qk_norm": "head"}))[CONFIG])


def test_pynative_sample_is_accepted(judge: Judge) -> None:
    root = Path(__file__).resolve().parents[3]
    text = (root / "tests/data/samples/mindformers/pynative_llama_dense.yaml").read_text()
    wrong = text.replace("sequence_parallel: true", "sequence_parallel: false")
    found = judge([{"pynative": text}, {"pynative": wrong}])
    assert found[0] == {"ok": True, "tensor": 8, "batch": 128}
    assert not found[1]["ok"]
    assert "requires sequence_parallel=True" in found[1]["error"]
