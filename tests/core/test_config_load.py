"""Input tables to a job: values, sources, and a sentence for everything that is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from config_kit import BASE, FILE, GIB, MANAGER, SHAPE, job, wrong

from autopar_core.api import InputError
from autopar_core.config.load import load_job
from autopar_core.config.overrides import Overrides
from autopar_core.domain.space import Plan


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
