"""Robust fits of few constants: nonnegative coefficients, outliers weigh less."""

from __future__ import annotations

from itertools import combinations

import numpy as np

from autopar_core.domain.arrays import Floats


# Relative residual from which a point weighs less (Huber 1964: quadratic inside, linear outside).
HUBER = 0.03
_ROUNDS = 30


def fit_relative(columns: Floats, target: Floats) -> Floats:
    """(k,) coefficients >= 0 of ``columns @ c = target`` that make relative errors small.

    Iteratively reweighted least squares with Huber's weights on ``columns @ c / target - 1``.

    Args:
        columns: (n, k), a few columns.
        target: (n,) positive.
    """
    scaled = np.asarray(columns / target[:, None], dtype=np.float64)
    ones = np.ones(len(target))
    found = nonnegative(scaled, ones, ones)
    for _ in range(_ROUNDS):
        size = np.abs(scaled @ found - 1)
        found = nonnegative(scaled, ones, np.minimum(1.0, HUBER / np.maximum(size, 1e-12)))
    return found


def nonnegative(columns: Floats, target: Floats, weights: Floats) -> Floats:
    """(k,) least squares with coefficients >= 0: the best over all subsets of the few columns."""
    root = np.sqrt(weights)
    scaled, wanted = columns * root[:, None], target * root
    count = columns.shape[1]
    best, least = np.zeros(count), float(wanted @ wanted)
    for size in range(1, count + 1):
        for chosen in map(list, combinations(range(count), size)):
            some = np.linalg.lstsq(scaled[:, chosen], wanted, rcond=None)[0]
            rest = wanted - scaled[:, chosen] @ some
            if (some >= 0).all() and float(rest @ rest) < least:
                best, least = np.zeros(count), float(rest @ rest)
                best[chosen] = some
    return best


def huber_regression(columns: Floats, target: Floats) -> tuple[Floats, Floats]:
    """((k,) coefficients, (k, k) covariance) of ``columns @ c = target``, outliers weighing less.

    Huber's weights at 1.345 robust standard deviations: 95 % efficient where errors are normal. The
    start is the least absolute deviation, so that one wild run among three does not pull it away.
    """
    weights: Floats = np.ones(len(target))
    found = np.zeros(columns.shape[1], dtype=np.float64)
    # a trace of ridge: columns that say the same share their coefficient instead of failing
    trace = 1e-9 * np.eye(columns.shape[1])
    for turn in range(2 * _ROUNDS):
        normal = columns.T @ (columns * weights[:, None]) + trace
        found = np.asarray(np.linalg.solve(normal, columns.T @ (weights * target)), np.float64)
        rest = target - columns @ found
        size = np.maximum(np.abs(rest), 1e-9)
        scale = 1.4826 * float(np.median(size))
        weights = size.min() / size if turn < _ROUNDS else np.minimum(1.0, 1.345 * scale / size)
    rest = target - columns @ found
    normal = columns.T @ (columns * weights[:, None]) + trace
    freedom = max(1.0, float(weights.sum()) - columns.shape[1])
    variance = float(weights @ rest**2) / freedom
    return found, np.asarray(variance * np.linalg.inv(normal), dtype=np.float64)
