"""YAML files of the Megatron family: Megatron's own, its functional tests', Primus', Bridge's."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from autopar_core.api import Document, InputError, read_yaml
from autopar_megatron.bridge_names import bridge_settings, is_bridge_key
from autopar_megatron.settings import Setting, Settings, keep


_VARIABLE = re.compile(r"\$\{(\w+)(?::-?([^}]*))?\}")
_SECTIONS = ("language_model", "model_parallel")


def looks_like_yaml(text: str) -> bool:
    """Whether a text has keys of one of these dialects at the start of lines."""
    if re.search(r"^[ \t]*--tensor-model-parallel-size\s*:", text, re.MULTILINE):
        return True
    if re.search(r"^(language_model|model_parallel)\s*:", text, re.MULTILINE):
        return "tensor_model_parallel_size" in text
    if re.search(r"^[ \t]*(framework[ \t]*:[ \t]*megatron|pre_trainer[ \t]*:)", text, re.MULTILINE):
        return "megatron" in text
    return bool(re.search(r"^model\s*:", text, re.MULTILINE)) and (
        bool(re.search(r"^[ \t]+tensor_model_parallel_size[ \t]*:", text, re.MULTILINE))
        or "megatron.bridge" in text
    )


def read_yaml_settings(label: str, text: str) -> Settings:
    """Settings of a YAML file.

    Raises:
        InputError: When it is none of the dialects, or two keys say one thing differently.
    """
    document = read_yaml(text, label)
    table = document.table
    if any(str(key).startswith("--") for key in table.get("MODEL_ARGS") or ()):
        return _flag_keys(label, document)
    if any(name in table for name in _SECTIONS):
        return _megatron(label, document)
    if "modules" in table or table.get("framework") == "megatron":
        return _primus(label, document)
    pairs = [(key, value, document.lines.get(key, 0)) for key, value in _leaves(table)]
    if any(is_bridge_key(key) for key, _, _ in pairs):
        return bridge_settings(label, pairs)
    raise InputError(label, "is no YAML file of Megatron-LM or Megatron-Bridge")


def _flag_keys(label: str, document: Document) -> Settings:
    """``MODEL_ARGS: {--num-layers: 32}`` of Megatron's functional tests."""
    found: dict[str, Setting] = {}
    for key, value in (document.table.get("MODEL_ARGS") or {}).items():
        line = document.lines.get(f"MODEL_ARGS.{key}", 0)
        spelled = str(key)
        if value is False:
            continue
        values = () if value is True else _texts(value)
        keep(
            label,
            found,
            Setting(spelled.lstrip("-").replace("-", "_"), spelled, values, line, line),
        )
    return Settings(label, found)


def _megatron(label: str, document: Document) -> Settings:
    """``--yaml-cfg``: ``language_model`` and ``model_parallel`` beside top-level keys."""
    found: dict[str, Setting] = {}
    for key, value in _leaves(document.table):
        name = key.rsplit(".", 1)[-1]
        if value is None or (key.count(".") and key.split(".")[0] not in _SECTIONS):
            continue
        keep(label, found, _setting(name, key, value, document.lines.get(key, 0)))
    renamed = {
        "virtual_pipeline_model_parallel_size": "num_virtual_stages_per_pipeline_rank",
        "fp8": "fp8_format",
    }
    for old, new in renamed.items():
        if old in found and new not in found:
            found[new] = _renamed(found.pop(old), new)
    # the parsed file goes straight into the configuration class, whatever group_query_attention says
    if "num_query_groups" in found:
        place = found["num_query_groups"]
        found["group_query_attention"] = Setting(
            "group_query_attention", place.spelled, (), place.line
        )
    return Settings(label, found)


def _primus(label: str, document: Document) -> Settings:
    """``modules.pre_trainer.overrides`` of Primus, and its flat model and module files."""
    if "extends" in _last_keys(document.table):
        key = next(k for k, _ in _leaves(document.table) if "extends" in k.split("."))
        raise InputError(
            f"{label}: {document.place(key)}", "takes values from other files, which were not read; "
            "give the merged file that Primus prints at its start",
        )  # fmt: skip
    found: dict[str, Setting] = {}
    for key, value in _leaves(document.table):
        parts = key.split(".")
        if parts[0] == "modules" and "overrides" not in parts:
            continue
        if value is not None:
            keep(label, found, _setting(parts[-1], key, value, document.lines.get(key, 0)))
    if "num_query_groups" in found and "group_query_attention" not in found:
        place = found["num_query_groups"]
        found["group_query_attention"] = Setting(
            "group_query_attention", place.spelled, (), place.line
        )
    return Settings(label, found)


def _setting(name: str, spelled: str, value: Any, line: int) -> Setting:
    texts = _texts(value)
    holes: list[str] = []
    made = []
    for text in texts:
        for variable, default in _VARIABLE.findall(text):
            if not default:
                holes.append(f"${variable}")
        made.append(_VARIABLE.sub(lambda m: m[2] or "", text))
    return Setting(name, spelled, tuple(made), line, line, tuple(holes))


def _renamed(setting: Setting, name: str) -> Setting:
    return Setting(name, setting.spelled, setting.values, setting.line, setting.value_line,
                   setting.holes)  # fmt: skip


def _texts(value: Any) -> tuple[str, ...]:
    if isinstance(value, list):
        return tuple(str(each) for each in value)
    if isinstance(value, bool):
        return ("true" if value else "false",)
    return (str(value),)


def _leaves(table: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        path = f"{before}.{key}" if before else str(key)
        if isinstance(value, Mapping):
            yield from _leaves(value, path)
        else:
            yield path, value


def _last_keys(table: Mapping[str, Any]) -> set[str]:
    return {part for key, _ in _leaves(table) for part in key.split(".")}
