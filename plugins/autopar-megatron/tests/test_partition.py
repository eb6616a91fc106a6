"""Layers of every stage: layouts, end counts, accounted slots, lists; what loses layers is refused."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autopar_core.api import InputError
from autopar_megatron.partition import (
    alternative,
    layout_text,
    nearest_divisor,
    parse_layout,
    spread,
    stages_of,
)
from autopar_megatron.settings import Setting, Settings


def given_as(**values: str) -> Settings:
    found = {
        name: Setting(name, f"--{name.replace('_', '-')}", (value,) if value else (), 1)
        for name, value in values.items()
    }
    return Settings("run.sh", found)


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        ("Et*9|(t*10|)*6t*11L", [9, 10, 10, 10, 10, 10, 10, 11]),
        ("Ettt|(tt|)*29,L", [3, *[2] * 29, 0]),
        ("E|t|tL", [0, 1, 1]),
        ("EtL", [1]),
        ("Et|*3tL", [1, 0, 0, 1]),
        ("E,t*2,|t,L", [2, 1]),
    ],
)
def test_layouts(text: str, counts: list[int]) -> None:
    assert [stage.count("t") for stage in parse_layout(text)] == counts


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("t|tL", "first item must be E"), ("Et|t", "last item must be L"), ("Et|x|L", "'x' is none"),
        ("Et |tL", "blanks"), ("EtE|L", "first item"), ("E(t*2|)L", "is none of"),
        ("Et*999999999L", "more than"), ("E(t*9999|)*99999L", "more than"), ("Et|m|L", "multi-token"),
        ("", "first item"), ("Et+tL", "is none of"),
    ],
)  # fmt: skip
def test_what_is_no_layout(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parse_layout(text)


@settings(max_examples=80, deadline=None)
@given(stages=st.lists(st.integers(0, 12), min_size=1, max_size=24))
def test_a_written_layout_has_the_same_layers(stages: list[int]) -> None:
    assert [stage.count("t") for stage in parse_layout(layout_text(stages))] == stages


@settings(max_examples=80, deadline=None)
@given(layers=st.integers(1, 200), ranks=st.integers(1, 20))
def test_alternatives_add_up(layers: int, ranks: int) -> None:
    assert sum(spread(layers, ranks)) == layers
    said = alternative(layers, ranks)
    assert sum(stage.count("t") for stage in parse_layout(said.split("'")[1])) == layers
    words = said.split()
    if "--decoder-first-pipeline-num-layers" in words:
        first = words[words.index("--decoder-first-pipeline-num-layers") + 1]
        last = words[words.index("--decoder-last-pipeline-num-layers") + 1]
        settings = given_as(
            decoder_first_pipeline_num_layers=first, decoder_last_pipeline_num_layers=last
        )
        assert sum(stages_of(settings, layers, ranks)[0]) == layers


@pytest.mark.parametrize(
    ("flags", "layers", "ranks", "stages"),
    [
        ({}, 12, 4, (3, 3, 3, 3)),
        ({"num_virtual_stages_per_pipeline_rank": "2"}, 16, 4, (2,) * 8),
        ({"num_layers_per_virtual_pipeline_stage": "4"}, 64, 2, (4,) * 16),
        ({"decoder_first_pipeline_num_layers": "2"}, 11, 4, (2, 3, 3, 3)),
        ({"decoder_last_pipeline_num_layers": "2"}, 11, 4, (3, 3, 3, 2)),
        ({"decoder_first_pipeline_num_layers": "1", "decoder_last_pipeline_num_layers": "3"}, 4, 2,
         (1, 3)),
        # 2 + 4 + 4 + 2 layers on a rank, half of them in each chunk
        ({"decoder_first_pipeline_num_layers": "2", "decoder_last_pipeline_num_layers": "2",
          "num_virtual_stages_per_pipeline_rank": "2"}, 12, 4, (1, 2, 2, 1) * 2),
        # 126 + 2 slots over 8 ranks x 2 chunks: 8 each, the first and the last lose one
        ({"account_for_embedding_in_pipeline_split": "", "account_for_loss_in_pipeline_split": "",
          "num_virtual_stages_per_pipeline_rank": "2"}, 126, 8, (7, *[8] * 14, 7)),
        ({"account_for_loss_in_pipeline_split": ""}, 15, 4, (4, 4, 4, 3)),
        # 126 + 2 slots, 2 layers a virtual stage: vpp 8, the published 405B recipe
        ({"account_for_embedding_in_pipeline_split": "", "account_for_loss_in_pipeline_split": "",
          "num_layers_per_virtual_pipeline_stage": "2"}, 126, 8, (1, *[2] * 62, 1)),
        ({"num_layer_list": "17,20,22,21"}, 80, 4, (17, 20, 22, 21)),
        # [rank][chunk] becomes chunk by chunk
        ({"pipeline_num_transformer_layers": "[[1,2],[3,4]]"}, 10, 2, (1, 3, 2, 4)),
    ],
)  # fmt: skip
def test_ways(flags: dict[str, str], layers: int, ranks: int, stages: tuple[int, ...]) -> None:
    assert (
        stages_of(given_as(pipeline_model_parallel_size=str(ranks), **flags), layers, ranks)[0]
        == stages
    )


@pytest.mark.parametrize(
    ("flags", "layers", "ranks", "said"),
    [
        ({"num_layer_list": "17,20,22,20"}, 80, 4, "sum is 80"),
        ({"num_layer_list": "40,40", "num_virtual_stages_per_pipeline_rank": "2"}, 80, 2, "exclude"),
        ({"pipeline_num_transformer_layers": "[[1,2],[3,3]]"}, 10, 2, "sum is 10"),
        ({"decoder_first_pipeline_num_layers": "9", "decoder_last_pipeline_num_layers": "9"}, 18, 3,
         "0 remain for 1"),
        ({"num_virtual_stages_per_pipeline_rank": "2", "num_layers_per_virtual_pipeline_stage": "2"},
         8, 2, "exclude"),
        ({"pipeline_model_parallel_layout": "Et|tL", "account_for_loss_in_pipeline_split": ""}, 2, 2,
         "exclude"),
        ({"num_virtual_stages_per_pipeline_rank": "3", "decoder_first_pipeline_num_layers": "2"}, 11, 4,
         "not divisible into 3"),
    ],
)  # fmt: skip
def test_what_is_refused(flags: dict[str, str], layers: int, ranks: int, said: str) -> None:
    with pytest.raises(InputError, match=said):
        stages_of(given_as(pipeline_model_parallel_size=str(ranks), **flags), layers, ranks)


def test_nearest_divisor() -> None:
    assert nearest_divisor(20, 12) == 10
    assert nearest_divisor(7, 3) == 1
    assert nearest_divisor(12, 5) == 4
