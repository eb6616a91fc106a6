"""Words of a bash script: quotes, expansions, comments and blanks, with the line of each piece."""

from __future__ import annotations

from autopar_core.api import InputError
from autopar_megatron.shell_tree import Arithmetic, Expansion, Literal, Part, Unknown, Word


MAX_DEPTH = 40
ENDS = frozenset(" \t\n;|&<>()")
_SPECIAL = frozenset("\\'\"$`}") | ENDS
_OPERATORS = (":-", ":=", ":+", ":?", "-", "=", "+", "?")


class WordScanner:
    """Reads words; ``place`` and ``line`` say where it is in the text."""

    def __init__(self, text: str, label: str) -> None:
        self.text, self.label = text, label
        self.place, self.line, self.depth = 0, 1, 0
        self.comments: list[tuple[int, str]] = []
        self.documents: list[tuple[str, bool]] = []

    def wrong(self, what: str, line: int = 0) -> InputError:
        """The error at a line."""
        return InputError(f"{self.label}: line {line or self.line}", f"{what}; is it bash?")

    def at(self, text: str) -> bool:
        return self.text.startswith(text, self.place)

    def step(self, count: int = 1) -> str:
        taken = self.text[self.place : self.place + count]
        self.place += count
        self.line += taken.count("\n")
        return taken

    def skip(self, newlines: bool) -> None:
        """Blanks, joined lines, comments, and line ends where they mean nothing."""
        while self.place < len(self.text):
            char = self.text[self.place]
            if self.at("\\\n"):
                self.step(2)
            elif char in " \t" or (newlines and char == "\n"):
                self.step()
                if char == "\n":
                    self._here_documents()
            elif char == "#":
                end = self.text.find("\n", self.place)
                end = len(self.text) if end < 0 else end
                self.comments.append((self.line, self.text[self.place : end]))
                self.place = end
            else:
                return

    def _here_documents(self) -> None:
        """Skip the bodies of ``<<END`` that begin on the next line."""
        for mark, tabs in self.documents:
            while self.place < len(self.text):
                end = self.text.find("\n", self.place)
                end = len(self.text) if end < 0 else end
                found = self.text[self.place : end]
                self.step(end - self.place + 1)
                if (found.lstrip("\t") if tabs else found) == mark:
                    break
        self.documents = []

    # --- words --------------------------------------------------------------------------------
    def word(self, inside: str = "", stop: str = "") -> Word:
        """One word; ``inside`` are characters that do not end it, ``stop`` are ones that do."""
        line = self.line
        parts: list[Part] = []
        start = self.place
        while self.place < len(self.text):
            char = self.text[self.place]
            if char in stop or (not stop and char in ENDS and char not in inside):
                if char in "<>" and self.text.startswith("(", self.place + 1):
                    parts.append(self._command_substitution(2, quoted=False))
                    continue
                break
            parts += self._part(char)
        if not parts and self.place == start and not stop:
            raise self.wrong(f"unexpected {self.text[self.place : self.place + 1]!r}")
        return Word(tuple(parts), line)

    def _part(self, char: str) -> list[Part]:
        line = self.line
        if char == "\\":
            self.step()
            taken = self.step()
            return [] if taken == "\n" else [Literal(taken, line, True)]
        if char == "'":
            return self._single(line)
        if char == '"':
            return self._double(line)
        if char == "$":
            return self._dollar(quoted=False)
        if char == "`":
            return [self._backticks(quoted=False)]
        end = self.place + 1
        while end < len(self.text) and self.text[end] not in _SPECIAL:
            end += 1
        return [Literal(self.step(end - self.place), line, False)]

    def _single(self, line: int) -> list[Part]:
        end = self.text.find("'", self.place + 1)
        if end < 0:
            raise self.wrong("the quote that opens here is not closed", line)
        text = self.text[self.place + 1 : end]
        self.step(end - self.place + 1)
        return list(_lines(text, line))

    def _double(self, line: int) -> list[Part]:
        self.step()
        parts: list[Part] = [Literal("", line, True)]
        start, begun = self.place, self.line
        while True:
            if self.place >= len(self.text):
                raise self.wrong("the quote that opens here is not closed", line)
            char = self.text[self.place]
            if char not in '"\\$`':
                self.step()
                continue
            parts += _lines(self.text[start : self.place], begun)
            if char == '"':
                self.step()
                return parts
            parts += self._inside_quotes(char)
            start, begun = self.place, self.line

    def _inside_quotes(self, char: str) -> list[Part]:
        line = self.line
        if char == "$":
            return self._dollar(quoted=True)
        if char == "`":
            return [self._backticks(quoted=True)]
        taken = self.step(2)
        if taken == "\\\n":
            return []
        return [Literal(taken[1:] if taken[1:] in '"\\$`' else taken, line, True)]

    def _backticks(self, quoted: bool) -> Unknown:
        line, end = self.line, self.text.find("`", self.place + 1)
        if end < 0:
            raise self.wrong("the backquote that opens here is not closed")
        return Unknown(self.step(end - self.place + 1), line, quoted)

    def _dollar(self, quoted: bool) -> list[Part]:
        line = self.line
        if self.at("$(("):
            return [Arithmetic(self.brackets("$((", "))"), line)]
        if self.at("$("):
            return [self._command_substitution(2, quoted)]
        if self.at("${"):
            return [self._braces(quoted)]
        if self.at("$'") and not quoted:
            self.step()
            return self._single(line)
        self.step()
        end = self.place
        while end < len(self.text) and (self.text[end].isalnum() or self.text[end] == "_"):
            end += 1
        if end == self.place or self.text[self.place].isdigit():
            special = self.text[self.place : self.place + 1]
            if special and (special in "@*#?$!-" or special.isdigit()):
                return [Expansion(self.step(), line, quoted)]
            return [Literal("$", line, quoted)]
        return [Expansion(self.step(end - self.place), line, quoted)]

    def brackets(self, opening: str, closing: str) -> str:
        """Text between balanced brackets, consumed with them."""
        opened = self.line
        self.step(len(opening))
        start, depth = self.place, 0
        while self.place < len(self.text):
            if depth == 0 and self.at(closing):
                text = self.text[start : self.place]
                self.step(len(closing))
                return text
            depth += {"(": 1, ")": -1}.get(self.text[self.place], 0)
            self.step()
        raise self.wrong(f"{opening!r} has no {closing!r}", opened)

    def _command_substitution(self, opening: int, quoted: bool) -> Unknown:
        """``$(...)`` to its closing bracket; quotes inside may hold brackets."""
        line, start, depth = self.line, self.place, 1
        self.step(opening)
        while depth:
            if self.place >= len(self.text):
                raise self.wrong("'$(' has no ')'", line)
            char = self.text[self.place]
            if char == "'":
                self._single(self.line)
                continue
            if char == '"':
                self._double(self.line)
                continue
            if char == "\\":
                self.step(2)
                continue
            depth += {"(": 1, ")": -1}.get(char, 0)
            self.step()
        return Unknown(self.text[start : self.place], line, quoted)

    def _braces(self, quoted: bool) -> Part:
        line, start = self.line, self.place
        self.step(2)
        length = self.at("#") and not self.at("#}")
        if length or self.at("!"):
            self.step()
        end = self.place
        while end < len(self.text) and (self.text[end].isalnum() or self.text[end] in "_@*?"):
            end += 1
        name = self.step(end - self.place)
        index = ""
        if self.at("["):
            end = self.text.find("]", self.place)
            if end < 0:
                raise self.wrong("'[' has no ']'", line)
            index = self.text[self.place + 1 : end]
            self.step(end - self.place + 1)
        operator = next((sign for sign in _OPERATORS if self.at(sign)), "")
        self.step(len(operator))
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise self.wrong(f"nested deeper than {MAX_DEPTH} levels")
        word = self.word(stop="}")
        self.depth -= 1
        if not self.at("}"):
            raise self.wrong("'${' has no '}'", line)
        self.step()
        if not name or length or (word.parts and not operator) or self.text[start + 2] == "!":
            return Unknown(self.text[start : self.place], line, quoted)
        return Expansion(name, line, quoted, index, operator, word if operator else None)


def _lines(text: str, line: int) -> list[Literal]:
    """Quoted text, one literal per line of it."""
    found = []
    for piece in text.splitlines(keepends=True):
        found.append(Literal(piece, line, True))
        line += piece.count("\n")
    return found
