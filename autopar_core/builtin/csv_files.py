"""candidates.csv and rejected.csv, fast enough for millions of rows.

Columns become lists of strings through small tables (a field has few values), and lines are joined
by C code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from autopar_core.api import Bools, Ints, SearchResult
from autopar_core.builtin.tables import PLANS, plan_texts, scalar_fields


CHUNK = 100_000
COST_COLUMNS = (
    "memory_cost", "performance_cost", "cost_kind", "feasible", "verdict", "memory_verdict",
)  # fmt: skip
MEMORY_WORDS = ("fits", "tight", "over", "")  # the last one for -1
BRANCH = "branch"
NO_LEVEL = "judge"


def files(result: SearchResult) -> Mapping[str, bytes]:
    """Both files."""
    return {"candidates.csv": candidates(result), "rejected.csv": rejected(result)}


def candidates(result: SearchResult) -> bytes:
    """A line per generated row: fields, plans, costs, verdict; an empty cell is "not estimated"."""
    fields = list(scalar_fields(result))
    header = ["row", *fields, *PLANS, *COST_COLUMNS]
    chunks = [",".join(header)]
    for start in range(0, len(result.batch), CHUNK):
        rows = np.arange(start, min(start + CHUNK, len(result.batch)))
        columns = [map(str, rows.tolist()), *_field_columns(result, rows), *_costs(result, rows)]
        chunks.append("\n".join(map(",".join, zip(*columns, strict=True))))
    return ("\n".join(chunks) + "\n").encode()


def rejected(result: SearchResult) -> bytes:
    """A line per broken rule: of generated rows (scope = row number) and of cut branches."""
    fields = [*scalar_fields(result), *PLANS]
    header = ["scope", "stands_for", "level", "code", "owner", *fields, "sentence"]
    blocks = [",".join(header), *_rejected_rows(result), *_rejected_branches(result, fields)]
    return ("\n".join(blocks) + "\n").encode()


def _rejected_rows(result: SearchResult) -> Iterator[str]:
    for entry in result.sentences:
        level = quoted(str(getattr(entry, "level", NO_LEVEL)))
        before = f",1,{level},{quoted(entry.code)},{quoted(entry.owner)},"
        rows = np.asarray(entry.rows, dtype=np.int64)
        for start in range(0, len(rows), CHUNK):
            some = rows[start : start + CHUNK]
            fields = map(",".join, zip(*_field_columns(result, some), strict=True))
            said = map(entry.say, range(start, start + len(some)))
            yield "\n".join(
                f"{row}{before}{decided},{quoted(sentence)}"
                for row, decided, sentence in zip(some.tolist(), fields, said, strict=True)
            )


def _rejected_branches(result: SearchResult, fields: Sequence[str]) -> Iterator[str]:
    """Rule by rule within a level; cells of undecided fields are empty."""
    for group in result.cuts.groups:
        for rule in group.rules:
            before = f"{quoted(group.level)},{quoted(rule.code)},{quoted(rule.owner)}"
            every = np.flatnonzero(rule.rows)
            for start in range(0, len(every), CHUNK):
                rows = every[start : start + CHUNK]
                columns = [
                    _spelled(group.batch[name][rows], _speller(result, name))
                    if name in group.decided
                    else [""] * len(rows)
                    for name in fields
                ]
                weights = group.stands_for[rows].tolist()
                cells = map(",".join, zip(*columns, strict=True))
                said = map(quoted, rule.say_rows(group.batch, rows))
                lines = zip(weights, cells, said, strict=True)
                yield "\n".join(f"{BRANCH},{w},{before},{c},{text}" for w, c, text in lines)


def _speller(result: SearchResult, name: str) -> Callable[[int], str]:
    if name in PLANS:
        texts = plan_texts(result)[PLANS.index(name)]
        return lambda code: quoted(texts[code])
    field = result.fields[name]
    return lambda code: _cell(field.decode(code))


def _field_columns(result: SearchResult, rows: Ints) -> Iterator[list[str]]:
    batch = result.batch
    for name, field in scalar_fields(result).items():
        if name in batch.columns:
            yield _spelled(batch.columns[name][rows], lambda code, f=field: _cell(f.decode(code)))
        else:
            yield [_cell(field.neutral)] * len(rows)
    for plan, texts in zip(PLANS, plan_texts(result), strict=True):
        cells = [quoted(text) for text in texts]
        if plan in batch.columns:
            yield _spelled(batch.columns[plan][rows], cells.__getitem__)
        else:
            yield [cells[0]] * len(rows)


def _costs(result: SearchResult, rows: Ints) -> Iterator[Iterable[str]]:
    memory, seconds = result.memory_bytes[rows], result.seconds[rows]
    judged: Bools = np.isfinite(seconds)
    yield (str(value) if value >= 0 else "" for value in memory.tolist())
    yield (repr(value) if value - value == 0 else "" for value in seconds.tolist())
    kind = np.where(judged, np.where(result.exact[rows], 0, 1), 2)
    yield _spelled(kind, ("exact", "bound", "none").__getitem__)
    yield _spelled(result.verdicts.feasible[rows].astype(np.int64), ("false", "true").__getitem__)
    codes = [quoted(code) for code in result.verdicts.codes]
    yield _spelled(result.verdicts.code[rows], codes.__getitem__)
    yield _spelled(result.memory_verdict[rows], MEMORY_WORDS.__getitem__)


def _spelled(column: Ints, spell: Any) -> list[str]:
    """Each value spelled; every different value is spelled once."""
    if not len(column):
        return []
    low, high = int(column.min()), int(column.max())
    if high - low > 4 * len(column):
        known = {value: spell(value) for value in set(column.tolist())}
        return list(map(known.__getitem__, column.tolist()))
    table = np.empty(high - low + 1, dtype=object)
    for value in np.flatnonzero(np.bincount(column - low)).tolist():
        table[value] = spell(value + low)
    spelled: list[str] = table[column - low].tolist()
    return spelled


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else quoted(str(value))


def quoted(text: str) -> str:
    """A CSV cell; in quotes only when it must be."""
    if any(sign in text for sign in ',"\n\r'):
        return '"' + text.replace('"', '""') + '"'
    return text
