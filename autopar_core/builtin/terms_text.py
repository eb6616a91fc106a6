"""Every term of one strategy with owner, formula, inputs and source, to be checked by hand."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from autopar_core.api import Detail, MemoryPart, TimePart
from autopar_core.builtin import words


if TYPE_CHECKING:
    from rich.console import RenderableType

TIME_SCALE = "time scale"


def terms(detail: Detail) -> list[RenderableType]:
    """All parts of the largest stage's memory, then all parts of the step time, largest first."""
    memory, cost = detail.memory, detail.performance
    worst = [stage for stage in memory.stages if stage.rank == memory.worst_rank]
    parts = [*(part for stage in worst for part in stage.parts), *memory.reserves]
    return [
        *_section(
            f"Every term of the memory (stage {memory.worst_rank}: {words.gib(memory.total_bytes)})",
            (_memory(part) for part in sorted(parts, key=lambda p: (-p.bytes, p.name))),
        ),
        *_section(
            f"Every term of the step time (stage {cost.rank}: {words.seconds(cost.seconds)})",
            (_time(part) for part in sorted(cost.parts, key=_time_order)),
        ),
    ]


def _time_order(part: TimePart) -> tuple[float, str, str, str]:
    return (-(part.seconds + part.hidden_seconds), part.owner, part.name, part.phase)


def _section(title: str, blocks: Iterable[Sequence[str]]) -> Iterator[RenderableType]:
    """Lines that keep their indent where the terminal wraps them."""
    from rich.padding import Padding
    from rich.text import Text

    yield Text(title, style="bold")
    for first, *rest in blocks:
        yield Padding(Text(first), (0, 0, 0, 2), expand=False)
        for line in rest:
            yield Padding(Text(line, style="dim"), (0, 0, 0, 6), expand=False)
    yield Text()


def _memory(part: MemoryPart) -> list[str]:
    lines = [f"{words.gib(part.bytes)}  {part.name} ({part.owner})"]
    if part.count != 1:
        lines[0] += f" = {part.count:,} x {part.unit_bytes:,} B"
    return lines + _how(part.formula, part.inputs, part.source)


def _time(part: TimePart) -> list[str]:
    first = f"{words.seconds(part.seconds)}  {part.name} ({part.owner}), {part.phase}"
    if part.resource not in ("device", "schedule"):
        first += f", {part.resource}"
    if part.count != 1:
        first += f" = {part.count:,} x {words.seconds(part.unit_seconds)}"
    if words.hidden(part.hidden_seconds):
        first += f", {words.hidden(part.hidden_seconds)} of it hidden"
    scale = part.inputs.get(TIME_SCALE, 1.0)
    formula = part.formula
    if formula and scale != 1.0:
        formula = f"({formula}) x {TIME_SCALE}"
    inputs = part.inputs if scale != 1.0 else _without_scale(part.inputs)
    return [first, *_how(formula, inputs, part.source)]


def _without_scale(inputs: Mapping[str, float]) -> dict[str, float]:
    return {name: value for name, value in inputs.items() if name != TIME_SCALE}


def _how(formula: str, inputs: Mapping[str, float], source: str) -> list[str]:
    lines = [f"= {formula}"] if formula else []
    if inputs:
        lines.append("with " + ", ".join(f"{name} {number(v)}" for name, v in inputs.items()))
    return [*lines, f"from {source}"] if source else lines


def number(value: float) -> str:
    """A number in full where it is whole, else to five digits."""
    if isinstance(value, int) or (float(value).is_integer() and abs(value) < 1e9):
        return f"{int(value):,}"
    return f"{value:.5g}"
