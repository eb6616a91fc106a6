"""The packaging files of the distributions in this repository agree with each other."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import tomli
from packaging.requirements import Requirement
from packaging.utils import NormalizedName, canonicalize_name


ROOT = Path(__file__).resolve().parents[2]
PLUGIN_FOLDERS = sorted(file.parent for file in ROOT.glob("plugins/*/pyproject.toml"))
PLUGIN_IDS = [folder.name for folder in PLUGIN_FOLDERS]


def read(folder: Path) -> dict[str, Any]:
    return tomli.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))


def lines(name: str) -> list[str]:
    """Lines of a requirements file that say something."""
    text = (ROOT / name).read_text(encoding="utf-8")
    return [line.strip() for line in text.splitlines() if line.strip() and line[0] != "#"]


def named_dependencies() -> set[NormalizedName]:
    """Foreign distributions that a pyproject.toml or requirements-dev.txt asks for."""
    documents = [read(folder) for folder in [ROOT, *PLUGIN_FOLDERS]]
    ours = {canonicalize_name(document["project"]["name"]) for document in documents}
    asked = [line for line in lines("requirements-dev.txt") if not line.startswith("-e")]
    for document in documents:
        asked += document["build-system"]["requires"]
        asked += document["project"].get("dependencies", [])
        for extra in document["project"].get("optional-dependencies", {}).values():
            asked += extra
    return {canonicalize_name(Requirement(line).name) for line in asked} - ours


def test_there_are_plugins() -> None:
    assert {"autopar-cp", "autopar-dp", "autopar-example", "autopar-pp", "autopar-tp"} <= set(
        PLUGIN_IDS
    )


def test_all_distributions_have_one_version() -> None:
    versions = {
        folder.name: read(folder)["project"]["version"] for folder in [ROOT, *PLUGIN_FOLDERS]
    }
    assert len(set(versions.values())) == 1, versions


@pytest.mark.parametrize("folder", PLUGIN_FOLDERS, ids=PLUGIN_IDS)
def test_plugin_accepts_this_core(folder: Path) -> None:
    requirements = map(Requirement, read(folder)["project"]["dependencies"])
    ranges = [each.specifier for each in requirements if each.name == "autopar-core"]
    assert len(ranges) == 1, f"{folder.name} names autopar-core {len(ranges)} times"
    assert ranges[0].contains(read(ROOT)["project"]["version"])
    operators = {part.operator for part in ranges[0]}
    assert "==" not in operators, "a pin makes every core release break the plugin"
    assert operators & {"<", "<=", "~="}, "without an upper bound, a core that broke it is accepted"


@pytest.mark.parametrize("folder", PLUGIN_FOLDERS, ids=PLUGIN_IDS)
def test_plugin_is_found_by_the_name_of_its_folder(folder: Path) -> None:
    project = read(folder)["project"]
    assert project["name"] == folder.name
    entry_points = project["entry-points"]["autopar"]
    package = folder.name.replace("-", "_")
    assert all(re.fullmatch(r"[a-z][a-z0-9_-]*", name) for name in entry_points)
    assert {target.split(".")[0].split(":")[0] for target in entry_points.values()} == {package}
    assert (folder / "src" / package / "py.typed").is_file()


@pytest.mark.parametrize("folder", PLUGIN_FOLDERS, ids=PLUGIN_IDS)
def test_everything_needs_the_same_python(folder: Path) -> None:
    wanted = read(ROOT)["project"]["requires-python"]
    assert read(folder)["project"]["requires-python"] == wanted


@pytest.mark.parametrize("folder", [ROOT, *PLUGIN_FOLDERS], ids=["core", *PLUGIN_IDS])
def test_readme_is_published_where_there_is_one(folder: Path) -> None:
    written = ["README.md"] if (folder / "README.md").is_file() else []
    project = read(folder)["project"]
    assert [project[key] for key in ("readme",) if key in project] == written


def test_extra_all_names_published_dimensions_that_exist() -> None:
    named = {
        Requirement(line).name for line in read(ROOT)["project"]["optional-dependencies"]["all"]
    }
    assert named <= set(PLUGIN_IDS)
    assert "autopar-example" not in named


def test_development_requirements_name_every_plugin_folder() -> None:
    editable = [
        line.removeprefix("-e").strip()
        for line in lines("requirements-dev.txt")
        if line.startswith("-e")
    ]
    folders = [entry.split("[")[0].removeprefix("./").rstrip("/") for entry in editable]
    assert sorted(folders) == sorted([".", *(f"plugins/{name}" for name in PLUGIN_IDS)])


def test_constraints_are_exact_pins_without_duplicates() -> None:
    names = []
    for line in lines("constraints.txt"):
        requirement = Requirement(line)
        assert [part.operator for part in requirement.specifier] == ["=="], line
        assert requirement.url is None, line
        names.append(canonicalize_name(requirement.name))
    assert len(names) == len(set(names)), "a name is pinned twice"
    assert names == sorted(names), "out of order, which hides duplicates from readers"


def test_constraints_pin_every_named_dependency() -> None:
    pinned = {canonicalize_name(Requirement(line).name) for line in lines("constraints.txt")}
    assert named_dependencies() - pinned == set()


def test_pins_are_inside_the_ranges() -> None:
    pins = {
        canonicalize_name(pin.name): next(iter(pin.specifier)).version
        for pin in map(Requirement, lines("constraints.txt"))
    }
    for folder in [ROOT, *PLUGIN_FOLDERS]:
        project = read(folder)["project"]
        extras = project.get("optional-dependencies", {}).values()
        for line in [*project["dependencies"], *(line for extra in extras for line in extra)]:
            requirement = Requirement(line)
            pin = pins.get(canonicalize_name(requirement.name))
            assert pin is None or requirement.specifier.contains(pin), (folder.name, line, pin)
