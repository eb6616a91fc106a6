"""Systems, frameworks and sections of plugins in a job, and the options that change them."""

from __future__ import annotations

from pathlib import Path

import pytest
from config_kit import BASE, FILE, GIB, MANAGER, job, manager, wrong

from autopar_core.api import InputError
from autopar_core.config.catalogue import Profiles, framework_profile, shipped, system_profile
from autopar_core.config.load import load_job
from autopar_core.config.overrides import Overrides, parse_assignments
from autopar_core.config.tables import Origins, read_toml
from autopar_core.domain.space import Plan
from autopar_core.domain.training import Range


def test_override_of_a_system_changes_one_value_and_its_source() -> None:
    plain = job()
    made = job({"cluster": {"override": {"gemm": {"efficiency": 0.5}}}})
    assert (made.system.gemm.efficiency, made.system.gemm.k0) == (0.5, plain.system.gemm.k0)
    assert made.system.sources["gemm.efficiency"] == "run.toml"
    assert "gemm.efficiency" not in made.system.unverified
    assert made.system.sources["gemm.k0"] == plain.system.sources["gemm.k0"]


def test_aliases_of_systems_are_known() -> None:
    assert job({"cluster": {"system": "A100-SXM-80GB"}}).system.name == "a100-sxm-80gb"


def test_a_system_from_a_file_is_put_into_raw(tmp_path: Path) -> None:
    (tmp_path / "ours.toml").write_text('base = "h100-sxm-80gb"\nmemory_bytes = 1073741824\n')
    changes = {"cluster": {"system": "ours.toml"}}
    made = job(changes, path=tmp_path / "run.toml")
    assert (made.system.name, made.cluster.memory_limit) == ("ours", GIB)
    assert made.system.sources["memory_bytes"] == "ours.toml"
    again = load_job(None, made.raw, Overrides(), MANAGER)
    assert again.system.memory_bytes == GIB


def test_a_system_inline() -> None:
    table = read_toml(shipped("systems", "a100-sxm-80gb.toml"))
    cluster = {"devices": 8, "system_profile": {**table, "name": "own"}}
    made = load_job(FILE, {**BASE, "cluster": cluster}, Overrides(), MANAGER)
    assert made.system.name == "own"
    broken = {**cluster, "system_profile": {"base": "a100-sxm-80gb", "gemm": {"k0": "x"}}}
    with pytest.raises(InputError, match=r"cluster.system_profile.gemm.k0: expected a number"):
        load_job(FILE, {**BASE, "cluster": broken}, Overrides(), MANAGER)


def test_plugins_give_systems_and_frameworks_with_a_base() -> None:
    made = job({"cluster": {"system": "big"}, "framework": {"name": "mine"}})
    assert made.system.memory_bytes == 128 * GIB
    assert made.framework.title == "Mine"
    assert made.framework.sections["kit"] == {"share": 0.25}
    assert made.framework.core == job().framework.core


def test_an_unknown_framework_falls_back_and_says_so() -> None:
    made = job({"framework": {"name": "megatrn"}})
    assert (made.framework.name, made.framework.fallback) == ("generic", "megatrn")
    assert "'generic' stands in for it; did you mean megatron?" in made.notes[0]


def test_override_of_a_framework() -> None:
    changes = {
        "framework": {
            "name": "mine",
            "override": {"core": {"workspace_bytes": 5}, "kit": {"share": 1}},
        }
    }
    made = job(changes)
    assert made.framework.core.workspace_bytes == 5
    assert made.framework.sections["kit"] == {"share": 1}
    assert made.framework.sources["core.workspace_bytes"] == "run.toml"
    assert made.sources["framework.override.kit.share"] == "run.toml"


def test_sections_of_plugins_that_are_off_are_kept_and_noted() -> None:
    off = manager(disable=["kit"])
    made = job({"plugins": {"kit": {"level": 3}, "disable": ["kit"]}}, plugins=off)
    assert made.plugin_sections == {"kit": {"level": 3}}
    assert made.notes == ("the section plugins.kit is not used: the plugin is disabled",)


def test_set_and_fix_are_the_strongest_and_are_named() -> None:
    overrides = Overrides(
        sets=(("--set", "training.seq_len", 4096),),
        fixes=(("--fix", "tp_degree", 4), ("--fix", "stage_partition", "even")),
    )
    made = job({"search": {"tp": [1, 2], "layer_offset": {"max": 1}}}, overrides)
    assert made.training.seq_len == 4096
    assert made.space.wanted == {"tp_degree": (4,)}
    assert made.space.partitions == (Plan(kind="even"),)
    assert made.sources["training.seq_len"] == "--set"
    assert made.sources["search.tp_degree"] == "--fix"
    assert made.raw["search"] == {"tp_degree": 4, "stage_partition": "even"}


def test_a_wrong_override_is_blamed_on_the_option() -> None:
    said = wrong({}, overrides=Overrides(sets=(("--set", "training.seqlen", 1),)))
    assert said == "--set: training.seqlen: unknown key; did you mean seq_len?"
    said = wrong({}, overrides=Overrides(sets=(("--set", "training.seq_len.x", 1),)))
    assert said == "--set: training.seq_len.x: training.seq_len is a value, not a table"
    said = wrong({}, overrides=Overrides(fixes=(("--fix", "tpp", 1),)))
    assert said.startswith("--fix tpp: unknown key; did you mean ")


def test_values_of_options_are_toml_or_text() -> None:
    texts = ["a=1", "b=[1, 2]", "c=llama-3-8b", "d={min = 2}", "e=true", 'f="x"', "g=a=b", "h=1_0"]
    assert dict(parse_assignments(texts, "--set")) == {
        "a": 1, "b": [1, 2], "c": "llama-3-8b", "d": {"min": 2}, "e": True, "f": "x", "g": "a=b",
        "h": 10,
    }  # fmt: skip
    for text in ("a", "=1", "a="):
        with pytest.raises(InputError, match="write KEY=VALUE"):
            parse_assignments([text], "--set")


@pytest.mark.parametrize("name", sorted(p.stem for p in shipped("systems").glob("*.toml")))
def test_every_shipped_system_loads(name: str) -> None:
    profile = system_profile(Profiles("system", MANAGER).table(name, ""), Origins().below())
    assert profile.attention_default in profile.attention


@pytest.mark.parametrize("name", sorted(p.stem for p in shipped("frameworks").glob("*.toml")))
def test_every_shipped_framework_loads(name: str) -> None:
    table = Profiles("framework", MANAGER).table(name, "")
    assert framework_profile(table, Origins().below()).name == name


def test_a_circle_of_bases_is_an_error() -> None:
    profiles = Profiles("framework", MANAGER)
    with pytest.raises(InputError, match="generic -> generic is a circle"):
        profiles.grown({"base": "generic"}, "x", ("generic",))


def test_bad_files(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        read_toml(tmp_path / "absent.toml")
    with pytest.raises(InputError, match="is a folder"):
        read_toml(tmp_path)
    (tmp_path / "bad.toml").write_text("a = \n")
    with pytest.raises(InputError, match=r"^bad.toml: is no valid TOML: .*line 1"):
        read_toml(tmp_path / "bad.toml")
    (tmp_path / "date.toml").write_text("[training]\nseq_len = 2024-01-01\n")
    with pytest.raises(InputError, match=r"^date.toml: training.seq_len: 2024-01-01 is a date"):
        read_toml(tmp_path / "date.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="is no text file"):
        read_toml(tmp_path / "binary.toml")


@pytest.mark.parametrize("path", sorted(Path("examples").glob("*.toml")), ids=lambda p: p.name)
def test_examples_load_without_any_plugin_section(path: Path) -> None:
    tables = {k: v for k, v in read_toml(path).items() if k != "plugins"}
    made = load_job(path, tables, Overrides(), MANAGER)
    assert made.space.top_k >= 3
    assert made.space.partitions[0].offset in (Range(), Range(min=-4, max=4))
