"""Costs of one candidate for people: named parts that sum to the totals, stage by stage."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import field, frozen


@frozen(kw_only=True)
class MemoryPart:
    """Bytes of one owner's term at the peak; negative where a tensor is shared with a counted one.

    ``bytes`` = ``count`` x ``unit_bytes``, and ``formula`` gives one unit from ``inputs``.
    """

    owner: str
    name: str
    bytes: int
    count: int = 1
    unit_bytes: int = 0
    formula: str = ""
    inputs: Mapping[str, float] = field(factory=dict)
    source: str = ""


@frozen(kw_only=True)
class StageMemory:
    """Peak of one pipeline rank: ``parts`` sum to ``allocated_bytes``.

    ``instant`` names the moment ("backward of chunk 0, block 5: mlp"); ``in_flight`` counts the
    micro-batches of each chunk whose activations are alive then, those that wait for their weight
    gradients included.
    """

    rank: int
    allocated_bytes: int
    instant: str
    in_flight: tuple[int, ...]
    parts: tuple[MemoryPart, ...]


@frozen(kw_only=True)
class MemoryCost:
    """Memory of one device: the largest stage plus the named reserves.

    ``total_bytes`` = allocated of the worst stage + sum of ``reserves``; ``verdict`` is "fits",
    "tight" (the allocator's reserved memory, or the upper end of the band, would exceed the limit)
    or "over". ``low_bytes`` and ``high_bytes`` are the band of the total: what allocated memory was
    off by in measured runs of the system and framework.
    """

    total_bytes: int
    allocated_bytes: int
    low_bytes: int
    high_bytes: int
    reserved_bytes: int
    limit_bytes: int
    worst_rank: int
    verdict: str
    stages: tuple[StageMemory, ...]
    reserves: tuple[MemoryPart, ...]


@frozen(kw_only=True)
class TimePart:
    """Seconds of one owner's term on the rank that ends last; ``hidden_seconds`` cost nothing.

    ``seconds + hidden_seconds`` = ``count`` x ``unit_seconds`` (a host floor counts only beyond the
    device's time), and ``formula`` gives one unit from ``inputs``; times the input ``time scale``,
    the calibrated factor of the system and framework, where it is not 1.
    """

    owner: str
    name: str
    phase: str
    resource: str
    seconds: float
    hidden_seconds: float = 0.0
    count: int = 1
    unit_seconds: float = 0.0
    formula: str = ""
    inputs: Mapping[str, float] = field(factory=dict)
    source: str = ""


@frozen(kw_only=True)
class PerformanceCost:
    """Step time: ``parts`` sum to ``seconds``; idle time belongs to the schedule's owner.

    ``mfu`` counts causal attention half and no recompute; ``low_seconds``/``high_seconds`` is the
    band of the system and framework class.
    """

    seconds: float
    low_seconds: float
    high_seconds: float
    exact: bool
    rank: int
    mfu: float
    tokens_per_second_per_device: float
    parts: tuple[TimePart, ...]


@frozen(kw_only=True)
class StageSummary:
    """One pipeline rank of a candidate.

    ``layer_ranges`` has (first, last) inclusive per chunk, None for a chunk without layers;
    times are per micro-batch over all chunks of the rank, ``end_seconds`` when its last work ends.
    """

    rank: int
    layers: tuple[int, ...]
    layer_ranges: tuple[tuple[int, int] | None, ...]
    recompute: dict[str, tuple[int, ...]]
    embedding: bool
    head: bool
    forward_seconds: float
    backward_seconds: float
    end_seconds: float
    idle_seconds: float
    memory_bytes: int
    in_flight: int
