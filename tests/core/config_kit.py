"""Inputs and a plugin with settings."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from attrs import frozen

import autopar_core.builtin
from autopar_core.api import API_VERSION, InputError, PluginInfo, Reader, hookimpl
from autopar_core.config.load import load_job
from autopar_core.config.overrides import Overrides
from autopar_core.config.tables import deep_merge
from autopar_core.domain.job import Job
from autopar_core.plugins.manager import PluginManager


GIB = 2**30
FILE = Path("run.toml")


@frozen(kw_only=True)
class KitConfig:
    level: int = 1


@frozen(kw_only=True)
class KitProfile:
    share: float = 0.5


class Kit:
    """A plugin with a section, a reader, a framework and a system."""

    @hookimpl
    def autopar_plugin_info(self) -> PluginInfo:
        return PluginInfo(api=API_VERSION, summary="Kit.", config=KitConfig, profile=KitProfile)

    @hookimpl
    def autopar_frameworks(self) -> Sequence[Mapping[str, Any]]:
        return [{"name": "mine", "base": "generic", "title": "Mine", "kit": {"share": 0.25}}]

    @hookimpl
    def autopar_systems(self) -> Sequence[Mapping[str, Any]]:
        return [{"name": "big", "base": "h100-sxm-80gb", "memory_bytes": 128 * GIB, "aliases": []}]

    @hookimpl
    def autopar_readers(self) -> Sequence[Reader]:
        def read(path: Path, text: str) -> Mapping[str, Mapping[str, Any]]:
            table = json.loads(text)
            return {"model": table["shape"], "training": {"seq_len": 2048}, "strategy": {"mbs": 1}}

        return [Reader("kit", "Kit files.", lambda path, text: '"shape"' in text, read)]


class Bare:
    """A plugin without settings."""

    @hookimpl
    def autopar_plugin_info(self) -> PluginInfo:
        return PluginInfo(api=API_VERSION, summary="Bare.")


def manager(**options: Any) -> PluginManager:
    extra = [("builtin", autopar_core.builtin), ("kit", Kit()), ("bare", Bare())]
    return PluginManager.load(extra=extra, entry_points=False, **options)


MANAGER = manager()
SHAPE = {
    "num_layers": 8, "hidden": 64, "ffn_hidden": 128, "heads": 8, "kv_heads": 2, "vocab": 100,
}  # fmt: skip
BASE: dict[str, Any] = {
    "model": {"source": "llama-3-70b"},
    "training": {"global_batch_size": 1024, "seq_len": 8192},
    "cluster": {"system": "h100-sxm-80gb", "devices": 256},
}


def job(
    changes: Mapping[str, Any] | None = None,
    overrides: Overrides | None = None,
    path: Path | None = FILE,
    plugins: PluginManager = MANAGER,
) -> Job:
    tables = deep_merge(BASE, changes or {})
    return load_job(path, tables, overrides or Overrides(), plugins)


def wrong(changes: Mapping[str, Any], **options: Any) -> str:
    with pytest.raises(InputError) as caught:
        job(changes, **options)
    return str(caught.value)
