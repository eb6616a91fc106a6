"""Answers as named columns with a neutral value, so that two answers compare in any order."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from attrs import frozen

from autopar_core.domain.arrays import Array
from autopar_core.domain.terms import AttentionCalls
from autopar_core.testing.bench import Answers


@frozen(eq=False)
class Column:
    """(N,) values of one thing that a plugin said, and the value that says nothing."""

    name: str
    values: Array
    neutral: float


def columns(answers: Answers, size: int) -> dict[str, Column]:
    """Columns by name; terms with the same name and place are summed, divisors multiplied."""
    found: dict[str, Column] = {}
    for one in _all(answers, size):
        before = found.get(one.name)
        if before is None:
            found[one.name] = one
        else:
            both = (before.values, one.values)
            values = both[0] * both[1] if one.neutral else both[0] + both[1]
            found[one.name] = Column(one.name, values, one.neutral)
    return found


def differences(one: dict[str, Column], two: dict[str, Column], size: int) -> Iterator[str]:
    """Names of columns that differ; a column that is missing says nothing."""
    for name in sorted({*one, *two}):
        neutral = (one.get(name) or two[name]).neutral
        silent = np.full(size, neutral)
        left = one[name].values if name in one else silent
        right = two[name].values if name in two else silent
        # sums of seconds may differ in the last digit; bytes are whole and differ by one at least
        if not np.allclose(left, right, rtol=1e-12, atol=0.0, equal_nan=True):
            row = int(np.argmax(~np.isclose(left, right, rtol=1e-12, atol=0.0, equal_nan=True)))
            yield f"{name}: {left[row]} and {right[row]}"


def spread(values: object, size: int) -> Array:
    """A number or (N,) as (N,)."""
    return np.broadcast_to(np.asarray(values), (size,))


def _all(answers: Answers, size: int) -> Iterator[Column]:
    for number, shard in enumerate(answers.shards):
        if isinstance(shard, AttentionCalls):
            yield from _calls(number, shard, size)
        else:
            name = f"divisor of {shard.extent.value} ({shard.rounding.value} {shard.multiple})"
            yield Column(name, spread(shard.by, size), 1.0)
    for term in answers.memory:
        live = " ".join(sorted(term.live))
        where = (term.scale, term.on, term.position, term.when, *sorted(term.modes), live)
        name = f"memory '{term.name}' ({', '.join(where)}{', reserve' * term.reserve})"
        yield Column(name, spread(term.bytes, size), 0.0)
    for cost in answers.time:
        window = cost.window.name if cost.window else "none"
        where = (cost.resource, cost.segment, cost.phase, cost.kind, cost.scale, cost.on, window)
        name = f"time '{cost.name}' ({', '.join(where)})"
        yield Column(name, spread(cost.seconds, size), 0.0)
        if cost.window is not None:
            share = spread(cost.window.share, size) * (spread(cost.seconds, size) > 0)
            yield Column(f"share of the window of {name}", share, 0.0)


def _calls(number: int, answer: AttentionCalls, size: int) -> Iterator[Column]:
    rows = spread(answer.rows, size)
    neutral = {"count": 1, "query_divisor": 1, "key_divisor": 1, "heads_divisor": 1,
               "work_share": 0.5}  # fmt: skip
    for place, call in enumerate(answer.calls):
        for what, silent in neutral.items():
            # a difference to the one causal call, so that rows that keep it say nothing
            values = rows * (spread(getattr(call, what), size) - silent)
            yield Column(f"{what} of attention call {number}.{place}", values, 0.0)
