"""Framework profiles: every framework of the measured runs has one, and each is complete."""

from __future__ import annotations

from types import ModuleType

import pytest

from autopar_core.config.catalogue import Profiles, shipped
from autopar_core.config.load import load_job
from autopar_core.config.overrides import Overrides
from autopar_core.domain.job import Job
from autopar_core.plugins import PluginManager
from autopar_core.search.contexts import Contexts
from autopar_core.work.rank_work import ELEMENTS


NAMES = sorted(path.stem for path in shipped("frameworks").glob("*.toml"))
# Plugins whose sections profiles may have.
SECTIONS = {"cp", "dp", "pp", "tp"}


def job(plugins: PluginManager, framework: str) -> Job:
    tables = {
        "model": {"source": "llama-3-8b"},
        "training": {"global_batch_size": 64, "seq_len": 8192},
        "cluster": {"system": "h100-sxm-80gb", "devices": 64},
        "framework": {"name": framework},
    }
    return load_job(None, tables, Overrides(), plugins)


def formulas(value: object) -> list[str]:
    """Names of the element counts anywhere in a section."""
    if isinstance(value, dict):
        inner = [name for each in value.values() for name in formulas(each)]
        mine = value.get("bytes")
        extent = [value["extent"]] if isinstance(value.get("extent"), str) else []
        return inner + extent + (list(mine) if isinstance(mine, dict) else [])
    if isinstance(value, list | tuple):
        return [name for each in value for name in formulas(each)]
    return []


@pytest.mark.parametrize("name", NAMES)
def test_profile(plugins: PluginManager, name: str) -> None:
    made = job(plugins, name)
    profile = made.framework
    assert profile.name == name
    assert not profile.fallback
    assert profile.title
    assert set(profile.sections) == SECTIONS
    assert set(profile.order) == SECTIONS
    assert set(formulas(dict(profile.sections))) <= set(ELEMENTS)
    for saved in (*profile.core.saved, *profile.core.head_saved, *profile.core.transient):
        assert set(saved.bytes) <= set(ELEMENTS), saved.name
    assert {kernel.extent for kernel in profile.core.elementwise} <= set(ELEMENTS)
    Contexts.build(made, plugins)  # every plugin structures its own section


@pytest.mark.parametrize("name", NAMES)
def test_calibration_names_known_systems(plugins: PluginManager, name: str) -> None:
    core = job(plugins, name).framework.core
    known = {*Profiles("system", plugins).names(), "default"}
    assert set(core.time_scale) <= known
    assert set(core.attention_scale) <= known
    assert "default" in core.time_scale
    # fitted scalars of all published groups lie between 0.94 and 1.14
    assert all(0.9 <= scale <= 1.2 for scale in core.time_scale.values())


@pytest.mark.parametrize("name", NAMES)
def test_sources(plugins: PluginManager, name: str) -> None:
    profile = job(plugins, name).framework
    assert "core.time_scale" in profile.sources
    assert all(len(text) > 10 for text in profile.sources.values())
    sections = {"core", "rank_order", "communicator_bytes", "reserved_over_allocated", *SECTIONS}
    assert {path.partition(".")[0] for path in profile.sources} <= sections
    assert {path.partition(".")[0] for path in profile.unverified} <= sections


def test_every_measured_framework_has_a_profile(rows: ModuleType) -> None:
    found = {rows.profile(row) for row in rows.read("measured_published.tsv")}
    assert found == {
        "deepspeed-zero3", "libai", "llm-foundry", "maxtext", "megascale", "megatron",
        "megatron-2021", "megatron-bridge", "megatron-kwai", "meta-internal", "nemo", "scaletorch",
        "torchtitan", "torchtitan-compile", "torchtitan-compile-blocks",
    }  # fmt: skip
    assert found <= set(NAMES)
    # measured in sweeps that are not among these rows
    assert {"megatron-deepspeed", "nanotron"} <= set(NAMES)
