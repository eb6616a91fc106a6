"""Everything a search is asked: the effective input, each value with its source."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import field, frozen

from autopar_core.domain.bands import Bands
from autopar_core.domain.framework import FrameworkProfile
from autopar_core.domain.model import ModelConfig
from autopar_core.domain.precision import PrecisionRecipe
from autopar_core.domain.space import SearchSpace
from autopar_core.domain.system import SystemProfile
from autopar_core.domain.training import ClusterConfig, TrainingConfig


@frozen(kw_only=True)
class Today:
    """The strategy that the person runs today.

    Attributes:
        label: ``"run.sh (megatron)"``.
        space: It alone; what its file leaves open is open.
        framework: The framework that it runs in.
        sources: ``search.`` field -> where its value stands.
    """

    label: str
    space: SearchSpace
    framework: FrameworkProfile
    sources: Mapping[str, str] = field(factory=dict)


@frozen(kw_only=True)
class Job:
    """A complete, checked input.

    Attributes:
        bands: How far predictions of its system and framework were from measured runs.
        plugin_sections: Raw ``[plugins.NAME]`` tables by plugin name.
        sources: Dotted input key -> where its value comes from.
        raw: The merged input tables, what ``--from`` starts again with.
        notes: Sentences the person should see (an unknown framework fell back, ...).
        today: What the answers are compared with.
    """

    model: ModelConfig
    training: TrainingConfig
    cluster: ClusterConfig
    system: SystemProfile
    framework: FrameworkProfile
    space: SearchSpace
    bands: Bands
    plugin_sections: Mapping[str, Mapping[str, Any]] = field(factory=dict)
    sources: Mapping[str, str] = field(factory=dict)
    raw: Mapping[str, Any] = field(factory=dict)
    notes: tuple[str, ...] = ()
    today: Today | None = None

    @property
    def recipe(self) -> PrecisionRecipe:
        """Number formats of the block linears and what their casts cost."""
        return self.framework.core.recipe(self.training.precision)

    @property
    def format_uncertainty(self) -> float:
        """What a number format below 16 bits adds to the band of a step time, as a share; else 0."""
        law = self.system.gemm.formats.get(self.recipe.format)
        return self.recipe.uncertainty + (law.uncertainty if law is not None else 0.0)
