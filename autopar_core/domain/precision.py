"""Precision recipes: which number format the linears of the blocks run in, and what that costs."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import field, frozen, validators

from autopar_core.domain.terms import MODES, one_of


_NOT_NEGATIVE = validators.ge(0.0)
_POSITIVE = validators.gt(0.0)
_SHARE = validators.and_(_POSITIVE, validators.le(1.0))
# Bytes of an element in 16 bits.
HALF_BYTES = 2.0
_BYTES = validators.and_(_POSITIVE, validators.le(HALF_BYTES))
# Formats that every framework trains in and that need no casts.
SIXTEEN_BIT = ("bf16", "fp16")


@frozen(kw_only=True)
class PrecisionRecipe:
    """How a framework runs the linears of the blocks in a number format.

    Only the block linears: the head, attention, norms, loss and optimizer stay in 16 and 32 bits.
    ``T_linear = T_gemm(speed of the format) + bytes moved by casts / device memory``; the speed is the
    system's, the bytes are the framework's.

    Attributes:
        format: Number format of the products, a key of ``gemm.formats`` of the system; ``bf16`` and
            ``fp16`` are always there.
        speed_share: Part of the system's speed for the format that the framework's products reach.
        cast_input: Device bytes per element of a linear's input, forward (and wherever the linear is
            recomputed).
        cast_input_again: The same in the backward, where inputs are kept in 16 bits and cast again.
        cast_gradient: Device bytes per element of a linear's output gradient, backward.
        cast_weight: Device bytes per weight of a cast.
        cast_weight_each: Weights are cast with every micro-batch; else once per step.
        transpose: Device bytes per element of the transposed copy beside a cast, on systems whose
            products need one.
        exchanged_bytes: Bytes per element of linear inputs and output gradients where ranks gather them
            from each other. Below 2 the cast comes first, on a rank's share; else everybody casts all.
        input_bytes: Bytes per element of what a linear keeps of its input for the backward.
        parameter_bytes: Bytes per block weight where the weights themselves are kept in the format; None
            where they stay as they are.
        weight_bytes: Bytes per block weight of cast copies that are kept beside the weights.
        transpose_weight_bytes: The same for transposed copies, on systems whose products need one.
        recompute_modes: Recompute modes that go with it, of those that the framework has.
        gathered_bytes: Bytes per block weight where data-parallel ranks gather weights; None where they
            travel as without the recipe.
        uncertainty: Half-width of the band that the recipe adds to a step time, as a share; the system
            has another for the format.
    """

    format: str
    speed_share: float = field(default=1.0, validator=_SHARE)
    cast_input: float = field(default=0.0, validator=_NOT_NEGATIVE)
    cast_input_again: float = field(default=0.0, validator=_NOT_NEGATIVE)
    cast_gradient: float = field(default=0.0, validator=_NOT_NEGATIVE)
    cast_weight: float = field(default=0.0, validator=_NOT_NEGATIVE)
    cast_weight_each: bool = False
    transpose: float = field(default=0.0, validator=_NOT_NEGATIVE)
    exchanged_bytes: float = field(default=HALF_BYTES, validator=_BYTES)
    input_bytes: float = field(default=HALF_BYTES, validator=_BYTES)
    parameter_bytes: float | None = field(default=None, validator=validators.optional(_POSITIVE))
    weight_bytes: float = field(default=0.0, validator=_NOT_NEGATIVE)
    transpose_weight_bytes: float = field(default=0.0, validator=_NOT_NEGATIVE)
    recompute_modes: tuple[str, ...] = field(
        default=MODES, validator=validators.deep_iterable(one_of(MODES))
    )
    gathered_bytes: float | None = field(default=None, validator=validators.optional(_POSITIVE))
    uncertainty: float = field(default=0.0, validator=_NOT_NEGATIVE)

    @property
    def casts_first(self) -> bool:
        """Whether ranks gather casts from each other rather than cast what they gathered."""
        return self.exchanged_bytes < HALF_BYTES

    @property
    def sixteen_bit(self) -> bool:
        """Whether nothing is cast."""
        return self.format in SIXTEEN_BIT


SIXTEEN_BIT_RECIPES: Mapping[str, PrecisionRecipe] = {
    name: PrecisionRecipe(format=name) for name in SIXTEEN_BIT
}
