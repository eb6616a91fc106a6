"""Terms that a framework profile lists as data: tensors with instants and conditions, host floors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial

import numpy as np

from autopar_core.domain.arrays import Bools, Floats, Ints
from autopar_core.domain.framework import LayerHost, TransientTensor
from autopar_core.domain.terms import Extent, MemoryTerm, TimeTerm
from autopar_core.work.rank_work import RankWork


def formula_text(formula: Mapping[str, float]) -> str:
    """``"4 B x ffn + 2 B x up_matrix"``."""
    return " + ".join(f"{value:g} B x {name}" for name, value in formula.items())


def tensor_inputs(
    work: RankWork, formula: Mapping[str, float], count: Ints | None = None
) -> dict[str, Ints]:
    """Element counts that a formula of tensors multiplies, and how many times it is taken."""
    made = {name: work.elements(name) for name in formula}
    return made if count is None or (count == 1).all() else {**made, "times": count}


def _times(formula: str, rows: Bools | Ints | None) -> str:
    return formula if rows is None or rows.dtype == bool else f"times x ({formula})"


def _where(work: RankWork, tensor: TransientTensor) -> Bools:
    rows = np.ones(len(work), dtype=bool)
    if tensor.pipelined is not None:
        rows &= work.pipelined == tensor.pipelined
    if tensor.split is not None:
        split = work.extent(Extent.VOCABULARY_ROWS) < work.model.vocab
        rows &= split == tensor.split
    return rows


def profile_terms(
    work: RankWork, tensors: Iterable[TransientTensor], rows: Bools | Ints | None = None
) -> list[MemoryTerm]:
    """Terms of the listed tensors.

    Args:
        work: Work of the rows.
        tensors: Entries of a profile section.
        rows: (N,) rows that have them, or how many times; every row once when None.
    """
    terms = []
    for tensor in tensors:
        count = _where(work, tensor).astype(np.int64)
        if rows is not None:
            count = count * rows
        terms.append(
            MemoryTerm(
                name=tensor.name, bytes=work.tensor_bytes(tensor.bytes) * count,
                live=tensor.instants, scale=tensor.scale, on=tensor.on,
                position=tensor.position, when=tensor.when, modes=frozenset(tensor.modes),
                formula=_times(formula_text(tensor.bytes), rows),
                inputs=partial(tensor_inputs, work, tensor.bytes, count),
                source="framework profile",
            )
        )  # fmt: skip
    return terms


def host_terms(host: LayerHost, times: Floats) -> list[TimeTerm]:
    """Host floors of a layer, ``times`` (N,) of them per row.

    Owners add up: a layer that two dimensions split launches the kernels of both.
    """
    both = host.forward_seconds + host.backward_seconds
    phases = [(host.forward_seconds, "forward"), (host.backward_seconds, "backward")]
    phases += [
        (share * both, f"recompute_{mode}") for mode, share in sorted(host.recompute.items())
    ]
    return [
        TimeTerm(name="host launches", seconds=seconds * times, resource="host", phase=phase,
                 formula="times x seconds, per layer and micro-batch",
                 inputs={"seconds": seconds, "times": times}, source="framework profile: host")
        for seconds, phase in phases if seconds
    ]  # fmt: skip
