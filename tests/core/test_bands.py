"""Bands of step time and memory: from residuals to a prediction, and the words for memory."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import tomli

from autopar_core.cli.session import load_plugins
from autopar_core.config.bands import bands_of, residuals
from autopar_core.config.load import load_job
from autopar_core.config.overrides import Overrides
from autopar_core.domain.bands import Band
from autopar_core.domain.result import SearchResult
from autopar_core.search.memory_verdict import NOT_JUDGED, WORDS, verdict_codes
from autopar_core.search.run import search
from autopar_core.validate.predict import Answer, Fact, Row
from autopar_core.validate.residuals import as_toml, residuals_of
from autopar_core.validate.rows import Run


def class_of(system: str, framework: str, **bands: dict[str, float]) -> dict[str, Any]:
    return {"system": system, "framework": framework, **bands}


def band(rows: int, p90: float) -> dict[str, float]:
    return {"rows": rows, "median": p90 / 2, "p90": p90, "remaining": p90 / 4}


TABLE = {
    "unmeasured": {name: band(0, 0.3) for name in ("time", "memory", "reserved")},
    "class": [
        class_of("a", "f", time=band(20, 0.05), memory=band(20, 0.01)),
        class_of("b", "f", time=band(3, 0.02), memory=band(9, 0.04)),
    ],
}


def test_around() -> None:
    # 10 s and a p90 of ln 1.25: 8 to 12.5 s; a further uncertainty of 20 % multiplies
    made = Band(median=0.1, p90=math.log(1.25))
    assert made.around(10.0) == pytest.approx((8.0, 12.5))
    assert made.around(10.0, 0.2) == pytest.approx((8 / 1.2, 15.0))


@pytest.mark.parametrize(
    ("system", "framework", "time", "memory", "reserved"),
    [
        ("a", "f", 0.05, 0.01, 0.3),  # measured; reserved memory was not
        ("b", "f", 0.3, 0.04, 0.3),  # three runs are too few for a band of their own
        ("c", "f", 0.3, 0.04, 0.3),  # another system: memory as the widest class of the framework
        ("a", "g", 0.3, 0.3, 0.3),  # nothing measured
    ],
)
def test_which_band(
    system: str, framework: str, time: float, memory: float, reserved: float
) -> None:
    made = bands_of(system, framework, table=TABLE)
    assert (made.time.p90, made.memory.p90, made.reserved.p90) == (time, memory, reserved)


def test_a_calibration_wins() -> None:
    own = {"time": Band(rows=12, median=0.01, p90=0.02)}
    assert bands_of("c", "g", own, TABLE).time == own["time"]
    few = {"time": Band(rows=2, median=0.01, p90=0.02)}
    assert bands_of("c", "g", few, TABLE).time.p90 == 0.3


def test_shipped_bands_are_wider_where_nothing_was_measured() -> None:
    known = residuals()
    made = bands_of("mi300x", "megascale")
    measured = [each["time"]["p90"] for each in known["class"] if each.get("time")]
    assert made.time.rows == 0
    assert made.time.p90 > np.median(measured)
    assert bands_of("gb200-nvl72", "nemo").time.p90 < made.time.p90


def test_words() -> None:
    # limit 100: allocated + reserves; reserved + reserves; upper end 1.1 x allocated + reserves
    total = np.array([80, 101, 90, 95, -1])
    allocated = np.array([70, 91, 80, 85, -1])
    reserved = np.array([90, 120, 101, 99, -1])
    codes = verdict_codes(
        total, allocated, reserved, Band(median=0.0, p90=math.log(1.1)), limit=100
    )
    # 70 x 1.1 + 10 = 87; 85 x 1.1 + 10 = 103.5
    assert [WORDS[code] for code in codes[:4]] == ["fits", "over", "tight", "tight"]
    assert codes[4] == NOT_JUDGED


def fact(**changes: Any) -> Fact:
    made: dict[str, Any] = {
        "system": "s", "framework": "f", "scale": 1.1, "default_scale": 1.0, "mode": "none",
        "tokens": 1, "flops_at_peak_s": 0.5,
    }  # fmt: skip
    return Fact(**{**made, **changes})


def test_residuals_by_hand() -> None:
    # measured / predicted = 1.1, 1.2, 1.3, all of one class; one run of a rank alone, and one at
    # 2 % of the peak, say nothing of whole steps
    shapes = [("real", 1.1, 0.5), ("real", 1.2, 0.5), ("real", 1.3, 0.5), ("none", 9.0, 0.5),
              ("real", 9.0, 0.1)]  # fmt: skip
    answer = Answer(
        runs=tuple(Run({"collectives": kind}, "") for kind, *_ in shapes),
        rows=tuple(
            Row(id="x-1", source="x", tier="A", predicted_step_time_s=1.0,
                measured_step_time_s=ratio, predicted_peak_mem_gib=10.0,
                measured_peak_mem_gib=10.0)
            for _, ratio, _ in shapes
        ),
        facts=tuple(fact(flops_at_peak_s=peak) for *_, peak in shapes),
    )  # fmt: skip
    (found,) = residuals_of(answer).values()
    made = found["time"].band()
    assert (made.rows, found["memory"].band().rows) == (3, 5)
    assert made.median == pytest.approx(math.log(1.2), abs=1e-4)
    # after the median ratio 1.2: |ln 1.1 - ln 1.2|, 0, |ln 1.3 - ln 1.2|
    assert made.remaining == pytest.approx(math.log(1.3 / 1.2), abs=1e-4)
    # without the scalar of 1.1 predictions are 1.1 times smaller
    assert found["time"].plain == pytest.approx(found["time"].values + math.log(1.1))
    table = tomli.loads(as_toml(answer))
    assert table["class"][0]["memory"] == {"rows": 5, "median": 0.0, "p90": 0.0, "remaining": 0.0}
    assert table["unmeasured"]["time"]["p90"] > made.p90


@pytest.fixture(scope="module")
def result() -> SearchResult:
    plugins = load_plugins()
    tables = {
        "model": {"source": "llama-2-7b"}, "training": {"global_batch_size": 64, "seq_len": 4096},
        "cluster": {"system": "h100-sxm-80gb", "devices": 8},
        "framework": {"name": "nemo"},
        "search": {"top_k": 20, "tp": [1, 2], "pp": [1, 2], "cp": 1, "stage_partition": "even"},
    }  # fmt: skip
    return search(load_job(None, tables, Overrides(), plugins), plugins)


def test_a_search_tells_bands_ties_and_words(result: SearchResult) -> None:
    bands, limit = result.job.bands, result.job.cluster.memory_limit
    best = result.top[0].performance.seconds
    for detail in result.top:
        cost, memory = detail.performance, detail.memory
        assert (cost.low_seconds, cost.high_seconds) == bands.time.around(cost.seconds)
        near = abs(math.log(cost.seconds / best)) <= bands.time.remaining
        assert detail.tie_with_best is near
        assert memory.low_bytes <= memory.total_bytes <= memory.high_bytes
        assert memory.verdict == WORDS[result.memory_verdict[detail.row]]
        assert (memory.verdict == "over") == (memory.total_bytes > limit)
        tight = max(memory.reserved_bytes, memory.high_bytes) > limit
        assert (memory.verdict == "tight") == (tight and memory.total_bytes <= limit)
    judged = result.memory_bytes >= 0
    assert ((result.memory_verdict >= 0) == judged).all()
    assert ((result.memory_verdict == 2) == (judged & (result.memory_bytes > limit))).all()
    assert {detail.tie_with_best for detail in result.top} == {True, False}
