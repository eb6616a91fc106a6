"""Why a candidate falls: rules with code, numbers and sentence; NotImplemented; the memory limit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from string import Formatter
from typing import Any

import numpy as np
from attrs import evolve, field, frozen

from autopar_core.domain.arrays import Bools, Ints
from autopar_core.domain.strategy import StrategyBatch
from autopar_core.units import counted


HARD, HABIT = "hard", "habit"
NOT_IMPLEMENTED = "NotImplemented"
OVER_MEMORY = "memory-limit"
# What a number's format starts with where its noun follows.
ONE = "1 "


@frozen(eq=False, kw_only=True)
class Broken:
    """Rows that break one rule.

    Attributes:
        code: Stable name of the rule, ``"tp-heads"``.
        rows: (N,) true where the rule is broken.
        sentence: Template with ``{names}`` from ``numbers`` or from the fields of the row; with
            ``{name:1 layer}`` the number has its noun behind it, ``"1 layer"`` or ``"4 layers"``.
        numbers: Values for the template, scalars or (N,) arrays.
        kind: ``hard`` prunes; ``habit`` warns unless the person turned it on.
        source: Where the rule comes from.
    """

    code: str
    rows: Bools
    sentence: str
    numbers: Mapping[str, Any] = field(factory=dict)
    kind: str = HARD
    source: str = ""
    owner: str = ""

    def say(self, batch: StrategyBatch, row: int) -> str:
        """The sentence for one row."""
        return self.say_rows(batch, np.array([row]))[0]

    def say_rows(self, batch: StrategyBatch, rows: Ints) -> list[str]:
        """The sentences for some rows; only what the template names is spelled."""
        template, columns = "", []
        for text, name, spec, conversion in Formatter().parse(self.sentence):
            template += text.replace("{", "{{").replace("}", "}}")
            if not name:
                continue
            values = self._spelled(name, batch, rows)
            if spec and spec.startswith(ONE):
                values = [counted(value, spec.removeprefix(ONE)) for value in values]
                spec = ""
            template += "{" + (f"!{conversion}" if conversion else "") + f":{spec}" + "}"
            columns.append(values)
        if not columns:
            return [template.format()] * len(rows)
        return [template.format(*values) for values in zip(*columns, strict=True)]

    def _spelled(self, name: str, batch: StrategyBatch, rows: Ints) -> list[Any]:
        if name in self.numbers:
            value = np.asarray(self.numbers[name])
            return value[rows].tolist() if value.ndim else [value.item()] * len(rows)
        field = batch.fields[name]
        return [field.decode(code) for code in batch[name][rows].tolist()]

    def take(self, rows: Ints) -> Broken:
        """The rule for some of its rows."""
        numbers = {
            name: np.asarray(value)[rows] if np.ndim(value) else value
            for name, value in self.numbers.items()
        }
        return evolve(self, rows=self.rows[rows], numbers=numbers)


@frozen(kw_only=True)
class Cut:
    """A branch that fell, with every rule it broke.

    Attributes:
        level: Name of the level at which it fell.
        fields: Spelled fields decided so far.
        stands_for: Candidates that the branch would have grown to.
        reasons: (code, owner, sentence) of every broken rule, in the order of owner and code.
    """

    level: str
    fields: Mapping[str, Any]
    stands_for: int
    reasons: tuple[tuple[str, str, str], ...]


@frozen(eq=False, kw_only=True)
class CutGroup:
    """Branches that fell at one level, as columns.

    Attributes:
        level: Name of the level.
        batch: The branches; fields of later levels are neutral.
        decided: Names of the fields decided so far.
        stands_for: (B,) candidates that each branch would have grown to.
        rules: Broken rules, their rows within ``batch``.
    """

    level: str
    batch: StrategyBatch
    decided: tuple[str, ...]
    stands_for: Ints
    rules: tuple[Broken, ...]

    def __iter__(self) -> Iterator[Cut]:
        spelled = [rule.say_rows(self.batch, np.arange(len(self.batch))) for rule in self.rules]
        for row in range(len(self.batch)):
            reasons = tuple(
                (rule.code, rule.owner, said[row])
                for rule, said in zip(self.rules, spelled, strict=True)
                if rule.rows[row]
            )
            fields = {
                name: self.batch.fields[name].decode(int(self.batch[name][row]))
                for name in self.decided
            }
            yield Cut(level=self.level, fields=fields, stands_for=int(self.stands_for[row]),
                      reasons=reasons)  # fmt: skip


@frozen(eq=False)
class Cuts:
    """All branches that fell before any estimate, level by level; iterating spells them out."""

    groups: tuple[CutGroup, ...] = ()

    def __len__(self) -> int:
        return sum(len(group.batch) for group in self.groups)

    def __iter__(self) -> Iterator[Cut]:
        for group in self.groups:
            yield from group

    @property
    def stands_for(self) -> int:
        """Candidates that all branches would have grown to."""
        return sum(int(group.stands_for.sum()) for group in self.groups)


@frozen(eq=False, kw_only=True)
class Verdicts:
    """Verdict of each row: feasible, or the first reason.

    Attributes:
        feasible: (N,).
        code: (N,) index into ``codes``; 0 is "feasible".
        codes: Names of the reasons.
    """

    feasible: Bools
    code: Ints
    codes: tuple[str, ...]
