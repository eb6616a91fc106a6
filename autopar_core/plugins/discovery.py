"""Where plugins come from; nothing of them is imported before :meth:`Source.load` is called."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterable, Iterator
from importlib import metadata
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Literal

from attrs import frozen

import autopar_core
from autopar_core.errors import InputError, PluginError
from autopar_core.hooks.markers import ENTRY_POINT_GROUP


NAME_VARIABLE = "AUTOPAR_NAME"


@frozen(kw_only=True)
class Source:
    """A plugin that was found, not yet imported.

    Attributes:
        name: Plugin name: of the entry point, of the file, or as given.
        distribution: Distribution, or file name, that it comes from.
        version: Version of the distribution; empty for files and objects.
        kind: ``installed`` by entry point, a ``file`` that a person named, or ``given`` in process.
        load: Imports it and returns the module or object that holds its hooks.
    """

    name: str
    distribution: str
    version: str = ""
    kind: Literal["installed", "file", "given"]
    load: Callable[[], object]

    @property
    def order(self) -> tuple[str, str, str]:
        """What sources are sorted by: a total order that no file system or installer decides."""
        return self.name, self.distribution, self.version


def find(
    files: Iterable[str | Path], extra: Iterable[tuple[str, object]], entry_points: bool
) -> list[Source]:
    """Every plugin there is, sorted.

    Args:
        files: One-file plugins that a person named.
        extra: Names and modules or objects that are in the process already.
        entry_points: Whether to look at installed distributions.

    Raises:
        InputError: A file is missing or is no Python file.
    """
    found = [*_files(files), *(_given(name, plugin) for name, plugin in extra)]
    if entry_points:
        found.extend(_installed())
    return sorted(found, key=lambda source: source.order)


def _installed() -> Iterator[Source]:
    seen: set[tuple[str, str, str]] = set()
    for point in metadata.entry_points(group=ENTRY_POINT_GROUP):
        distribution = (point.dist and point.dist.name) or "unknown distribution"
        key = (point.name, point.value, distribution)
        if key not in seen:
            seen.add(key)
            yield Source(
                name=point.name,
                distribution=distribution,
                version=(point.dist and point.dist.version) or "",
                kind="installed",
                load=point.load,
            )


def _given(name: str, plugin: object) -> Source:
    own = isinstance(plugin, ModuleType) and plugin.__name__.split(".")[0] == "autopar_core"
    return Source(
        name=name,
        distribution="autopar-core" if own else "in process",
        version=autopar_core.__version__ if own else "",
        kind="given",
        load=lambda: plugin,
    )


def _files(files: Iterable[str | Path]) -> Iterator[Source]:
    for path in {Path(file).resolve(): Path(file) for file in files}.values():
        if path.suffix != ".py" or not path.is_file():
            what = "is no Python file" if path.exists() else "does not exist"
            raise InputError("--plugin", f"{path} {what}; give the path of a .py file")
        try:
            source = path.read_bytes()
        except OSError as error:
            why = error.strerror
            raise InputError("--plugin", f"{path} cannot be read ({why})") from error
        yield _file(path, source)


def _file(path: Path, source: bytes) -> Source:
    name = _stated_name(source) or path.stem
    return Source(
        name=name,
        distribution=path.name,
        kind="file",
        load=lambda: _import_file(name, path, source),
    )


def _stated_name(source: bytes) -> str:
    """The plugin name that a file states, read without running it; empty if it states none."""
    try:
        body = ast.parse(source).body
    except (SyntaxError, ValueError):  # told when the file is imported
        return ""
    for statement in body:
        match statement:
            case (
                ast.Assign(targets=[ast.Name(id=variable)], value=ast.Constant(value=str(name)))
                | ast.AnnAssign(target=ast.Name(id=variable), value=ast.Constant(value=str(name)))
            ) if variable == NAME_VARIABLE:
                return name
    return ""


def _import_file(name: str, path: Path, source: bytes) -> ModuleType:
    """Runs a file as a module; leaves no byte code beside it."""
    qualified = f"autopar_plugin_file_{name}"
    loader = SourceFileLoader(qualified, str(path))
    spec = spec_from_file_location(qualified, path, loader=loader)
    assert spec is not None
    module = module_from_spec(spec)
    before = sys.modules.get(qualified)
    sys.modules[qualified] = module  # attrs and dataclasses look their module up
    try:
        exec(loader.source_to_code(source, str(path)), module.__dict__)
        if getattr(module, NAME_VARIABLE, name) != name:
            raise PluginError(f"{NAME_VARIABLE} must be set once, to a plain string")
    except BaseException:
        if before is None:
            del sys.modules[qualified]
        else:
            sys.modules[qualified] = before
        raise
    return module
