"""`autopar calibrate`: constants that runs carry, refusals, the file, and the half not fitted."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autopar_core.cli.main import main
from autopar_core.cli.session import load_plugins
from autopar_core.config.catalogue import Profiles, framework_profile, system_profile
from autopar_core.config.load import load_job
from autopar_core.config.overrides import Overrides
from autopar_core.errors import InputError
from autopar_core.plugins import PluginManager
from autopar_core.validate.calibrate import Calibration, calibrate
from autopar_core.validate.constants import Constant, change, constants_of, sizes
from autopar_core.validate.predict import validate
from autopar_core.validate.robust import fit_relative, huber_regression
from autopar_core.validate.rows import Run, read_runs


DATA = Path(__file__).parents[1] / "data" / "measured"
SYSTEM, FRAMEWORK = "h100-sxm-80gb", "megatron"
CELLS = {
    "framework": "Megatron-LM", "version": "core r0.12", "num_layers": "16", "hidden": "4096",
    "ffn_hidden": "14336", "gated_mlp": "1", "heads": "32", "kv_heads": "8", "vocab": "32000",
    "seq_len": "4096", "gpu": SYSTEM, "precision": "bf16", "pp": "1", "cp": "1", "vpp": "1",
    "sequence_parallel": "1", "micro_batch": "1", "zero_or_fsdp": "zero1", "recompute": "none",
    "collectives": "real", "other_flags": "TP/PP overlap disabled",
}  # fmt: skip
# 18 configurations whose exposed communication between nodes is from nothing to most of a step
SHAPES = [
    (devices, tp, batches) for devices in (8, 16, 64) for tp in (1, 2, 8) for batches in (1, 8)
]


@pytest.fixture(scope="module")
def plugins() -> PluginManager:
    return load_plugins()


def runs_of(shapes: list[tuple[int, int, int]]) -> list[Run]:
    made = []
    for devices, tp, batches in shapes:
        dp = devices // tp
        cells = {
            **CELLS, "id": f"mine-{devices}-{tp}-{batches}", "gpus": str(devices), "dp": str(dp),
            "tp": str(tp), "global_batch": str(dp * batches),
        }  # fmt: skip
        made.append(Run(cells, "mine.tsv"))
    return made


def known(plugins: PluginManager) -> dict[str, Constant]:
    system = system_profile(Profiles("system", plugins).table(SYSTEM, ""), lambda _: "")
    table = Profiles("framework", plugins).table(FRAMEWORK, "")
    found = constants_of(system, framework_profile(table, lambda _: ""))
    return {each.name: each for each in found}


def timed(
    runs: list[Run], plugins: PluginManager, factors: dict[str, float], noise: float = 0.0
) -> list[Run]:
    """Runs whose step times are those of a machine with other constants."""
    constants = known(plugins)
    values = {constants[name]: factor * constants[name].shipped for name, factor in factors.items()}
    rows = validate(runs, plugins, change=change(values)).rows
    errors = np.random.default_rng(7).normal(0, noise, len(rows))
    return [
        Run({**run.cells, "step_time_s": repr(row.predicted_step_time_s * float(np.exp(error)))},
            run.where)
        for run, row, error in zip(runs, rows, errors, strict=True)
        if row.predicted_step_time_s
    ]  # fmt: skip


def values(found: Calibration) -> dict[str, float]:
    return {each.constant.name: each.value / each.constant.shipped for each in found.fitted}


def test_a_machine_that_is_slower_throughout(plugins: PluginManager) -> None:
    # every time x 1.07 and nothing else: the scalar takes all of it, and nothing is left
    runs = timed(runs_of(SHAPES[:6]), plugins, {"time_scale": 1.07})
    runs[2] = Run({**runs[2].cells, "step_time_s": "1e3"}, "an outlier")
    found = calibrate(runs, SYSTEM, FRAMEWORK, plugins)
    assert values(found)["time_scale"] == pytest.approx(1.07, rel=0.01)
    assert found.rows == found.configurations == 6
    assert "16 are needed for 2 constants (8 each)" in found.refused["gemm.efficiency"]
    assert len(found.held_out) == 6
    assert np.median(np.abs(found.held_out)) < 0.01


@pytest.mark.slow
def test_a_network_that_is_slower_too(plugins: PluginManager) -> None:
    true = {"time_scale": 1.05, "links.inter.bytes_per_second": 0.5}
    runs = timed(runs_of(SHAPES), plugins, true, noise=0.005)
    found = calibrate(runs, SYSTEM, FRAMEWORK, plugins)
    fitted = {each.constant.name: each for each in found.fitted}
    assert set(fitted) == set(true)
    for name, factor in true.items():
        assert values(found)[name] == pytest.approx(factor, rel=0.05)
        assert 0 < fitted[name].spread < 0.05
    # the half that was not fitted: noise remains
    assert sizes(found.before)["p90_abs_pct"] > 10
    assert sizes(found.held_out)["p90_abs_pct"] < 2


def test_too_few_runs_carry_nothing(plugins: PluginManager) -> None:
    runs = timed(runs_of(SHAPES[:2]), plugins, {"time_scale": 1.07})
    found = calibrate([*runs, *runs, *runs], SYSTEM, FRAMEWORK, plugins)
    assert (found.rows, found.configurations, found.fitted) == (6, 2, ())
    assert set(found.refused.values()) == {"2 different configurations; 3 are needed"}


def test_asked_for_more_than_the_runs_carry(plugins: PluginManager) -> None:
    runs = timed(runs_of(SHAPES[:4]), plugins, {})
    with pytest.raises(InputError, match=r"gemm\.efficiency: 4 different configurations; 16 are"):
        calibrate(runs, SYSTEM, FRAMEWORK, plugins, ["gemm.efficiency"])
    with pytest.raises(InputError, match=r"no constant 'gemm'; known: time_scale, gemm\.eff"):
        calibrate(runs, SYSTEM, FRAMEWORK, plugins, ["gemm"])


@pytest.mark.physics
@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "system", "framework", "median", "p90"),
    [
        # measured with this release: 1.2 and 6.2 %
        ("kwai", "h800-sxm-80gb", "megatron-kwai", 2.0, 9.0),
        # 4.1 and 8.9 %: the halves differ in their degrees
        ("simumax", "b200-sxm-180gb", "megatron", 5.0, 11.0),
    ],
)
def test_fitted_on_a_half_and_judged_on_the_other(
    plugins: PluginManager, source: str, system: str, framework: str, median: float, p90: float
) -> None:
    every = read_runs([DATA / "measured_published.tsv"])
    runs = [run for run in every if run.source == source]
    found = calibrate(runs, system, framework, plugins)
    assert found.rows >= 16
    assert 1 <= len(found.fitted) <= 3
    error = sizes(found.held_out)
    assert error["median_abs_pct"] <= median
    assert error["p90_abs_pct"] <= p90


def write(path: Path, runs: list[Run]) -> Path:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(runs[0].cells), delimiter="\t")
        writer.writeheader()
        writer.writerows(run.cells for run in runs)
    return path


def job_of(calibration: Any, plugins: PluginManager, **changes: Any) -> Any:
    tables = {
        "model": {"source": "llama-3-8b"}, "training": {"global_batch_size": 64, "seq_len": 4096},
        "cluster": {"system": SYSTEM, "devices": 16, **changes.pop("cluster", {})},
        "framework": {"name": FRAMEWORK, "calibration": calibration, **changes},
    }  # fmt: skip
    return load_job(None, tables, Overrides(), plugins)


def test_the_file_is_one_key_of_an_input(
    tmp_path: Path, plugins: PluginManager, capsys: pytest.CaptureFixture[str]
) -> None:
    true = {"time_scale": 1.05, "links.inter.bytes_per_second": 0.5}
    file = write(tmp_path / "mine.tsv", timed(runs_of(SHAPES), plugins, true))
    out = tmp_path / "mine.toml"
    arguments = ["calibrate", str(file), "--system", SYSTEM, "--framework", FRAMEWORK]
    assert main([*arguments, "--out", str(out), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    stated = {each["name"]: each["value"] for each in document["constants"]}

    job = job_of(str(out), plugins)
    scale, rate = f"framework.core.time_scale.{SYSTEM}", "cluster.links.inter.bytes_per_second"
    assert job.framework.core.time_scale[SYSTEM] == stated[scale]
    assert job.system.links.inter.bytes_per_second == stated[rate]
    assert job.bands.time.rows == 18
    assert job.bands.time.p90 < 0.01
    for name in (f"framework.override.core.time_scale.{SYSTEM}",
                 "cluster.override.links.inter.bytes_per_second"):  # fmt: skip
        assert job.sources[name] == "mine.toml"
    assert any(note.startswith("calibrated on 18 measured runs") for note in job.notes)

    # what stands in the input wins; the tables of a run do without the file
    mine = job_of(str(out), plugins, override={"core": {"time_scale": {SYSTEM: 2.0}}})
    assert mine.framework.core.time_scale[SYSTEM] == 2.0
    assert mine.sources[f"framework.override.core.time_scale.{SYSTEM}"] == "input"
    out.unlink()
    again = load_job(None, job.raw, Overrides(), plugins)
    assert (again.framework.core, again.system.links) == (job.framework.core, job.system.links)
    assert again.bands == job.bands


def test_a_calibration_of_something_else(tmp_path: Path, plugins: PluginManager) -> None:
    file = tmp_path / "other.toml"
    file.write_text(f'system = "b200-sxm-180gb"\nframework = "{FRAMEWORK}"\n')
    with pytest.raises(InputError, match="was fitted for the system 'b200-sxm-180gb', this is"):
        job_of(str(file), plugins)
    with pytest.raises(InputError, match=r"no such file: nowhere\.toml"):
        job_of("nowhere.toml", plugins)
    file.write_text("framework = 3\n")
    with pytest.raises(InputError, match=r"other\.toml"):
        job_of(str(file), plugins)
    file.write_text(f'system = "{SYSTEM}"\nframework = "{FRAMEWORK}"\n[override.model]\nx = 1\n')
    with pytest.raises(InputError, match=r"override\.model is neither cluster nor framework"):
        job_of(str(file), plugins)


def test_wrong_command_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(tmp_path / "few.tsv", runs_of(SHAPES[:1]))
    wanted = ["calibrate", str(file), "--framework", FRAMEWORK, "--system"]
    assert main([*wanted, "h1000"]) == 2
    assert "unknown system 'h1000'" in capsys.readouterr().err
    assert main([*wanted, SYSTEM, "--out", str(tmp_path)]) == 2
    assert "is a folder" in capsys.readouterr().err
    # no step time was measured: nothing is fitted, and nothing written
    out = tmp_path / "none.toml"
    assert main([*wanted, SYSTEM, "--out", str(out)]) == 1
    assert "nothing can be fitted" in capsys.readouterr().err
    assert not out.exists()


def test_robust_fits() -> None:
    # y = 2 + 3 x without noise, and one point five times too large
    x = np.array([1.0, 2.0, 3.0, 5.0, 8.0, 13.0, 21.0])
    columns = np.stack([np.ones_like(x), x], axis=1)
    y = columns @ [2.0, 3.0]
    y[3] *= 5
    assert fit_relative(columns, y) == pytest.approx([2.0, 3.0], rel=0.03)
    found, covariance = huber_regression(columns, y)
    assert found == pytest.approx([2.0, 3.0], rel=0.05)
    assert (np.diag(covariance) > 0).all()
    # a coefficient that would be negative is left out: y = 4 / x does not grow with x
    assert fit_relative(np.stack([x, 1 / x], axis=1), 4 / x) == pytest.approx([0, 4], abs=1e-9)
