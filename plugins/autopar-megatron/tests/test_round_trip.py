"""What is written reads back as the same strategy, model and job."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from attrs import asdict
from hypothesis import given, settings
from hypothesis import strategies as st

from autopar_core.api import ExportRequest, ModelConfig
from autopar_core.testing.round_trip import (
    Space,
    exported,
    read_back,
    requests,
    same_job,
    same_strategy,
)
from autopar_megatron import autopar_exporters
from autopar_megatron.export_bridge import export_bridge
from autopar_megatron.export_script import export_megatron, export_mindspeed


EXPORTS = {
    "megatron": export_megatron,
    "megatron-bridge": export_bridge,
    "mindspeed": export_mindspeed,
}


@st.composite
def models(draw: Any, layers: int, mindspeed: bool, rows: int) -> ModelConfig:
    heads = draw(st.sampled_from([8, 16, 24]))
    learned = draw(st.booleans())
    biases = draw(
        st.sampled_from([(True, True, True), (True, False, False), (False, False, False)])
    )
    return ModelConfig(
        num_layers=layers, hidden=draw(st.sampled_from([1024, 1536])),
        ffn_hidden=draw(st.sampled_from([2816, 4096])), heads=heads,
        kv_heads=draw(st.sampled_from([n for n in (8, heads) if heads % n == 0])),
        head_dim=draw(st.sampled_from([64, 128])), vocab=draw(st.sampled_from([32000, 50257])),
        gated_mlp=draw(st.booleans()), tied_embeddings=draw(st.booleans()),
        norm=draw(st.sampled_from(["rmsnorm", "layernorm"])),
        norms_per_layer=draw(st.sampled_from([2, 4])) if mindspeed else 2,
        qk_norm=draw(st.sampled_from(["none", "head"])), qkv_bias=biases[0],
        attention_out_bias=biases[1], mlp_bias=biases[2],
        position="learned" if learned else "rope", position_rows=rows if learned else 0,
        max_position_embeddings=8192,
    )  # fmt: skip


@st.composite
def recomputes(draw: Any, stages: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    kind = draw(st.sampled_from(["none", "selective", "full", "block"]))
    if kind == "none":
        return {}
    if kind == "block":
        count = draw(st.integers(1, max(stages)))
        return {"full": tuple(min(count, n) for n in stages)}
    return {kind: stages}


@st.composite
def cases(draw: Any, framework: str) -> dict[str, Any]:
    """Arguments of ``request_of`` for a strategy that the framework allows."""
    mindspeed = framework == "mindspeed"
    tp, pp = draw(st.sampled_from([1, 2, 4, 8])), draw(st.sampled_from([1, 2, 3, 4]))
    cp, dp = draw(st.sampled_from([1, 2])), draw(st.sampled_from([1, 2, 4]))
    vpp = draw(st.sampled_from([1, 2, 3])) if pp > 1 else 1
    if draw(st.booleans()):
        stages = (draw(st.integers(1, 5)),) * (pp * vpp)
    else:
        stages = tuple(draw(st.integers(0, 5)) for _ in range(pp * vpp))
    if not sum(stages):
        stages = (1,) * (pp * vpp)
    stage = draw(st.sampled_from([0, 1] if mindspeed else [0, 1, 2, 3])) if dp * cp > 1 else 0
    shard = draw(st.sampled_from([n for n in (1, 2, 4) if dp % n == 0])) if stage else 1
    precisions = (
        ["bf16", "fp16"]
        if mindspeed
        else ["bf16", "fp16", "fp8-current", "fp8-delayed", "mxfp8", "nvfp4"]
    )
    precision, recompute = draw(st.sampled_from(precisions)), draw(recomputes(stages))
    if precision == "fp8-delayed" and "selective" in recompute:  # refused, as Megatron does
        recompute = {}
    number = pp * draw(st.integers(1, 3))
    # Groups of all micro-batches, or of the ranks, are legal for every number that is here.
    group = draw(st.sampled_from([0, pp, number])) if vpp > 1 else 0
    seq_len = draw(st.sampled_from([2048, 8192]))
    rows = seq_len if framework == "megatron-bridge" else 8192
    return {
        "framework": framework,
        "model": draw(models(sum(stages), mindspeed, rows)),
        "seq_len": seq_len,
        "precision": precision, "plugins": {"pp": {"group_size": group}},
        "stages": stages, **recompute,
        "sections": {"tp": {"vocabulary_multiple": draw(st.sampled_from([1, 128]))},
                     "dp": {"overlap_gradients": draw(st.booleans())}},
        "dp_degree": dp, "tp_degree": tp, "pp_degree": pp, "cp_degree": cp, "vpp_degree": vpp,
        "micro_batch_size": draw(st.sampled_from([1, 2])),
        "micro_batch_num": number,
        "schedule": "none" if pp == 1 else "interleaved" if vpp > 1 else "1f1b",
        "sequence_parallel": tp > 1 and draw(st.booleans()),
        "zero_stage": stage, "shard_degree": shard, "replicate_degree": dp // shard if stage else dp,
        "cp_comm_type": draw(st.sampled_from(["p2p", "a2a", "all_gather"])) if cp > 1 else "none",
    }  # fmt: skip


def compare(request: ExportRequest, tables: Mapping[str, Any]) -> None:
    strategy = dict(tables["strategy"])
    assert strategy.pop("stage_partition") == request.strategy.stage_partition
    assert strategy.pop("layer_recompute") == dict(request.strategy.layer_recompute)
    assert strategy == {name: request.strategy.fields[name] for name in strategy}
    told = {"dp_degree", "tp_degree", "pp_degree", "cp_degree", "vpp_degree", "micro_batch_size",
            "micro_batch_num", "schedule", "sequence_parallel", "zero_stage", "shard_degree"}  # fmt: skip
    assert told <= strategy.keys()
    assert ("cp_comm_type" in strategy) == (request.strategy.fields["cp_degree"] > 1)
    model = asdict(ModelConfig(**tables["model"]))
    wanted = asdict(request.model)
    for label in ("name", "max_position_embeddings"):
        model.pop(label)
        wanted.pop(label)
    assert model == wanted
    assert tables["training"] == {
        name: getattr(request.training, name)
        for name in ("global_batch_size", "seq_len", "precision")
    }
    assert tables["cluster"]["devices"] == request.cluster.devices
    group = tables.get("plugins", {}).get("pp", {}).get("group_size", 0)
    ranks = request.count("pp_degree")
    assert (group or ranks) == (request.plugins["pp"]["group_size"] or ranks)


@pytest.mark.parametrize("framework", EXPORTS)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_written_reads_back_the_same(framework: str, data: Any, request_of: Any, read: Any) -> None:
    request = request_of(**data.draw(cases(framework)))
    ((name, text),) = EXPORTS[framework](request).items()
    tables = read(text, name)
    compare(request, tables)
    override = tables["framework"].get("override", {})
    multiple = override.get("tp", {}).get("vocabulary_multiple", 128)
    assert multiple == request.framework.sections["tp"]["vocabulary_multiple"]
    if request.strategy.fields["dp_degree"] * request.strategy.fields["cp_degree"] > 1:
        overlaps = override.get("dp", {}).get("overlap_gradients", True)
        assert overlaps == request.framework.sections["dp"]["overlap_gradients"]
    assert tables["framework"]["name"] == framework


@pytest.fixture(scope="module", params=EXPORTS)
def space(request: pytest.FixtureRequest) -> Space:
    """What a search with this framework may propose."""
    return Space.of(
        {
            "framework": {"name": request.param},
            "model": {"num_layers": 12},
            "search": {"vpp": [2, 3]},
        }
    )


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_what_a_search_proposes_is_written_and_read_back(space: Space, data: Any) -> None:
    name = space.contexts.job.framework.name
    exporter = next(each for each in autopar_exporters() if each.name == name)
    asked, files = exported(exporter, data.draw(requests(space)))
    manager = space.contexts.manager
    reading = read_back(files, next(iter(files)), manager)
    same_strategy(asked, reading, manager)
    same_job(asked, reading)
