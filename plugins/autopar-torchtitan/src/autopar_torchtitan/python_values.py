"""Values of Python expressions, computed without running anything: literals and what is made of them."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from attrs import define, field

from autopar_torchtitan.settings import Computed


# The largest published configuration needs some hundred items and steps.
MAX_ITEMS, MAX_STEPS, MAX_DEPTH = 10_000, 100_000, 40
_LARGEST = 1 << 48
_SUMS: Mapping[type, Callable[[int, int], int]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
}  # fmt: skip


class Placed(NamedTuple):
    """A field of an object: its value, and the line or the preset that says it."""

    value: Any
    place: str


@define
class Made:
    """An object that a call makes: the last name of what is called, and its keywords."""

    kind: str
    fields: dict[str, Placed] = field(factory=dict)


class TooMuch(Exception):  # noqa: N818  (a reason to stop reading)
    """The file makes more values than a configuration does."""


Call = Callable[[ast.Call], Any]


class Values:
    """Evaluates expressions over some names.

    Args:
        names: Values of names; the caller changes them as it walks.
        call: Value of a call that is none of ``range``, ``list`` and ``len``.
    """

    def __init__(self, names: dict[str, Any], call: Call) -> None:
        self.names, self._call = names, call
        self._steps = 0

    def of(self, node: ast.expr, depth: int = 0) -> Any:
        """The value of an expression; :class:`Computed` where literals do not tell.

        Raises:
            TooMuch: When the file makes more than a configuration does.
        """
        self._steps += 1
        if depth > MAX_DEPTH or self._steps > MAX_STEPS:
            raise TooMuch
        made = self._simple(node, depth + 1)
        if isinstance(made, list) and len(made) > MAX_ITEMS:
            raise TooMuch
        return made

    def _simple(self, node: ast.expr, depth: int) -> Any:
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Name):
            return self.names.get(
                node.id, Computed(f"{node.id} is not set to a literal in this file")
            )
        if isinstance(node, ast.List | ast.Tuple):
            return self._list(node, depth)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            value = self.of(node.operand, depth)
            return -value if type(value) is int else Computed("it is computed")
        if isinstance(node, ast.BinOp):
            return self.sum(self.of(node.left, depth), node.op, self.of(node.right, depth))
        if isinstance(node, ast.JoinedStr):
            return self._text(node, depth)
        if isinstance(node, ast.ListComp):
            return self._each(node, depth)
        if isinstance(node, ast.Attribute):
            return self._field(node, depth)
        if isinstance(node, ast.Call):
            return self._called(node, depth)
        return Computed("it is computed")

    def sum(self, one: Any, op: ast.operator, other: Any) -> Any:
        """Two values joined by an operator."""
        for value in (one, other):
            if isinstance(value, Computed):
                return value
        if isinstance(one, list) and isinstance(other, list) and isinstance(op, ast.Add):
            return [*one, *other]
        function = _SUMS.get(type(op))
        if function is None or type(one) is not int or type(other) is not int:
            return Computed("it is computed")
        if max(abs(one), abs(other)) > _LARGEST or (isinstance(op, ast.FloorDiv) and not other):
            return Computed("its arithmetic leaves the range of a configuration")
        return function(one, other)

    def _list(self, node: ast.List | ast.Tuple, depth: int) -> Any:
        made: list[Any] = []
        for each in node.elts:
            starred = isinstance(each, ast.Starred)
            value = self.of(each.value if isinstance(each, ast.Starred) else each, depth)
            if isinstance(value, Computed):
                return value
            if starred and not isinstance(value, list):
                return Computed("it is computed")
            made += value if starred else [value]
        return made

    def _text(self, node: ast.JoinedStr, depth: int) -> Any:
        parts = []
        for each in node.values:
            inner = each.value if isinstance(each, ast.FormattedValue) else each
            value = self.of(inner, depth)
            if isinstance(value, Computed):
                return value
            if not isinstance(value, str | int):
                return Computed("it is computed")
            parts.append(str(value))
        return "".join(parts)

    def _each(self, node: ast.ListComp, depth: int) -> Any:
        """A comprehension with one loop over a list and no condition."""
        loop = node.generators[0]
        if len(node.generators) > 1 or loop.ifs or not isinstance(loop.target, ast.Name):
            return Computed("it is computed")
        items = self.of(loop.iter, depth)
        if not isinstance(items, list):
            return items if isinstance(items, Computed) else Computed("it is computed")
        name, made = loop.target.id, []
        before = self.names.get(name)
        for item in items:
            self.names[name] = item
            value = self.of(node.elt, depth)
            if isinstance(value, Computed):
                return value
            made.append(value)
        if before is None:
            self.names.pop(name, None)
        else:
            self.names[name] = before
        return made

    def _field(self, node: ast.Attribute, depth: int) -> Any:
        base = self.of(node.value, depth)
        if isinstance(base, Made) and node.attr in base.fields:
            return base.fields[node.attr].value
        return Computed(f"{node.attr} is not set to a literal in this file")

    def _called(self, node: ast.Call, depth: int) -> Any:
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if name in ("range", "list", "len") and not node.keywords:
            return self._builtin(name, [self.of(each, depth) for each in node.args])
        return self._call(node)

    def _builtin(self, name: str, arguments: list[Any]) -> Any:
        if name == "range" and 1 <= len(arguments) <= 3:
            if all(type(each) is int for each in arguments) and arguments[2:] != [0]:
                made = range(*arguments)
                if len(made) > MAX_ITEMS:
                    raise TooMuch
                return list(made)
        elif len(arguments) == 1 and isinstance(arguments[0], list):
            return len(arguments[0]) if name == "len" else list(arguments[0])
        return next(
            (each for each in arguments if isinstance(each, Computed)), Computed("it is computed")
        )
