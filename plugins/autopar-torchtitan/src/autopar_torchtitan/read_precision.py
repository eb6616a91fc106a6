"""The precision recipe of a configuration, with what autopar does not price."""

from __future__ import annotations

from autopar_core.api import Findings, InputError
from autopar_torchtitan.settings import TOML, Settings


_CONVERTERS = ("float8", "mx", "nvfp4")


def read_precision(settings: Settings, found: Findings) -> None:
    """Put the recipe: what converters ask for, or the type of the parameters.

    Raises:
        InputError: For converters that exclude each other, and for states that are not priced.
    """
    key, converters = "training.precision", "model.converters"
    plain = settings.choice("training.mixed_precision_param", "bfloat16", "float32")
    names = [each.rpartition(".")[2] for each in settings.names(converters)]
    strange = next((name for name in names if name not in _CONVERTERS), None)
    if strange is not None:
        raise settings.wrong(converters, f"{strange!r:.40} is no converter that autopar knows; it knows "
                             f"{', '.join(_CONVERTERS)}")  # fmt: skip
    if len(names) > 1:
        raise settings.wrong(converters, f"{' and '.join(names)} exclude each other; keep one")
    if names:
        name = f"quantize.linear.{names[0]}.recipe_name"
        place = settings.place(converters)
        place += f"; {settings.place(name)}" if name in settings else ""
        found.put(key, _recipe(settings, names[0], found), place)
    else:
        place = settings.place("training.mixed_precision_param")
        found.put(key, "bf16" if plain == "bfloat16" else "fp32", place)
        unused = [k for k in ("float8", "mx") if f"quantize.linear.{k}.recipe_name" in settings]
        if unused:
            found.note(
                f"[quantize.linear.{unused[0]}] has no effect: model.converters does not name it"
            )
    if settings.choice("training.dtype", "float32", "bfloat16") == "bfloat16":
        raise settings.wrong(
            "training.dtype", "bfloat16 keeps parameters, gradients and optimizer states in 16 "
            "bits, which autopar does not price; write float32",
        )  # fmt: skip
    if settings.flag("training.enable_cpu_offload"):
        raise settings.wrong(
            "training.enable_cpu_offload", "autopar does not price states on the host; write false"
        )


def _recipe(settings: Settings, name: str, found: Findings) -> str:
    """The recipe of a converter; one that no profile offers keeps its name, and the core refuses it."""
    key = f"quantize.linear.{name}.recipe_name"
    said = settings.text(key) if key in settings else ""
    if name == "nvfp4":
        return "nvfp4"
    if name == "mx":
        return (said or "mxfp8").partition("_")[0]
    gathers = "quantize.linear.float8.enable_fsdp_float8_all_gather"
    gathered = gathers in settings and settings.flag(gathers)
    if said and gathered and settings.dialect == TOML:
        raise InputError(
            settings.label,
            f"{gathers} ({settings.place(gathers)}) and recipe_name = {said} "
            f"({settings.place(key)}) exclude each other; keep one of them",
        )
    # Nothing said: torchao's own configuration up to 0.2.2, the field's default since 0.3.0.
    recipe = f"fp8-{said or ('tensorwise' if settings.dialect == TOML else 'rowwise'):.40}"
    if gathered:
        found.note(
            f"weights are gathered in fp8 ({settings.place(gathers)}); they are estimated in 16 bits"
        )
    return recipe
