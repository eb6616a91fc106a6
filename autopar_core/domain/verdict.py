"""Why a candidate falls: rules with code, numbers and sentence; NotImplemented; the memory limit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from attrs import field, frozen

from autopar_core.domain.arrays import Bools, Ints
from autopar_core.domain.strategy import StrategyBatch


HARD, HABIT = "hard", "habit"
NOT_IMPLEMENTED = "NotImplemented"
OVER_MEMORY = "memory-limit"


@frozen(eq=False, kw_only=True)
class Broken:
    """Rows that break one rule.

    Attributes:
        code: Stable name of the rule, ``"tp-heads"``.
        rows: (N,) true where the rule is broken.
        sentence: Template with ``{names}`` from ``numbers`` or from the fields of the row.
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
        values: dict[str, Any] = {n: f.decode(int(batch[n][row])) for n, f in batch.fields.items()}
        for name, value in self.numbers.items():
            one = np.asarray(value)
            values[name] = one[row].item() if one.ndim else one.item()
        return self.sentence.format(**values)


@frozen(kw_only=True)
class Cut:
    """A branch or a row that fell, with every rule it broke.

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
