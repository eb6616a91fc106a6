"""What estimators return: shards that divide, memory and time terms that add.

The core alone takes maxima: over stages, moments and instants for memory, over ranks for time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from typing import Any

import numpy as np
from attrs import field, frozen

from autopar_core.domain.arrays import Bools, Floats, Ints


class Extent(StrEnum):
    """Counts that shards divide; work and tensors are products of them."""

    SEQUENCES = "sequences"
    TOKENS = "tokens"
    RESIDUAL_TOKENS = "residual_tokens"
    MESSAGE_TOKENS = "message_tokens"
    QUERY_TOKENS = "query_tokens"
    KEY_TOKENS = "key_tokens"
    ATTENTION_HEADS = "attention_heads"
    KV_HEADS = "kv_heads"
    FFN_WIDTH = "ffn_width"
    VOCABULARY_ROWS = "vocabulary_rows"
    PARAMETER_COPIES = "parameter_copies"
    GRADIENT_COPIES = "gradient_copies"
    OPTIMIZER_COPIES = "optimizer_copies"


class Rounding(StrEnum):
    """How a divided extent is rounded.

    ``EXACT`` rounds up the quotient (filters see to it that it divides), ``ROWS`` rounds up the rows
    of every matrix separately (copies only), ``PADDED`` first pads to ``multiple`` times the divisor,
    ``REPLICATED`` never goes below one.
    """

    EXACT = "exact"
    ROWS = "rows"
    PADDED = "padded"
    REPLICATED = "replicated"


@frozen(eq=False)
class Divide:
    """Divide ``extent`` by ``by`` (N,)."""

    extent: Extent
    by: Ints
    rounding: Rounding = Rounding.EXACT
    multiple: int = 1


@frozen(eq=False, kw_only=True)
class AttentionCall:
    """``count`` attention calls per layer, sizes relative to the unsplit call.

    All arrays are (N,). The core multiplies: heads = heads of the rank / ``heads_divisor``,
    queries = sequence length / ``query_divisor``, keys = sequence length / ``key_divisor``.
    ``work_share`` is the part of the score matrix that is computed: 0.5 for a causal square.
    """

    count: Ints
    query_divisor: Ints
    key_divisor: Ints
    heads_divisor: Ints
    work_share: Floats


@frozen(eq=False)
class AttentionCalls:
    """Replaces the one causal call per layer where ``rows`` (N,) is true."""

    rows: Bools
    calls: tuple[AttentionCall, ...]


Shard = Divide | AttentionCalls

MLP, GATHER, RECOMPUTE, ATTENTION, BLOCK_END = (
    "mlp",
    "gather",
    "recompute",
    "attention",
    "block_end",
)
BLOCK_REDUCE = "block_reduce"
FORWARD_END, LOSS, HEAD_BACKWARD, HEAD_REDUCE = (
    "forward_end",
    "loss",
    "head_backward",
    "head_reduce",
)
EMBEDDING_BACKWARD, EMBEDDING_REDUCE, FINAL = "embedding_backward", "embedding_reduce", "final"

BLOCK_PARTS: tuple[str, ...] = (MLP, GATHER, RECOMPUTE, ATTENTION, BLOCK_END)
BLOCK_INSTANTS: tuple[str, ...] = (*BLOCK_PARTS, BLOCK_REDUCE)
STAGE_INSTANTS: tuple[str, ...] = (
    FORWARD_END, LOSS, HEAD_BACKWARD, HEAD_REDUCE, EMBEDDING_BACKWARD, EMBEDDING_REDUCE, FINAL,
)  # fmt: skip
INSTANTS: tuple[str, ...] = (*BLOCK_INSTANTS, *STAGE_INSTANTS)
ALWAYS: frozenset[str] = frozenset(INSTANTS)
MODES: tuple[str, ...] = ("none", "selective", "full")

SCALES = (
    "one", "chunk", "layer", "layer_done", "saved_layer", "working_layer", "micro_batch", "pending",
)  # fmt: skip
PLACES = ("any", "first", "last", "not_first", "not_last")
POSITIONS = ("any", "top", "below_top", "bottom", "above_bottom", "not_received")
WHENS = ("always", "first", "later", "entered", "accumulated", "reduced", "sent", "step")
# Values of ``when`` that name a state of a chunk or rank rather than a backward.
STATES = ("entered", "accumulated", "reduced", "sent", "step")
_STATIC_SCALES = ("one", "chunk", "layer")


def one_of(legal: tuple[str, ...]) -> Callable[[Any, Any, str], None]:
    """Validator of a field that takes one of some names."""

    def check(_: Any, attribute: Any, value: str) -> None:
        if value not in legal:
            raise ValueError(f"{attribute.name} = {value!r} is none of {', '.join(legal)}")

    return check


def instants(_: Any, attribute: Any, value: Iterable[str]) -> None:
    """Validator of a field that names instants."""
    unknown = sorted(set(value) - ALWAYS)
    if unknown:
        raise ValueError(
            f"{attribute.name}: {unknown[0]!r} is no instant; known: {', '.join(INSTANTS)}"
        )


def share(_: Any, attribute: Any, value: Any) -> None:
    """Validator of a share of 1, a number or (N,)."""
    if not np.all((np.asarray(value) >= 0) & (np.asarray(value) <= 1)):
        raise ValueError(f"{attribute.name} must lie between 0 and 1")


def check_counting(
    live: frozenset[str], scale: str, on: str, position: str, when: str, modes: frozenset[str]
) -> None:
    """Refuse conditions of a memory term that mean nothing together, so that none is ignored.

    Raises:
        ValueError: Which condition, and where it would mean something.
    """
    static = live == ALWAYS and scale in _STATIC_SCALES
    narrowed = position != "any" or modes != frozenset(MODES)
    why = ""
    if when in STATES and not static:
        why = f"when = {when!r} needs all instants and scale {', '.join(_STATIC_SCALES)}"
    elif static and narrowed:
        why = "position and modes need single instants, not all of them"
    elif scale in ("saved_layer", "working_layer") and (on, position, when) != (
        "any", "any", "always"
    ):  # fmt: skip
        why = f"scale = {scale!r} knows no on, position or when: layers and modes decide"
    elif scale == "working_layer" and live != ALWAYS:
        why = "scale = 'working_layer' needs all instants: it counts whenever its chunk works"
    elif scale == "micro_batch" and (narrowed or when != "always"):
        why = "scale = 'micro_batch' knows no position, when or modes"
    elif scale == "pending" and (narrowed or when != "always" or live != ALWAYS):
        why = "scale = 'pending' knows no instants, position, when or modes"
    elif scale == "layer_done" and (narrowed or not live.issuperset(BLOCK_INSTANTS)):
        why = (
            "scale = 'layer_done' counts at all instants of a block, whatever its position and mode"
        )
    elif scale == "layer" and not static and not live.isdisjoint(BLOCK_INSTANTS):
        why = "scale = 'layer' counts at all instants or at those of a whole stage, not of a block"
    if why:
        raise ValueError(why)


Inputs = Mapping[str, Any] | Callable[[], Mapping[str, Any]]


@frozen(eq=False, kw_only=True)
class MemoryTerm:
    """Bytes of one kind of tensor on a rank.

    Attributes:
        name: What it is, for people; unique within the plugin.
        bytes: (N,) whole numbers, so sums are exact in any order.
        live: Instants of a training step at which it exists. For the scales ``saved_layer`` and
            ``micro_batch``: instants at which the micro-batch that is being worked on still holds
            it; every other micro-batch in flight holds it throughout.
        scale: ``one`` per rank; ``chunk`` per model chunk of the rank; ``layer`` per layer of the
            chunk (of every chunk when it is always live); ``layer_done`` per layer whose backward
            is done; ``saved_layer`` per layer in one of ``modes`` and micro-batch in flight;
            ``working_layer`` per layer in one of ``modes`` of the chunk that works, at every instant
            of its forward and backward; ``micro_batch`` per chunk and micro-batch in flight;
            ``pending`` per chunk and micro-batch whose weight gradients wait (schedules that split
            the backward). There a layer also holds what it saves without recompute.
        on: Virtual stages that have it.
        position: Block of the stage during whose backward it exists; ``not_received`` is any block
            but the top one of a stage that gets its gradient from another rank.
        when: ``first``/``later`` backward of the chunk; ``entered``, ``accumulated``, ``reduced``
            state of the chunk; ``sent`` once the rank has sent a gradient; ``step`` after the last
            backward, while the optimizer runs.
        modes: Recompute modes in which it exists: of the layer (``saved_layer``) or of the block
            that runs backward.
        reserve: Outside the allocator (context, communicator buffers): added after the maximum.
        formula: The formula with names and units.
        inputs: Name with unit -> number or (N,) array: what the formula was evaluated on, so that a
            person can check it by hand; or a function that gives them, asked for shown rows only.
        source: Paper and equation, or the measured data.
    """

    name: str
    bytes: Ints
    live: frozenset[str] = field(default=ALWAYS, validator=instants)
    scale: str = field(default="one", validator=one_of(SCALES))
    on: str = field(default="any", validator=one_of(PLACES))
    position: str = field(default="any", validator=one_of(POSITIONS))
    when: str = field(default="always", validator=one_of(WHENS))
    modes: frozenset[str] = frozenset(MODES)
    reserve: bool = False
    formula: str = ""
    inputs: Inputs = field(factory=dict)
    source: str = ""
    owner: str = ""

    def __attrs_post_init__(self) -> None:
        """Refuse conditions that mean nothing together."""
        try:
            check_counting(self.live, self.scale, self.on, self.position, self.when, self.modes)
        except ValueError as error:
            raise ValueError(f"term {self.name!r}: {error}") from None


RESOURCES = ("device", "link", "host")
SEGMENTS = ("block", "embedding", "head", "hop", "step")
PHASES = ("forward", "backward", "recompute_selective", "recompute_full")


@frozen(kw_only=True)
class Window:
    """Work behind which a link term can hide.

    Exposed time = max(``floor`` T, T - ``share`` capacity) + ``contention`` min(T, capacity), where T
    is the sum of all link terms that name the window.

    Attributes:
        name: ``"linear"`` or ``"attention"`` (device terms of that kind in the same phase),
            ``"block"`` (everything of the block in that phase), ``"first_forward"`` or
            ``"last_backward"`` (of the rank, for segment ``step``), ``"hidden"`` (always hidden,
            shown but free).
        share: Part of the capacity that can hide, a number or (N,).
    """

    name: str
    share: Any = 1.0
    floor: float = 0.0
    contention: float = 0.0


@frozen(eq=False, kw_only=True)
class TimeTerm:
    """Seconds of one kind of work.

    Attributes:
        name: What it is, unique within the plugin, segment and phase.
        seconds: (N,) per layer (segment ``block``), per micro-batch (``embedding``, ``head``,
            ``hop``: one message), per step (``step``).
        resource: ``device``, ``link`` or ``host`` (a floor under the device time of its segment).
        segment: Where it happens.
        phase: ``forward``, ``backward``, or what recomputing one layer in a mode adds to backward.
            Ignored for ``step``.
        kind: Window that a device term offers: ``linear``, ``attention``, ``elementwise``.
        scale: For ``step`` terms: ``one``, or ``layer`` (per layer of the rank).
        on: For ``step`` terms: ranks that have it (``any``, ``first``, ``last``).
        window: What hides a link term; None is fully exposed.
        weight_share: Part of a device term's backward seconds, a number or (N,), that computes
            weight gradients alone: a schedule that splits the backward may run it later.
        formula, inputs, source: As in a :class:`MemoryTerm`.
    """

    name: str
    seconds: Floats
    resource: str = field(default="device", validator=one_of(RESOURCES))
    segment: str = field(default="block", validator=one_of(SEGMENTS))
    phase: str = field(default="forward", validator=one_of(PHASES))
    kind: str = ""
    scale: str = field(default="one", validator=one_of(("one", "layer")))
    on: str = field(default="any", validator=one_of(("any", "first", "last")))
    window: Window | None = None
    weight_share: Any = field(default=0.0, validator=share)
    formula: str = ""
    inputs: Inputs = field(factory=dict)
    source: str = ""
    owner: str = ""


def inputs_of_row(inputs: Inputs, row: int) -> dict[str, float]:
    """Inputs of one row of a term: arrays are read at the row, numbers stay."""
    picked = {}
    for name, value in (inputs() if callable(inputs) else inputs).items():
        number = value[row] if getattr(value, "ndim", 0) else value
        picked[name] = number.item() if hasattr(number, "item") else number
    return picked


@frozen(eq=False)
class Partial:
    """An answer for some rows only: the others become NotImplemented rows.

    Attributes:
        value: The terms or shards.
        supported: (N,) rows that the answer covers.
        why: What is not supported.
    """

    value: tuple[object, ...]
    supported: Bools
    why: str
