"""Step times of published full systems, source by source.

Only rows that the model can express: 16-bit formats and a stated micro-batch size. One scalar per
profile and system is calibrated on these very sources, so the bounds state consistency rather than
predictive power; `test_scalars_from_the_other_half` refits the scalars alone.
"""

from __future__ import annotations

from collections import defaultdict
from types import ModuleType

import numpy as np
import pytest

from autopar_core.plugins import PluginManager


pytestmark = [pytest.mark.physics, pytest.mark.slow]

# (source, GPU) -> (rows, median, p90) in percent; measured with this release in the comment.
BOUNDS = {
    ("dgxc-benchmarking", "H100"): (59, 3.5, 7.0),  # 2.8, 6.3
    ("dgxc-benchmarking", "GB200"): (8, 2.0, 3.5),  # 1.3, 2.8
    ("Kwai", "H800"): (29, 1.7, 8.0),  # 1.1, 7.5: cp 4 rows are charged one call per ring step
    ("Kwai", "A800"): (3, 2.6, 5.0),  # 2.3, 3.2
    ("SC21", "A100"): (5, 3.0, 7.0),  # 2.3, 5.9: scatter/gather of messages is absent
    ("Korthikanti", "A100"): (4, 4.0, 5.5),  # 3.2, 4.7
    ("SimuMax", "B200"): (16, 3.5, 7.5),  # 2.7, 6.6: tp 4 rows are charged too much per collective
    ("llm-foundry", "A100-SXM-40"): (54, 4.0, 13.0),  # 2.6, 12.0: 13B on 8 GPUs, memory nearly full
    ("llm-foundry", "A100-SXM-80"): (37, 2.6, 7.5),  # 2.0, 6.5
    ("llm-foundry", "H100"): (31, 4.2, 11.5),  # 3.6, 10.5
    ("torchtitan", "H100"): (6, 3.5, 8.0),  # 2.8, 6.9
    ("torchtitan", "A100"): (3, 1.3, 2.5),  # 1.0, 2.1
}

# Rows that nothing in the published description explains; counted above all the same.
#   mpt-*-30b-8192-8: 20 to 28 % too fast, memory nearly full, allocator retries are likely
#   mpt-a100_40gb-1b-2048-32: 20 % too fast, its neighbours at 16 and 64 GPUs fit


def _group(row: dict[str, str]) -> tuple[str, str] | None:
    for source, gpu in BOUNDS:
        if source.lower() in row["source"].lower() and row["gpu"].startswith(gpu):
            return source, gpu
    return None


def _usable(row: dict[str, str]) -> bool:
    sixteen = not any(word in row["precision"] for word in ("fp8", "fp4"))
    return row["tier"] == "A" and sixteen and bool(row["micro_batch"] and row["step_time_s"])


@pytest.fixture(scope="module")
def errors(rows: ModuleType, plugins: PluginManager) -> dict[tuple[str, str], dict[str, float]]:
    """Relative errors of the step time by source and GPU."""
    found: dict[tuple[str, str], dict[str, float]] = defaultdict(dict)
    for row in filter(_usable, rows.read("measured_published.tsv")):
        group = _group(row)
        assert group is not None, row["id"]
        seconds = rows.published(plugins, row).performance.seconds
        found[group][row["id"]] = seconds / float(row["step_time_s"]) - 1
    return found


@pytest.mark.parametrize("group", BOUNDS, ids=" ".join)
def test_source(errors: dict[tuple[str, str], dict[str, float]], group: tuple[str, str]) -> None:
    count, median, p90 = BOUNDS[group]
    size = 100 * np.abs(list(errors[group].values()))
    worst = sorted(errors[group].items(), key=lambda item: -abs(item[1]))[:3]
    assert len(size) == count
    assert np.median(size) <= median, worst
    assert np.percentile(size, 90) <= p90, worst


def test_all_sources(errors: dict[tuple[str, str], dict[str, float]]) -> None:
    # 255 rows, measured with this release: median 2.6 %, p90 7.4 %.
    size = 100 * np.abs([error for group in errors.values() for error in group.values()])
    assert len(size) == sum(count for count, _, _ in BOUNDS.values())
    assert np.median(size) <= 5
    assert np.percentile(size, 90) <= 12


def test_scalars_from_the_other_half(errors: dict[tuple[str, str], dict[str, float]]) -> None:
    # The scalar of each source from every second row, tested on the rows between them.
    # Measured with this release: median 2.7 %, p90 6.3 % over 122 rows.
    found: list[float] = []
    for group in errors.values():
        ratios = 1 + np.array(list(group.values()))
        if len(ratios) >= 4:
            found += list(np.abs(ratios[1::2] / np.median(ratios[::2]) - 1))
    assert np.median(found) <= 0.05
    assert np.percentile(found, 90) <= 0.12


def test_rank_of_alternatives(
    errors: dict[tuple[str, str], dict[str, float]], rows: ModuleType
) -> None:
    # Orders, not levels: among the 175B runs of one fork on 48 to 256 GPUs, GPU-seconds per
    # sequence are predicted in the measured order up to near ties.
    table = {row["id"]: row for row in rows.read("measured_published.tsv")}
    pairs = []
    for name, error in errors["Kwai", "H800"].items():
        row = table[name]
        if "175B" in name:
            share = int(row["gpus"]) / int(row["global_batch"])
            measured = float(row["step_time_s"]) * share
            pairs.append((measured, measured * (1 + error)))
    measured, predicted = np.array(pairs).T
    ranks = [np.argsort(np.argsort(values)) for values in (measured, predicted)]
    assert np.corrcoef(*ranks)[0, 1] >= 0.8
