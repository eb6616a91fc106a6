"""Errors a person can act on: one sentence that says where, what, and what would be right."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class AutoparError(Exception):
    """Base of every error that autopar raises on purpose."""


class InputError(AutoparError):
    """The input is wrong (exit code 2).

    Args:
        where: File and key, for instance ``"run.toml: training.seq_len"``.
        what: What is wrong and what would be right.
    """

    def __init__(self, where: str, what: str) -> None:
        self.where, self.what = where, what
        super().__init__(f"{where}: {what}" if where else what)

    def __reduce__(self) -> tuple[type, tuple[Any, ...]]:
        """Pickled by its parts: a worker process sends it to its parent."""
        return type(self), (self.where, self.what)


class CannotExpress(InputError):  # noqa: N818  (read as a sentence: raise CannotExpress(...))
    """A framework has no way to say a strategy (exit code 2).

    Args:
        field: Field of the strategy that it cannot say, for instance ``"layer_recompute"``.
        reason: Why, for instance ``"nanotron recomputes all layers or none"``.
        nearest: Field -> value of the nearest strategy that it can say; only fields that change.
    """

    def __init__(self, field: str, reason: str, nearest: Mapping[str, Any]) -> None:
        self.reason, self.nearest = reason, dict(nearest)
        shown = ", ".join(f"{name} = {value}" for name, value in self.nearest.items())
        super().__init__(
            field, f"{reason}; the nearest it can express: {shown}" if shown else reason
        )

    def __reduce__(self) -> tuple[type, tuple[Any, ...]]:
        """Pickled by its parts: a worker process sends it to its parent."""
        return type(self), (self.where, self.reason, self.nearest)


class PluginError(AutoparError):
    """A plugin cannot be used as asked: unknown name, clash, broken contract."""


class PluginCallError(PluginError):
    """A hook of a plugin raised or answered with something the contract does not allow."""

    def __init__(self, plugin: str, hook: str, why: str) -> None:
        self.plugin, self.hook, self.why = plugin, hook, why
        super().__init__(f"plugin '{plugin}' failed in {hook}: {why}")

    def __reduce__(self) -> tuple[type, tuple[str, ...]]:
        """Pickled by its parts: a worker process sends it to its parent."""
        return type(self), (self.plugin, self.hook, self.why)
