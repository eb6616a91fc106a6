"""Input tables to a job: values, sources, and a sentence for everything that is wrong."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from attrs import frozen

import autopar_core.builtin
from autopar_core.api import API_VERSION, InputError, PluginInfo, Reader, hookimpl
from autopar_core.config.catalogue import Profiles, framework_profile, shipped, system_profile
from autopar_core.config.load import load_job
from autopar_core.config.overrides import Overrides, parse_assignments
from autopar_core.config.tables import Origins, deep_merge, read_toml
from autopar_core.domain.job import Job
from autopar_core.domain.space import Plan
from autopar_core.domain.training import Range
from autopar_core.plugins.manager import PluginManager


GIB = 2**30
FILE = Path("run.toml")


@frozen(kw_only=True)
class KitConfig:
    level: int = 1


@frozen(kw_only=True)
class KitProfile:
    share: float = 0.5


class Kit:
    """A plugin with a section, a reader, a framework and a system."""

    @hookimpl
    def autopar_plugin_info(self) -> PluginInfo:
        return PluginInfo(api=API_VERSION, summary="Kit.", config=KitConfig, profile=KitProfile)

    @hookimpl
    def autopar_frameworks(self) -> Sequence[Mapping[str, Any]]:
        return [{"name": "mine", "base": "generic", "title": "Mine", "kit": {"share": 0.25}}]

    @hookimpl
    def autopar_systems(self) -> Sequence[Mapping[str, Any]]:
        return [{"name": "big", "base": "h100-sxm-80gb", "memory_bytes": 128 * GIB, "aliases": []}]

    @hookimpl
    def autopar_readers(self) -> Sequence[Reader]:
        def read(path: Path, text: str) -> Mapping[str, Mapping[str, Any]]:
            table = json.loads(text)
            return {"model": table["shape"], "training": {"seq_len": 2048}, "strategy": {"mbs": 1}}

        return [Reader("kit", "Kit files.", lambda path, text: '"shape"' in text, read)]


class Bare:
    """A plugin without settings."""

    @hookimpl
    def autopar_plugin_info(self) -> PluginInfo:
        return PluginInfo(api=API_VERSION, summary="Bare.")


def manager(**options: Any) -> PluginManager:
    extra = [("builtin", autopar_core.builtin), ("kit", Kit()), ("bare", Bare())]
    return PluginManager.load(extra=extra, entry_points=False, **options)


MANAGER = manager()
SHAPE = {
    "num_layers": 8, "hidden": 64, "ffn_hidden": 128, "heads": 8, "kv_heads": 2, "vocab": 100,
}  # fmt: skip
BASE: dict[str, Any] = {
    "model": {"source": "llama-3-70b"},
    "training": {"global_batch_size": 1024, "seq_len": 8192},
    "cluster": {"system": "h100-sxm-80gb", "devices": 256},
}


def job(
    changes: Mapping[str, Any] | None = None,
    overrides: Overrides | None = None,
    path: Path | None = FILE,
    plugins: PluginManager = MANAGER,
) -> Job:
    tables = deep_merge(BASE, changes or {})
    return load_job(path, tables, overrides or Overrides(), plugins)


def wrong(changes: Mapping[str, Any], **options: Any) -> str:
    with pytest.raises(InputError) as caught:
        job(changes, **options)
    return str(caught.value)


def test_a_small_input_is_completed_from_preset_system_and_defaults() -> None:
    made = job()
    assert made.model.parameters == 70553706496
    assert made.model.name == "llama-3-70b"
    assert made.cluster.memory_limit == made.system.memory_bytes
    assert made.cluster.devices_per_domain == made.system.devices_per_domain
    assert made.framework.name == "generic"
    assert made.space.partitions == (Plan(),)
    assert made.notes == ()
    sources = made.sources
    assert sources["model.hidden"] == "preset llama-3-70b"
    assert sources["model.tied_embeddings"] == "default"
    assert sources["training.seq_len"] == "run.toml"
    assert sources["training.precision"] == "default"
    assert sources["cluster.memory_limit"] == "system h100-sxm-80gb"
    assert sources["search.top_k"] == "default"


def test_raw_starts_the_same_job_again() -> None:
    first = job({"search": {"tp": [4, 8], "layer_offset": {"min": -1, "max": 1}}})
    again = load_job(None, json.loads(json.dumps(first.raw)), Overrides(), MANAGER, first.sources)
    assert again == first


def test_fields_beside_a_source_win() -> None:
    made = job({"model": {"vocab": 1000, "name": "small"}})
    assert (made.model.vocab, made.model.num_layers, made.model.name) == (1000, 80, "small")
    assert made.sources["model.vocab"] == "run.toml"


def test_a_model_may_be_given_by_its_fields() -> None:
    made = load_job(FILE, {**BASE, "model": SHAPE}, Overrides(), MANAGER)
    assert made.model.head_dim == 8
    assert made.sources["model.hidden"] == "run.toml"


def test_a_model_file_goes_through_a_reader_and_is_put_into_raw(tmp_path: Path) -> None:
    (tmp_path / "net.cfg").write_text(json.dumps({"shape": SHAPE}))
    tables = {
        **BASE, "model": {"source": "net.cfg", "vocab": 7}, "training": {"global_batch_size": 4},
    }  # fmt: skip
    made = load_job(tmp_path / "run.toml", tables, Overrides(), MANAGER)
    assert made.raw["model"] == {"name": "net", **SHAPE, "vocab": 7}
    assert made.sources["model.hidden"] == "net.cfg (kit)"
    assert made.sources["model.vocab"] == "run.toml"
    assert made.training.seq_len == 2048
    assert made.sources["training.seq_len"] == "net.cfg (kit)"
    assert "strategy" in made.notes[0]
    assert str(tmp_path) not in json.dumps([made.raw, dict(made.sources), made.notes])
    again = load_job(None, made.raw, Overrides(), MANAGER, made.sources)
    assert (again.model, again.sources) == (made.model, made.sources)


def test_a_file_that_no_reader_knows(tmp_path: Path) -> None:
    (tmp_path / "net.cfg").write_text("what is this")
    said = wrong({"model": {"source": "net.cfg"}}, path=tmp_path / "run.toml")
    assert said.startswith("run.toml: model.source: no reader knows the content of net.cfg; ")
    assert "kit (Kit files)" in said


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"modle": {}}, "run.toml: modle: unknown section; did you mean model?"),
        (
            {"model": {"source": "llama3-70b"}},
            "run.toml: model.source: 'llama3-70b' is neither a file nor a known preset; "
            "did you mean llama-3-70b?",
        ),
        ({"model": {"source": "no/config.json"}}, "run.toml: model.source: no such file: no/"),
        ({"model": {"source": 3}}, "run.toml: model.source: expected a preset or a path, got 3"),
        ({"model": {"hiden": 3}}, "run.toml: model.hiden: unknown key; did you mean hidden?"),
        ({"model": {"experts": 8}}, "run.toml: model.experts = 8: mixture-of-experts is not"),
        ({"model": {"hidden": -1}}, "run.toml: model.hidden = -1: must be a positive integer"),
        (
            {"training": {"seqlen": 1}},
            "run.toml: training.seqlen: unknown key; did you mean",
        ),
        ({"training": {"seq_len": "abc"}}, "run.toml: training.seq_len: expected a whole number"),
        ({"training": {"precision": "int3"}}, "run.toml: training.precision: framework generic"),
        (
            {"cluster": {"system": "h100"}},
            "run.toml: cluster.system: unknown system 'h100'; ",
        ),
        ({"cluster": {"system": "h100-sxm-80g"}}, "run.toml: cluster.system: unknown system"),
        ({"cluster": {"system": "my/system.toml"}}, "run.toml: cluster.system: no such file: my/"),
        (
            {"cluster": {"device": 8}},
            "run.toml: cluster.device: unknown key; did you mean",
        ),
        ({"cluster": {"devices": 0}}, "run.toml: cluster.devices: must be > 0, got 0"),
        ({"cluster": {"devices": "8"}}, "run.toml: cluster.devices: expected a whole number"),
        ({"cluster": {"memory_limit": "72 gigs"}}, "run.toml: cluster.memory_limit: '72 gigs' is"),
        ({"cluster": {"memory_limit": 72}}, "run.toml: cluster.memory_limit: 72 would be bytes"),
        ({"cluster": {"memory_limit": 1.5}}, "run.toml: cluster.memory_limit: expected a size"),
        ({"cluster": {"memory_limit": -(2**30)}}, "run.toml: cluster.memory_limit: must be > 0"),
        (
            {"cluster": {"devices_per_domain": 8, "devices_per_node": 8}},
            "run.toml: cluster.devices_per_node: is also given as devices_per_domain",
        ),
        (
            {"cluster": {"override": {"gemm": {"eficiency": 0.5}}}},
            "run.toml: cluster.override.gemm.eficiency: unknown key; did you mean efficiency?",
        ),
        (
            {"cluster": {"override": {"gemm": {"efficiency": 60}}}},
            "run.toml: cluster.override.gemm.efficiency: must be <= 1, got 60",
        ),
        (
            {"cluster": {"override": {"links": {"inter": {"bytes_per_second": -1}}}}},
            "run.toml: cluster.override.links.inter.bytes_per_second: must be > 0, got -1",
        ),
        (
            {"cluster": {"override": {"peak_flops": {"bf16": 0}}}},
            "run.toml: cluster.override.peak_flops: must be > 0, got 0",
        ),
        (
            {"cluster": {"override": {"attention": {"default": "flsh"}}}},
            "run.toml: cluster.override.attention.default: unknown kernel 'flsh'; did you mean",
        ),
        ({"framework": {"nme": "x"}}, "run.toml: framework.nme: unknown key; did you mean name?"),
        (
            {"framework": {"override": {"core": {"workspace_byte": 3}}}},
            "run.toml: framework.override.core.workspace_byte: unknown key; did you mean",
        ),
        (
            {"framework": {"override": {"kitt": {}}}},
            "run.toml: framework.override.kitt: unknown section; did you mean kit?",
        ),
        (
            {"framework": {"override": {"kit": {"shar": 1}}}},
            "run.toml: framework.override.kit.shar: unknown key; did you mean share?",
        ),
        ({"plugins": {"kitt": {}}}, "run.toml: plugins.kitt: unknown plugin 'kitt'; did you mean"),
        ({"plugins": {"tp": {}}}, "run.toml: plugins.tp: plugin 'tp' is not installed; try: pip"),
        (
            {"plugins": {"kit": {"levl": 1}}},
            "run.toml: plugins.kit.levl: unknown key; did you",
        ),
        ({"plugins": {"kit": {"level": "x"}}}, "run.toml: plugins.kit.level: expected a whole"),
        ({"plugins": {"bare": {}}}, "run.toml: plugins.bare: the plugin takes no settings"),
        ({"plugins": {"disable": 3}}, "run.toml: plugins.disable: expected a list of names"),
    ],
)
def test_wrong_input(changes: dict[str, Any], expected: str) -> None:
    if "disable" in changes.get("plugins", {}):
        overrides = Overrides(disable=("kit",))
    else:
        overrides = Overrides()
    assert wrong(changes, overrides=overrides).startswith(expected)


@pytest.mark.parametrize("section", ["model", "cluster"])
def test_missing_sections(section: str) -> None:
    tables = {name: table for name, table in BASE.items() if name != section}
    with pytest.raises(InputError, match=f"^run.toml: {section}: missing"):
        load_job(FILE, tables, Overrides(), MANAGER)


def test_missing_keys() -> None:
    with pytest.raises(InputError, match=r"training.global_batch_size: missing; expected a whole"):
        load_job(FILE, {**BASE, "training": {}}, Overrides(), MANAGER)
    with pytest.raises(InputError, match=r"cluster.devices: missing; expected a whole"):
        load_job(FILE, {**BASE, "cluster": {"system": "big"}}, Overrides(), MANAGER)
    with pytest.raises(InputError, match=r"cluster.system: missing; known systems: "):
        load_job(FILE, {**BASE, "cluster": {"devices": 8}}, Overrides(), MANAGER)


def test_memory_limit_is_a_size_or_bytes() -> None:
    assert job({"cluster": {"memory_limit": "72 GiB"}}).cluster.memory_limit == 72 * GIB
    assert job({"cluster": {"memory_limit": 72 * GIB}}).cluster.memory_limit == 72 * GIB
    assert "more than" in job({"cluster": {"memory_limit": "90 GiB"}}).notes[0]


def test_fp16_stands_in_for_bf16_with_a_note() -> None:
    old = {"cluster": {"system": "v100-sxm2-32gb"}}
    assert "has no bf16" in job(old).notes[0]
    assert not job({**old, "training": {"precision": "fp16"}}).notes
    assert not job({"training": {"precision": "fp16"}}).notes


def test_an_unknown_section_is_blamed_on_who_said_it() -> None:
    with pytest.raises(InputError, match=r"--set: trainin: unknown section; did you mean training"):
        job({}, Overrides(sets=(("--set", "trainin.seq_len", 1),)))


def test_devices_per_node_is_another_name() -> None:
    made = job({"cluster": {"devices_per_node": 4}})
    assert made.cluster.devices_per_domain == 4
    assert made.sources["cluster.devices_per_domain"] == "run.toml"
    strong = Overrides(sets=(("--set", "cluster.devices_per_domain", 2),))
    assert job({"cluster": {"devices_per_node": 4}}, strong).cluster.devices_per_domain == 2


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
