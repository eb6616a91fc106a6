"""The syntax tree of a bash script: the part of the language that launch scripts use.

A word keeps the line of each of its pieces, so that a value can be traced through variables and
quoted multi-line strings back to the line that says it.
"""

from __future__ import annotations

from attrs import frozen


@frozen
class Literal:
    """Text as written; ``quoted`` text is neither split nor a pattern."""

    text: str
    line: int
    quoted: bool


@frozen
class Expansion:
    """``${name op word}``; ``index`` is ``@`` or a subscript of an array, empty for a scalar."""

    name: str
    line: int
    quoted: bool
    index: str = ""
    operator: str = ""
    word: Word | None = None


@frozen
class Arithmetic:
    """``$((text))``."""

    text: str
    line: int


@frozen
class Unknown:
    """Something whose value only an execution could tell: ``$(command)``."""

    text: str
    line: int
    quoted: bool = False


Part = Literal | Expansion | Arithmetic | Unknown


@frozen
class Word:
    """Parts that make one word together."""

    parts: tuple[Part, ...]
    line: int

    @property
    def plain(self) -> str:
        """The text when it is one unquoted literal, else empty: reserved words and names."""
        if all(isinstance(part, Literal) and not part.quoted for part in self.parts):
            return "".join(part.text for part in self.parts if isinstance(part, Literal))
        return ""


@frozen
class Assignment:
    """``name=value`` or ``name+=value``; ``words`` for an array."""

    name: str
    line: int
    append: bool
    value: Word | None = None
    words: tuple[Word, ...] | None = None


@frozen
class Command:
    """A simple command with the assignments before it."""

    line: int
    assignments: tuple[Assignment, ...] = ()
    words: tuple[Word, ...] = ()


@frozen
class Branch:
    """``if`` and ``elif``: condition, body; the last body of an ``else`` has no condition."""

    line: int
    arms: tuple[tuple[tuple[Statement, ...], tuple[Statement, ...]], ...]
    otherwise: tuple[Statement, ...] = ()


@frozen
class Case:
    """``case word in pattern) body``."""

    line: int
    word: Word
    arms: tuple[tuple[tuple[Word, ...], tuple[Statement, ...]], ...]


@frozen
class Loop:
    """A loop, whose number of turns is not followed."""

    line: int
    body: tuple[Statement, ...]
    variable: str = ""


@frozen
class Function:
    """``name() { body }``."""

    line: int
    name: str
    body: tuple[Statement, ...]


@frozen
class Group:
    """``{ ... }`` or a subshell."""

    line: int
    body: tuple[Statement, ...]
    subshell: bool = False


@frozen
class Chain:
    """Statements joined by ``&&`` and ``||``: operator before each, empty for the first."""

    line: int
    links: tuple[tuple[str, Statement], ...]


Statement = Command | Branch | Case | Loop | Function | Group | Chain


@frozen
class Script:
    """A parsed script; ``comments`` are (line, text) of whole-line comments."""

    body: tuple[Statement, ...]
    comments: tuple[tuple[int, str], ...] = ()
