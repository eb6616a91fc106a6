"""Bash scripts parsed into :mod:`autopar_megatron.shell_tree`; nothing is ever executed."""

from __future__ import annotations

from autopar_core.api import InputError
from autopar_megatron.shell_tree import (
    Arithmetic,
    Assignment,
    Branch,
    Case,
    Chain,
    Command,
    Function,
    Group,
    Literal,
    Loop,
    Script,
    Statement,
    Word,
)
from autopar_megatron.shell_words import ENDS, MAX_DEPTH, WordScanner


MAX_CHARACTERS = 1 << 20
_OPENERS = frozenset({"if", "case", "for", "while", "until", "select", "{"})
_DECLARES = ("export", "declare", "local", "readonly", "typeset")
_REDIRECTIONS = ("<<<", "<<-", "<<", "&>>", "&>", ">>", ">&", "<&", ">|", "<>", ">", "<")


def parse(text: str, label: str) -> Script:
    """The syntax tree of a script.

    Raises:
        InputError: Where the text is no bash, with the line.
    """
    if len(text) > MAX_CHARACTERS:
        raise InputError(label, f"is larger than {MAX_CHARACTERS >> 20} MiB; no launch script is")
    parser = _Parser(text.replace("\r\n", "\n"), label)
    body = parser.statements(frozenset())
    if parser.place < len(parser.text):
        raise parser.wrong(f"unexpected {parser.text[parser.place]!r}")
    return Script(body, tuple(parser.comments))


class _Parser(WordScanner):
    """Recursive descent over statements."""

    # --- statements ---------------------------------------------------------------------------
    def statements(self, ends: frozenset[str]) -> tuple[Statement, ...]:
        """Statements up to a reserved word of ``ends`` or a closing bracket, which stays."""
        found: list[Statement] = []
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise self.wrong(f"nested deeper than {MAX_DEPTH} levels")
        while True:
            self.skip(newlines=True)
            if self.place >= len(self.text) or self.at(")") or self.at(";;"):
                break
            if self._reserved() in ends:
                break
            if self.at(";") or self.at("&") or self.at("|"):
                self.step()
                continue
            found.append(self._chain())
        self.depth -= 1
        return tuple(found)

    def _reserved(self) -> str:
        """The unquoted word that begins here, without consuming it."""
        end = self.place
        while end < len(self.text) and self.text[end] not in ENDS:
            end += 1
        return self.text[self.place : end]

    def _chain(self) -> Statement:
        line = self.line
        links: list[tuple[str, Statement]] = [("", self._statement())]
        while True:
            self.skip(newlines=False)
            joint = next((sign for sign in ("&&", "||") if self.at(sign)), "")
            if joint:
                self.step(2)
                self.skip(newlines=True)
                links.append((joint, self._statement()))
            elif self.at("|") or (self.at("&") and not self.at("&>")):
                pipe = self.at("|")
                self.step(2 if self.at("|&") else 1)
                self.skip(newlines=True)
                if self.place < len(self.text) and self.text[self.place] not in ";)\n":
                    links.append(("|", self._statement()))
                elif pipe:
                    raise self.wrong(
                        "'|' has no command after it: a value with '|' in it needs quotes"
                    )
            else:
                break
        return links[0][1] if len(links) == 1 else Chain(line, tuple(links))

    def _statement(self) -> Statement:
        line, word = self.line, self._reserved()
        if self.at("(("):
            inside = Arithmetic(self.brackets("((", "))"), line)
            return Command(
                line, words=(Word((Literal("((", line, False),), line), Word((inside,), line))
            )
        if self.at("("):
            self.step()
            body = self.statements(frozenset())
            self._close(")")
            return self._redirected(Group(line, body, subshell=True))
        if word == "!":
            self.step()
            self.skip(newlines=False)
            return self._statement_negated(line)
        if word == "function":
            self.step(len(word))
            self.skip(newlines=False)
            return self._function(line, self.step(len(self._reserved())))
        if word in _OPENERS:
            self.step(len(word))
            return self._redirected(self._compound(word, line))
        if word.isidentifier() and self.text.startswith("()", self.place + len(word)):
            return self._function(line, self.step(len(word)))
        return self._command()

    def _statement_negated(self, line: int) -> Statement:
        inner = self._statement()
        if isinstance(inner, Command):
            mark = Word((Literal("!", line, False),), line)
            return Command(line, inner.assignments, (mark, *inner.words))
        return inner

    def _function(self, line: int, name: str) -> Statement:
        self.skip(newlines=False)
        if self.at("("):
            self.step()
            self.skip(newlines=False)
            self._close(")")
        self.skip(newlines=True)
        if self._reserved() != "{":
            raise self.wrong(f"the body of function {name} should begin with {{")
        self.step()
        return Function(line, name, self._body("}"))

    def _compound(self, word: str, line: int) -> Statement:
        if word == "if":
            return self._if(line)
        if word == "case":
            return self._case(line)
        if word == "{":
            return Group(line, self._body("}"))
        variable = ""
        if word in ("for", "select"):
            self.skip(newlines=False)
            if self.at("(("):
                self.brackets("((", "))")
            else:
                variable = self._reserved()
                while self.place < len(self.text) and self.text[self.place] not in ";\n":
                    self.step()
            self.skip(newlines=False)
            if self.at(";"):
                self.step()
        else:
            self.statements(frozenset({"do"}))
        self.skip(newlines=True)
        self._expect("do", line)
        return Loop(line, self._body("done"), variable)

    def _body(self, end: str) -> tuple[Statement, ...]:
        line = self.line
        body = self.statements(frozenset({end}))
        self._expect(end, line)
        return body

    def _expect(self, word: str, opened: int) -> None:
        if self._reserved() != word:
            raise self.wrong(f"what begins here has no {word!r}", opened)
        self.step(len(word))

    def _if(self, line: int) -> Branch:
        arms: list[tuple[tuple[Statement, ...], tuple[Statement, ...]]] = []
        otherwise: tuple[Statement, ...] = ()
        while True:
            condition = self.statements(frozenset({"then"}))
            self._expect("then", line)
            arms.append((condition, self.statements(frozenset({"elif", "else", "fi"}))))
            word = self._reserved()
            if word == "elif":
                self.step(4)
                continue
            if word == "else":
                self.step(4)
                otherwise = self.statements(frozenset({"fi"}))
            self._expect("fi", line)
            return Branch(line, tuple(arms), otherwise)

    def _case(self, line: int) -> Case:
        self.skip(newlines=False)
        word = self.word()
        self.skip(newlines=True)
        self._expect("in", line)
        arms: list[tuple[tuple[Word, ...], tuple[Statement, ...]]] = []
        while True:
            self.skip(newlines=True)
            if self.place >= len(self.text) or self._reserved() == "esac":
                self._expect("esac", line)
                return Case(line, word, tuple(arms))
            if self.at("("):
                self.step()
            patterns = []
            while True:
                self.skip(newlines=False)
                patterns.append(self.word())
                self.skip(newlines=False)
                if not self.at("|"):
                    break
                self.step()
            self._close(")")
            arms.append((tuple(patterns), self.statements(frozenset({"esac"}))))
            if self.at(";;"):
                self.step(2)
                while self.place < len(self.text) and self.text[self.place] in "&;":
                    self.step()

    def _close(self, sign: str) -> None:
        self.skip(newlines=True)
        if not self.at(sign):
            raise self.wrong(f"expected {sign!r}")
        self.step(len(sign))

    def _redirected(self, statement: Statement) -> Statement:
        """Drop redirections after a compound statement."""
        self.skip(newlines=False)
        while self._redirection():
            self.skip(newlines=False)
        return statement

    # --- commands -----------------------------------------------------------------------------
    def _command(self) -> Command:
        line = self.line
        assignments: list[Assignment] = []
        words: list[Word] = []
        while True:
            self.skip(newlines=False)
            if self._redirection():
                continue
            if self.place >= len(self.text) or self.text[self.place] in "\n;|&()":
                break
            made = None if words and words[0].plain not in _DECLARES else self._assignment()
            if made is None:
                words.append(self.word())
                if words[-1].plain == "[[":
                    words += self._test()
            else:
                assignments.append(made)
        if not words and not assignments:
            raise self.wrong(f"unexpected {self.text[self.place : self.place + 1]!r}")
        return Command(line, tuple(assignments), tuple(words))

    def _test(self) -> list[Word]:
        """Words of ``[[ ... ]]``, where brackets and ``&&`` are operators of the test."""
        words: list[Word] = []
        while True:
            self.skip(newlines=True)
            if self.place >= len(self.text):
                raise self.wrong("'[[' has no ']]'")
            sign = next((s for s in ("&&", "||", "(", ")", "<", ">") if self.at(s)), "")
            if sign:
                words.append(Word((Literal(sign, self.line, False),), self.line))
                self.step(len(sign))
                continue
            words.append(
                self.word(inside="()") if words and words[-1].plain == "=~" else self.word()
            )
            if words[-1].plain == "]]":
                return words

    def _assignment(self) -> Assignment | None:
        end = self.place
        while end < len(self.text) and (self.text[end].isalnum() or self.text[end] == "_"):
            end += 1
        name = self.text[self.place : end]
        if not name or name[0].isdigit():
            return None
        append = self.text.startswith("+=", end)
        if not append and not self.text.startswith("=", end):
            return None
        line = self.line
        self.step(len(name) + (2 if append else 1))
        if self.at("("):
            return Assignment(name, line, append, words=self._array())
        empty = self.place >= len(self.text) or self.text[self.place] in ENDS
        value = Word((), line) if empty else self.word()
        return Assignment(name, line, append, value=value)

    def _array(self) -> tuple[Word, ...]:
        opened = self.line
        self.step()
        words: list[Word] = []
        while True:
            self.skip(newlines=True)
            if self.place >= len(self.text):
                raise self.wrong("the array that begins here has no ')'", opened)
            if self.at(")"):
                self.step()
                return tuple(words)
            if self.text[self.place] in ";|&<>(":
                raise self.wrong(f"{self.text[self.place]!r} inside an array needs quotes")
            words.append(self.word())

    def _redirection(self) -> bool:
        """Skip ``> file``, ``2>&1``, ``<<END`` and the like; whether there was one."""
        end = self.place
        while end < len(self.text) and self.text[end].isdigit():
            end += 1
        sign = next((s for s in _REDIRECTIONS if self.text.startswith(s, end)), "")
        if not sign or self.text.startswith(("<(", ">("), end):
            return False
        if end > self.place and sign.startswith("&"):
            return False
        self.step(end - self.place + len(sign))
        self.skip(newlines=False)
        if self.place < len(self.text) and self.text[self.place] not in "\n;|&":
            word = self.word()
            if sign in ("<<", "<<-"):
                mark = "".join(part.text for part in word.parts if isinstance(part, Literal))
                self.documents.append((mark, sign == "<<-"))
        return True
