"""The strict converter: what it accepts, and the sentence for what it refuses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import pytest
from attrs import frozen

from autopar_core.config.converter import join, nearest, structure
from autopar_core.domain.model import ModelConfig
from autopar_core.domain.training import Range, TrainingConfig
from autopar_core.errors import InputError


GOOD = {"global_batch_size": 8, "seq_len": 4096}
MODEL = {
    "num_layers": 2, "hidden": 64, "ffn_hidden": 128, "heads": 8, "kv_heads": 2, "vocab": 100,
}  # fmt: skip


@frozen(kw_only=True)
class Inner:
    name: str
    size: float = 1.0


@frozen(kw_only=True)
class Outer:
    parts: tuple[Inner, ...] = ()
    table: Mapping[str, float] = {}
    mode: Literal["a", "b"] = "a"
    either: int | bool | str = 0
    maybe: int | None = None


def sentence(cls: type, table: object, where: str = "run.toml: training") -> str:
    with pytest.raises(InputError) as caught:
        structure(cls, table, where)
    return str(caught.value)


def test_a_good_table_is_built() -> None:
    assert structure(TrainingConfig, GOOD, "x") == TrainingConfig(global_batch_size=8, seq_len=4096)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"seqlen": 1}, "run.toml: training.seqlen: unknown key; did you mean seq_len?"),
        (
            {"zzz": 1},
            "run.toml: training.zzz: unknown key; "
            "legal keys: global_batch_size, seq_len, precision",
        ),
        ({"seq_len": "abc"}, "run.toml: training.seq_len: expected a whole number, got 'abc'"),
        ({"seq_len": True}, "run.toml: training.seq_len: expected a whole number, got True"),
        ({"seq_len": 4096.0}, "run.toml: training.seq_len: expected a whole number, got 4096.0"),
        ({"seq_len": "4096"}, "run.toml: training.seq_len: expected a whole number, got '4096'"),
        ({"seq_len": 0}, "run.toml: training.seq_len: must be > 0, got 0"),
        ({"seq_len": -4}, "run.toml: training.seq_len: must be > 0, got -4"),
        ({"precision": 16}, "run.toml: training.precision: expected a text, got 16"),
    ],
)
def test_sentences(change: dict[str, Any], expected: str) -> None:
    assert sentence(TrainingConfig, {**GOOD, **change}) == expected


def test_a_missing_key_is_named_with_what_it_takes() -> None:
    assert (
        sentence(TrainingConfig, {"seq_len": 1})
        == "run.toml: training.global_batch_size: missing; expected a whole number"
    )


def test_a_misspelt_key_explains_the_missing_one() -> None:
    table = {"global_batch_size": 8, "seqlen": 4096}
    assert "did you mean seq_len?" in sentence(TrainingConfig, table)


def test_the_first_problem_in_the_order_of_the_class_is_said() -> None:
    table = {"precision": 1, "seq_len": "b", "global_batch_size": "a"}
    assert "global_batch_size" in sentence(TrainingConfig, table)


def test_a_value_is_no_table() -> None:
    assert sentence(TrainingConfig, 5) == "run.toml: training: expected a table, got 5"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"experts": 8}, "run.toml: model.experts = 8: mixture-of-experts is not supported"),
        ({"kv_heads": 3}, "run.toml: model.kv_heads = 3: must divide model.heads = 8"),
        ({"heads": 0}, "run.toml: model.heads = 0: must be a positive integer"),
        ({"norm": "rms"}, "run.toml: model.norm: expected one of rmsnorm, layernorm, got 'rms'"),
    ],
)
def test_sentences_of_the_class_keep_their_place(change: dict[str, Any], expected: str) -> None:
    assert sentence(ModelConfig, {**MODEL, **change}, "run.toml: model").startswith(expected)


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ({"parts": [{"name": "x"}, {"name": 3}]}, "f: o.parts[1].name: expected a text, got 3"),
        ({"parts": [{"nam": "x"}]}, "f: o.parts[0].nam: unknown key; did you mean name?"),
        ({"parts": "abc"}, "f: o.parts: expected a list, got 'abc'"),
        ({"parts": [{"name": "x", "size": float("nan")}]}, "f: o.parts[0].size: expected a number"),
        ({"table": {"k": "v"}}, "f: o.table.k: expected a number, got 'v'"),
        ({"table": [1]}, "f: o.table: expected a table, got [1]"),
        ({"mode": "c"}, "f: o.mode: expected one of a, b, got 'c'"),
        ({"either": 1.5}, "f: o.either: expected a whole number or true or false or a text"),
        ({"maybe": "x"}, "f: o.maybe: expected a whole number, got 'x'"),
    ],
)
def test_nested_places(table: dict[str, Any], expected: str) -> None:
    assert sentence(Outer, table, "f: o").startswith(expected)


def test_nested_values() -> None:
    built = structure(
        Outer, {"parts": [{"name": "x", "size": 2}], "table": {"k": 1}, "either": True}, ""
    )
    assert built == Outer(parts=(Inner(name="x", size=2.0),), table={"k": 1.0}, either=True)
    assert built.either is True
    assert isinstance(built.parts[0].size, float)


def test_range_is_open_where_nothing_is_said() -> None:
    assert structure(Range, {"min": 2}, "") == Range(min=2)


def test_nearest() -> None:
    assert nearest("Seq_Length", ["seq_len", "x"]) == "; did you mean seq_len?"
    assert nearest("q", ["seq_len"], noun="known keys") == "; known keys: seq_len"
    assert nearest("q", []) == "; there is no legal key"
    systems = ["a100-sxm-80gb", "h100-pcie-80gb", "h100-sxm-80gb"]
    assert nearest("H100", systems) == "; did you mean h100-pcie-80gb or h100-sxm-80gb?"


def test_join() -> None:
    assert join("run.toml:", "a", "b") == "run.toml: a.b"
    assert join("run.toml: a", "[1]", "b") == "run.toml: a[1].b"
    assert join("", "a") == "a"
