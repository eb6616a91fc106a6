"""Memory of weights in a number format below 16 bits, beside the weights or in their place."""

from __future__ import annotations

import numpy as np

from autopar_core.domain.precision import PrecisionRecipe
from autopar_core.domain.system import SystemProfile
from autopar_core.domain.terms import ALWAYS, BLOCK_INSTANTS, Extent, MemoryTerm
from autopar_core.work.rank_work import RankWork


def cast_weights(
    work: RankWork, system: SystemProfile, recipe: PrecisionRecipe
) -> list[MemoryTerm]:
    """Cast and transposed copies of the block weights.

    A rank that holds whole weights casts them once per step and keeps the copies; one that gathers its
    weights has the copies of the block at work.
    """
    if recipe.sixteen_bit:
        return []
    per_weight = recipe.weight_bytes
    if system.gemm.formats[recipe.format].transposes:
        per_weight += recipe.transpose_weight_bytes
    if not per_weight:
        return []
    weights = work.parameters("block")
    whole = work.held(Extent.PARAMETER_COPIES, "block") == weights
    copies = np.rint(per_weight * weights).astype(np.int64)
    formula, source = f"{per_weight:g} B x weights", "framework profile: precision recipe"
    return [
        MemoryTerm(
            name=f"weights in {recipe.format}", bytes=copies * whole, live=ALWAYS, scale="layer",
            owner="core", formula=f"{formula} of every block of this rank", source=source,
        ),
        MemoryTerm(
            name=f"gathered weights in {recipe.format}", bytes=copies * ~whole,
            live=frozenset(BLOCK_INSTANTS), owner="core", formula=f"{formula} of one block",
            source=source,
        ),
    ]  # fmt: skip
