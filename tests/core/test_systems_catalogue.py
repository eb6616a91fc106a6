"""The shipped system files follow the schema and stay within physical bounds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tomli


FOLDER = Path(__file__).resolve().parents[2] / "autopar_core" / "catalogue" / "systems"
SYSTEMS: dict[str, dict[str, Any]] = {
    path.stem: tomli.loads(path.read_text(encoding="utf-8"))
    for path in sorted(FOLDER.glob("*.toml"))
}
TEXT_KEYS = {"name", "title", "vendor", "aliases", "unverified"}
COUNT_KEYS = {"devices_per_domain", "memory_bytes", "compute_units"}
TABLES = {"peak_flops", "gemm", "kernel", "memory", "attention", "links", "sources"}
LAW_KEYS = {"eta_f", "s0_f", "tail_f", "eta_b", "s0_b", "tail_b"}
LINK_KEYS = {"bytes_per_second", "latency_seconds", "half_bytes"}
every_system = pytest.mark.parametrize("name", SYSTEMS)


def numbers(table: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """Yield (dotted path, value) of every number in a nested table."""
    for key, value in table.items():
        path = f"{prefix}{key}"
        if isinstance(value, dict):
            yield from numbers(value, f"{path}.")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield path, value
        elif path == "gemm.tile":
            yield path, min(value)


def test_there_are_enough_systems_and_no_spelling_is_ambiguous() -> None:
    assert len(SYSTEMS) >= 20
    spellings = [s for name, system in SYSTEMS.items() for s in {name, *system["aliases"]}]
    assert len(spellings) == len(set(spellings))


@every_system
def test_schema(name: str) -> None:
    system = SYSTEMS[name]
    assert set(system) == TEXT_KEYS | COUNT_KEYS | TABLES
    assert system["name"] == name
    assert system["vendor"] in {"nvidia", "amd", "huawei", "intel"}
    assert all(type(system[key]) is int for key in COUNT_KEYS)
    assert set(system["peak_flops"]) <= {"bf16", "fp16", "fp8", "fp4"}
    assert set(system["peak_flops"]) & {"bf16", "fp16"}
    assert set(system["gemm"]) - {"formats", "tile"} == {"efficiency", "k0"}
    assert set(system["kernel"]) == {"launch_seconds"}
    assert set(system["memory"]) == {"bytes_per_second", "elementwise_efficiency"}
    kernels = {k: v for k, v in system["attention"].items() if k != "default"}
    assert system["attention"]["default"] in kernels
    assert {"flash"} <= set(kernels) <= {"flash", "cudnn"}
    for laws in kernels.values():
        assert set(laws) == {"64", "128"}
        assert all(set(law) == LAW_KEYS for law in laws.values())
    assert set(system["links"]) == {"intra", "inter"}
    assert set(system["links"]["intra"]) - {"full_mesh"} == LINK_KEYS
    assert set(system["links"]["inter"]) - {"hop_seconds"} == LINK_KEYS


@every_system
def test_every_number_has_one_source(name: str) -> None:
    system = SYSTEMS[name]
    paths = [path for path, _ in numbers(system)]
    assert sorted(system["sources"]) == sorted(paths)
    assert all(text.strip() for text in system["sources"].values())


@every_system
def test_unverified_lists_exactly_the_recalled_and_borrowed_numbers(name: str) -> None:
    system = SYSTEMS[name]
    unverified = system["unverified"]
    assert len(unverified) == len(set(unverified))
    assert set(unverified) <= {path for path, _ in numbers(system)}
    admitted = {
        path
        for path, text in system["sources"].items()
        if any(word in text for word in ("assumed", "recalled", "not measured"))
    }
    assert set(unverified) == admitted


@every_system
def test_values_are_physical(name: str) -> None:
    system = SYSTEMS[name]
    values = dict(numbers(system))
    assert all(value >= 0 for value in values.values())
    for path, value in values.items():
        leaf = path.rsplit(".", 1)[-1]
        if "efficiency" in leaf or leaf.startswith("eta_"):
            assert 0 < value <= 1, path
        elif leaf.startswith("tail_"):
            assert 0 <= value <= 2, path
        elif leaf.startswith("s0_"):
            assert value < 5000, path
        elif leaf.endswith("_seconds"):
            assert 1e-7 < value < 1e-3, path
    assert 1 <= values["devices_per_domain"] <= 1024
    assert 16 * 2**30 <= values["memory_bytes"] <= 512 * 2**30
    assert all(1e14 <= peak <= 2e16 for peak in system["peak_flops"].values())
    assert 5e11 <= values["memory.bytes_per_second"] <= 1e13
    intra = values["links.intra.bytes_per_second"]
    inter = values["links.inter.bytes_per_second"]
    assert 1e9 <= inter <= intra < values["memory.bytes_per_second"]


@every_system
def test_fused_attention_does_not_beat_a_matrix_product_by_far(name: str) -> None:
    system = SYSTEMS[name]
    for kernel, laws in system["attention"].items():
        if kernel != "default":
            for law in laws.values():
                assert max(law["eta_f"], law["eta_b"]) <= 1.1 * system["gemm"]["efficiency"] + 0.1


FORMATS = {"fp8": "fp8", "mxfp8": "fp8", "nvfp4": "fp4"}


@every_system
def test_formats_below_16_bits(name: str) -> None:
    # a format needs units for its element; none is faster than the data sheet says, and what no run
    # on the device stands behind has a band of 15 % or more
    system = SYSTEMS[name]
    formats, peaks = system["gemm"].get("formats", {}), system["peak_flops"]
    assert bool(formats) == bool({"fp8", "fp4"} & set(peaks))
    for kind, law in formats.items():
        assert set(law) - {"transposes"} == {"speed", "uncertainty"}
        ratio = peaks[FORMATS[kind]] / peaks["bf16"]
        assert 1 <= law["speed"] <= 1.01 * ratio, kind
        guessed = f"gemm.formats.{kind}.speed" in system["unverified"]
        assert law["uncertainty"] >= (0.15 if guessed or kind != "fp8" else 0.04), kind
        assert law["uncertainty"] <= 0.25
        few = "handful" in system["sources"][f"gemm.formats.{kind}.speed"]
        assert not few or law["uncertainty"] >= 0.08


def test_no_fp8_where_the_hardware_has_none() -> None:
    without = {"a100-sxm-40gb", "a100-sxm-80gb", "a800-sxm-80gb", "ascend-910b", "ascend-910c-die",
               "mi250x-gcd", "v100-sxm2-32gb"}  # fmt: skip
    assert {name for name, system in SYSTEMS.items() if "formats" not in system["gemm"]} == without
