"""What is trained, on how many devices, under which limits."""

from __future__ import annotations

from attrs import define, field, frozen, validators


_POSITIVE = validators.and_(validators.instance_of(int), validators.gt(0))


@frozen(kw_only=True)
class TrainingConfig:
    """The job: sequences per step, tokens per sequence, precision recipe of the block linears."""

    global_batch_size: int = field(validator=_POSITIVE)
    seq_len: int = field(validator=_POSITIVE)
    precision: str = "bf16"


@frozen(kw_only=True)
class ClusterConfig:
    """The machine park.

    Attributes:
        devices: Accelerators used.
        memory_limit: Bytes per device that a strategy may use, context and buffers included.
        devices_per_domain: Devices in one scale-up domain.
    """

    devices: int = field(validator=_POSITIVE)
    memory_limit: int = field(validator=_POSITIVE)
    devices_per_domain: int = field(validator=_POSITIVE)


@define
class Range:
    """An inclusive range of a search key; None is open."""

    min: int | None = None
    max: int | None = None

    def holds(self, value: int) -> bool:
        """Whether the value lies inside."""
        return (self.min is None or value >= self.min) and (self.max is None or value <= self.max)
