"""Conditions of a script, decided where they can be without executing anything."""

from __future__ import annotations

from fnmatch import fnmatchcase

from autopar_megatron.shell_numbers import arithmetic
from autopar_megatron.shell_tree import Arithmetic, Chain, Command, Statement, Word
from autopar_megatron.shell_values import Scalar, holes_of, text_of


class Conditions:
    """Truth of statements and tests, three-valued; a shell gives words and numbers."""

    def pieces(self, word: Word) -> Scalar:
        """A word without splitting."""
        raise NotImplementedError

    def number(self, name: str) -> int | None:
        """Value of a variable as a whole number."""
        raise NotImplementedError

    def truth_of(self, condition: tuple[Statement, ...]) -> bool | None:
        """Whether a condition holds; None when only an execution could tell."""
        if len(condition) != 1:
            return None
        return self.truth(condition[0])

    def is_test(self, statement: Statement) -> bool:
        """Whether a statement only tests."""
        return (
            isinstance(statement, Command)
            and bool(statement.words)
            and (statement.words[0].plain in ("[", "[[", "test", "((", "!"))
        )

    def truth(self, statement: Statement) -> bool | None:
        """Whether a statement succeeds; None when only an execution could tell."""
        if isinstance(statement, Chain):
            truth: bool | None = None
            for joint, each in statement.links:
                here = self.truth(each)
                truth = here if not joint else joined_truth(joint, truth, here)
            return truth
        if not isinstance(statement, Command) or not statement.words:
            return True if isinstance(statement, Command) else None
        words = list(statement.words)
        first = words[0].plain
        if first == "!":
            inner = self.truth(Command(statement.line, words=tuple(words[1:])))
            return None if inner is None else not inner
        if first == "((":
            part = words[1].parts[0]
            value = arithmetic(part.text, self.number) if isinstance(part, Arithmetic) else None
            return None if value is None else bool(value)
        if first in ("[", "[[", "test"):
            inside = words[1:] if first == "test" else words[1:-1]
            return _Test(self, inside).value()
        return {"true": True, ":": True, "false": False}.get(first)

    def matches(self, subject: Scalar, pattern: Scalar) -> bool | None:
        """Whether a text matches a pattern whose unquoted parts are one."""
        if _undecided(subject) or _undecided(pattern):
            return None
        wanted = "".join(_escaped(p.text) if p.quoted else p.text for p in pattern)
        return fnmatchcase(text_of(subject), wanted)

    def test(self, words: list[Word]) -> bool | None:
        """A test of one, two or three words."""
        texts = [self.pieces(word) for word in words]
        plain = [word.plain for word in words]
        if len(words) == 1:
            return None if _undecided(texts[0]) else bool(text_of(texts[0]))
        if len(words) == 2:
            if plain[0] not in ("-z", "-n") or _undecided(texts[1]):
                return None
            return bool(text_of(texts[1])) == (plain[0] == "-n")
        if len(words) != 3:
            return None
        left, operator, right = texts[0], plain[1], texts[2]
        if operator in ("=", "==", "!="):
            same = self.matches(left, right)
            return same if operator != "!=" or same is None else not same
        signs = {"-eq": "==", "-ne": "!=", "-lt": "<", "-le": "<=", "-gt": ">", "-ge": ">="}
        if operator not in signs or holes_of(left) or holes_of(right):
            return None
        value = arithmetic(f"{text_of(left)} {signs[operator]} {text_of(right)}", self.number)
        return None if value is None else bool(value)


class _Test:
    """``!``, ``&&``, ``||`` and brackets of a test, over the words between its brackets."""

    def __init__(self, shell: Conditions, words: list[Word]) -> None:
        self.shell, self.words, self.place = shell, words, 0

    def value(self) -> bool | None:
        """The truth of all words."""
        truth = self._either()
        return truth if self.place == len(self.words) else None

    def _next(self) -> str:
        return self.words[self.place].plain if self.place < len(self.words) else ""

    def _either(self) -> bool | None:
        truth = self._both()
        while self._next() in ("||", "-o"):
            self.place += 1
            truth = joined_truth("||", truth, self._both())
        return truth

    def _both(self) -> bool | None:
        truth = self._one()
        while self._next() in ("&&", "-a"):
            self.place += 1
            truth = joined_truth("&&", truth, self._one())
        return truth

    def _one(self) -> bool | None:
        if self._next() == "!":
            self.place += 1
            inner = self._one()
            return None if inner is None else not inner
        if self._next() == "(":
            self.place += 1
            inner = self._either()
            self.place += 1
            return inner
        start = self.place
        while self.place < len(self.words) and self._next() not in ("&&", "||", "-a", "-o", ")"):
            self.place += 1
        return self.shell.test(self.words[start : self.place])


def joined_truth(joint: str, left: bool | None, right: bool | None) -> bool | None:
    """Truth of two statements with ``&&`` or ``||`` between them."""
    if joint == "&&":
        if left is False or right is False:
            return False
        return True if left and right else None
    if joint == "||":
        if left or right:
            return True
        return None if left is None or right is None else False
    return None


def _undecided(pieces: Scalar) -> bool:
    """Whether a text hangs on a command's output; unset variables are empty."""
    return any("(" in hole for hole in holes_of(pieces))


def _escaped(text: str) -> str:
    return "".join(f"[{char}]" if char in "*?[" else char for char in text)
