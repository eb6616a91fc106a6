"""From the object that a Python configuration function returns to settings."""

from __future__ import annotations

from typing import Any

from autopar_core.api import InputError
from autopar_torchtitan.python_values import Made, Placed
from autopar_torchtitan.settings import SEQUENCES, TOKENS, Computed, Setting, Settings


_CHECKPOINTS = {
    "FullAC": "full", "SelectiveAC": "selective", "MemoryBudgetAC": "memory_budget",
    "FullActivationRematConfig": "full", "SelectiveActivationRematConfig": "selective",
    "MemoryBudgetActivationRematConfig": "memory_budget",
}  # fmt: skip
_CONVERTERS = {
    "Float8LinearConverter": "float8", "MXFP8LinearConverter": "mx", "NVFP4LinearConverter": "nvfp4",
    "LoRAConverter": "lora",
}  # fmt: skip
_FIELDS = ("recipe_name", "enable_fsdp_float8_all_gather")
# Fields that every release of the Python form has, whatever autopar makes of them.
_SECTIONS = ("training", "parallelism", "compile")


def settings_of(label: str, config: Made, *, tokens: bool, devices: Setting | None) -> Settings:
    """Settings of a ``Trainer.Config``.

    Raises:
        InputError: When a part of it is computed, or is of another kind.
    """
    found: dict[str, Setting] = {}
    for section in _SECTIONS:
        part = config.fields.get(section)
        if part is None:
            continue
        if not isinstance(part.value, Made):
            raise _computed(label, section, part)
        for key, each in part.value.fields.items():
            found[f"{section}.{key}"] = _setting(f"{section}.{key}", each)
    _model(label, config, found)
    _checkpoint(label, config, found)
    return Settings(label, TOKENS if tokens else SEQUENCES, found, devices)


def _setting(key: str, each: Placed) -> Setting:
    place = each.place if each.place.startswith("default") else f"{each.place}, {key}"
    value = Computed("it is computed") if isinstance(each.value, Made) else each.value
    return Setting(value, place)


def _computed(label: str, key: str, part: Placed) -> InputError:
    why = part.value.why if isinstance(part.value, Computed) else "it is something else"
    return InputError(f"{label}: {part.place}, {key}", f"{why}; write its fields as literals")


def _model(label: str, config: Made, found: dict[str, Setting]) -> None:
    spec = config.fields.get("model_spec") or config.fields.get("model")
    if spec is None:
        raise InputError(
            label, 'has no model_spec; give model_registry("8B") or start from a preset'
        )
    if not isinstance(spec.value, Made) or spec.value.kind != "model_registry":
        raise InputError(
            f"{label}: {spec.place}, model_spec", "builds a model by itself; autopar knows the "
            "flavours of model_registry, and any model by --model",
        )  # fmt: skip
    fields = spec.value.fields
    found["model.name"] = _setting("model_registry", fields["family"])
    if "flavor" not in fields:
        raise InputError(f"{label}: {spec.place}", "model_registry is called without a flavour")
    found["model.flavor"] = _setting("model_registry", fields["flavor"])
    if "attn_backend" in fields:
        found["model.attn_backend"] = _setting("attn_backend", fields["attn_backend"])
    if "converters" in fields:
        place = _setting("converters", fields["converters"])
        found["model.converters"] = Setting(_converters(place.value), place.place)
        _recipes(place.value, found)


def _converters(value: Any) -> Any:
    if value is None:
        return []
    if not isinstance(value, list):
        return value if isinstance(value, Computed) else Computed("it is no list")
    kinds = [each.kind if isinstance(each, Made) else str(each) for each in value]
    return [_CONVERTERS.get(kind, kind) for kind in kinds]


def _recipes(value: Any, found: dict[str, Setting]) -> None:
    """Fields of converters under the names that they have in TOML files."""
    for each in value if isinstance(value, list) else ():
        kind = _CONVERTERS.get(each.kind, "") if isinstance(each, Made) else ""
        for name, field in each.fields.items() if kind else ():
            if name in _FIELDS and field.value is not None:
                key = f"quantize.linear.{kind}.{name}"
                found[key] = _setting(key, field)


def _checkpoint(label: str, config: Made, found: dict[str, Setting]) -> None:
    """None checkpoints nothing; a Python configuration has no steps of layers."""
    key = "activation_checkpoint"
    part = config.fields.get(key)
    if part is None:
        # Trainer.Config: activation_checkpoint defaults to SelectiveAC.Config() in 0.3.0
        found[f"{key}.mode"] = Setting("selective", "default of the format: SelectiveAC")
    elif part.value is None:
        found[f"{key}.mode"] = Setting("none", _setting(key, part).place)
    elif isinstance(part.value, Made) and part.value.kind in _CHECKPOINTS:
        found[f"{key}.mode"] = Setting(_CHECKPOINTS[part.value.kind], _setting(key, part).place)
    else:
        raise _computed(label, key, part)
    found[f"{key}.selective_ac_option"] = Setting("op", found[f"{key}.mode"].place)
