"""Numbers with their nouns, in sentences of rules and elsewhere."""

from __future__ import annotations

import numpy as np
import pytest

from autopar_core.api import Broken, Field, Level, StrategyBatch, counted


@pytest.mark.parametrize(
    ("number", "noun", "text"),
    [
        (1, "layer", "1 layer"), (0, "layer", "0 layers"), (2, "micro-batch", "2 micro-batches"),
        (3, "entry", "3 entries"), (4, "key", "4 keys"), (1, "entry", "1 entry"),
    ],
)  # fmt: skip
def test_a_number_has_its_noun(number: int, noun: str, text: str) -> None:
    assert counted(number, noun) == text


def test_a_rule_says_one_and_many() -> None:
    size = Field(name="size", short="s", level=Level.BATCH, neutral=1)
    batch = StrategyBatch.of({"size": size}, {"size": np.array([1, 4])})
    rule = Broken(
        code="x", rows=np.ones(2, bool),
        sentence="{size:1 micro-batch} for {ranks:1 rank}, {{so}} {share:.1f} each",
        numbers={"ranks": np.array([2, 1]), "share": 0.25},
    )  # fmt: skip
    assert rule.say_rows(batch, np.arange(2)) == [
        "1 micro-batch for 2 ranks, {so} 0.2 each", "4 micro-batches for 1 rank, {so} 0.2 each",
    ]  # fmt: skip
