"""What a hook gets besides the rows: the job, its own configuration, groups of ranks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Generic, TypeVar

import numpy as np
from attrs import evolve, field, frozen

from autopar_core.domain.arrays import Array, Ints
from autopar_core.domain.fields import Dimension, Field
from autopar_core.domain.framework import FrameworkProfile
from autopar_core.domain.model import ModelConfig
from autopar_core.domain.precision import PrecisionRecipe
from autopar_core.domain.space import SearchSpace
from autopar_core.domain.strategy import StrategyBatch
from autopar_core.domain.system import SystemProfile
from autopar_core.domain.training import ClusterConfig, TrainingConfig
from autopar_core.laws.collectives import Group


Config = TypeVar("Config")
Section = TypeVar("Section")


@frozen(kw_only=True)
class EvalContext(Generic[Config, Section]):
    """The job as one plugin sees it.

    Attributes:
        fields: Every declared field by name.
        dimensions: Active dimensions by name.
        config: The plugin's own ``[plugins.NAME]`` section, structured.
        profile: The plugin's own section of the framework profile, structured.
    """

    model: ModelConfig
    training: TrainingConfig
    cluster: ClusterConfig
    system: SystemProfile
    framework: FrameworkProfile
    space: SearchSpace
    fields: Mapping[str, Field]
    dimensions: Mapping[str, Dimension]
    config: Config
    profile: Section
    _strides: dict[int, Mapping[str, Ints]] = field(factory=dict, init=False, repr=False)

    @property
    def recipe(self) -> PrecisionRecipe:
        """Number formats of the block linears and what their casts cost."""
        return self.framework.core.recipe(self.training.precision)

    def seen_by(self, config: Any, profile: Any) -> EvalContext[Any, Any]:
        """The same job with another plugin's sections."""
        seen: EvalContext[Any, Any] = evolve(self, config=config, profile=profile)
        return seen

    def group(self, batch: StrategyBatch, role: str) -> Group:
        """Ranks that form the group of a dimension (by name) or share a role.

        ``group(batch, "tp")`` is the ranks of one dimension; ``group(batch, "parameters")`` is all
        ranks that hold the same parameters, over every dimension that replicates them. The rank
        order of the framework profile decides how many of them sit in one scale-up domain.
        """
        if role in self.dimensions:
            members = [role]
        else:
            members = [n for n, d in self.dimensions.items() if role in d.replicates]
        strides = self._stride_of(batch)
        domain = self.cluster.devices_per_domain
        size = np.ones(len(batch), dtype=np.int64)
        near = np.ones(len(batch), dtype=np.int64)
        for name in members:
            degree = batch[self.dimensions[name].degree.name]
            size = size * degree
            near = near * np.minimum(degree, np.maximum(1, domain // strides[name]))
        return Group(size, np.minimum(near, size), domain)

    def ordered(self) -> tuple[str, ...]:
        """Active dimensions, innermost first; those that the profile does not name come last."""
        named = [name for name in self.framework.order if name in self.dimensions]
        return (*named, *(name for name in sorted(self.dimensions) if name not in named))

    def _stride_of(self, batch: StrategyBatch) -> Mapping[str, Ints]:
        stride = np.ones(len(batch), dtype=np.int64)
        found: dict[str, Ints] = {}
        for name in self.ordered():
            found[name] = stride
            stride = stride * batch[self.dimensions[name].degree.name]
        return found

    def replicas(self, batch: StrategyBatch) -> Ints:
        """(N,) how many ranks groups work on different sequences: divides the global batch."""
        size = np.ones(len(batch), dtype=np.int64)
        for dimension in self.dimensions.values():
            if dimension.splits_batch:
                size = size * batch[dimension.degree.name]
        return size

    def world(self, batch: StrategyBatch) -> Array:
        """(N,) product of all degrees."""
        size = np.ones(len(batch), dtype=np.int64)
        for dimension in self.dimensions.values():
            size = size * batch[dimension.degree.name]
        return size
