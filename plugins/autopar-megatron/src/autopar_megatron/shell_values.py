"""Values of shell variables: text whose every piece knows its line, and what has no value."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from attrs import evolve, frozen

from autopar_core.api import InputError


_RUNS = re.compile(r"\s+|\S+")
MAX_VALUE = 1 << 18  # characters of one variable: a doubling script must not grow without bound


@frozen
class Piece:
    """Text from one place.

    Attributes:
        text: The characters.
        line: Line that says them.
        quoted: They are neither split into words nor a pattern.
        hole: What has no value here, ``"$TP"`` or ``"$(nproc)"``; its text is then empty.
    """

    text: str
    line: int
    quoted: bool = False
    hole: str = ""


Scalar = tuple[Piece, ...]


@frozen
class Array:
    """Elements of an array variable."""

    elements: tuple[Scalar, ...]


Value = Scalar | Array
Variables = dict[str, Value]


@frozen
class Token:
    """One word of a command after expansion.

    Attributes:
        text: The characters; holes are empty.
        line: Line of the first character.
        holes: What has no value in it.
        last_line: Line of the last character: where a variable's value was said.
    """

    text: str
    line: int
    holes: tuple[str, ...] = ()
    last_line: int = 0


def text_of(pieces: Iterable[Piece]) -> str:
    """The characters of some pieces."""
    return "".join(piece.text for piece in pieces)


def holes_of(pieces: Iterable[Piece]) -> tuple[str, ...]:
    """What has no value in some pieces, each once."""
    return tuple(dict.fromkeys(piece.hole for piece in pieces if piece.hole))


def scalar(value: Value | None) -> Scalar | None:
    """A value as bash gives it without a subscript: the first element of an array."""
    if isinstance(value, Array):
        return value.elements[0] if value.elements else ()
    return value


def token(pieces: Scalar) -> Token:
    """Pieces joined to one word."""
    said = [piece for piece in pieces if piece.text or piece.hole] or list(pieces)
    first, last = (said[0].line, said[-1].line) if said else (0, 0)
    return Token(text_of(pieces), first, holes_of(pieces), last)


def as_quoted(pieces: Scalar) -> Scalar:
    """The same pieces, not to be split."""
    return tuple(evolve(piece, quoted=True) for piece in pieces)


def split_words(pieces: Iterable[Piece]) -> list[Scalar]:
    """Words of expanded text: unquoted pieces are cut at blanks and line ends."""
    words: list[list[Piece]] = []
    current: list[Piece] | None = None
    for piece in pieces:
        if piece.quoted or piece.hole:
            current = [] if current is None else current
            current.append(piece)
            continue
        line = piece.line
        for part in _RUNS.findall(piece.text):
            if part.isspace():
                if current is not None:
                    words.append(current)
                current = None
            else:
                current = [] if current is None else current
                current.append(Piece(part, line))
            line += part.count("\n")
    if current is not None:
        words.append(current)
    return [tuple(word) for word in words]


def checked(pieces: Scalar, name: str, label: str) -> Scalar:
    """The pieces, unless they grew beyond any script.

    Raises:
        InputError: When they did.
    """
    if sum(len(piece.text) + 1 for piece in pieces) > MAX_VALUE:
        line = pieces[0].line
        raise InputError(
            f"{label}: line {line}", f"the value of ${name} is longer than {MAX_VALUE} characters"
        )
    return pieces


def same(one: Value | None, other: Value | None) -> bool:
    """Whether two values spell the same words."""
    return _spelled(one) == _spelled(other)


def _spelled(value: Value | None) -> object:
    if value is None:
        return None
    if isinstance(value, Array):
        return tuple((text_of(each), holes_of(each)) for each in value.elements)
    return text_of(value), holes_of(value)


def merged(states: list[Mapping[str, Value]], line: int) -> Variables:
    """Variables after a branch that could not be decided: what differs has no value."""
    names = dict.fromkeys(name for state in states for name in state)
    made: Variables = {}
    for name in names:
        values = [state.get(name) for state in states]
        first = values[0]
        if first is not None and all(same(first, other) for other in values[1:]):
            made[name] = first
        else:
            why = f"${name} (decided by the condition on line {line})"
            made[name] = (Piece("", line, hole=why),)
    return made
