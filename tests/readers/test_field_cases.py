"""Field cases of kinds c (refused by a framework) and d (tricky files), and where each is tested."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from autopar_core.api import InputError
from autopar_core.testing import run_search


DATA = Path(__file__).resolve().parents[1] / "data" / "field" / "field_cases.tsv"


def cases(kind: str) -> set[str]:
    with DATA.open(encoding="utf-8", newline="") as file:
        return {row["id"] for row in csv.DictReader(file, delimiter="\t") if row["kind"] == kind}


def test_the_cases_are_there() -> None:
    assert {"C05", "C07", "C19", "C33"} <= cases("c")
    assert {"D02", "D03", "D04", "D06", "D09", "D14"} <= cases("d")


def test_c05_heads_that_groups_do_not_divide_are_refused_at_input() -> None:
    """32 heads, 5 groups: accepted by the framework, and a crash in the first forward."""
    with pytest.raises(InputError, match=r"must divide model\.heads = 32"):
        run_search({"model": {"heads": 32, "kv_heads": 5}})
    for groups in (0, -1):
        with pytest.raises(InputError, match="must be a positive integer"):
            run_search({"model": {"kv_heads": groups}})


def test_c22_sequences_that_the_tensor_degree_does_not_divide_fall() -> None:
    """Sequence parallelism over four ranks needs a token count divisible by four."""
    changes = {
        "training": {"seq_len": 4098}, "framework": {"name": "generic"},
        "search": {"tp": 4, "pp": 1, "cp": 1, "sp": [True, False]},
    }  # fmt: skip
    result = run_search(changes)
    split = result.batch["sequence_parallel"][result.verdicts.feasible]
    assert len(split)
    assert not split.any()
    said = [s for cut in result.cuts for _, _, s in cut.reasons]
    assert any("sequence parallelism splits 4098 tokens into tp 4" in one for one in said)


def test_c31_the_heaviest_stage_is_reported_not_the_average() -> None:
    """Eight layers as 1, 2, 2, 3: the memory told is that of the largest stage, ends included."""
    result = run_search(
        {
            "model": {"num_layers": 8}, "search": {"pp": 4, "tp": 1, "cp": 1, "vpp": 1,
            "stage_partition": [1, 2, 2, 3], "layer_recompute": "none"},
        }
    )  # fmt: skip
    best = result.top[0]
    allocated = [stage.allocated_bytes for stage in best.memory.stages]
    assert best.memory.allocated_bytes == max(allocated)
    assert best.memory.allocated_bytes > sum(allocated) / len(allocated)
    assert best.strategy.stage_partition == [1, 2, 2, 3]
