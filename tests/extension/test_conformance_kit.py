"""The conformance kit finds every bug that is put into a sound plugin."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from autopar_core.api import (
    MLP,
    AttentionCall,
    AttentionCalls,
    AutoparError,
    Broken,
    Dimension,
    Divide,
    Extent,
    Field,
    Level,
    MemoryTerm,
    PluginInfo,
    Ranker,
    TimeTerm,
    Window,
    hookimpl,
)
from autopar_core.testing import DimensionConformance, RankerConformance


DEGREE = Field(name="q_degree", short="q", level=Level.DEGREE, neutral=1, doc="Ranks.")
WAY = Field(
    name="q_way", short="qw", level=Level.SHARDING, neutral="none", choices=("none", "a", "b"),
    needs="q_degree", doc="How.",
)  # fmt: skip


class Sound:
    """Splits the FFN; arguments replace parts of its answers by wrong ones."""

    fields: tuple[Field, ...] = (WAY,)

    def __init__(self, by: Any = None, **changes: Any) -> None:
        self.by = by or (lambda batch: batch["q_degree"])
        self.rule = changes.pop("rule", {})
        self.memory = {k: v for k, v in changes.items() if k in ("bytes", "live", "source")}
        self.time = {k: v for k, v in changes.items() if k not in self.memory}

    @hookimpl
    def autopar_plugin_info(self) -> PluginInfo:
        dimension = Dimension(name="q", degree=DEGREE)
        return PluginInfo(api=(1, 0), summary="Q.", dimension=dimension, fields=self.fields)

    @hookimpl
    def autopar_field_values(self) -> dict[str, Sequence[Any]]:
        return {"q_way": ("a", "b")}

    @hookimpl
    def autopar_filter(self, batch: Any, level: Level) -> list[Broken]:
        if level is not Level.DEGREE:
            return []
        sentence = "q {q_degree} is more than {most}"
        made = {"code": "q-most", "rows": batch["q_degree"] > 4, "sentence": sentence}
        return [Broken(**{**made, "numbers": {"most": 4}, **self.rule})]

    @hookimpl
    def autopar_shard(self, batch: Any) -> list[Any]:
        return [Divide(Extent.FFN_WIDTH, self.by(batch))]

    @hookimpl
    def autopar_memory(self, batch: Any, work: Any) -> list[MemoryTerm]:
        split = batch["q_degree"] > 1
        made = {"name": "buffer", "bytes": 2 * work.elements("hidden") * split}
        about = {"live": frozenset({MLP}), "formula": "2 B x hidden", "source": "none"}
        return [MemoryTerm(**{**made, **about, **self._made(self.memory, batch)})]

    @hookimpl
    def autopar_performance(self, batch: Any, work: Any) -> list[TimeTerm]:
        seconds = 1e-12 * work.elements("hidden") * (1 - 1 / batch["q_degree"])
        made = {"name": "exchange", "seconds": seconds, "resource": "link"}
        about = {"formula": "hidden x (q-1)/q", "source": "none"}
        return [TimeTerm(**{**made, **about, **self._made(self.time, batch)})]

    @staticmethod
    def _made(changes: dict[str, Any], batch: Any) -> dict[str, Any]:
        return {k: v(batch) if callable(v) else v for k, v in changes.items()}


def conformance(plugin: object, **more: Any) -> DimensionConformance:
    attributes = {"plugin": "q", "extra": (("q", plugin),), **more}
    made: DimensionConformance = type("TestQ", (DimensionConformance,), attributes)()
    return made


def checks() -> list[str]:
    return [name for name, _ in inspect.getmembers(DimensionConformance) if name.startswith("test")]


def failures(plugin: object, **more: Any) -> dict[str, str]:
    """Check -> message of every check that fails."""
    kit = conformance(plugin, **more)
    found = {}
    for name in checks():
        try:
            getattr(kit, name)()
        except (AssertionError, AutoparError) as error:
            found[name] = str(error)
    return found


def test_a_sound_plugin_passes() -> None:
    assert len(checks()) >= 15
    assert failures(Sound()) == {}


class NoInfo:
    pass


class OldApi(Sound):
    @hookimpl
    def autopar_plugin_info(self) -> PluginInfo:
        return PluginInfo(api=(2, 0), summary="Q.")


class Typo(Sound):
    @hookimpl
    def autopar_memry(self) -> list[Any]:
        return []


class WrongArgument(Sound):
    @hookimpl
    def autopar_shard(self, batch: Any, works: Any) -> list[Any]:
        return []


class Undocumented(Sound):
    fields = (Field(name="q_way", short="qw", level=Level.SHARDING, neutral=0),)

    @hookimpl
    def autopar_field_values(self) -> dict[str, Sequence[Any]]:
        return {}


class Half:
    """Lacks time."""

    def __init__(self) -> None:
        whole = Sound()
        self.autopar_plugin_info = whole.autopar_plugin_info
        self.autopar_field_values = whole.autopar_field_values
        self.autopar_shard = whole.autopar_shard
        self.autopar_memory = whole.autopar_memory


class Raises(Sound):
    @hookimpl
    def autopar_shard(self, batch: Any) -> list[Any]:
        raise ZeroDivisionError("no")


class Writes(Sound):
    @hookimpl
    def autopar_shard(self, batch: Any) -> list[Any]:
        batch["q_degree"][:] = 1
        return []


class NotNeutralCalls(Sound):
    @hookimpl
    def autopar_shard(self, batch: Any) -> list[Any]:
        q = batch["q_degree"]
        call = AttentionCall(
            count=q + 1, query_divisor=q, key_divisor=q, heads_divisor=q, work_share=q / q
        )
        return [AttentionCalls(q > 0, (call,))]


class Twice(Sound):
    @hookimpl
    def autopar_performance(self, batch: Any, work: Any) -> list[TimeTerm]:
        return 2 * super().autopar_performance(batch, work)


class WrongKind(Sound):
    @hookimpl
    def autopar_memory(self, batch: Any, work: Any) -> list[Any]:
        return super().autopar_performance(batch, work)


BUGS: list[tuple[object, str, str]] = [
    (NoInfo(), "is_active", "'q' (in process) is broken: it has no hook autopar_plugin_info"),
    (OldApi(), "is_active", "written for plugin API 2.0; this core offers 1.0"),
    (Typo(), "is_active", "unknown hook 'autopar_memry'; did you mean 'autopar_memory'?"),
    (WrongArgument(), "is_active", "works"),
    (Undocumented(), "fields_are_documented", "fields without doc: q_way"),
    (Half(), "every_behaviour_hook_is_there", "hooks missing: ['autopar_performance']"),
    (Raises(), "does_not_raise", "plugin 'q' failed in autopar_shard: ZeroDivisionError: no"),
    (Writes(), "does_not_raise", "read-only"),
    (
        Sound(by=lambda batch: batch["q_degree"] * batch["tp_degree"]),
        "reads_no_other_plugins_fields",
        "reads fields of others: tp_degree",
    ),
    (
        Sound(by=lambda batch: batch["q_degree"] + 1),
        "degree_one_changes_nothing",
        "divisor of ffn_width (exact 1) is 2",
    ),
    (
        Sound(bytes=lambda batch: batch["q_degree"] * 100),
        "degree_one_changes_nothing",
        "memory 'buffer'",
    ),
    (
        Sound(seconds=lambda batch: 1.0 * batch["q_degree"]),
        "degree_one_changes_nothing",
        "time 'exchange'",
    ),
    (NotNeutralCalls(), "degree_one_changes_nothing", "count of attention call 0.0"),
    (
        Sound(
            by=lambda batch: np.ones_like(batch["q_degree"]),
            bytes=lambda batch: 0 * batch["q_degree"],
            seconds=lambda batch: 0.0 * batch["q_degree"],
        ),
        "a_higher_degree_changes_something",
        "every answer is neutral",
    ),
    (
        Sound(seconds=lambda batch: (batch["q_degree"] - 1) / batch["q_degree"].max()),
        "rows_do_not_see_each_other",
        "among others and alone: time 'exchange'",
    ),
    (
        Sound(bytes=lambda batch: np.cumsum(batch["q_degree"] - 1)),
        "rows_do_not_see_each_other",
        "memory 'buffer'",
    ),
    (
        Sound(bytes=lambda batch: np.cumsum(batch["q_degree"] - 1)),
        "order_of_rows_does_not_matter",
        "rows in reverse: memory 'buffer'",
    ),
    (
        Sound(by=lambda batch: batch["q_degree"] * 1.0),
        "divisors_are_whole",
        "divisor of ffn_width are float64, not integers",
    ),
    (
        Sound(by=lambda batch: batch["q_degree"] // 2),
        "divisors_are_whole",
        "divisor of ffn_width below one",
    ),
    (
        Sound(bytes=lambda batch: (batch["q_degree"] - 1) * 0.5),
        "bytes_are_whole",
        "bytes of 'buffer' are float64, not integers",
    ),
    (Sound(bytes=np.int64(0)), "bytes_are_whole", "bytes of 'buffer' have shape ()"),
    (
        Sound(seconds=lambda batch: 1.0 - batch["q_degree"]),
        "seconds_are_numbers",
        "seconds of 'exchange' are negative",
    ),
    (
        Sound(seconds=lambda batch: np.where(batch["q_degree"] > 1, np.nan, 0.0)),
        "seconds_are_numbers",
        "seconds of 'exchange' are not finite",
    ),
    (Sound(seconds=0.0), "seconds_are_numbers", "seconds of 'exchange' have shape ()"),
    (Sound(live=frozenset({"mpl"})), "instants_and_windows_are_known", "'mpl' is no instant"),
    (Sound(live=frozenset()), "instants_and_windows_are_known", "live at no instant"),
    (
        Sound(window=Window(name="linaer")),
        "instants_and_windows_are_known",
        "segment block has no window 'linaer'",
    ),
    (
        Sound(window=Window(name="linear"), segment="step"),
        "instants_and_windows_are_known",
        "segment step has no window 'linear'",
    ),
    (
        Sound(window=Window(name="linear"), resource="device"),
        "instants_and_windows_are_known",
        "only link terms hide",
    ),
    (
        Sound(window=Window(name="linear", share=1.5)),
        "instants_and_windows_are_known",
        "outside 0..1",
    ),
    (
        Sound(kind="lineer", resource="device"),
        "instants_and_windows_are_known",
        "unknown kind 'lineer'",
    ),
    (Twice(), "terms_can_be_told_apart", "more than one time term is called exchange"),
    (Sound(source=""), "terms_say_where_they_come_from", "without formula or source: buffer"),
    (WrongKind(), "bytes_are_whole", "a memory term is a TimeTerm"),
    (
        Sound(rule={"sentence": "more than {least}"}),
        "rules_are_sound",
        "rule 'q-most' names 'least'",
    ),
    (Sound(rule={"rows": np.bool_(False)}), "rules_are_sound", "rule 'q-most' speaks of ()"),
    (
        Sound(rule={"rows": np.ones(4, dtype=bool)}),
        "some_rows_are_legal",
        "no row of degree one is left",
    ),
]


@pytest.mark.parametrize(
    ("bug", "check", "message"),
    BUGS,
    ids=[f"{check}-{number}" for number, (_, check, _) in enumerate(BUGS)],
)
def test_a_seeded_bug_is_found(bug: object, check: str, message: str) -> None:
    with pytest.raises((AssertionError, AutoparError)) as found:
        getattr(conformance(bug), f"test_{check}")()
    assert message in str(found.value)


def test_every_check_finds_some_bug() -> None:
    assert {f"test_{check}" for _, check, _ in BUGS} == set(checks())


def test_a_gap_is_declared_or_a_failure() -> None:
    gaps = frozenset({"autopar_performance"})
    assert failures(Half(), expected_gaps=gaps) == {}
    assert "test_every_behaviour_hook_is_there" in failures(Sound(), expected_gaps=gaps)


class Rankers:
    def __init__(self, key: Any, doc: str = "First.", monotone: bool = True) -> None:
        self.ranker = Ranker("r", doc, key, monotone)

    @hookimpl
    def autopar_plugin_info(self) -> PluginInfo:
        return PluginInfo(api=(1, 0), summary="R.")

    @hookimpl
    def autopar_rankers(self) -> tuple[Ranker, ...]:
        return (self.ranker,)


def ranker_failures(rankers: Rankers, name: str = "r") -> dict[str, str]:
    attributes = {"plugin": "r", "name": name, "extra": (("r", rankers),)}
    kit = type("TestR", (RankerConformance,), attributes)()
    found = {}
    for check, method in inspect.getmembers(kit, inspect.ismethod):
        if check.startswith("test"):
            try:
                method()
            except AssertionError as error:
                found[check.removeprefix("test_")] = str(error)
    return found


@pytest.mark.parametrize(
    ("rankers", "check"),
    [
        (Rankers(lambda seconds, memory, ctx: seconds, doc=""), "is_documented"),
        (Rankers(lambda seconds, memory, ctx: seconds * np.inf), "keys_are_numbers"),
        (Rankers(lambda seconds, memory, ctx: 1.0), "keys_are_numbers"),
        (Rankers(lambda seconds, memory, ctx: -seconds), "is_monotone_as_promised"),
        (Rankers(lambda seconds, memory, ctx: -1.0 * memory), "is_monotone_as_promised"),
        (
            Rankers(lambda seconds, memory, ctx: seconds / seconds.max()),
            "rows_do_not_see_each_other",
        ),
    ],
)
def test_a_bad_ranker_is_found(rankers: Rankers, check: str) -> None:
    assert check in ranker_failures(rankers)


def test_sound_rankers_pass() -> None:
    assert ranker_failures(Rankers(lambda seconds, memory, ctx: seconds + memory)) == {}
    falling = Rankers(lambda seconds, memory, ctx: -seconds, monotone=False)
    assert ranker_failures(falling) == {}
    assert "no ranker 'x'" in ranker_failures(falling, "x")["keys_are_numbers"]
