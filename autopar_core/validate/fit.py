"""Constants of step time from measured runs: influences, a robust fit, and which ones are carried."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from attrs import frozen

from autopar_core.domain.arrays import Bools, Floats, Ints
from autopar_core.validate.constants import Constant, rules
from autopar_core.validate.robust import huber_regression


# Relative change of a constant by which its influence is measured; exact steps of the fit.
_NUDGE = 1.05
_STEPS = 2
Values = Mapping[Constant, float]


@frozen(kw_only=True)
class Fitted:
    """A constant with what is behind it; ``spread`` is the standard error of ln(value)."""

    constant: Constant
    value: float
    spread: float
    rows: int
    configurations: int


@frozen(kw_only=True, eq=False)
class Times:
    """Runs of one class with step times.

    Attributes:
        measured: (n,) seconds.
        index: (n,) which configuration a run is of.
        predicted: Step times with changed constants, (n,); computed once for the same values.
    """

    measured: Floats
    index: Ints
    predicted: Callable[[Values], Floats]

    def left(self, values: Values) -> Floats:
        """(n,) ln(measured / predicted); a scalar multiplies what is predicted without it."""
        others = {each: value for each, value in values.items() if not each.scalar}
        left = np.log(self.measured / self.predicted(others))
        for each, value in values.items():
            if each.scalar:
                left = left - np.log(value / each.shipped)
        return np.asarray(left)

    @property
    def weights(self) -> Floats:
        """(n,) runs of one configuration weigh as one."""
        counts = np.bincount(self.index)
        return np.asarray(1 / counts[self.index])

    @property
    def halves(self) -> list[tuple[Bools, Bools]]:
        """(fitted, judged): runs of every second configuration, and the others, both ways."""
        even = self.index % 2 == 0
        return [(even, ~even), (~even, even)]


@frozen(kw_only=True, eq=False)
class _Linear:
    """ln(step time) as a linear function of ln(constants) around some values.

    Attributes:
        left: (n,) ln(measured / predicted) there.
        columns: Constant -> (n,) d ln(step time) / d ln(constant).
        times: The runs.
    """

    left: Floats
    columns: Mapping[Constant, Floats]
    times: Times

    @classmethod
    def around(cls, times: Times, constants: Sequence[Constant], values: Values) -> _Linear:
        columns = {each: _influence(times, each, values) for each in constants}
        return cls(left=times.left(values), columns=columns, times=times)

    def solve(self, chosen: Sequence[Constant], rows: Bools) -> tuple[Floats, Floats]:
        """((k,) steps of ln(constant), (k,) their standard errors) from some rows."""
        matrix = np.stack([self.columns[each][rows] for each in chosen], axis=1)
        root = np.sqrt(self.times.weights[rows])
        step, covariance = huber_regression(matrix * root[:, None], self.left[rows] * root)
        return step, np.sqrt(np.diag(covariance))

    def crossed(self, chosen: Sequence[Constant]) -> Floats:
        """(n,) what is left, to first order, with constants of the half that a run is not in."""
        left = self.left.copy()
        for fit, judge in self.times.halves:
            for each, size in zip(chosen, self.solve(chosen, fit)[0], strict=True):
                left[judge] -= self.columns[each][judge] * size
        return left


def _influence(times: Times, constant: Constant, values: Values) -> Floats:
    """(n,) d ln(step time) / d ln(constant) at these values."""
    if constant.scalar:
        return np.ones(len(times.measured))
    value = values.get(constant, constant.shipped)
    nudged = value * _NUDGE if value * _NUDGE <= constant.most else value / _NUDGE
    moved = times.left(values) - times.left({**values, constant: nudged})
    return np.asarray(moved / np.log(nudged / value))


def fit_time(times: Times, known: Sequence[Constant]) -> tuple[list[Fitted], dict[str, str]]:
    """The longest list of constants, in order, of which each one is carried."""
    rule, refused = rules(), {}
    count = len(np.unique(times.index))
    if count < rule["least_configurations"]:
        why = f"{count} different configurations; {rule['least_configurations']} are needed"
        return [], {each.name: why for each in known}
    chosen = [known[0]]
    for constant in known[1:]:
        needed = rule["configurations_each"] * (len(chosen) + 1)
        if count < needed:
            refused[constant.name] = (
                f"{count} different configurations; {needed} are needed for {len(chosen) + 1} "
                f"constants ({rule['configurations_each']} each)"
            )
            continue
        why = _why_not(times, chosen, constant)
        if why:
            refused[constant.name] = why
        else:
            chosen.append(constant)
    values, errors = _solve(times, chosen)
    fitted = [
        Fitted(constant=each, value=values[each], spread=errors[each], rows=len(times.measured),
               configurations=count)
        for each in chosen
    ]  # fmt: skip
    return fitted, refused


def _why_not(times: Times, chosen: Sequence[Constant], constant: Constant) -> str:
    """Why the rows do not carry a further constant; empty when they do."""
    rule, more = rules(), [*chosen, constant]
    linear = _Linear.around(times, more, {})
    before = np.stack([linear.columns[each] for each in chosen], axis=1)
    own = linear.columns[constant]
    rest = float((own - before @ np.linalg.lstsq(before, own, rcond=None)[0]).std())
    if rest < rule["least_influence"]:
        return (
            f"it acts alike on all these runs (its influence varies by {rest:.3f}, "
            f"{rule['least_influence']} is needed)"
        )
    step, errors = linear.solve(more, np.ones(len(own), dtype=bool))
    if errors[-1] > rule["most_spread"]:
        return f"the runs leave it open by {100 * errors[-1]:.0f} %"
    value = constant.shipped * float(np.exp(step[-1]))
    if value >= constant.most:
        return f"the runs ask for {value:.3g}, and it cannot be more than {constant.most:.3g}"
    without, having = (
        100 * float(np.median(np.abs(linear.crossed(each)))) for each in (chosen, more)
    )
    if having > without * (1 - rule["least_gain"]):
        return (
            f"it does not help on the half that was not fitted (median error {without:.1f} % "
            f"without it, {having:.1f} % with it)"
        )
    return ""


def _solve(
    times: Times, chosen: Sequence[Constant], rows: Bools | None = None
) -> tuple[dict[Constant, float], dict[Constant, float]]:
    """(values, standard errors of their logarithms) from some rows: Gauss-Newton, exact steps."""
    some = np.ones(len(times.measured), dtype=bool) if rows is None else rows
    values, errors = {each: each.shipped for each in chosen}, dict.fromkeys(chosen, np.inf)
    for _ in range(1 if all(each.scalar for each in chosen) else _STEPS):
        step, spread = _Linear.around(times, chosen, values).solve(chosen, some)
        for each, size, error in zip(chosen, step, spread, strict=True):
            values[each] = min(each.most, values[each] * float(np.exp(size)))
            errors[each] = float(error)
    return values, errors


def held_out(times: Times, chosen: Sequence[Constant]) -> Floats:
    """(n,) ln(measured / predicted) with constants fitted on the half that a run is not in."""
    held = np.zeros(len(times.measured))
    for fit, judge in times.halves:
        held[judge] = times.left(_solve(times, chosen, fit)[0])[judge]
    return held
