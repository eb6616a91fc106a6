"""Memory terms that a framework profile lists as data: sizes by element counts, instants, conditions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from autopar_core.domain.arrays import Bools, Ints
from autopar_core.domain.framework import TransientTensor
from autopar_core.domain.terms import Extent, MemoryTerm
from autopar_core.work.rank_work import RankWork


def formula_text(formula: Mapping[str, float]) -> str:
    """``"4 B x ffn + 2 B x up_matrix"``."""
    return " + ".join(f"{value:g} B x {name}" for name, value in formula.items())


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
                formula=formula_text(tensor.bytes),
                source="framework profile",
            )
        )  # fmt: skip
    return terms
