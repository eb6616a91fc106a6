"""Loads plugins, keeps those that may run together, and asks them one at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from enum import Enum
from pathlib import Path
from typing import Any, Final

import pluggy
from attrs import evolve

from autopar_core.domain.fields import Dimension
from autopar_core.errors import AutoparError, PluginCallError, PluginError
from autopar_core.hooks.info import PluginInfo
from autopar_core.hooks.markers import PROJECT
from autopar_core.hooks.specs import AutoparSpec
from autopar_core.plugins.discovery import NAME_VARIABLE, Source, find
from autopar_core.plugins.fields import clashes, fault_of, standard
from autopar_core.plugins.record import PluginRecord, examine, told


class Missing(Enum):
    """Type of :data:`MISSING`."""

    MISSING = "missing"


MISSING: Final = Missing.MISSING
"""What a call gives when the plugin has no implementation or declines."""


class PluginManager:
    """Every plugin that was found, and the hooks of the active ones.

    Nothing depends on the order in which plugins were found: everything goes by name.

    Attributes:
        records: All plugins, sorted by name.
        active: Names of the active ones, sorted.
        conflicts: A sentence for each thing that several plugins claim.
        asked_broken: Files that a person named and that cannot be used.
        dimensions: Dimensions of active plugins by name: standard ones in their order, then others.
    """

    def __init__(
        self,
        records: Iterable[PluginRecord],
        objects: Mapping[str, object],
        conflicts: Iterable[str] = (),
        asked_broken: Iterable[str] = (),
    ) -> None:
        self.records = tuple(sorted(records, key=lambda r: (r.name, r.distribution, r.version)))
        self._active = {r.name: r for r in self.records if r.status == "active"}
        self.active = tuple(self._active)
        self.conflicts = tuple(conflicts)
        self.asked_broken = tuple(asked_broken)
        claimed = {r.dimension.name: r.dimension for r in self._active.values() if r.dimension}
        order = dict.fromkeys([*standard().dimensions, *sorted(claimed)])
        self.dimensions: Mapping[str, Dimension] = {
            name: claimed[name] for name in order if name in claimed
        }
        self._callers: dict[tuple[str, str], pluggy.HookCaller] = {}
        self._pluggy = pluggy.PluginManager(PROJECT)
        self._pluggy.add_hookspecs(AutoparSpec)
        for name in self.active:  # by name, which makes the order of wrappers the same every time
            self._pluggy.register(objects[name], name)

    @classmethod
    def load(
        cls,
        *,
        disable: Sequence[str] = (),
        only: Sequence[str] = (),
        files: Sequence[str | Path] = (),
        extra: Sequence[tuple[str, object]] = (),
        entry_points: bool = True,
    ) -> PluginManager:
        """Find, import and check plugins.

        Args:
            disable: Plugins to leave out; they are not imported.
            only: Plugins or dimensions to keep; all others that have a dimension are left out.
            files: One-file plugins.
            extra: Names and modules or objects that are in the process already.
            entry_points: Whether installed distributions count.

        Raises:
            InputError: A file of ``files`` is missing or is no Python file.
            PluginError: ``disable`` or ``only`` names something that does not exist.
        """
        sources = find(files, extra, entry_points)
        names = {source.name for source in sources}
        for name in disable:
            if name not in names:
                raise _unknown("disable", name, "plugin", names, names)

        conflicts: list[str] = []
        records: list[PluginRecord] = []
        left_out = f"by --only {', '.join(sorted(set(only)))}"
        wanted: list[Source] = []
        for source in sources:
            if source.name in disable:
                records.append(PluginRecord.of(source, "disabled", "by request"))
                continue
            standing = source.kind == "installed" and source.name in standard().dimensions
            if only and standing and source.name not in only:
                records.append(PluginRecord.of(source, "disabled", left_out))
            else:
                wanted.append(source)
        for name, count in sorted(Counter(source.name for source in wanted).items()):
            if count > 1:
                same = [PluginRecord.of(s, "conflict") for s in wanted if s.name == name]
                conflicts.append(_same_name(same))
                records.extend(evolve(record, reason=conflicts[-1]) for record in same)
                wanted = [source for source in wanted if source.name != name]

        objects: dict[str, object] = {}
        for source in wanted:
            record, objects[source.name] = examine(source)
            fault = fault_of(record) if record.status == "active" else ""
            if fault:
                record = evolve(record, status="broken", reason=fault)
            elif only and record.status == "active" and not _kept(record, only):
                record = evolve(record, status="disabled", reason=left_out)
            records.append(record)
        known = names | {record.dimension.name for record in records if record.dimension}
        for name in only:
            if name not in known:
                raise _unknown("keep only", name, "plugin or dimension", names, known)

        for sentence, plugins in clashes([r for r in records if r.status == "active"], objects):
            conflicts.append(sentence)
            records = [
                evolve(r, status="conflict", reason=r.reason or sentence)
                if r.name in plugins
                else r
                for r in records
            ]
        useless = {r.name for r in records if r.status in ("broken", "incompatible")}
        asked = [s.name for s in wanted if s.kind == "file" and s.name in useless]
        return cls(records, objects, conflicts, asked)

    def info(self, name: str) -> PluginInfo:
        """Introduction of an active plugin.

        Raises:
            PluginError: There is no active plugin of that name.
        """
        found = self._active[name].info if name in self._active else None
        if found is None:
            active = ", ".join(self.active) or "none"
            raise PluginError(f"no active plugin is named '{name}'; active: {active}")
        return found

    def plugin_of(self, dimension: str) -> str | None:
        """The active plugin that has a dimension."""
        found = self.dimensions.get(dimension)
        return found.degree.owner if found else None

    def implements(self, plugin: str, hook: str) -> bool:
        """Whether an active plugin has an implementation of its own, wrappers not counted."""
        return plugin in self._active and hook in self._active[plugin].hooks

    def call(self, plugin: str, hook: str, /, **arguments: Any) -> Any:
        """Answer of one plugin, through the wrappers of others; :data:`MISSING` if it has none.

        An implementation gets only those arguments that it names. ``None`` and ``NotImplemented``
        are no answers.

        Raises:
            PluginCallError: The plugin, or a wrapper around it, failed.
        """
        if not self.implements(plugin, hook):
            return MISSING
        wrappers = [f"'{r.name}'" for r in self._active.values() if hook in r.wraps]
        within = f" (wrapped by {', '.join(wrappers)})" if wrappers else ""
        try:
            answers = self._caller(plugin, hook)(**arguments)
        except AutoparError:
            raise
        except (Exception, SystemExit) as error:
            raise PluginCallError(plugin, hook, told(error) + within) from error
        if not isinstance(answers, list) or len(answers) > 1:
            raise PluginCallError(plugin, hook, f"a wrapper must return the list it got{within}")
        answer = answers[0] if answers else None
        return MISSING if answer is None or answer is NotImplemented else answer

    def _caller(self, plugin: str, hook: str) -> pluggy.HookCaller:
        if (plugin, hook) not in self._callers:
            others = [
                self._pluggy.get_plugin(name)
                for name in self.active
                if name != plugin and self.implements(name, hook)
            ]
            self._callers[plugin, hook] = self._pluggy.subset_hook_caller(hook, others)
        return self._callers[plugin, hook]

    def collect(self, hook: str, /, **arguments: Any) -> list[tuple[str, Any]]:
        """(plugin, answer) of every active plugin that answers, sorted by name."""
        answers = [(name, self.call(name, hook, **arguments)) for name in self.active]
        return [(name, answer) for name, answer in answers if answer is not MISSING]

    def absence(self, dimension: str, hook: str) -> str:
        """Why rows that need a hook of a dimension cannot be estimated."""
        plugin = self.plugin_of(dimension)
        if plugin is not None:
            does_not = "declines" if self.implements(plugin, hook) else "does not implement"
            return f"NotImplemented: plugin {self._active[plugin].label} {does_not} {hook}"
        order = ("broken", "incompatible", "conflict", "disabled")
        absent = [r for r in self.records if r.status != "active" and r.is_for(dimension)]
        for record in sorted(absent, key=lambda r: order.index(r.status)):
            if record.status == "disabled":
                why = f"plugin '{record.name}' is disabled {record.reason}"
                break
            state = "in conflict" if record.status == "conflict" else record.status
            return f"NotImplemented: plugin {record.label} is {state}: {record.reason}"
        else:
            why = "no plugin of that dimension is installed"
            if dimension in standard().packages:
                why += f"; try: pip install {standard().packages[dimension]}"
        nobody = f"no active plugin implements {hook} for dimension '{dimension}'"
        return f"NotImplemented: {nobody} ({why})"


def _kept(record: PluginRecord, only: Sequence[str]) -> bool:
    dimension = record.dimension
    return dimension is None or record.name in only or dimension.name in only


def _unknown(
    verb: str, name: str, what: str, installed: Iterable[str], known: Iterable[str]
) -> PluginError:
    close = get_close_matches(name, sorted(known), n=1)
    hint = f". Did you mean '{close[0]}'?" if close else ""
    there = ", ".join(sorted(installed)) or "none"
    return PluginError(f"cannot {verb} '{name}': no such {what}; installed: {there}{hint}")


def _same_name(records: Sequence[PluginRecord]) -> str:
    claimants = " and ".join(record.label for record in records)
    return (
        f"plugin name '{records[0].name}' is claimed by {claimants}; "
        f"remove one of them, or set {NAME_VARIABLE} in a --plugin file"
    )
