"""What predictions leave unexplained, class by class: the bands of later predictions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from attrs import frozen

from autopar_core.domain.arrays import Floats
from autopar_core.domain.bands import Band
from autopar_core.validate.groups import judging
from autopar_core.validate.predict import Answer, Fact, Row
from autopar_core.validate.rows import Run
from autopar_core.validate.statistics import QUANTITIES


# Share of classes whose 90th percentile lies within the band of a class that was never measured.
_SHARE = 90
_LEAST = 5
# Residuals are stored to a hundredth of a percent; exact memory still has a rounding of that size.
_DIGITS = 4


@frozen(kw_only=True)
class Residuals:
    """Logarithms of measured over predicted of one class and quantity.

    ``plain`` is the same with the scalar of a system that was never calibrated.
    """

    values: Floats
    plain: Floats

    def band(self) -> Band:
        """Band of the class."""
        left = self.values - np.median(self.values)
        return Band(
            rows=len(self.values), median=_round(np.median(np.abs(self.values))),
            p90=_round(np.percentile(np.abs(self.values), 90)),
            remaining=_round(np.median(np.abs(left))),
        )  # fmt: skip


def _round(value: float | np.floating) -> float:
    return round(float(value), _DIGITS)


Class = tuple[str, str]


def residuals_of(answer: Answer) -> dict[Class, dict[str, Residuals]]:
    """(system, framework) -> quantity -> residuals."""
    found: dict[Class, dict[str, list[tuple[float, float]]]] = {}
    for run, row, fact in zip(answer.runs, answer.rows, answer.facts, strict=True):
        if fact is None:
            continue
        for quantity, column in QUANTITIES.items():
            measured = getattr(row, f"measured_{column}")
            predicted = getattr(row, f"predicted_{column}")
            if measured and predicted and (quantity != "time" or _whole(run, row, fact)):
                value = float(np.log(measured / predicted))
                plain = np.log(fact.scale / fact.default_scale) if quantity == "time" else 0.0
                own = found.setdefault((fact.system, fact.framework), {})
                own.setdefault(quantity, []).append((value, value + float(plain)))
    return {
        each: {
            quantity: Residuals(values=np.array(pairs)[:, 0], plain=np.array(pairs)[:, 1])
            for quantity, pairs in own.items()
        }
        for each, own in sorted(found.items())
    }


def _whole(run: Run, row: Row, fact: Fact) -> bool:
    """Step times of whole runs that were no accident of a crowded cluster."""
    least = judging()["choice"]["least_peak_share"]
    assert row.measured_step_time_s is not None
    busy = fact.flops_at_peak_s / row.measured_step_time_s >= least
    return busy and run.text("collectives").lower() != "none"


def unmeasured(found: Iterable[dict[str, Residuals]], quantity: str) -> Band:
    """Band of a class that was never measured: nearly the widest of the measured ones.

    Every class of enough runs counts once: the median of their medians, the 90th percentile of their
    90th percentiles; step times as if the class had no scalar of its own.
    """
    own = [each[quantity] for each in found if quantity in each]
    large = [each for each in own if len(each.plain) >= _LEAST] or own
    if not large:
        return Band(median=0.0, p90=0.0)
    sizes = [np.abs(each.plain) for each in large]
    return Band(
        median=_round(np.median([np.median(size) for size in sizes])),
        p90=_round(np.percentile([np.percentile(size, 90) for size in sizes], _SHARE)),
        remaining=_round(np.median([each.band().remaining for each in large])),
    )


_HEAD = """\
# How far predictions were from measured runs, by system and framework: sizes of ln(measured / predicted).
# Made from the runs in tests/data/measured by `python3 dev.py accuracy`; not written by hand.
# `remaining` is the median size after the class's own scalar. `unmeasured` stands in for other classes.
"""


def as_toml(answer: Answer) -> str:
    """The content of ``residuals.toml``."""
    found = residuals_of(answer)
    lines = [_HEAD, "[unmeasured]"]
    lines += [
        f"{quantity} = {_table(unmeasured(found.values(), quantity))}" for quantity in QUANTITIES
    ]
    for (system, framework), own in found.items():
        lines += ["", "[[class]]", f'system = "{system}"', f'framework = "{framework}"']
        lines += [f"{quantity} = {_table(own[quantity].band())}" for quantity in own]
    return "\n".join(lines) + "\n"


def _table(band: Band) -> str:
    values: Sequence[tuple[str, float]] = (
        ("rows", band.rows), ("median", band.median), ("p90", band.p90),
        ("remaining", band.remaining),
    )  # fmt: skip
    return "{" + ", ".join(f"{name} = {value!r}" for name, value in values) + "}"
