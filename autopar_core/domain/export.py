"""What an exporter gets: one strategy of a run, the job around it, and its estimate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attrs import field, frozen

from autopar_core.domain.fields import Value
from autopar_core.domain.framework import FrameworkProfile
from autopar_core.domain.model import ModelConfig
from autopar_core.domain.strategy import Strategy
from autopar_core.domain.system import SystemProfile
from autopar_core.domain.training import ClusterConfig, TrainingConfig


@frozen(kw_only=True)
class ExportEstimate:
    """What the run says about the strategy.

    Attributes:
        seconds: Step time.
        low_seconds, high_seconds: Its band.
        memory_bytes: Largest rank, reserves included.
        limit_bytes: What a device may use.
    """

    seconds: float
    low_seconds: float
    high_seconds: float
    memory_bytes: int
    limit_bytes: int


@frozen(kw_only=True)
class ExportRequest:
    """One strategy to be written for a framework.

    Attributes:
        strategy: ``strategy.fields`` has every scalar field by name (degrees, ``micro_batch_size``,
            ``vpp_degree``, ``schedule``, ``zero_stage``, ...), also those of absent plugins.
        plugins: Plugin -> settings of ``[plugins.NAME]`` as the input has them.
        header: Lines for the top of every file that can hold a comment: the estimate and how it was
            made. Without comment signs.
    """

    model: ModelConfig
    training: TrainingConfig
    cluster: ClusterConfig
    system: SystemProfile
    framework: FrameworkProfile
    strategy: Strategy
    estimate: ExportEstimate
    plugins: Mapping[str, Mapping[str, Any]] = field(factory=dict)
    header: tuple[str, ...] = ()

    def __getitem__(self, field: str) -> Value:
        """A scalar field of the strategy by its full name."""
        return self.strategy.fields[field]

    def count(self, field: str) -> int:
        """A field that is a number."""
        return int(self.strategy.fields[field])

    @property
    def stages(self) -> tuple[int, ...]:
        """Layers of every virtual stage: chunk by chunk, rank by rank.

        That is the order of execution, but for schedules that run every second chunk from the last
        rank to the first.
        """
        return flat(self.strategy.stage_partition)

    def recomputed(self, mode: str) -> tuple[int, ...]:
        """Layers recomputed in a mode (``"full"``, ``"selective"``), in the order of :attr:`stages`."""
        found = self.strategy.layer_recompute.get(mode, [])
        return flat(found) or (0,) * len(self.stages)

    def comment(self, sign: str = "# ") -> str:
        """The header as comment lines, ending in a line break."""
        return "".join(f"{sign}{line}".rstrip() + "\n" for line in self.header)


def flat(values: Sequence[Any]) -> tuple[int, ...]:
    """``[stage]`` or ``[chunk][stage]`` as one row."""
    rows = values if values and isinstance(values[0], list | tuple) else [values]
    return tuple(int(each) for row in rows for each in row)
