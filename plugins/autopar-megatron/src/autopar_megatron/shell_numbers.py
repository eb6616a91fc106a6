"""Arithmetic of the shell on whole numbers, without evaluating anything as code."""

from __future__ import annotations

import re
from collections.abc import Callable


_TOKEN = re.compile(
    r"\s*(?:(\d+)|\$?\{?([A-Za-z_]\w*)\}?|(\*\*|<=|>=|==|!=|&&|\|\||[-+*/%()<>!?:]))"
)
_LEVELS: tuple[tuple[str, ...], ...] = (
    ("||",), ("&&",), ("==", "!="), ("<=", ">=", "<", ">"), ("+", "-"), ("*", "/", "%"),
)  # fmt: skip
_LARGEST = 1 << 62
_DEEPEST = 60


def arithmetic(text: str, value_of: Callable[[str], int | None]) -> int | None:
    """Value of an expression; None where it names something without one or is none.

    Args:
        text: What stands between ``$((`` and ``))``.
        value_of: Value of a variable, None when unknown.
    """
    tokens: list[str | int | None] = []
    place = 0
    text = text.strip()
    while place < len(text):
        found = _TOKEN.match(text, place)
        if not found:
            return None
        place = found.end()
        number, name, sign = found.groups()
        if number:
            if len(number) > 18:
                return None
            tokens.append(int(number, 8) if re.fullmatch(r"0[0-7]+", number) else int(number))
        else:
            tokens.append(value_of(name) if name else sign)
    if None in tokens:
        return None
    reader = _Reader(tokens)
    try:
        value = reader.level(0)
    except (ValueError, ZeroDivisionError, IndexError, RecursionError):
        return None
    return value if reader.place == len(tokens) else None


class _Reader:
    """Precedence climbing over numbers and signs."""

    def __init__(self, tokens: list[str | int | None]) -> None:
        self.tokens, self.place, self.depth = tokens, 0, 0

    def _next(self) -> str | int | None:
        return self.tokens[self.place] if self.place < len(self.tokens) else None

    def level(self, number: int) -> int:
        """Value of an expression of this precedence or higher."""
        if number == len(_LEVELS):
            return self._power()
        left = self.level(number + 1)
        while self._next() in _LEVELS[number]:
            sign = self.tokens[self.place]
            self.place += 1
            left = _applied(str(sign), left, self.level(number + 1))
        return left

    def _power(self) -> int:
        base = self._unary()
        if self._next() != "**":
            return base
        self.place += 1
        exponent = self._power()
        if not 0 <= exponent <= 62:
            raise ValueError("exponent out of range")
        return _bounded(base**exponent)

    def _unary(self) -> int:
        self.depth += 1
        if self.depth > _DEEPEST:
            raise ValueError("nested too deeply")
        token = self.tokens[self.place]
        self.place += 1
        if token == "(":
            value = self.level(0)
            if self._next() != ")":
                raise ValueError("unbalanced")
            self.place += 1
        elif token in ("-", "+", "!"):
            inner = self._unary()
            value = {"-": -inner, "+": inner, "!": int(not inner)}[str(token)]
        elif isinstance(token, int):
            value = token
        else:
            raise ValueError("no number")
        self.depth -= 1
        return value


def _applied(sign: str, left: int, right: int) -> int:
    if sign in ("/", "%"):
        quotient = abs(left) // abs(right)  # bash cuts towards zero
        quotient = quotient if (left < 0) == (right < 0) else -quotient
        return quotient if sign == "/" else left - quotient * right
    made = {
        "||": int(bool(left or right)), "&&": int(bool(left and right)), "==": int(left == right),
        "!=": int(left != right), "<=": int(left <= right), ">=": int(left >= right),
        "<": int(left < right), ">": int(left > right), "+": left + right, "-": left - right,
        "*": left * right,
    }  # fmt: skip
    return _bounded(made[sign])


def _bounded(value: int) -> int:
    if abs(value) > _LARGEST:
        raise ValueError("too large")
    return value
