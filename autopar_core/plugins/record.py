"""What is known of one plugin, and the examination that finds it out for each on its own."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any, Literal

import attrs
import pluggy
from attrs import evolve, frozen

from autopar_core.domain.fields import Dimension, Field, Level
from autopar_core.domain.result import PluginView
from autopar_core.hooks.info import PluginInfo
from autopar_core.hooks.markers import API_VERSION, PROJECT
from autopar_core.hooks.specs import BEHAVIOUR_HOOKS, AutoparSpec
from autopar_core.plugins.discovery import Source


Status = Literal["active", "disabled", "broken", "incompatible", "conflict"]

INFO_HOOK = "autopar_plugin_info"
HOOKS = tuple(name for name in vars(AutoparSpec) if name.startswith("autopar_"))
_FOLDERS = re.compile(r"(?<![^\s'\"(])(?:[A-Za-z]:)?[/\\](?:[^\s'\"()/\\]+[/\\])+")
_ADDRESS = re.compile(r"\b0x[0-9a-fA-F]+")
_SET = re.compile(r"\{('\w+'(?:, '\w+')+)\}")


@frozen(kw_only=True)
class PluginRecord:
    """One plugin as it was found.

    Attributes:
        name: Plugin name.
        status: Only ``active`` plugins are asked.
        distribution: Distribution, or file name, that it comes from.
        version: Version of the distribution; empty for files and objects.
        reason: Why it is not active.
        info: Its introduction, as far as it got.
        hooks: Hooks that it implements, in the order of the specification.
        wraps: Hooks that it wraps.
        missing: Hooks that its dimension needs and it lacks.
    """

    name: str
    status: Status
    distribution: str
    version: str = ""
    reason: str = ""
    info: PluginInfo | None = None
    hooks: tuple[str, ...] = ()
    wraps: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()

    @classmethod
    def of(cls, source: Source, status: Status, reason: str = "") -> PluginRecord:
        """Record of a plugin that was not looked into."""
        return cls(
            name=source.name,
            status=status,
            distribution=source.distribution,
            version=source.version,
            reason=reason,
        )

    @property
    def label(self) -> str:
        """Name and origin: ``'tp' (autopar-tp 0.1.0)``."""
        return f"'{self.name}' ({f'{self.distribution} {self.version}'.strip()})"

    @property
    def dimension(self) -> Dimension | None:
        """Its dimension, with itself as the owner of the degree."""
        if self.info is None or self.info.dimension is None:
            return None
        dimension = self.info.dimension
        return evolve(dimension, degree=evolve(dimension.degree, owner=self.name))

    @property
    def fields(self) -> tuple[Field, ...]:
        """Its fields without the degree, with itself as their owner."""
        return tuple(evolve(f, owner=self.name) for f in self.info.fields) if self.info else ()

    def is_for(self, dimension: str) -> bool:
        """Whether it has, or would have, a dimension; by its name where nothing more is known."""
        if self.info is None:
            return self.name == dimension
        return self.dimension is not None and self.dimension.name == dimension

    def view(self) -> PluginView:
        """The record as results and listings show it."""
        return PluginView(
            name=self.name,
            status=self.status,
            distribution=self.distribution,
            version=self.version,
            summary=self.info.summary if self.info else "",
            dimension=self.dimension.name if self.dimension else "",
            hooks=(*self.hooks, *(f"{hook} (wrapper)" for hook in self.wraps)),
            missing=self.missing,
            reason=self.reason,
        )


def told(error: BaseException) -> str:
    """An exception on one line that is the same on every machine: no folders, no addresses."""
    text = "; ".join(line.strip() for line in str(error).splitlines() if line.strip())
    text = _SET.sub(lambda found: "{" + ", ".join(sorted(found[1].split(", "))) + "}", text)
    text = _ADDRESS.sub("0x…", _FOLDERS.sub("", text))
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def examine(source: Source) -> tuple[PluginRecord, object]:
    """Imports one plugin and checks it against the contract; never raises for its faults."""
    record, plugin = PluginRecord.of(source, "active"), None
    probe = pluggy.PluginManager(PROJECT)
    probe.add_hookspecs(AutoparSpec)
    try:
        with contextlib.redirect_stdout(sys.stderr):  # standard output is for answers
            plugin = source.load()
            hash(plugin)  # pluggy keeps plugins in sets
            info = _introduction(probe, plugin)
            if not isinstance(info, PluginInfo):
                got = type(info).__name__
                raise _BrokenError(f"{INFO_HOOK} must return a PluginInfo, not {got}")
            unsound = _unsound(info)
            record = evolve(record, info=None if unsound else info)
            _check_version(info)
            if unsound:
                raise _BrokenError(unsound)
            hooks, wraps = _hooks(probe, plugin)
            lacks = tuple(h for h in BEHAVIOUR_HOOKS if info.dimension and h not in hooks)
            record = evolve(record, hooks=hooks, wraps=wraps, missing=lacks)
            probe.register(plugin, source.name)
    except _IncompatibleError as fault:
        return evolve(record, status="incompatible", reason=str(fault)), None
    except _BrokenError as fault:
        return evolve(record, status="broken", reason=str(fault)), None
    except pluggy.PluginValidationError as error:
        text = told(error).removeprefix("PluginValidationError: ")
        return evolve(record, status="broken", reason=text), None
    except (Exception, SystemExit) as error:
        return evolve(record, status="broken", reason=told(error)), None
    return record, plugin


class _BrokenError(Exception):
    """The plugin breaks the contract."""


class _IncompatibleError(_BrokenError):
    """The plugin keeps another version of the contract."""


def _marked(probe: pluggy.PluginManager, plugin: object) -> Iterator[tuple[str, str, Any]]:
    """(attribute, hook, options) of every attribute marked as an implementation."""
    for attribute in dir(plugin):
        options: Mapping[str, Any] | None = probe.parse_hookimpl_opts(plugin, attribute)
        if options is not None:
            yield attribute, options.get("specname") or attribute, options


def _introduction(probe: pluggy.PluginManager, plugin: object) -> object:
    for attribute, hook, _ in _marked(probe, plugin):
        if hook == INFO_HOOK:
            return getattr(plugin, attribute)()
    if callable(getattr(plugin, INFO_HOOK, None)):
        raise _BrokenError(f"{INFO_HOOK} is not marked with @hookimpl")
    raise _BrokenError(f"it has no hook {INFO_HOOK}")


def _check_version(info: Any) -> None:
    match info.api:
        case (int(major), int(minor)):
            core_major, core_minor = API_VERSION
            if major != core_major or minor > core_minor:
                raise _IncompatibleError(
                    f"written for plugin API {major}.{minor}; "
                    f"this core offers {core_major}.{core_minor}"
                )
        case _:
            raise _BrokenError(f"PluginInfo.api must be (major, minor), not {info.api!r}")


def _unsound(info: Any) -> str:
    """What is wrong with the parts of an introduction; empty if nothing is."""
    if not isinstance(info.summary, str):
        return "PluginInfo.summary must be a sentence"
    if not isinstance(info.fields, tuple):
        return "PluginInfo.fields must be a tuple of Field"
    fields: list[Any] = [*info.fields]
    if info.dimension is not None:
        if not isinstance(info.dimension, Dimension):
            return "PluginInfo.dimension must be a Dimension or None"
        fields.append(info.dimension.degree)
    for field in fields:
        if not isinstance(field, Field):
            return f"a field must be a Field, not {type(field).__name__}"
        level: Any = field.level
        if not isinstance(level, Level):
            return f"field '{field.name}': level must be a Level"
        try:
            field.encode(field.neutral)
        except ValueError as error:
            return f"field '{field.name}': neutral value {error}"
    if info.dimension is not None and (fields[-1].level, fields[-1].neutral) != (Level.DEGREE, 1):
        return f"degree field '{fields[-1].name}' must have level DEGREE and neutral value 1"
    for what, section in (("config", info.config), ("profile", info.profile)):
        if section is None:
            continue
        if not (isinstance(section, type) and attrs.has(section)):
            return f"PluginInfo.{what} must be an attrs class"
        for option in attrs.fields(section):
            if option.init and option.default is attrs.NOTHING:
                return f"{what} class {section.__name__}: '{option.name}' has no default"
    return ""


def _hooks(probe: pluggy.PluginManager, plugin: object) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(implemented, wrapped) hooks in the order of the specification."""
    plain: list[str] = []
    wrapped: list[str] = []
    for _, hook, options in _marked(probe, plugin):
        if hook in HOOKS:
            (wrapped if options["wrapper"] or options["hookwrapper"] else plain).append(hook)
        elif not options["optionalhook"]:
            close = get_close_matches(hook, HOOKS, n=1)
            hint = f"; did you mean '{close[0]}'?" if close else ""
            raise _BrokenError(f"unknown hook '{hook}'{hint}")
    for hook in HOOKS:
        if plain.count(hook) > 1:
            raise _BrokenError(f"two implementations of {hook}")
        if hook not in plain + wrapped and callable(getattr(plugin, hook, None)):
            raise _BrokenError(f"{hook} is not marked with @hookimpl")
    return tuple(h for h in HOOKS if h in plain), tuple(h for h in HOOKS if h in wrapped)
