"""``training.precision``: the recipe of the framework that it means, and whether the device has it."""

from __future__ import annotations

from attrs import evolve

from autopar_core.config.converter import nearest
from autopar_core.config.tables import Origins
from autopar_core.domain.framework import FrameworkProfile
from autopar_core.domain.precision import SIXTEEN_BIT
from autopar_core.domain.system import SystemProfile
from autopar_core.domain.training import TrainingConfig
from autopar_core.errors import InputError


def checked_precision(
    training: TrainingConfig, system: SystemProfile, framework: FrameworkProfile, origins: Origins
) -> tuple[TrainingConfig, tuple[str, ...]]:
    """The job with the name of its recipe, and notes on how the key was read.

    Raises:
        InputError: When the framework has no such recipe, or the device no such number format.
    """
    where = origins.where("training", "precision")
    asked, core = training.precision, framework.core
    try:
        name = core.recipe_name(asked)
    except KeyError:
        known = nearest(asked, (*SIXTEEN_BIT, *core.precisions), noun="it has")
        raise InputError(
            where, f"framework {framework.name} has no precision {asked!r}{known}"
        ) from None
    number_format = core.recipe(name).format
    try:
        system.sustained(number_format)
    except KeyError:
        known = ", ".join((*SIXTEEN_BIT, *system.gemm.formats))
        raise InputError(
            where,
            f"system {system.name} has no {number_format} products for {asked!r}; it has: {known}",
        ) from None
    notes = [f"precision {asked} is read as {name} of {framework.name}"] if name != asked else []
    if asked == "bf16" and "bf16" not in system.peak_flops:
        notes.append(
            f"{system.name} has no bf16: its fp16 rate stands in; set training.precision = fp16"
        )
    return evolve(training, precision=name), tuple(notes)
