"""Terms that estimators return: what is refused, and windows whose share differs from row to row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from autopar_core.compose.time_table import TimeTable, tail_seconds
from autopar_core.domain.framework import TransientTensor
from autopar_core.domain.terms import ALWAYS, BLOCK_INSTANTS, MemoryTerm, TimeTerm, Window
from autopar_core.hooks.schedule import ScheduleKey


ONE = np.ones(1, dtype=np.int64)
MLP_ONLY = frozenset({"mlp"})
# each of these was counted at other instants than the ones asked for, or not at all
MEANINGLESS: list[dict[str, Any]] = [
    {"scale": "layer", "live": MLP_ONLY},
    {"scale": "layer_done", "live": MLP_ONLY},
    {"scale": "layer_done", "live": frozenset(BLOCK_INSTANTS), "position": "top"},
    {"scale": "saved_layer", "live": MLP_ONLY, "on": "first"},
    {"scale": "saved_layer", "live": MLP_ONLY, "when": "later"},
    {"scale": "micro_batch", "live": MLP_ONLY, "modes": frozenset({"full"})},
    {"when": "sent", "live": MLP_ONLY},
    {"when": "accumulated", "scale": "layer_done", "live": frozenset(BLOCK_INSTANTS)},
    {"live": ALWAYS, "position": "top"},
    {"live": ALWAYS, "modes": frozenset({"none"})},
]


@pytest.mark.parametrize("conditions", MEANINGLESS)
def test_conditions_that_mean_nothing_together_are_refused(conditions: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="term 'piece': "):
        MemoryTerm(name="piece", bytes=ONE, **conditions)
    spelled: dict[str, Any] = {
        name: tuple(sorted(value)) if isinstance(value, frozenset) else value
        for name, value in conditions.items()
    }
    if conditions["live"] == ALWAYS:
        spelled["live"] = ("always",)
    with pytest.raises(ValueError, match=r"scale|when|position"):
        TransientTensor(name="piece", bytes={"hidden": 2}, **spelled)


@pytest.mark.parametrize(
    "wrong",
    [{"live": ("sometimes",)}, {"scale": "stage"}, {"on": "middle"}, {"position": "left"},
     {"when": "never"}, {"modes": ("half",)}],
)  # fmt: skip
def test_a_profile_with_an_unknown_name_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        TransientTensor(name="piece", bytes={"hidden": 2}, **{"live": ("mlp",), **wrong})


def test_the_share_of_a_step_window_may_differ_from_row_to_row() -> None:
    # 4 s behind a backward of 3 s: nothing, half, all of it hides, hence 4, 2.5 and 1 s show
    window = Window(name="last_backward", share=np.array([0.0, 0.5, 1.0]))
    term = TimeTerm(
        name="reduction", seconds=np.full(3, 4.0), resource="link", segment="step", window=window
    )
    table = TimeTable.build([term], 3)

    def shown(rows: list[int]) -> list[list[float]]:
        steps = table.take(np.array(rows)).steps
        layers = np.ones((len(rows), 2), dtype=np.int64)
        room = np.full((len(rows), 2), 3.0)
        key = ScheduleKey("1f1b", 2, 1, 4)
        seconds: list[list[float]] = tail_seconds(steps, layers, key, 0 * room, room).tolist()
        return seconds

    assert shown([0, 1, 2]) == [[4.0, 4.0], [2.5, 2.5], [1.0, 1.0]]
    assert shown([2, 0]) == [[1.0, 1.0], [4.0, 4.0]]


def device(name: str, seconds: float, phase: str, **rest: Any) -> TimeTerm:
    return TimeTerm(name=name, seconds=np.array([seconds]), phase=phase, **rest)


def test_weight_gradients_are_a_share_of_the_backward() -> None:
    # Backward 4 s, 3/4 of it for the weights, 2 s without, and 1 s of links that nothing hides:
    # 7 s, 3 s of them can wait. Recompute adds nothing to those.
    terms = [
        device("linear", 2.0, "forward"),
        device("linear", 4.0, "backward", weight_share=0.75),
        device("attention", 2.0, "backward"),
        device("reduction", 1.0, "backward", resource="link"),
        device("linear", 2.0, "recompute_full", weight_share=0.5),
        device("logits", 2.0, "backward", segment="head", weight_share=0.5),
    ]
    table = TimeTable.build(terms, 1)
    assert table.backward[0].tolist() == [7.0, 7.0, 9.0]
    assert (table.weight[0], table.head_weight[0]) == (3.0, 1.0)


def test_a_host_floor_stretches_both_parts_of_a_backward() -> None:
    # 4 s of device work, half of it for the weights, launched in 8 s: (4^5 + 8^5)^(1/5), half each.
    terms = [device("linear", 4.0, "backward", weight_share=0.5),
             device("launches", 8.0, "backward", resource="host")]  # fmt: skip
    table = TimeTable.build(terms, 1)
    both = (4.0**5 + 8.0**5) ** 0.2
    assert (table.backward[0, 0], table.weight[0]) == pytest.approx((both, both / 2))
    # 6 s of links that nothing hides make it 10 s, and the host stretches them to (10^5 + 8^5)^(1/5).
    terms.append(device("reduction", 6.0, "backward", resource="link"))
    table = TimeTable.build(terms, 1)
    both = (10.0**5 + 8.0**5) ** 0.2
    assert (table.backward[0, 0], table.weight[0]) == pytest.approx((both, both / 5))


def test_a_weight_share_is_a_share() -> None:
    with pytest.raises(ValueError, match="weight_share"):
        device("linear", 4.0, "backward", weight_share=1.5)


@pytest.mark.parametrize("chunks", [1, 2, 3, 4])
def test_the_last_stage_is_the_last_in_order(chunks: int) -> None:
    for mirrored in (False, True):
        key = ScheduleKey("any", 4, chunks, 8, mirrored=mirrored)
        assert key.last == key.order[-1]
        assert sorted(key.order.tolist()) == list(range(key.stages))
