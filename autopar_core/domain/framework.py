"""What differs between training frameworks; sections by owner, structured by the owner's classes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import evolve, field, frozen

from autopar_core.domain.precision import HALF_BYTES, SIXTEEN_BIT_RECIPES, PrecisionRecipe
from autopar_core.domain.terms import (
    ALWAYS,
    MODES,
    PLACES,
    POSITIONS,
    SCALES,
    WHENS,
    check_counting,
    instants,
    one_of,
)


def _modes(_: Any, attribute: Any, value: tuple[str, ...]) -> None:
    unknown = sorted(set(value) - set(MODES))
    if unknown:
        raise ValueError(f"{attribute.name}: {unknown[0]!r} is none of {', '.join(MODES)}")


@frozen(kw_only=True)
class SavedTensor:
    """A tensor that autograd keeps for the backward pass of one block (or of the head).

    Attributes:
        name: For people.
        bytes: Element count name -> bytes per element; the element counts are those of
            :data:`autopar_core.work.rank_work.ELEMENTS`.
        keep: Recompute modes in which every micro-batch in flight holds it.
        live: Parts of the block's own backward during which it is still held.
        linear_input: Whether a linear of the block keeps it: ``""`` no, ``"only"`` nobody else does (a
            recipe below 16 bits keeps its cast instead), ``"also"`` others do too (the cast is a copy
            beside it).
        module: Part of a block whose selective recompute drops it, where the framework lets one choose
            (:attr:`CoreProfile.selective_modules`); then that choice decides about ``selective``.
    """

    name: str
    bytes: Mapping[str, float]
    keep: tuple[str, ...] = field(default=("none",), validator=_modes)
    live: tuple[str, ...] = field(default=(), validator=instants)
    linear_input: str = field(default="", validator=one_of(("", "only", "also")))
    module: str = ""

    def kept_in(self, selective_modules: tuple[str, ...]) -> frozenset[str]:
        """Recompute modes in which it is kept."""
        modes = set(self.keep)
        if self.module:
            modes -= {"selective"}
            modes |= set() if self.module in selective_modules else {"selective"}
        return frozenset(modes)

    def held_bytes(self, recipe: PrecisionRecipe) -> Mapping[str, float]:
        """``bytes`` under a recipe: an element of a linear's input is 2 B, or what its cast has."""
        if not self.linear_input or recipe.input_bytes == HALF_BYTES:
            return self.bytes
        share = recipe.input_bytes / HALF_BYTES + (self.linear_input == "also")
        return {name: each * share for name, each in self.bytes.items()}


@frozen(kw_only=True)
class TransientTensor:
    """A tensor that exists at some instants only; conditions as in :class:`MemoryTerm`.

    ``pipelined``: None always, True only in rows with several stages, False only in rows with one.
    ``split``: None always, True only where the vocabulary (or FFN) is divided among ranks.
    ``gathered``: block weights as they were gathered: a recipe may gather them in fewer bytes.
    """

    name: str
    bytes: Mapping[str, float]
    live: tuple[str, ...] = field()
    scale: str = field(default="one", validator=one_of(SCALES))
    on: str = field(default="any", validator=one_of(PLACES))
    position: str = field(default="any", validator=one_of(POSITIONS))
    when: str = field(default="always", validator=one_of(WHENS))
    modes: tuple[str, ...] = field(default=MODES, validator=_modes)
    pipelined: bool | None = None
    split: bool | None = None
    gathered: bool = False

    @live.validator
    def _known(self, attribute: Any, value: tuple[str, ...]) -> None:
        if value != ("always",):
            instants(self, attribute, value)

    def __attrs_post_init__(self) -> None:
        """Refuse conditions that mean nothing together."""
        check_counting(
            self.instants, self.scale, self.on, self.position, self.when, frozenset(self.modes)
        )

    @property
    def instants(self) -> frozenset[str]:
        """Instants of a step at which it exists; ``("always",)`` is all of them."""
        return ALWAYS if self.live == ("always",) else frozenset(self.live)


@frozen(kw_only=True)
class ElementwiseKernel:
    """Memory-bound work: bytes moved per element of ``extent``, forward and backward.

    ``recompute``: modes in which the forward part is repeated in the backward pass.
    """

    name: str
    extent: str
    forward: float
    backward: float
    kernels_forward: int = 1
    kernels_backward: int = 1
    recompute: tuple[str, ...] = ("full",)
    segment: str = "block"


@frozen(kw_only=True)
class StateBytes:
    """Bytes per element of the persistent copies.

    ``step``: bytes per element of the optimizer's share that exist only while it runs (fp32 copies of
    half-precision gradients).
    """

    parameters: float
    gradients: float
    optimizer: float
    step: float = 0.0


@frozen(kw_only=True)
class LayerHost:
    """Host seconds of one layer and micro-batch: its device time is never shorter.

    Attributes:
        forward_seconds, backward_seconds: Launching the layer's kernels.
        recompute: Recompute mode -> what it adds to the backward, as a share of the two.
    """

    forward_seconds: float = 0.0
    backward_seconds: float = 0.0
    recompute: Mapping[str, float] = field(factory=dict)


@frozen(kw_only=True)
class HostCost(LayerHost):
    """The same of a layer that no dimension splits, and of a step; plugins add what theirs cost.

    Attributes:
        step_seconds: Once per step, after the last backward.
        step_layer_seconds: The same for every layer of the rank (launches of the optimizer).
    """

    step_seconds: float = 0.0
    step_layer_seconds: float = 0.0


@frozen(kw_only=True)
class LossBytes:
    """Bytes per logit of one way to compute the loss.

    Attributes:
        held: Kept between the forward and the backward of a micro-batch.
        peak: At the worst instant of the loss, forward or backward.
    """

    held: float
    peak: float


@frozen(kw_only=True)
class Offload:
    """Saved tensors kept in host memory between forward and backward.

    Attributes:
        share: Part of the saved bytes that leaves the device; 0 is no offload.
        chunks: Micro-batches of a chunk whose offloaded part is on the device all the same: on its way
            out, on its way back, at work.
        layers: The same in single layers, where layers come back one by one.
    """

    share: float = field(default=0.0)
    chunks: float = 0.0
    layers: float = 2.0

    @share.validator
    def _part(self, _: Any, value: float) -> None:
        if not 0 <= value <= 1:
            raise ValueError(f"share = {value!r}: expected a part between 0 and 1")


@frozen(kw_only=True)
class CoreProfile:
    """The core's own section of a framework profile: what the framework saves, moves and launches.

    Attributes:
        states: Bytes per element of parameters, gradients and optimizer states.
        states_of: The same in a number format where it differs.
        gradients: ``persistent`` (a buffer for the whole step) or ``on_reduce`` (sharded gradients
            appear when a group is reduced and live to the end of the step).
        fused_qkv, fused_gate_up: One GEMM instead of several.
        saved: Tensors kept per block and micro-batch.
        head_saved: Tensors kept per micro-batch on the last stage.
        transient: Tensors of single instants.
        elementwise: Memory-bound kernels.
        recompute_linears: Recompute mode -> linears that are repeated.
        recompute_attention: Modes in which attention is repeated.
        recompute_modes: Recompute modes that its configuration can ask for.
        selective_modules: Parts of a block that selective recompute repeats, where it is a choice.
        recompute_granularity: ``stage`` (own count per stage), ``count`` (one count for every
            stage), ``model`` (all layers or none).
        recompute_every: Whether every k-th layer of a rank can recompute fully, the others not.
        loss, losses: Way to compute the loss that is in use, and all there are; empty where
            ``head_saved`` and ``transient`` list its tensors.
        offload: Saved tensors in host memory.
        workspace_bytes: Library workspace inside the allocator.
        context_bytes: Runtime context outside the allocator (a named reserve).
        rope_table_bytes: Bytes per sequence position and head element of the position table.
        token_bytes: Bytes per token of ids and labels (all micro-batches of the step in a pipeline).
        wgrad_bytes: Extra device-memory bytes per parameter and micro-batch (fp32 accumulation).
        optimizer_bytes, optimizer_efficiency, optimizer_seconds: Optimizer step: bytes moved per
            held element, share of the data-sheet bandwidth, fixed part.
        attention_kernel: Kernel asked for; empty means the system's default.
        attention_scale: System name -> factor on the kernel's efficiency of this implementation.
        time_scale: System name -> calibrated scalar on every time term; ``default`` otherwise.
        reserved_over_allocated: Recompute mode -> ratio of reserved to allocated memory.
        precisions: Recipes below 16 bits that the framework has; of several with one format, the first
            is meant where only the format is named.
        precision: Recipe name -> what it does.
    """

    states: StateBytes
    states_of: Mapping[str, StateBytes] = field(factory=dict)
    gradients: str = "persistent"
    fused_qkv: bool = True
    fused_gate_up: bool = True
    saved: tuple[SavedTensor, ...] = ()
    head_saved: tuple[SavedTensor, ...] = ()
    transient: tuple[TransientTensor, ...] = ()
    elementwise: tuple[ElementwiseKernel, ...] = ()
    recompute_linears: Mapping[str, tuple[str, ...]] = field(factory=dict)
    recompute_attention: tuple[str, ...] = ("full",)
    recompute_modes: tuple[str, ...] = field(default=("selective", "full"), validator=_modes)
    selective_modules: tuple[str, ...] = ()
    recompute_granularity: str = "stage"
    recompute_every: bool = False
    loss: str = ""
    losses: Mapping[str, LossBytes] = field(factory=dict)
    offload: Offload = Offload()
    workspace_bytes: int = 0
    context_bytes: int = 0
    rope_table_bytes: float = 0.0
    token_bytes: float = 0.0
    wgrad_bytes: float = 0.0
    optimizer_bytes: float = 40.0
    optimizer_efficiency: float = 0.7
    optimizer_seconds: float = 2e-3
    attention_kernel: str = ""
    attention_scale: Mapping[str, float] = field(factory=dict)
    host: HostCost = HostCost()
    time_scale: Mapping[str, float] = field(factory=dict)
    reserved_over_allocated: Mapping[str, float] = field(factory=dict)
    precisions: tuple[str, ...] = field(default=())
    precision: Mapping[str, PrecisionRecipe] = field(factory=dict)

    def __attrs_post_init__(self) -> None:
        """Refuse a loss that is not described."""
        if self.loss and self.loss not in self.losses:
            known = ", ".join(sorted(self.losses)) or "none"
            raise ValueError(
                f"loss = {self.loss!r} has no table core.losses.{self.loss}; known: {known}"
            )

    @precisions.validator
    def _described(self, _: Any, value: tuple[str, ...]) -> None:
        for name in value:
            if name not in self.precision:
                raise ValueError(f"precisions: {name!r} has no table core.precision.{name}")

    def recipe(self, name: str) -> PrecisionRecipe:
        """A recipe that the framework has, by its name or by the name of its number format.

        Raises:
            KeyError: When it has none.
        """
        if name in SIXTEEN_BIT_RECIPES:
            return SIXTEEN_BIT_RECIPES[name]
        return self.precision[self.recipe_name(name)]

    def recipe_name(self, name: str) -> str:
        """The name of the recipe that a name or a format means.

        Raises:
            KeyError: When the framework has none.
        """
        if name in SIXTEEN_BIT_RECIPES or name in self.precisions:
            return name
        for each in self.precisions:
            if self.precision[each].format == name:
                return each
        raise KeyError(name)


@frozen(kw_only=True)
class FrameworkProfile:
    """One framework as the estimators see it.

    Attributes:
        name: ``"megatron"``.
        rank_order: Dimensions from the innermost outwards, joined by hyphens as Megatron spells it;
            decides which links a group crosses. A dimension not named is outermost.
        core: The core's section.
        sections: Raw sections of the plugins by plugin name, defaults merged with the person's
            overrides; each plugin structures its own.
        sources: Dotted path -> where the value comes from.
        fallback: Name that was asked for when this profile stands in for an unknown framework.
        bases: Names of the profiles that it grows out of, nearest first.
    """

    name: str
    title: str = ""
    rank_order: str
    core: CoreProfile
    sections: Mapping[str, Mapping[str, Any]] = field(factory=dict)
    sources: Mapping[str, str] = field(factory=dict)
    unverified: tuple[str, ...] = ()
    fallback: str = ""
    bases: tuple[str, ...] = ()

    def is_a(self, *names: str) -> bool:
        """Whether this is one of these frameworks or grows out of one of them."""
        return not {self.name, *self.bases}.isdisjoint(names)

    def under(self, precision: str) -> FrameworkProfile:
        """The same without the recompute modes that do not go with a recipe.

        A recipe that the framework does not have changes nothing.
        """
        try:
            name = self.core.recipe_name(precision)
        except KeyError:
            return self
        fitting = self.core.recipe(name).recompute_modes
        kept = tuple(mode for mode in self.core.recompute_modes if mode in fitting)
        if kept == self.core.recompute_modes:
            return self
        why = self.sources.get(f"core.precision.{name}.recompute_modes", f"precision {name}")
        return evolve(
            self, core=evolve(self.core, recompute_modes=kept),
            sources={**self.sources, "core.recompute_modes": why},
        )  # fmt: skip

    @property
    def order(self) -> tuple[str, ...]:
        """Dimension names, innermost first."""
        return tuple(self.rank_order.split("-"))
