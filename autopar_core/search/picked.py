"""Named objects that the person picks one of, called so that their faults bear their plugin's name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from attrs import frozen

from autopar_core.domain.arrays import Floats, Ints
from autopar_core.domain.strategy import StrategyBatch
from autopar_core.errors import AutoparError, InputError, PluginCallError
from autopar_core.hooks.named import Generator, Ranker
from autopar_core.plugins import PluginManager


@frozen
class Picked:
    """A registered object and the plugin that brought it."""

    plugin: str
    hook: str
    thing: Any

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function of the object; what it raises is told as its plugin's fault."""
        try:
            return function(*arguments)
        except AutoparError:
            raise
        except Exception as error:
            why = f"{self.thing.name!r} raised {type(error).__name__}: {error}"
            raise PluginCallError(self.plugin, self.hook, why) from error

    def wrong(self, why: str) -> PluginCallError:
        """The error for an answer that is not what the contract says."""
        return PluginCallError(self.plugin, self.hook, f"{self.thing.name!r}: {why}")


def pick(manager: PluginManager, hook: str, kind: type[Any], name: str, where: str) -> Picked:
    """The registered object of that name.

    Raises:
        InputError: No active plugin registers it.
        PluginCallError: A plugin registers something else, or a name that is taken.
    """
    known: dict[str, Picked] = {}
    for plugin, objects in manager.collect(hook):
        for thing in objects if isinstance(objects, list | tuple) else (objects,):
            if not isinstance(thing, kind):
                raise PluginCallError(plugin, hook, f"expected {kind.__name__}, got {thing!r:.60}")
            if thing.name in known:
                taken = f"the name {thing.name!r} is taken by plugin '{known[thing.name].plugin}'"
                raise PluginCallError(plugin, hook, taken)
            known[thing.name] = Picked(plugin, hook, thing)
    if name not in known:
        listed = ", ".join(sorted(known)) or "none, is the plugin that brings them disabled?"
        raise InputError(where, f"{name!r} is not registered; known: {listed}")
    return known[name]


def pick_generator(manager: PluginManager, name: str) -> Picked:
    """The generator of that name."""
    return pick(manager, "autopar_generators", Generator, name, "search.generator")


def pick_ranker(manager: PluginManager, name: str) -> Picked:
    """The ranker of that name."""
    return pick(manager, "autopar_rankers", Ranker, name, "search.rank_by")


def generate_rows(generator: Picked, context: Any) -> StrategyBatch:
    """Rows of a generator."""
    rows: Any = generator.call(generator.thing.generate, context)
    if not isinstance(rows, StrategyBatch):
        raise generator.wrong(f"expected a StrategyBatch, got {rows!r:.60}")
    return rows


def rank_key(ranker: Picked, seconds: Floats, memory: Ints, context: Any) -> Floats:
    """(N,) key of a ranker, smaller is better."""
    value = np.asarray(ranker.call(ranker.thing.key, seconds, memory, context), dtype=np.float64)
    if value.shape != seconds.shape or np.isnan(value).any():
        raise ranker.wrong(f"the key must be one number for each of {len(seconds)} rows")
    return value
