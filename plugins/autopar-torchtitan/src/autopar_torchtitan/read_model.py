"""The model that a configuration names, or why it is not a dense decoder."""

from __future__ import annotations

import difflib

from autopar_core.api import Findings, InputError
from autopar_torchtitan.flavors import (
    OTHER_FAMILIES,
    OTHER_FLAVORS,
    PYTHON_ERA,
    TOML_ERA,
    Flavor,
    families,
    flavor_named,
)
from autopar_torchtitan.settings import TOML, Settings


def read_model(settings: Settings, found: Findings) -> Flavor:
    """Put the fields of the flavour.

    Raises:
        InputError: When it is no dense decoder, naming the key that shows it, or is not known.
    """
    family, name = settings.text("model.name"), settings.text("model.flavor")
    if not family:
        raise settings.wrong(
            "model.name", "the file does not import model_registry from "
            "torchtitan.models.<model>, so its model is not known; import it from there",
        )  # fmt: skip
    _refuse(settings, family, name)
    try:
        flavor = flavor_named(family, name)
    except KeyError as error:
        names = str(error.args[0])
        near = difflib.get_close_matches(name, names.split(", "), 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise settings.wrong(
            "model.flavor",
            f"{family} has no flavour {name!r:.40} that autopar knows; it has {names}{hint}",
        ) from None
    release = TOML_ERA if settings.dialect == TOML else PYTHON_ERA
    if release not in flavor.releases:
        found.note(
            f"torchtitan {release} has no flavour {family} {name}; releases from 0.3.0 have it"
        )
    place = settings.place("model.flavor")
    found.put("model.name", flavor.title, place)
    for key, value in flavor.fields.items():
        found.put(f"model.{key}", value, f"{place}: {family} {name}")
    found.put(
        "model.max_position_embeddings", flavor.longest, f"{place}: RoPE table of {family} {name}"
    )
    return flavor


def _refuse(settings: Settings, family: str, name: str) -> None:
    """Models that are no dense decoders."""
    tail = "autopar plans dense models only"
    if family in OTHER_FAMILIES:
        raise settings.wrong("model.name", f"{family} is {OTHER_FAMILIES[family]}; {tail}")
    if (family, name) in OTHER_FLAVORS:
        raise settings.wrong(
            "model.flavor", f"{family} {name} is {OTHER_FLAVORS[family, name]}; {tail}"
        )
    if family not in families():
        known = " and ".join(families())
        raise settings.wrong(
            "model.name", f"TorchTitan's model {family!r:.40} is not known; autopar knows {known}"
        )
    experts = "parallelism.expert_parallel_degree"
    if settings.whole(experts) > 1:
        raise settings.wrong(
            experts, f"expert parallelism is for mixture-of-experts models; {tail}: write 1"
        )
    converters = settings.names("model.converters")
    if "lora" in converters:
        raise settings.wrong("model.converters", "LoRA leaves most parameters without gradients; "
                             "autopar plans training of all parameters")  # fmt: skip
    grouped = next((c for c in converters if "grouped" in c or "Experts" in c), None)
    if grouped is not None:
        raise InputError(
            f"{settings.label}: {settings.place('model.converters')}",
            f"{grouped} is for mixture-of-experts models; {tail}",
        )
