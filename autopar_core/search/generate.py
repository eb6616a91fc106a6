"""Candidates level by level: expand the fields of a level, sift, go on with what is left.

A branch that falls is recorded once with the number of candidates that it would have grown to.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from attrs import define, field

from autopar_core.domain.arrays import Bools, Ints
from autopar_core.domain.fields import Field, Level
from autopar_core.domain.result import StageCount
from autopar_core.domain.space import Wanted
from autopar_core.domain.strategy import StrategyBatch
from autopar_core.domain.training import Range
from autopar_core.domain.verdict import HABIT, Broken, CutGroup, Cuts
from autopar_core.errors import InputError
from autopar_core.search.contexts import Contexts
from autopar_core.search.rules import broken_rules, resolved_columns


VALUES_HOOK = "autopar_field_values"
# Fields that follow from the others unless the person names them.
DERIVED = "micro_batch_num"


def divisors(number: int) -> tuple[int, ...]:
    """All divisors, ascending."""
    small = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return tuple(sorted({*small, *(number // d for d in small)}))


@define(eq=False)
class Generation:
    """Implements what a generator may ask for, and keeps the reasons of everything that falls."""

    contexts: Contexts
    groups: list[CutGroup] = field(factory=list)
    counts: list[StageCount] = field(factory=list)
    warnings: dict[str, tuple[int, str]] = field(factory=dict)
    space_size: int = 0
    codes: dict[str, set[str]] = field(factory=dict)
    complete: bool = False
    _values: dict[str, tuple[int, ...]] = field(factory=dict)

    @property
    def cuts(self) -> Cuts:
        """Everything that fell so far."""
        return Cuts(tuple(self.groups))

    @property
    def fields(self) -> Mapping[str, Field]:
        """Declared fields in output order."""
        return self.contexts.fields

    def of_level(self, level: Level) -> list[Field]:
        """Fields decided at a level, in the order in which they are decided."""
        return [f for f in self.fields.values() if f.level is level]

    def values(self, name: str) -> tuple[int, ...]:
        """Column values of a field: what the person wants, else every legal value."""
        if name not in self._values:
            self._values[name] = tuple(self._wanted(self.fields[name]))
        return self._values[name]

    def _wanted(self, one: Field) -> list[int]:
        wanted: Wanted | None = self.contexts.job.space.wanted.get(one.name)
        if isinstance(wanted, tuple):
            return [one.encode(value) for value in wanted]
        every = self._every(one)
        if isinstance(wanted, Range):
            every = [v for v in self._candidates(one, every, wanted) if wanted.holds(v)]
            if not every:
                legal = ", ".join(map(str, self._every(one)[:20]))
                raise InputError(
                    f"search.{one.name}",
                    f"empty search space: none of {legal} lies between {wanted.min} and {wanted.max}",
                )
        return every

    def _candidates(self, one: Field, every: list[int], wanted: Range) -> list[int]:
        """Values that a range picks from; a number field with one default value is open to all."""
        if one.choices or one.boolean or len(every) > 1 or wanted.max is None:
            return every
        return list(range(max(1, wanted.min or 1), wanted.max + 1))

    def _every(self, one: Field) -> list[int]:
        if one.name == "micro_batch_size":
            return list(divisors(self.contexts.job.training.global_batch_size))
        if one.name == "partition_plan":
            return list(range(len(self.contexts.job.space.partitions)))
        if one.name == "recompute_plan":
            return list(range(len(self.contexts.job.space.recomputes)))
        manager = self.contexts.manager
        if one.owner in manager.active:
            answer = manager.call(one.owner, VALUES_HOOK, ctx=self.contexts.by_plugin[one.owner])
            if isinstance(answer, Mapping) and one.name in answer:
                return [one.encode(value) for value in answer[one.name]]
            if one.level is Level.DEGREE:
                return list(divisors(self.contexts.job.cluster.devices))
        return [one.encode(one.neutral)]

    def batch(self, columns: Mapping[str, Any]) -> StrategyBatch:
        """Rows from columns."""
        return StrategyBatch.of(self.fields, columns)

    def degree_tuples(self) -> StrategyBatch:
        """Every tuple of wanted degrees whose product is the number of devices.

        Raises:
            InputError: When there is none.
        """
        devices = self.contexts.job.cluster.devices
        names = [d.degree.name for d in self.contexts.dimensions.values()]
        rows: list[tuple[int, ...]] = [()]
        products = [1]
        for name in names:
            grown = [
                ((*row, value), product * value)
                for row, product in zip(rows, products, strict=True)
                for value in self.values(name)
                if devices % (product * value) == 0
            ]
            rows, products = [r for r, _ in grown], [p for _, p in grown]
        whole = [row for row, product in zip(rows, products, strict=True) if product == devices]
        table = np.array(whole, dtype=np.int64).reshape(-1, len(names))
        return self.batch({name: table[:, i] for i, name in enumerate(names)})

    def means_something(self, rows: StrategyBatch, one: Field) -> Bools:
        """(N,) rows in which a field is not void; see ``Field.needs``."""
        shown = np.ones(len(rows), dtype=bool)
        for condition in filter(None, (part.strip() for part in one.needs.split(","))):
            shown &= self._holds(rows, condition)
        return shown

    def _holds(self, rows: StrategyBatch, condition: str) -> Bools:
        for sign in ("=", ">"):
            if sign in condition:
                name, value = condition.split(sign)
                if sign == ">":
                    return np.asarray(rows[name] > int(value))
                wanted = self.fields[name]
                spelled: Any = value if wanted.choices else int(value)
                return np.asarray(rows[name] == wanted.encode(spelled))
        if condition in self.fields:
            return np.asarray(rows[condition] > 1)
        size = np.ones(len(rows), dtype=np.int64)
        for dimension in self.contexts.dimensions.values():
            if condition in dimension.replicates:
                size = size * rows[dimension.degree.name]
        return np.asarray(size > 1)

    def expand(self, rows: StrategyBatch, one: Field) -> StrategyBatch:
        """Every row with every value of a field; rows in which it is void get the neutral value."""
        values = np.array(self.values(one.name), dtype=np.int64)
        neutral = one.encode(one.neutral)
        shown = self.means_something(rows, one)
        times = np.where(shown, len(values), 1)
        grown = rows.repeat(times)
        starts = np.cumsum(times) - times
        position = np.arange(len(grown)) - np.repeat(starts, times)
        column = np.where(np.repeat(shown, times), values[position % len(values)], neutral)
        return grown.with_column(one.name, column)

    def stands_for(self, rows: StrategyBatch, after: Level) -> Ints:
        """(N,) candidates that each row would grow to at the levels after this one."""
        later = [f for f in self.fields.values() if f.level > after and f.name != DERIVED]
        return self._grown(rows, sorted(later, key=lambda f: f.level))

    def _grown(self, rows: StrategyBatch, later: Sequence[Field]) -> Ints:
        """Product of the numbers of values; a field that decides about others is tried out."""
        total = np.ones(len(rows), dtype=np.int64)
        for position, one in enumerate(later):
            shown = self.means_something(rows, one)
            if any(one.name in other.needs for other in later[position + 1 :]):
                neutral = np.full(len(rows), one.encode(one.neutral), dtype=np.int64)
                grown = np.zeros(len(rows), dtype=np.int64)
                for value in self.values(one.name):
                    tried = rows.with_column(one.name, np.where(shown, value, neutral))
                    grown += self._grown(tried, later[position + 1 :]) * shown
                alone = self._grown(rows.with_column(one.name, neutral), later[position + 1 :])
                return np.asarray(total * np.where(shown, grown, alone))
            total = total * np.where(shown, max(1, len(self.values(one.name))), 1)
        return total

    def resolve(self, rows: StrategyBatch, level: Level) -> StrategyBatch:
        """Fill in columns that follow from the others."""
        if level is Level.BATCH:
            rows = self._micro_batches(rows)
        for column, values in resolved_columns(rows, level, self.contexts):
            rows = rows.with_column(column, values)
        return rows

    def _micro_batches(self, rows: StrategyBatch) -> StrategyBatch:
        """Micro-batches per step = global batch / (replicas x micro-batch size), rounded down."""
        if DERIVED in rows.columns:
            return rows
        share = self.contexts.core.replicas(rows) * rows["micro_batch_size"]
        batch = self.contexts.job.training.global_batch_size
        return rows.with_column(DERIVED, np.maximum(1, batch // share))

    def sift(self, rows: StrategyBatch, level: Level) -> StrategyBatch:
        """Rows that pass every rule of a level; the others become cuts with all their reasons."""
        if not len(rows):
            return rows
        self.complete |= level is Level.RECOMPUTE
        rows = self.resolve(rows, level)
        turned_on = set(self.contexts.job.space.habits)
        hard: list[Broken] = []
        for rule in broken_rules(rows, level, self.contexts):
            self.codes.setdefault(rule.kind, set()).add(rule.code)
            if rule.kind == HABIT and rule.code not in turned_on:
                self._warn(rows, rule, level)
            elif rule.rows.any():
                hard.append(rule)
        fallen = np.zeros(len(rows), dtype=bool)
        for rule in hard:
            fallen |= rule.rows
        weight = self.stands_for(rows, level)
        taken = {rule.code: int(weight[rule.rows].sum()) for rule in hard}
        before = int(weight.sum())
        after = int(weight[~fallen].sum())
        self.counts.append(
            StageCount(level=level.name.lower(), before=before, after=after, taken=taken)
        )
        self._cut(rows, level, hard, np.nonzero(fallen)[0], weight)
        return rows.take(~fallen)

    def _warn(self, rows: StrategyBatch, rule: Broken, level: Level) -> None:
        """Count a habit in candidates, as if it were turned on."""
        touched = np.nonzero(rule.rows)[0]
        if len(touched):
            count = int(self.stands_for(rows.take(touched), level).sum())
            before, sentence = self.warnings.get(rule.code, (0, ""))
            first = sentence or rule.say(rows, int(touched[0]))
            self.warnings[rule.code] = (before + count, first)

    def _cut(
        self, rows: StrategyBatch, level: Level, hard: Sequence[Broken], fallen: Ints, weight: Ints
    ) -> None:
        if len(fallen):
            decided = tuple(f.name for f in self.fields.values() if f.level <= level)
            self.groups.append(
                CutGroup(level=level.name.lower(), batch=rows.take(fallen), decided=decided,
                         stands_for=weight[fallen], rules=tuple(r.take(fallen) for r in hard))
            )  # fmt: skip

    def distinct(self, rows: StrategyBatch) -> StrategyBatch:
        """Rows without repetitions, first ones kept: derived columns can make rows alike."""
        keys = rows.packed(list(self.fields))
        if not len(rows) or not keys:
            return rows
        order = np.lexsort(keys)
        same = np.ones(len(rows) - 1, dtype=bool)
        for key in keys:
            same &= key[order][1:] == key[order][:-1]
        again = order[1:][same]
        if not len(again):
            return rows
        kept = np.ones(len(rows), dtype=bool)
        kept[again] = False
        self.counts.append(
            StageCount(level="repeated", before=len(rows), after=int(kept.sum()),
                       taken={"repeated": len(again)})
        )  # fmt: skip
        return rows.take(kept)

    def levels(self) -> Iterator[Level]:
        """Levels after the degrees."""
        yield from (level for level in Level if level is not Level.DEGREE)

    def grow(self, rows: StrategyBatch) -> StrategyBatch:
        """Expand and sift level by level, from degree tuples to whole candidates."""
        self.space_size = int(self.stands_for(rows, Level.DEGREE).sum())
        rows = self.sift(rows, Level.DEGREE)
        for level in self.levels():
            for one in self.of_level(level):
                wanted = self.contexts.job.space.wanted.get(one.name)
                if one.name == DERIVED and not isinstance(wanted, tuple):
                    continue
                rows = self.expand(rows, one)
            rows = self.sift(rows, level)
        return rows
