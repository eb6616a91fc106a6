"""Operations timed one by one: laws fitted on every second line and judged on those between."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from attrs import frozen

from autopar_core.domain.arrays import Bools, Floats
from autopar_core.domain.system import SystemProfile
from autopar_core.errors import InputError
from autopar_core.laws.compute import ATTENTION_TILE, SMALL_HEAD
from autopar_core.validate.groups import judging
from autopar_core.validate.robust import fit_relative
from autopar_core.validate.rows import Run, read_table


# Kinds of tables by a column that only they have.
GEMM, ATTENTION, MOVED = "gemm", "attention", "memory-bound"
_COLUMNS = {
    GEMM: ("m", "n", "k", "seconds"),
    ATTENTION: ("batch", "seq", "heads", "head_dim", "fwd_s", "bwd_s", "backend"),
    MOVED: ("op", "mode", "tokens", "width", "fwd_s", "bwd_s"),
}
_LEAST = 4  # lines below which a half says nothing about a law
_CAUSAL = 0.5
_HALF = "bf16"
# A call on an idle queue waits 30 to 200 us for the host; ten times the least of it.
_LONG = 0.3e-3


@frozen(kw_only=True)
class Judged:
    """A law judged on lines that it was not fitted on.

    Attributes:
        kind, name: Kind of operation; which of them.
        constants: What all lines give, with names of the system profile. ``latency_seconds`` is
            that of a call on an idle queue, which no running step pays.
        seconds: (lines,) measured.
        errors: (lines,) percent, signed: every line by the law fitted on the other half.
        shipped: (lines,) the same with the profile's own constants; empty where it has none.
    """

    kind: str
    name: str
    constants: Mapping[str, float]
    seconds: Floats
    errors: Floats
    shipped: Floats

    @property
    def long(self) -> Bools:
        """(lines,) calls that take so long that the host's latency does not blur them."""
        return np.asarray(self.seconds > _LONG)


def read_operations(path: Path) -> dict[str, list[Run]]:
    """Lines of a folder of tables, or of one table, by kind.

    Raises:
        InputError: When there is no table, or one is of no known kind.
    """
    paths = sorted(path.glob("*.tsv")) if path.is_dir() else [path]
    if not paths:
        raise InputError(str(path), "holds no .tsv table of timed operations")
    found: dict[str, list[Run]] = {}
    for each in paths:
        columns, lines = read_table(each)
        kind = next((k for k, names in _COLUMNS.items() if set(names) <= set(columns)), None)
        if kind is None:
            raise InputError(
                str(each), f"is no table of timed operations; one of gemm has the columns "
                f"{', '.join(_COLUMNS[GEMM])}",
            )  # fmt: skip
        found.setdefault(kind, []).extend(lines)
    return found


def judge_operations(lines: Mapping[str, Sequence[Run]], system: SystemProfile) -> list[Judged]:
    """Every law of the tables, judged on lines that it was not fitted on."""
    made = []
    if lines.get(GEMM):
        made.append(_gemm(lines[GEMM], system))
    for (backend, head), calls in sorted(_split(lines.get(ATTENTION, ()), _call).items()):
        for forward in (True, False):
            made += _attention(calls, system, backend, head, forward)
    for (mode, operation), calls in sorted(_split(lines.get(MOVED, ()), _operation).items()):
        for forward in (True, False):
            made += _moved(calls, system, f"{operation}, {mode}", operation, forward)
    return made


def _split(
    lines: Sequence[Run], key: Callable[[Run], tuple[str, str]]
) -> dict[tuple[str, str], list[Run]]:
    found: dict[tuple[str, str], list[Run]] = {}
    for line in lines:
        found.setdefault(key(line), []).append(line)
    return found


def _call(line: Run) -> tuple[str, str]:
    head = line.whole("head_dim")
    return line.text("backend"), "64" if head <= SMALL_HEAD else "128"


def _operation(line: Run) -> tuple[str, str]:
    return line.text("mode"), line.text("op")


def _column(lines: Sequence[Run], name: str) -> Floats:
    values = [line.number(name) for line in lines]
    for line, value in zip(lines, values, strict=True):
        if value is None or value <= 0:
            raise InputError(f"{line.where}, {name}", "expected a number above 0")
    return np.array(values, dtype=np.float64)


def _crossed(columns: Floats, seconds: Floats) -> Floats:
    """(n,) signed errors in percent, each line by the law of the half that it is not in."""
    errors = np.empty(len(seconds))
    for here, there in ((0, 1), (1, 0)):
        found = fit_relative(columns[here::2], seconds[here::2])
        errors[there::2] = 100 * (columns[there::2] @ found / seconds[there::2] - 1)
    return errors


def _shipped(law: Floats, seconds: Floats) -> Floats:
    """(n,) errors of a law whose constants are given, beside the latency of an idle queue.

    The latency is the weighted median of what the law leaves: least absolute relative error.
    """
    left, weights = seconds - law, 1 / seconds
    order = np.argsort(left)
    middle = np.searchsorted(np.cumsum(weights[order]), weights.sum() / 2)
    latency = max(0.0, float(left[order][middle]))
    return np.asarray(100 * ((law + latency) / seconds - 1), dtype=np.float64)


def gemm_columns(system: SystemProfile, m: Floats, n: Floats, k: Floats) -> Floats:
    """(lines, 3): seconds = launch, 1 / efficiency and k0 / efficiency times these."""
    peak = system.peak(_HALF)
    return np.stack([np.ones_like(m), 2 * m * n * k / peak, 2 * m * n / peak], axis=1)


def _gemm(lines: Sequence[Run], system: SystemProfile) -> Judged:
    m, n, k, seconds = (_column(lines, name) for name in _COLUMNS[GEMM])
    columns = gemm_columns(system, m, n, k)
    launch, slope, write = fit_relative(columns, seconds)
    given = np.array([0.0, 1.0, system.gemm.k0]) / system.gemm.efficiency
    return Judged(
        kind=GEMM, name=GEMM, seconds=seconds, errors=_crossed(columns, seconds),
        constants={
            "gemm.efficiency": 1 / slope, "gemm.k0": write / slope, "latency_seconds": launch,
        },
        shipped=_shipped(columns @ given, seconds),
    )  # fmt: skip


def attention_columns(system: SystemProfile, shape: Sequence[Floats], forward: bool) -> Floats:
    """(lines, 4): seconds = launch, 1 / eta, s0 / eta and tail / eta times these; causal calls.

    ``shape`` is sequences, tokens of one, heads, and their width, each (lines,).
    """
    batch, seq, heads, width = shape
    padded = np.where(np.isin(width, (64, 128)), 1.0, np.sqrt(np.ceil(width / 64) * 64 / width))
    peak, times = system.peak(_HALF), 1.0 if forward else 2.5
    work = times * 4 * batch * heads * seq**2 * width * _CAUSAL * padded / peak
    block = times * 4 * ATTENTION_TILE * seq * width * system.compute_units / peak
    return np.stack([np.ones_like(seq), work, work / seq, block], axis=1)


def _attention(
    lines: Sequence[Run], system: SystemProfile, backend: str, head: str, forward: bool
) -> list[Judged]:
    if len(lines) < 2 * _LEAST:
        return []
    shape = [_column(lines, name) for name in ("batch", "seq", "heads", "head_dim")]
    seconds = _column(lines, "fwd_s" if forward else "bwd_s")
    columns = attention_columns(system, shape, forward)
    launch, slope, short, tail = fit_relative(columns, seconds)
    way, end = ("forward", "f") if forward else ("backward", "b")
    place = f"attention.{backend}.{head}"
    law = system.attention.get(backend, {}).get(head)
    shipped = np.zeros(0)
    if law is not None:
        eta, s0, tau = (getattr(law, f"{name}_{end}") for name in ("eta", "s0", "tail"))
        shipped = _shipped(columns @ np.array([0.0, 1.0, s0, tau]) / eta, seconds)
    return [
        Judged(
            kind=ATTENTION, name=f"{backend}, heads of {head}, {way}",
            constants={
                f"{place}.eta_{end}": 1 / slope, f"{place}.s0_{end}": short / slope,
                f"{place}.tail_{end}": tail / slope, "latency_seconds": launch,
            },
            seconds=seconds, errors=_crossed(columns, seconds), shipped=shipped,
        )
    ]  # fmt: skip


def _moved(
    lines: Sequence[Run], system: SystemProfile, name: str, operation: str, forward: bool
) -> list[Judged]:
    counted: Mapping[str, Any] = judging()["operations"]["bytes"]
    if len(lines) < _LEAST or operation not in counted:
        return []
    seconds = _column(lines, "fwd_s" if forward else "bwd_s")
    moved = _column(lines, "tokens") * _column(lines, "width") * counted[operation][not forward]
    columns = np.stack([np.ones_like(moved), moved / system.memory.bytes_per_second], axis=1)
    launch, slope = fit_relative(columns, seconds)
    constants = {"latency_seconds": launch} | ({"share of bandwidth": 1 / slope} if slope else {})
    return [
        Judged(
            kind=MOVED, name=f"{name}, {'forward' if forward else 'backward'}", constants=constants,
            seconds=seconds, errors=_crossed(columns, seconds), shipped=np.zeros(0),
        )
    ]  # fmt: skip


def as_document(judged: Sequence[Judged]) -> dict[str, Any]:
    """The content of a JSON file: every law with its errors in percent."""
    rows = [
        {
            "kind": each.kind, "name": each.name, "lines": len(each.errors),
            "constants": dict(each.constants), "held_out": _sizes(each.errors),
            "held_out_long": _sizes(each.errors[each.long]), "profile": _sizes(each.shipped),
        }
        for each in judged
    ]  # fmt: skip
    return {"rows": rows}


def _sizes(errors: Floats) -> dict[str, float | None]:
    """Median, p90 and worst size of errors."""
    names = ("median_abs_pct", "p90_abs_pct", "max_abs_pct")
    if not len(errors):
        return dict.fromkeys(names)
    found = np.percentile(np.abs(errors), (50, 90, 100))
    return dict(zip(names, map(float, found), strict=True))
