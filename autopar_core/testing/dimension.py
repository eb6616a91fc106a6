"""What every plugin with a dimension keeps, whatever it computes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import numpy as np

from autopar_core.domain.arrays import Array
from autopar_core.domain.strategy import StrategyBatch
from autopar_core.domain.terms import ALWAYS, AttentionCalls, Divide, MemoryTerm, TimeTerm, Window
from autopar_core.hooks.specs import BEHAVIOUR_HOOKS
from autopar_core.testing.bench import CORE_FIELDS, Bench, Plugins, WatchedBatch
from autopar_core.testing.columns import columns, differences


SINGLE_ROWS = 48
PHASE_WINDOWS = frozenset({"linear", "attention", "elementwise", "block", "hidden"})
STEP_WINDOWS = frozenset({"first_forward", "last_backward", "hidden"})
KINDS = frozenset({"", "linear", "attention", "elementwise"})


class DimensionConformance:
    """Subclass it in a test module: ``class TestTp(DimensionConformance): plugin = "tp"``.

    Attributes:
        plugin: Name of the plugin.
        files: One-file plugins to load.
        extra: Plugins that are in the process already.
        framework: Name of the framework profile; empty for the default.
        job: Input tables that are merged into the small job.
        expected_gaps: Behaviour hooks that the plugin lacks on purpose.
    """

    plugin: ClassVar[str]
    files: ClassVar[tuple[str, ...]] = ()
    extra: ClassVar[Plugins] = ()
    framework: ClassVar[str] = ""
    job: ClassVar[Mapping[str, Any]] = {}
    expected_gaps: ClassVar[frozenset[str]] = frozenset()

    def bench(self) -> Bench:
        """The plugin alone with the core; loaded once per class."""
        named = {"framework": {"name": self.framework}} if self.framework else {}
        return Bench.once(type(self), self.plugin, {**named, **self.job}, self.files, self.extra)

    def some_rows(self, bench: Bench) -> tuple[StrategyBatch, Array]:
        """(all rows, indices of some of them spread evenly)."""
        rows = bench.rows()
        some = np.unique(np.linspace(0, len(rows) - 1, SINGLE_ROWS).astype(np.int64))
        return rows, some

    def test_is_active(self) -> None:
        """It is installed, imports, keeps the API version and names hooks that exist."""
        self.bench()

    def test_every_behaviour_hook_is_there(self) -> None:
        """Without shards, memory and time, degrees above one are NotImplemented."""
        bench = self.bench()
        gaps = {hook for hook in BEHAVIOUR_HOOKS if bench.lacks(hook)}
        expected = set(self.expected_gaps)
        assert gaps == expected, f"hooks missing: {sorted(gaps)}, expected: {sorted(expected)}"

    def test_fields_are_documented(self) -> None:
        """Every field has a sentence, which goes into the documents."""
        bench = self.bench()
        silent = [n for n in sorted(bench.own_fields()) if not bench.contexts.fields[n].doc]
        assert not silent, f"fields without doc: {', '.join(silent)}"

    def test_some_rows_are_legal(self) -> None:
        """The plugin's own rules leave rows with a degree of one and rows with more."""
        bench = self.bench()
        degree = bench.rows()[bench.dimension.degree.name]
        assert (degree == 1).any(), "no row of degree one is left by the plugin's rules"
        assert (degree > 1).any(), "no row of a higher degree is left by the plugin's rules"

    def test_rules_are_sound(self) -> None:
        """(N,) booleans, each code once, and a sentence for every broken row."""
        for level, rows, rules in self.bench().levels():
            codes = Counter(rule.code for rule in rules)
            twice = [code for code, count in codes.items() if count > 1]
            assert not twice, f"{level.name}: more than one rule is called {', '.join(twice)}"
            for rule in rules:
                shape = np.shape(rule.rows)
                assert shape == (len(rows),), f"{rule.code}: rows of shape {shape}"
                try:
                    rule.say_rows(rows, np.arange(len(rows)))
                except (KeyError, IndexError, ValueError) as error:
                    raise AssertionError(f"{rule.code}: the sentence needs {error}") from error

    def test_does_not_raise(self) -> None:
        """No exception, no write into the rows."""
        bench = self.bench()
        bench.ask(bench.rows())

    def test_reads_no_other_plugins_fields(self) -> None:
        """Extents and groups tell what others do; their fields are theirs."""
        bench = self.bench()
        rows = bench.rows()
        watched = WatchedBatch(len(rows), rows.columns, rows.fields)
        bench.ask(watched)
        foreign = watched.reads - bench.own_fields() - CORE_FIELDS
        assert not foreign, f"reads fields of others: {', '.join(sorted(foreign))}"

    def test_degree_one_changes_nothing(self) -> None:
        """At degree one every divisor is one and every term zero."""
        bench = self.bench()
        rows = bench.rows()
        rows = rows.take(rows[bench.dimension.degree.name] == 1)
        for name, column in columns(bench.ask(rows), len(rows)).items():
            odd = column.values[column.values != column.neutral]
            assert not len(odd), f"{name} is {odd[0]} at degree one, not {column.neutral:g}"

    def test_a_higher_degree_changes_something(self) -> None:
        """A dimension that divides nothing and costs nothing is none."""
        bench = self.bench()
        rows = bench.rows()
        rows = rows.take(rows[bench.dimension.degree.name] > 1)
        found = columns(bench.ask(rows), len(rows)).values()
        assert any((c.values != c.neutral).any() for c in found), "every answer is neutral"

    def test_rows_do_not_see_each_other(self) -> None:
        """The answer for many rows is the answers for each of them."""
        bench = self.bench()
        rows, some = self.some_rows(bench)
        whole = columns(bench.ask(rows), len(rows))
        for row in some.tolist():
            alone = columns(bench.ask(rows.take(np.array([row]))), 1)
            mine = {n: type(c)(n, c.values[row : row + 1], c.neutral) for n, c in whole.items()}
            found = list(differences(mine, alone, 1))
            assert not found, f"row {row} among others and alone: {'; '.join(found)}"

    def test_order_of_rows_does_not_matter(self) -> None:
        """Rows in reverse get the same answers in reverse."""
        bench = self.bench()
        rows = bench.rows()
        back = np.arange(len(rows))[::-1]
        forth = columns(bench.ask(rows), len(rows))
        turned = {n: type(c)(n, c.values[back], c.neutral) for n, c in forth.items()}
        found = list(differences(turned, columns(bench.ask(rows.take(back)), len(rows)), len(rows)))
        assert not found, f"rows in reverse: {'; '.join(found)}"

    def test_divisors_are_whole(self) -> None:
        """Integers of one or more, (N,)."""
        bench = self.bench()
        rows = bench.rows()
        for shard in bench.call("autopar_shard", rows)[0]:
            if isinstance(shard, AttentionCalls):
                for call in shard.calls:
                    for what in ("query_divisor", "key_divisor", "heads_divisor"):
                        values = np.asarray(getattr(call, what))[shard.rows]
                        assert (values >= 1).all(), f"attention call: {what} below one"
            else:
                assert isinstance(shard, Divide), f"a shard is a {type(shard).__name__}"
                _whole(f"divisor of {shard.extent.value}", shard.by, len(rows))
                assert (shard.by >= 1).all(), f"divisor of {shard.extent.value} below one"

    def test_bytes_are_whole(self) -> None:
        """Integers, (N,); negative only where a tensor is shared with a counted one."""
        bench = self.bench()
        rows = bench.rows()
        for term in bench.ask(rows).memory:
            assert isinstance(term, MemoryTerm), f"a memory term is a {type(term).__name__}"
            _whole(f"bytes of '{term.name}'", term.bytes, len(rows))

    def test_seconds_are_numbers(self) -> None:
        """Finite, not negative, (N,)."""
        bench = self.bench()
        rows = bench.rows()
        for term in bench.ask(rows).time:
            assert isinstance(term, TimeTerm), f"a time term is a {type(term).__name__}"
            shape = np.shape(term.seconds)
            assert shape == (len(rows),), f"seconds of '{term.name}' have shape {shape}"
            assert np.isfinite(term.seconds).all(), f"seconds of '{term.name}' are not finite"
            assert (term.seconds >= 0).all(), f"seconds of '{term.name}' are negative"

    def test_instants_and_windows_are_known(self) -> None:
        """A term at an unknown instant, or behind an unknown window, would count for nothing."""
        bench = self.bench()
        answers = bench.ask(bench.rows())
        for term in answers.memory:
            unknown = sorted(term.live - ALWAYS)
            assert not unknown, f"memory '{term.name}': unknown instants {', '.join(unknown)}"
            somewhere = term.live or term.scale in ("saved_layer", "micro_batch")
            assert somewhere, f"memory '{term.name}' is live at no instant"
        for cost in answers.time:
            assert cost.kind in KINDS, f"time '{cost.name}': unknown kind '{cost.kind}'"
            if cost.window is not None:
                _known_window(cost, cost.window)

    def test_terms_can_be_told_apart(self) -> None:
        """A time term has a name of its own in its segment and phase."""
        bench = self.bench()
        time = bench.ask(bench.rows()).time
        _once(f"{t.name} ({t.segment}, {t.phase}, {t.scale}, {t.on})" for t in time)

    def test_terms_say_where_they_come_from(self) -> None:
        """Formula and source stand beside the number in every output."""
        bench = self.bench()
        answers = bench.ask(bench.rows())
        terms: list[MemoryTerm | TimeTerm] = [*answers.memory, *answers.time]
        silent = [t.name for t in terms if not (t.formula and t.source)]
        assert not silent, f"terms without formula or source: {', '.join(sorted(set(silent)))}"


def _whole(what: str, values: Array, size: int) -> None:
    kind, shape = np.asarray(values).dtype, np.shape(values)
    assert kind.kind in "iu", f"{what} are {kind}, not integers"
    assert shape == (size,), f"{what} have shape {shape}, not ({size},)"


def _known_window(term: TimeTerm, window: Window) -> None:
    legal = STEP_WINDOWS if term.segment == "step" else PHASE_WINDOWS
    known = ", ".join(sorted(legal))
    assert window.name in legal, (
        f"time '{term.name}': segment {term.segment} has no window '{window.name}'; it has {known}"
    )
    assert term.resource == "link", f"time '{term.name}': only link terms hide in a window"
    share = np.asarray(window.share)
    sound = (share >= 0).all() and (share <= 1).all()
    assert sound, f"time '{term.name}': share of the window lies outside 0..1"


def _once(names: Iterable[str]) -> None:
    twice = [name for name, count in Counter(names).items() if count > 1]
    assert not twice, f"more than one time term is called {', '.join(sorted(twice))}"
