"""TorchTitan itself takes what is written, refuses what is refused, and deals layers as read here.

Both releases come from the package index. The configuration manager, the check of degrees and the model
classes run as they are; small models go through the trainer's own start under a process group that
communicates nothing. What needs a GPU or several processes does not run here.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from autopar_core.api import CannotExpress, ExportRequest
from autopar_core.testing import Space
from autopar_core.testing.environments import Unavailable, python_with, unpacked
from autopar_torchtitan import write_python, write_toml
from autopar_torchtitan.flavors import FLAVORS, TOML_ERA, flavor_named
from autopar_torchtitan.stages import automatic, every_nth, layer_counts


pytestmark = [pytest.mark.frameworks, pytest.mark.timeout(1800)]
HERE = Path(__file__).parent
SAMPLES = HERE.parents[2] / "tests" / "data" / "samples" / "torchtitan"
TORCH = ("torch>=2.6", "numpy", "packaging", "pyyaml", "typing_extensions")
# Without torch, which the environment above has; wheels that need it are unpacked alone.
NEEDS = ("datasets>=3.6,<4.8", "tokenizers", "safetensors", "tyro", "tensorboard", "einops", "pillow",
         "torchao")  # fmt: skip
BESIDE = ("torchdata==0.11.0", "torch_checkpointing", "spmd_types==0.2.3")
SECONDS = 900
Judge = Callable[[Sequence[Mapping[str, Any]]], list[dict[str, Any]]]


def judge_of(release: str, child: str, out: Path) -> Judge:
    try:
        python = python_with("torch", TORCH)
        more = python_with("torchtitan-needs", NEEDS)
        folders = [unpacked(f"torchtitan=={release}"), *(unpacked(each) for each in BESIDE)]
    except Unavailable as reason:
        pytest.skip(str(reason))
    site = next(more.parent.parent.glob("lib/python*/site-packages"))

    def verdicts(cases: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        done = subprocess.run(
            [str(python), str(HERE / child), str(out)], input=json.dumps(cases), capture_output=True,
            text=True, timeout=SECONDS, check=False,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, [*folders, site])),
                 "PYTHONWARNINGS": "ignore"},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-2000:]
        found: list[dict[str, Any]] = json.loads(out.read_text())
        return found

    return verdicts


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Judge:
    """Verdicts of release 0.3.0."""
    return judge_of("0.3.0", "titan_child.py", tmp_path_factory.mktemp("python") / "verdicts.json")


@pytest.fixture(scope="module")
def judge_toml(tmp_path_factory: pytest.TempPathFactory) -> Judge:
    """Verdicts of release 0.2.2."""
    out = tmp_path_factory.mktemp("toml") / "verdicts.json"
    return judge_of(TOML_ERA, "titan_toml_child.py", out)


@cache
def space(flavor: tuple[str, str], profile: str = "torchtitan", devices: int = 8) -> Space:
    return Space.of(
        {
            "model": dict(flavor_named(*flavor).fields),
            "training": {"global_batch_size": 32, "seq_len": 2048},
            "cluster": {"system": "h100-sxm-80gb", "devices": devices},
            "framework": {"name": profile}, "search": {"micro_batch_size": [1, 2]},
        }
    )  # fmt: skip


def strategies(found: Space, count: int, seed: int) -> Iterator[ExportRequest]:
    """Random candidates with random partitions, recompute and precision."""
    draw = random.Random(seed)
    layers = found.contexts.job.model.num_layers
    for _ in range(count):
        row = draw.randrange(len(found.rows))
        stages = found.key(row).stages
        counts = None
        if 1 < stages <= layers:
            cuts = sorted(draw.sample(range(1, layers), stages - 1))
            counts = [b - a for a, b in zip([0, *cuts], [*cuts, layers], strict=True)]
        mode = draw.choice(["none", "selective", "full"])
        request = found.request(row, counts, -1, mode)
        precision = draw.choice(["bf16", "bf16", "fp32", "fp8-rowwise"])
        yield evolve(request, training=evolve(request.training, precision=precision))


def written(
    found: Space, export: Callable[[ExportRequest], Mapping[str, str]], name: str, count: int
) -> list[tuple[ExportRequest, str]]:
    made = []
    for request in strategies(found, count, seed=5):
        with contextlib.suppress(CannotExpress):
            made.append((request, export(request)[name]))
    return made


def test_flavors_have_the_parameters_that_torchtitan_builds(judge: Judge) -> None:
    cases = []
    for one in FLAVORS:
        found = space((one.family, one.name))
        row = next(r for r in range(len(found.rows)) if found.key(r).stages == 1)
        module = write_python.export(found.request(row, None, -1, "none"))["autopar_run.py"]
        cases.append({"module": module, "world": 8, "count": True})
    for one, verdict in zip(FLAVORS, judge(cases), strict=True):
        assert verdict["ok"], (one.name, verdict)
        assert verdict["parameters"] == one.parameters == one.model.parameters, one.name


def test_python_configurations_are_accepted_as_meant(judge: Judge) -> None:
    checkpoints = {"none": "NoneType", "selective": "SelectiveAC", "full": "FullAC"}
    made = []
    for flavor in (("llama3", "8B"), ("qwen3", "32B")):
        for profile in ("torchtitan", "torchtitan-compile"):
            found = space(flavor, profile)
            made += written(found, write_python.export, "autopar_run.py", 12)
    assert len(made) > 30
    verdicts = judge([{"module": text, "world": 8} for _, text in made])
    for (request, _), verdict in zip(made, verdicts, strict=True):
        assert verdict["ok"], (verdict, request.strategy)
        assert verdict["data"] == request.count("dp_degree")
        assert verdict["global"] == request.training.global_batch_size
        assert verdict["compile"] == request.framework.is_a("torchtitan-compile")
        modes = [mode for mode in ("selective", "full") if any(request.recomputed(mode))]
        assert verdict["checkpoint"] == checkpoints[modes[0] if modes else "none"]
        if request.count("pp_degree") > 1:
            counts = layer_counts(verdict["parts"], request.model.num_layers, "lm_head")
            assert counts == request.stages


def test_small_models_start_under_a_stand_in_process_group(judge: Judge) -> None:
    """Meshes, pipeline split, tensor parallelism, FSDP, optimizer and data of the last rank."""
    found = space(("llama3", "debugmodel"))
    kinds: dict[Any, tuple[ExportRequest, str]] = {}
    for request, text in written(found, write_python.export, "autopar_run.py", 400):
        # Context parallelism needs the default backend, whose sharding wants a newer torch.
        if request.count("cp_degree") == 1 and request.training.precision == "bf16":
            names = ("tp_degree", "pp_degree", "schedule", "replicate_degree", "vpp_degree")
            kinds.setdefault(tuple(request[name] for name in names), (request, text))
    chosen = list(kinds.values())[:14]
    assert {request["schedule"] for request, _ in chosen} == {
        "none",
        "1f1b",
        "interleaved",
        "gpipe",
    }
    verdicts = judge([
        {"module": text, "world": 8, "rank": 7,
         "arguments": ["--parallelism.spmd_backend", "partial_dtensor"]}
        for _, text in chosen
    ])  # fmt: skip
    for (request, _), verdict in zip(chosen, verdicts, strict=True):
        assert verdict["ok"], (verdict, request.strategy)
        ranks = request.count("pp_degree")
        assert tuple(verdict["layers"]) == request.stages[ranks - 1 :: ranks]
        number = request.count("micro_batch_num")
        wanted = (1, number) if ranks > 1 else (number, 1)
        assert (verdict["accumulates"], verdict["micro_batches"]) == wanted


# Changes of a written configuration that TorchTitan refuses, and what it says; the readers refuse the
# same (test_toml_files.py, test_python_files.py) or a rule does (test_rules.py).
REFUSED = {
    "graphs": ("disable_cuda_graphs = True", "disable_cuda_graphs = False", "CUDA graphs"),
    "micro-batches": ("pipeline_parallel_microbatch_size=1", "pipeline_parallel_microbatch_size=3",
                      "evenly divisible"),
    "devices": ("data_parallel_shard_degree=4", "data_parallel_shard_degree=3", "Invalid parallel dims"),
    "async": ("CompileConfig(enable=False,", "CompileConfig(enable=False, "
    "enable_async_tensor_parallel=True,",
              "Async TP requires"),
}  # fmt: skip


EMPTY_STAGE = [
    ["tok_embeddings", *(f"layers.{i}" for i in range(5))],
    [],
    ["layers.5"],
    ["norm", "lm_head"],
]


def with_stages(text: str, parts: Sequence[Sequence[str]]) -> str:
    """A configuration with other stages, as many ranks as stages, on the backend that runs here."""
    start = text.index("        module_fqns_per_model_part=[")
    end = text.index("        ],\n", start) + len("        ],\n")
    more = (
        f"        module_fqns_per_model_part={parts!r},\n        spmd_backend='partial_dtensor',\n"
    )
    changed = f"{text[:start]}{more}{text[end:]}"
    return changed.replace("pipeline_parallel_degree=2", f"pipeline_parallel_degree={len(parts)}")


def test_refusals_are_torchtitans_own(judge: Judge) -> None:
    found = space(("llama3", "debugmodel"))
    request = next(
        r for r in (found.request(row, None, -1, "none") for row in range(len(found.rows)))
        if r["pp_degree"] == 2 and r["dp_degree"] == 4 and r["schedule"] == "1f1b"
        and r["shard_degree"] == 4 and r["micro_batch_size"] == 1
    )  # fmt: skip
    text = write_python.export(request)["autopar_run.py"]
    assert all(before in text for before, _, _ in REFUSED.values())
    cases = [{"module": text.replace(a, b), "world": 8} for a, b, _ in REFUSED.values()]
    tied = space(("llama3", "1B"))
    one = tied.request(0, None, -1, "none")
    module = write_python.export(one)["autopar_run.py"].replace(
        "pipeline_parallel_degree=1", "pipeline_parallel_degree=2"
    )
    cases.append({"module": module, "world": 16})
    heads = text.replace("tensor_parallel_degree=1", "tensor_parallel_degree=32")
    cases.append({"module": heads, "world": 8 * 32})
    long = text.replace("seq_len = 2048", "seq_len = 262144")
    cases.append({"module": long, "world": 8})
    # The last: a start that fails leaves process groups behind.
    cases.append({"module": with_stages(text, EMPTY_STAGE), "world": 16, "rank": 4})
    said = [*(what for _, _, what in REFUSED.values()), "weight tying", "must divide", "max"]
    said.append("matched no parameters")
    for case, verdict, what in zip(cases, judge(cases), said, strict=True):
        assert not verdict["ok"], case["module"]
        assert what.lower() in verdict["error"].lower(), verdict


def test_toml_files_are_accepted_as_meant(judge_toml: Judge) -> None:
    made = []
    for flavor in (("llama3", "8B"), ("llama3", "debugmodel")):
        for profile in ("torchtitan", "torchtitan-compile"):
            made += written(space(flavor, profile), write_toml.export, "torchtitan.toml", 12)
    samples = [path.read_text() for path in sorted(SAMPLES.glob("*.toml"))]
    assert len(samples) == 5
    assert len(made) > 30
    cases = [{"toml": text, "world": 8} for _, text in made]
    cases += [{"toml": text, "world": 64} for text in samples]
    verdicts = judge_toml(cases)
    assert all(verdict["ok"] for verdict in verdicts), [v for v in verdicts if not v["ok"]][:2]
    for (request, _), verdict in zip(made, verdicts, strict=False):
        assert verdict["data"] == request.count("dp_degree")
        assert verdict["global"] == request.training.global_batch_size
        assert bool(verdict["converters"]) == (request.training.precision == "fp8-rowwise")
        if request.count("pp_degree") > 1:
            assert (
                layer_counts(verdict["parts"], request.model.num_layers, "output") == request.stages
            )
            assert verdict["micro"] * request.count("micro_batch_num") == verdict["local"]


def test_layers_are_dealt_as_both_releases_deal_them(judge: Judge, judge_toml: Judge) -> None:
    draw = random.Random(3)
    plans = [
        (draw.randint(2, 12), draw.randint(4, 90), draw.randint(0, 3), draw.randint(0, 3))
        for _ in range(80)
    ]
    cases = [{"automatic": plan} for plan in plans]
    verdicts = [*judge_toml(cases), *judge(cases)]
    for verdict, plan in zip(verdicts, [*plans, *plans], strict=True):
        try:
            mine = automatic(*plan)
        except ValueError:
            assert not verdict["ok"], plan
            continue
        assert verdict["ok"], (plan, verdict)
        names = [sum(name.startswith("layers.") for name in part) for part in verdict["parts"]]
        assert tuple(names) == mine, plan


def test_each_nth_layer_is_the_one_that_is_recomputed(judge_toml: Judge) -> None:
    draw = random.Random(4)
    plans = []
    for _ in range(40):
        ranks, chunks = draw.randint(1, 4), draw.randint(1, 3)
        plans.append(
            (ranks, draw.randint(0, 9), [draw.randint(1, 9) for _ in range(ranks * chunks)])
        )
    cases = [{"nth": nth, "stages": stages[ranks - 1 :: ranks]} for ranks, nth, stages in plans]
    for (ranks, nth, stages), verdict in zip(plans, judge_toml(cases), strict=True):
        assert verdict["ok"], verdict
        mine = every_nth(stages, ranks, nth)[ranks - 1 :: ranks]
        assert tuple(verdict["counts"]) == mine, (ranks, nth, stages)
