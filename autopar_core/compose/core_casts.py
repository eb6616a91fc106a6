"""Time of casting to a number format below 16 bits: inputs and weights forward, gradients backward."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

import numpy as np
from attrs import frozen

from autopar_core.domain.arrays import Array, Floats
from autopar_core.domain.framework import CoreProfile
from autopar_core.domain.precision import PrecisionRecipe
from autopar_core.domain.system import SystemProfile
from autopar_core.domain.terms import Extent, TimeTerm
from autopar_core.laws.compute import moved_inputs, moved_seconds
from autopar_core.work.rank_work import RankWork


# Linears that share an input, and the matrices that they stand for.
_PARTS = {"qkv": ("query", "key", "value"), "gate_up": ("gate", "up")}
_STREAM = "hidden"
_FORMULA = "kernels x launch + bytes / (efficiency x bandwidth)"


@frozen(eq=False)
class _Tensor:
    """A tensor to cast: (N,) elements that the rank casts, and elements that its products use."""

    cast: Array
    used: Array


@frozen(eq=False)
class _Moved:
    """(N,) bytes that casts read and write, and their kernels."""

    nbytes: Floats
    kernels: int

    def __add__(self, other: _Moved) -> _Moved:
        return _Moved(self.nbytes + other.nbytes, self.kernels + other.kernels)


def casts(
    work: RankWork, profile: CoreProfile, system: SystemProfile, recipe: PrecisionRecipe
) -> list[TimeTerm]:
    """Time terms of the casts of one block; none in 16 bits.

    A linear casts its input (tokens x input features) forward, its output gradient (tokens x output
    features) backward, and its weight. Linears that share an input cast it once. What comes from the
    residual stream is cast on the rank's share of the tokens where the recipe gathers casts, and its
    transposed copy made of what was gathered.
    """
    if recipe.sixteen_bit:
        return []
    inputs, gradients, weights = _tensors(work, recipe)
    turn = recipe.transpose if system.gemm.formats[recipe.format].transposes else 0.0

    def moved(per_element: float, tensors: Mapping[str, _Tensor], turned: float = turn) -> _Moved:
        nbytes = np.zeros(len(work))
        for tensor in tensors.values():
            nbytes = nbytes + per_element * tensor.cast + turned * tensor.used
        return _Moved(nbytes, len(tensors) * ((per_element > 0) + (turned > 0)))

    backward = moved(recipe.cast_gradient, gradients) + moved(recipe.cast_input_again, inputs, 0.0)
    once = 1 if recipe.cast_weight_each else np.maximum(1, work.micro_batches)
    name = f"casts to {recipe.format}"
    term = partial(_term, system)
    terms = [
        term(name, moved(recipe.cast_input, inputs), "forward"),
        term(name, backward, "backward"),
        term(f"{name} (weights)", moved(recipe.cast_weight, weights), "forward", once),
    ]
    for mode, some in _repeated(profile, inputs):
        terms.append(term(name, moved(recipe.cast_input, some), f"recompute_{mode}"))
    return terms


def _tensors(
    work: RankWork, recipe: PrecisionRecipe
) -> tuple[dict[str, _Tensor], dict[str, _Tensor], dict[str, _Tensor]]:
    """Inputs, output gradients and weights of the linears of a block."""
    tokens = work.extent(Extent.TOKENS)
    share = work.extent(Extent.RESIDUAL_TOKENS) if recipe.casts_first else tokens
    matrices = {matrix.name: matrix for matrix in work.model.matrices()}
    inputs, gradients = {}, {}
    for linear in work.linears(fused_qkv=True, fused_gate_up=True):
        matrix = next(matrices[n] for n in (linear.name, *_PARTS.get(linear.name, ()))
                      if n in matrices)  # fmt: skip
        reads = share if matrix.cols_extent == _STREAM else tokens
        writes = share if matrix.rows_extent == _STREAM else tokens
        inputs[linear.name] = _Tensor(reads * linear.n_in, tokens * linear.n_in)
        gradients[linear.name] = _Tensor(writes * linear.n_out, tokens * linear.n_out)
    # ranks that gather casts of weights cast their own part
    part = work.held(Extent.PARAMETER_COPIES, "block") / work.parameters("block")
    part = part if recipe.gathered_bytes else np.ones(len(work))
    weights = {
        matrix.name: _Tensor(rows * columns * part, rows * columns)
        for matrix, rows, columns in work.matrices()
    }
    return inputs, gradients, weights


def _repeated(
    profile: CoreProfile, inputs: Mapping[str, _Tensor]
) -> Iterator[tuple[str, dict[str, _Tensor]]]:
    """Recompute mode and the inputs of the linears that it repeats: they are cast again."""
    for mode, repeated in profile.recompute_linears.items():
        some = {
            linear: tensor for linear, tensor in inputs.items()
            if any(n in repeated for n in (linear, *_PARTS.get(linear, ())))
        }  # fmt: skip
        if some:
            yield mode, some


def _term(
    system: SystemProfile, name: str, moved: _Moved, phase: str, once: Array | int = 1
) -> TimeTerm:
    """Time of so many bytes and kernels; spread over ``once`` micro-batches."""
    seconds = moved_seconds(system, moved.nbytes, moved.kernels) / once
    return TimeTerm(
        name=name, seconds=seconds, phase=phase, owner="core", kind="elementwise",
        formula=_FORMULA if isinstance(once, int) else f"({_FORMULA}) / micro-batches",
        inputs=partial(_inputs, system, moved, once), source="framework profile: precision recipe",
    )  # fmt: skip


def _inputs(system: SystemProfile, moved: _Moved, once: Array | int) -> dict[str, Array]:
    made = moved_inputs(system, moved.nbytes, moved.kernels)
    return made if isinstance(once, int) else {**made, "micro-batches": once}
