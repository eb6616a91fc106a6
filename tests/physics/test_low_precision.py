"""Step times and memory of published runs below 16 bits.

Ratios and cast bytes were chosen with these rows in view, so the bounds state consistency; the tests of
halves say what carries over: casts of delayed scaling on H100 do, a ratio of one Blackwell GPU or model
does not.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autopar_core.plugins import PluginManager
from autopar_core.validate.predict import Answer, validate
from autopar_core.validate.rows import Run, read_runs


pytestmark = [pytest.mark.physics, pytest.mark.slow]

FILE = Path(__file__).resolve().parents[1] / "data" / "measured" / "measured_published.tsv"
# (source, GPU, number format) of tier A -> (rows, median, p90, bias) in percent; measured in the comment.
BOUNDS = {
    ("dgxc", "GB200", "fp8"): (8, 3.0, 5.0, 3.0),  # 1.7, 3.4, -1.0
    ("dgxc", "H100", "fp8"): (58, 4.5, 10.0, 3.0),  # 3.4, 8.6, +1.6: 405B proxies of early releases
    ("mbridge", "GB200", "fp4"): (4, 5.0, 7.0, 3.0),  # 3.6, 5.3, -1.0: 10 % between releases
    ("mbridge", "GB200", "fp8"): (6, 5.0, 6.0, 3.0),  # 3.3, 4.3, +0.1
    ("mbridge", "GB200", "mx"): (5, 4.0, 5.0, 3.0),  # 2.3, 3.7, +0.6
    ("mbridge", "GB300", "fp4"): (5, 4.0, 6.0, 3.0),  # 2.6, 3.9, 0.0
    ("mbridge", "GB300", "fp8"): (7, 2.5, 5.0, 3.0),  # 1.1, 3.3, +0.1
    ("mbridge", "GB300", "mx"): (6, 2.5, 4.0, 3.0),  # 1.4, 2.6, -0.4
    ("mlm", "H100", "fp8"): (2, 4.0, 5.0, 3.0),  # 2.0, 3.2, +1.5
    ("mpt", "H100", "fp8"): (4, 8.5, 13.0, 6.0),  # 7.5, 11.3, +4.4: their bf16 runs are +3 % too
    ("nemo2407", "H100", "fp8"): (18, 3.5, 13.0, 3.0),  # 1.8, 11.7, -0.8: nemotron-8b -12 %
    # context parallel 4 and 8 are 31 and 34 % too fast, as are 16-bit runs of that exchange
    ("titan", "H100-SXM-96GB", "fp8"): (9, 6.5, 33.0, 11.0),  # 4.7, 31.4, -9.2
    # called a low baseline by who measured them: slower than bf16
    ("titan", "H100-SXM-96GB", "rowwise"): (2, 10.0, 14.0, 10.0),  # 8.6, 12.3, -8.6
}


def low(run: Run) -> bool:
    """A pretraining run below 16 bits with all facts."""
    words = run.text("precision").lower()
    return ("fp8" in words or "fp4" in words) and run.text("tier") == "A"


def kind(run: Run) -> tuple[str, str, str]:
    words = run.text("precision").lower()
    found = next(name for name in ("fp4", "mx", "rowwise", "fp8") if name in words)
    return run.source, run.text("gpu").partition("-SXM-80")[0].partition(" ")[0], found


def configuration(run: Run) -> tuple[str, ...]:
    """What is run, apart from the release and the number of replicas."""
    columns = ("model_name", "gpu", "precision", "tp", "pp", "cp", "vpp", "micro_batch")
    return (run.source, *(run.text(column) for column in columns))


def ratios(answer: Answer) -> dict[str, float]:
    """Predicted over measured step time by id."""
    return {
        row.id: row.predicted_step_time_s / row.measured_step_time_s
        for row in answer.rows
        if row.predicted_step_time_s and row.measured_step_time_s
    }


def percent(values: Iterable[float]) -> tuple[float, float, float]:
    """(median, p90, bias) of ratios, in percent."""
    errors = 100 * (np.array(list(values)) - 1)
    size = np.abs(errors)
    return float(np.median(size)), float(np.percentile(size, 90)), float(errors.mean())


@pytest.fixture(scope="module")
def runs() -> list[Run]:
    return read_runs([FILE])


@pytest.fixture(scope="module")
def found(runs: list[Run], plugins: PluginManager) -> Mapping[str, float]:
    """Ratios of all tier A rows below 16 bits, and of the 16-bit runs beside them."""
    return ratios(validate([run for run in runs if run.text("tier") == "A"], plugins))


@pytest.mark.parametrize("group", BOUNDS, ids=" ".join)
def test_group(runs: list[Run], found: Mapping[str, float], group: tuple[str, str, str]) -> None:
    rows, median, p90, bias = BOUNDS[group]
    kept = {r.id: found[r.id] for r in runs if low(r) and r.id in found and kind(r) == group}
    made = percent(kept.values())
    assert len(kept) == rows
    assert made[0] <= median, kept
    assert made[1] <= p90, kept
    assert abs(made[2]) <= bias, kept


def test_every_row_is_in_a_group(runs: list[Run], found: Mapping[str, float]) -> None:
    groups = {kind(run) for run in runs if low(run) and run.id in found}
    assert groups == set(BOUNDS)


def pairs(runs: Iterable[Run]) -> dict[str, str]:
    """Runs that differ in nothing but the number format: low -> 16 bits."""
    columns = ("model_name", "gpu", "gpus", "dp", "tp", "pp", "cp", "vpp", "micro_batch",
               "global_batch", "seq_len")  # fmt: skip

    def mark(run: Run) -> tuple[str, ...]:
        release = run.text("version").partition(";")[0]
        return (run.source, release, *(run.text(column) for column in columns))

    half = {mark(run): run.id for run in runs if run.text("precision").startswith("bf16")}
    return {run.id: half[mark(run)] for run in runs if low(run) and mark(run) in half}


def delayed(cast: float, transpose: float) -> dict[str, Any]:
    recipe = {f"cast_{what}": cast for what in ("input", "gradient", "weight")}
    precision = {"fp8-delayed": {**recipe, "transpose": transpose}}
    return {"framework": {"override": {"core": {"precision": precision}}}}


def test_gain_of_fp8_over_bf16(runs: list[Run], found: Mapping[str, float]) -> None:
    # What fp8 gains, run by run, without whatever else a run's error has: 66 pairs,
    # measured with this release: median 1.5 %, p90 4.8 %, bias +0.2 %.
    dgxc = [run for run in runs if run.source == "dgxc" and run.text("tier") == "A"]
    both = pairs(dgxc)
    assert len(both) == 66
    median, p90, bias = percent(found[low] / found[half] for low, half in both.items())
    assert (median <= 2.5, p90 <= 6.0, abs(bias) <= 1.5) == (True, True, True), (median, p90, bias)


def test_casts_from_the_other_half(
    runs: list[Run], found: Mapping[str, float], plugins: PluginManager
) -> None:
    # Bytes of a cast and of a transposed copy fitted on every second configuration of the NeMo runs
    # on H100, judged on the others: 17 configurations, 76 rows.
    # Measured with this release: judged median 3.9 and 4.2 %, p90 9.3 and 7.7 %.
    kept = [r for r in runs if low(r) and kind(r) in (("dgxc", "H100", "fp8"),
                                                     ("nemo2407", "H100", "fp8"))]  # fmt: skip
    order = sorted({configuration(run) for run in kept})
    half = {run.id: order.index(configuration(run)) % 2 for run in kept}
    grid = [(cast, copy) for cast in (3.0, 4.0, 5.0) for copy in (2.0, 3.0)]
    made = {point: ratios(validate(kept, plugins, change=delayed(*point))) for point in grid}
    for trained in (0, 1):

        def loss(point: tuple[float, float], part: int = trained) -> float:
            return float(np.mean([abs(x - 1) for i, x in made[point].items() if half[i] == part]))

        best = min(grid, key=loss)
        judged = percent(x for name, x in made[best].items() if half[name] != trained)
        assert judged[0] <= 5.0, (best, judged)
        assert judged[1] <= 12.0, (best, judged)


def test_ratios_of_one_gpu_do_not_carry_over(
    runs: list[Run], found: Mapping[str, float], plugins: PluginManager
) -> None:
    # The speeds of the GB300 taken for the GB200, as if one were known only: -5.6 % in the median
    # of fp8, -4.9 % of nvfp4, with the scalar of each GPU left as it is.
    # With ratios refitted, a ratio of one Blackwell GPU or model missed others by up to 20 %: bands of
    # mxfp8 and nvfp4 are 15 % and more.
    kept = [run for run in runs if low(run) and kind(run)[:2] == ("mbridge", "GB200")]
    table = {"fp8": 2.0, "mxfp8": 1.85, "nvfp4": 3.35}
    formats = {name: {"speed": speed} for name, speed in table.items()}
    change = {"cluster": {"override": {"gemm": {"formats": formats}}}}
    borrowed = ratios(validate(kept, plugins, change=change))
    by_kind: dict[str, list[float]] = defaultdict(list)
    for run in kept:
        by_kind[kind(run)[2]].append(abs(borrowed[run.id] / found[run.id] - 1))
    assert max(np.median(each) for each in by_kind.values()) <= 0.15


def test_memory_is_predicted_for_every_row(runs: list[Run], plugins: PluginManager) -> None:
    # Reserved memory of torchtitan's fp8 runs of tier A, weights gathered in fp8: 1.5 and 2 % without
    # full recompute, 6 to 8 % too little with it.
    kept = [run for run in runs if run.source == "titan" and low(run)]
    rows = [row for row in validate(kept, plugins).rows if row.skipped is None]
    assert all(row.predicted_peak_mem_gib for row in rows)
    errors = percent(
        row.predicted_reserved_mem_gib / row.measured_reserved_mem_gib
        for row in rows
        if row.measured_reserved_mem_gib and row.predicted_reserved_mem_gib
    )
    assert errors[0] <= 7
    assert errors[1] <= 9
