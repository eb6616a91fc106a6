"""The published run of Llama 3.1 405B on 16,384 H100: feasible, and about as fast as it was."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest


pytestmark = pytest.mark.physics

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "llama31_405b_16384xh100.toml"
# Meta, The Llama 3 Herd of Models (2024), table 4: tp 8, cp 1, pp 16, dp 128, 41 % model FLOPs
# utilisation at 8,192 tokens and a batch of 16 M tokens.
PUBLISHED = {"tp": 8, "pp": 16, "cp": 1, "dp": 128, "micro_batch_size": 1}
GIB = 2**30


def assignments(fields: Mapping[str, object]) -> list[str]:
    return [f"{name}={value}" for name, value in fields.items()]


@pytest.fixture(scope="module")
def published(kit: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The published degrees; virtual stages, partition and recompute are left to the search."""
    fixes = [text for each in assignments(PUBLISHED) for text in ("--fix", each)]
    out = tmp_path_factory.mktemp("405b") / "out"
    return kit.run("search", EXAMPLE, *fixes, "--top-k", "1", "--no-charts", out=out)


def test_the_input_is_the_published_one(published: Any) -> None:
    inputs = published.document["inputs"]
    assert inputs["parameters"] == 405_853_388_800
    assert inputs["cluster"]["devices"]["value"] == 16_384
    assert inputs["cluster"]["memory_limit"]["value"] == 78 * GIB
    assert inputs["training"]["seq_len"]["value"] == 8_192
    assert inputs["training"]["global_batch_size"]["value"] == 2_048
    assert inputs["framework"]["name"] == "megatron"


def test_the_published_strategy_fits_and_is_as_fast(published: Any, check_schema: Any) -> None:
    assert published.code == 0
    check_schema(published.document)
    best = published.best[0]
    assert {name: best.get(f"{name}_degree", best.get(name)) for name in PUBLISHED} == PUBLISHED
    assert best["micro_batch_num"] == 16
    assert best["memory_cost"] <= 78 * GIB
    assert 0.35 <= best["mfu"] <= 0.48
    # 6 FLOPs per parameter without the input embedding and token, half of the attention square
    weights = 405_853_388_800 - 128_256 * 16_384
    attention = 126 * 8_192 * 16_384
    flops = 6 * (weights + attention) * 2_048 * 8_192
    expected = flops / (best["performance_cost"] * 16_384 * 989.4e12)
    assert best["mfu"] == pytest.approx(expected, rel=5e-3)


def test_first_and_last_stage_are_lighter_without_being_told(published: Any) -> None:
    stages = published.document["stage_summary"][0]["stages"]
    layers = [sum(stage["layers"]) for stage in stages]
    assert sum(layers) == 126
    assert layers[0] < min(layers[1:-1])
    assert layers[-1] < min(layers[1:-1])


def test_estimate_says_the_same(kit: Any, published: Any) -> None:
    chosen = published.best[0]
    names = ("vpp_degree", "sequence_parallel", "zero_stage", "schedule")
    fields = {**PUBLISHED, **{name: json.dumps(chosen[name]).strip('"') for name in names}}
    answer = kit.run("estimate", EXAMPLE, *assignments(fields), "--json")
    assert answer.code == 0
    (one,) = json.loads(answer.out)["top_k_strategies"]
    ignored = ("place", "row", "tie_with_best")
    same = {name: value for name, value in one.items() if name not in ignored}
    assert same == {name: value for name, value in chosen.items() if name not in ignored}


@pytest.mark.slow
def test_the_best_found_is_not_slower(search: Any, published: Any) -> None:
    answer = search(EXAMPLE)
    assert answer.code == 0
    assert answer.best[0]["performance_cost"] <= published.best[0]["performance_cost"]
    # the published degrees are part of the open space, at the same cost
    rows = [
        row
        for row in answer.table("candidates.csv")
        if (row["tp_degree"], row["pp_degree"], row["cp_degree"]) == ("8", "16", "1")
        and row["micro_batch_size"] == "1"
    ]
    assert {row["vpp_degree"] for row in rows} > {"1"}
    best = published.best[0]
    assert str(best["memory_cost"]) in {row["memory_cost"] for row in rows}
