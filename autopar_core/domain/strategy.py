"""Many candidates as a struct of arrays, and one candidate for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from attrs import frozen

from autopar_core.domain.arrays import Bools, Ints
from autopar_core.domain.fields import Field, Value


@frozen(eq=False)
class StrategyBatch:
    """Candidates as columns: ``columns[name]`` is an int64 array of N rows, read-only.

    A column that is absent reads as the neutral value of its field, so a plugin can ask for any
    declared field whether or not its owner is active.
    """

    size: int
    columns: Mapping[str, Ints]
    fields: Mapping[str, Field]

    @classmethod
    def of(cls, fields: Mapping[str, Field], columns: Mapping[str, Any]) -> StrategyBatch:
        """Build from columns of equal length; arrays are copied only when they must be."""
        made: dict[str, Ints] = {}
        for name, values in columns.items():
            made[name] = np.ascontiguousarray(values, dtype=np.int64)
        sizes = {len(column) for column in made.values()}
        if len(sizes) > 1:
            raise ValueError(f"columns of different lengths: {sorted(sizes)}")
        return cls(sizes.pop() if sizes else 0, made, fields)

    def __getitem__(self, name: str) -> Ints:
        """Column of a field; its neutral value repeated when the batch has no such column."""
        if name in self.columns:
            return self.columns[name]
        field = self.fields[name]
        return np.full(self.size, field.encode(field.neutral), dtype=np.int64)

    def __len__(self) -> int:
        return self.size

    def take(self, rows: Ints | Bools | slice) -> StrategyBatch:
        """The named rows as a new batch."""
        columns = {name: column[rows] for name, column in self.columns.items()}
        size = len(next(iter(columns.values()))) if columns else 0
        return StrategyBatch(size, columns, self.fields)

    def with_column(self, name: str, values: Ints) -> StrategyBatch:
        """The same rows with one column set."""
        columns = {**self.columns, name: np.ascontiguousarray(values, dtype=np.int64)}
        return StrategyBatch(self.size, columns, self.fields)

    def repeat(self, times: Ints) -> StrategyBatch:
        """Each row ``times[i]`` times, in order."""
        columns = {name: np.repeat(column, times) for name, column in self.columns.items()}
        return StrategyBatch(int(times.sum()), columns, self.fields)

    def row(self, index: int) -> dict[str, Value]:
        """One candidate as spelled values, in the order of the declared fields."""
        return {name: f.decode(int(self[name][index])) for name, f in self.fields.items()}

    def packed(self, names: Sequence[str]) -> list[Ints]:
        """A few (N,) integers that are equal exactly where all named columns are.

        Columns are digits of a mixed radix; a new integer begins where the next would overflow.
        """
        keys: list[Ints] = []
        room = 0
        for name in names:
            column = self[name]
            low = int(column.min(initial=0))
            digits = int(column.max(initial=0)) - low + 1
            if room < digits or not keys:
                keys.append(np.zeros(self.size, dtype=np.int64))
                room = 2**62
            keys[-1] = keys[-1] * digits + (column - low)
            room //= digits
        return keys

    @staticmethod
    def concat(parts: Sequence[StrategyBatch]) -> StrategyBatch:
        """Batches with the same fields, one after another."""
        names = {name: None for part in parts for name in part.columns}
        columns = {name: np.concatenate([part[name] for part in parts]) for name in names}
        return StrategyBatch(sum(p.size for p in parts), columns, parts[0].fields)


@frozen(kw_only=True)
class Strategy:
    """One candidate for people: spelled fields and the resolved pipeline plan.

    Attributes:
        fields: Scalar fields by name, ``{"tp_degree": 8, ...}``.
        stage_partition: Layers of each stage, or ``[chunk][stage]`` when interleaved.
        layer_offset: Difference to the even split, same shape.
        layer_recompute: ``{"selective": ..., "full": ...}``, layers of each stage in that mode,
            same shape.
    """

    fields: Mapping[str, Value]
    stage_partition: list[Any]
    layer_offset: list[Any]
    layer_recompute: Mapping[str, list[Any]]
