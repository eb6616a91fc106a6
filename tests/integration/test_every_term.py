"""Every term of an estimate can be worked out again from the formula and the inputs that it shows."""

from __future__ import annotations

import io
import json
import math
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from autopar_core.cli.main import main


ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = str(ROOT / "examples" / "llama3_70b_256xh100.toml")
ALL = ["dp=8", "tp=4", "pp=4", "cp=2", "micro_batch_size=1", "layer_recompute=full"]
FSDP = ["dp=256", "tp=1", "pp=1", "cp=1", "micro_batch_size=1"]


def said(*words: str) -> str:
    """What ``autopar estimate`` prints."""
    out = io.StringIO()
    with redirect_stdout(out):
        assert main(["estimate", EXAMPLE, *words]) in (0, 1)
    return out.getvalue()


def estimate(*words: str) -> dict[str, Any]:
    document = json.loads(said(*words, "--json"))
    if document["top_k_strategies"]:
        return {"memory": document["memory_breakdown"][0],
                "time": document["performance_breakdown"][0]}  # fmt: skip
    return dict(document["infeasible_summary"]["nearest_misses"][0])


@pytest.fixture(scope="module")
def split() -> dict[str, Any]:
    return estimate(*ALL)


@pytest.fixture(scope="module")
def low_precision() -> dict[str, Any]:
    return estimate(*ALL, "--set", "training.precision=fp8")


def parts_of(made: dict[str, Any], name: str, phase: str) -> list[dict[str, Any]]:
    found = [p for p in (made.get("time") or made["performance"])["parts"]
             if (p["name"], p["phase"]) == (name, phase)]  # fmt: skip
    assert found, name
    return found


def one(made: dict[str, Any], name: str, phase: str) -> tuple[float, dict[str, float]]:
    """Seconds of one unit before the calibrated scale, and the inputs."""
    part = parts_of(made, name, phase)[0]
    return part["unit_seconds"] / part["inputs"]["time scale"], part["inputs"]


def test_units_add_up(split: dict[str, Any]) -> None:
    for part in split["time"]["parts"]:
        if part["resource"] in ("device", "link"):
            both = part["seconds"] + part["hidden_seconds"]
            assert both == pytest.approx(part["count"] * part["unit_seconds"]), part["name"]
    for stage in split["memory"]["stages"]:
        for part in stage["parts"]:
            assert part["bytes"] == part["count"] * part["unit_bytes"], part["name"]


def test_a_gemm(split: dict[str, Any]) -> None:
    # launch + 2 M N K / (efficiency peak) (1 + k0 / K); 8192 tokens over cp 2, 28,672 x 2 / tp 4 wide
    seconds, x = one(split, "linear gate_up", "forward")
    assert (x["M"], x["N"], x["K"]) == (4096, 14336, 8192)
    rate = x["efficiency"] * x["peak (FLOP/s)"]
    by_hand = x["launch (s)"] + 2 * x["M"] * x["N"] * x["K"] / rate * (1 + x["k0"] / x["K"])
    assert seconds == pytest.approx(by_hand)


def test_both_gradients_of_a_gemm(split: dict[str, Any]) -> None:
    seconds, x = one(split, "linear down", "backward")
    rate = x["efficiency"] * x["peak (FLOP/s)"]
    work = 2 * x["M"] * x["N"] * x["K"] / rate
    by_hand = 2 * x["launch (s)"] + work * (2 + x["k0"] / x["N"] + x["k0"] / x["M"])
    assert seconds == pytest.approx(by_hand)


def test_a_gemm_in_eight_bits(low_precision: dict[str, Any]) -> None:
    # the output stays in 16 bits: 1 / speed + k0 / K
    seconds, x = one(low_precision, "linear gate_up", "forward")
    work = 2 * x["M"] * x["N"] * x["K"] / (x["efficiency"] * x["peak (FLOP/s)"])
    assert x["speed"] > 1
    assert seconds == pytest.approx(x["launch (s)"] + work * (1 / x["speed"] + x["k0"] / x["K"]))


def test_casts(low_precision: dict[str, Any]) -> None:
    seconds, x = one(low_precision, "casts to fp8", "forward")
    moved = x["bytes"] / (x["efficiency"] * x["bandwidth (B/s)"])
    assert seconds == pytest.approx(x["kernels"] * x["launch (s)"] + moved)


@pytest.mark.parametrize(
    ("phase", "launches", "times"), [("forward", 1, 1.0), ("backward", 3, 2.5)]
)
def test_attention(split: dict[str, Any], phase: str, launches: int, times: float) -> None:
    seconds, x = one(split, "attention", phase)
    kinds = [name.removeprefix("calls") for name in x if name.startswith("calls")]
    assert len(kinds) == 2  # the causal block of the rank, and those of the others
    rate = x["peak (FLOP/s)"] * x["eta"]
    total = 0.0
    for kind in kinds:
        queries, keys = x[f"s_q{kind}"], x[f"s_k{kind}"]
        work = 4 * x["b"] * x[f"n{kind}"] * queries * keys * x["d"] * x[f"share{kind}"]
        work *= x["padding"] * (1 + x["s0"] / keys)
        tail = x["tail"] * 4 * 128 * keys * x["d"] * x["units"]
        total += x[f"calls{kind}"] * (launches * x["launch (s)"] + times * (work + tail) / rate)
    assert seconds == pytest.approx(total)


def test_memory_bound_work(split: dict[str, Any]) -> None:
    seconds, x = one(split, "MLP activation", "backward")
    assert x["bytes"] == 6 * 4096 * 28672 / 4
    moved = x["bytes"] / (x["efficiency"] * x["bandwidth (B/s)"])
    assert seconds == pytest.approx(x["kernels"] * x["launch (s)"] + moved)


@pytest.mark.parametrize("name", ["collectives", "logits input gradient"])
def test_a_collective(split: dict[str, Any], name: str) -> None:
    found = [p for p in split["time"]["parts"] if p["name"] == name]
    for part in found:
        x = part["inputs"]
        volume = x["bytes"] * (x["ranks"] - 1) / x["ranks"] + x["half (B)"]
        by_hand = x["passes"] * (x["latency (s)"] + volume / x["bandwidth (B/s)"])
        assert part["unit_seconds"] / x["time scale"] == pytest.approx(by_hand)


def test_gathers_of_fsdp() -> None:
    made = estimate(*FSDP, "--set", "framework.name=torchtitan")
    parts = made["time"] if "time" in made else made["performance"]
    found = [p for p in parts["parts"] if p["name"] == "parameter gather" and p["phase"] != "step"]
    assert {p["phase"] for p in found} == {"forward", "backward"}
    for part in found:
        x = part["inputs"]
        volume = x["bytes"] * (x["ranks"] - 1) / x["ranks"] + x["half (B)"]
        by_hand = x["passes"] * (x["latency (s)"] + volume / x["bandwidth (B/s)"])
        assert part["unit_seconds"] / x["time scale"] == pytest.approx(by_hand)


def test_saved_tensors(split: dict[str, Any]) -> None:
    # formulas of tensors read "2 B x query + 4 B x key_value", and the inputs hold the element counts
    checked = 0
    for part in split["memory"]["stages"][0]["parts"]:
        if not part["inputs"] or "(" in part["formula"]:
            continue
        products = [term.split(" B x ") for term in part["formula"].split(" + ")]
        if all(len(pair) == 2 and pair[1] in part["inputs"] for pair in products):
            by_hand = sum(float(size) * part["inputs"][name] for size, name in products)
            assert math.isclose(part["unit_bytes"], by_hand, rel_tol=0, abs_tol=0.5), part["name"]
            checked += 1
    assert checked >= 3


def test_the_terminal_shows_the_derivation() -> None:
    shown = said(*ALL)
    assert "Every term of the memory" in shown
    assert "2 M N K / (efficiency x peak)" in shown
    assert "with M 4,096, N 14,336, K 8,192" in shown
