"""Plugins made for a test: from files of tests/fakes, in process, and installed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from autopar_core.api import Dimension, Field, Level, PluginInfo, hookimpl
from autopar_core.plugins import PluginManager, PluginRecord


FAKES = Path(__file__).resolve().parents[1] / "fakes"
Install = Callable[..., None]


def files(*names: str) -> list[Path]:
    return [FAKES / f"{name}.py" for name in names]


def load(*names: str, **options: Any) -> PluginManager:
    return PluginManager.load(files=files(*names), **{"entry_points": False, **options})


def only_record(manager: PluginManager) -> PluginRecord:
    (record,) = manager.records
    return record


def plugin(
    name: str, *fields: Field, dimension: str = "", degree: str = "", short: str = "", **hooks: Any
) -> tuple[str, object]:
    """An in-process plugin; hooks are functions."""
    split = Dimension(
        name=dimension,
        degree=Field(
            name=degree or f"{dimension}_degree",
            short=short or dimension,
            level=Level.DEGREE,
            neutral=1,
        ),
    )
    info = PluginInfo(
        api=(1, 0), summary=f"{name}.", dimension=split if dimension else None, fields=fields
    )

    def introduce() -> PluginInfo:
        return info

    made = {"autopar_plugin_info": introduce, **hooks}
    namespace = type(name, (), {key: staticmethod(hookimpl(value)) for key, value in made.items()})
    return name, namespace()


def knob(name: str, short: str = "", **changes: Any) -> Field:
    return Field(
        **{"level": Level.SHARDING, "neutral": 0, **changes}, name=name, short=short or name
    )


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Installs distributions into a folder that stands for the environment.

    Metadata are read twice, as they are where a checkout also has its egg-info.
    """
    loaded = set(sys.modules)
    monkeypatch.syspath_prepend(tmp_path)

    def entry_points(group: str) -> list[metadata.EntryPoint]:
        found = [
            point
            for distribution in metadata.distributions(path=[str(tmp_path)])
            for point in distribution.entry_points
        ]
        return [point for point in [*found, *found] if point.group == group]

    monkeypatch.setattr(metadata, "entry_points", entry_points)

    def add(name: str, distribution: str, source: str, version: str = "0.1.0") -> None:
        module = distribution.replace("-", "_")
        folder = tmp_path / f"{module}-{version}.dist-info"
        folder.mkdir(exist_ok=True)
        (folder / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n"
        )
        (folder / "entry_points.txt").write_text(f"[autopar]\n{name} = fake_{module}\n")
        (tmp_path / f"fake_{module}.py").write_text(source)

    yield add
    for name in set(sys.modules) - loaded:
        if name.startswith("fake_"):
            del sys.modules[name]


EXPLOSIVE = "raise AssertionError('this plugin must not be imported')\n"


def standard(name: str) -> str:
    """Source of a plugin for one of the dimensions."""
    source = (FAKES / "rival.py").read_text(encoding="utf-8")
    return source.replace('"tp', f'"{name}')
