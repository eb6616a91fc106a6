"""What a script would pass to the program it launches, found without executing anything.

The environment is taken to be empty: ``${TP:-8}`` is 8, and a plain ``$TP`` that the script does not
set has no value. A condition that cannot be decided leaves what its branches disagree on without one.
"""

from __future__ import annotations

from attrs import frozen

from autopar_core.api import InputError
from autopar_megatron.shell_conditions import Conditions
from autopar_megatron.shell_numbers import arithmetic
from autopar_megatron.shell_tree import (
    Arithmetic,
    Assignment,
    Branch,
    Case,
    Chain,
    Command,
    Expansion,
    Function,
    Group,
    Literal,
    Loop,
    Part,
    Script,
    Statement,
    Unknown,
    Word,
)
from autopar_megatron.shell_values import (
    Array,
    Piece,
    Scalar,
    Token,
    Value,
    Variables,
    as_quoted,
    checked,
    holes_of,
    merged,
    scalar,
    split_words,
    text_of,
    token,
)


MAX_CALLS = 20
MAX_STEPS = 20_000
MAX_EXPANDED = 1 << 24  # characters of all values together: doubling scripts must end
_LEAVES = ("exit", "return")


@frozen
class Ran:
    """One simple command, expanded.

    Attributes:
        line: Where it begins.
        words: Its words.
        variables: Variables at that point.
    """

    line: int
    words: tuple[Token, ...]
    variables: Variables


class Shell(Conditions):
    """Walks through a script; ``commands`` are what it ran, ``notes`` what was not followed."""

    def __init__(self, script: Script, label: str) -> None:
        self.label = label
        self.variables: Variables = {}
        self.functions: dict[str, Function] = {}
        self.commands: list[Ran] = []
        self.notes: list[str] = []
        self._calls = self._steps = self._expanded = 0
        self._run(script.body)

    # --- statements ---------------------------------------------------------------------------
    def _run(self, body: tuple[Statement, ...]) -> bool:
        """Whether the body was left by ``exit`` or ``return``."""
        for statement in body:
            self._steps += 1
            if self._steps > MAX_STEPS:
                raise InputError(
                    self.label, f"has more than {MAX_STEPS:,} steps; no launch script has"
                )
            if self._statement(statement):
                return True
        return False

    def _statement(self, statement: Statement) -> bool:
        if isinstance(statement, Command):
            return self._command(statement)
        if isinstance(statement, Branch):
            return self._branch(statement)
        if isinstance(statement, Chain):
            return self._chain(statement)
        if isinstance(statement, Case):
            return self._case(statement)
        if isinstance(statement, Function):
            self.functions[statement.name] = statement
            return False
        if isinstance(statement, Group):
            before = dict(self.variables)
            left = self._run(statement.body)
            if statement.subshell:
                self.variables = before
            return left and not statement.subshell
        return self._loop(statement)

    def _loop(self, loop: Loop) -> bool:
        before = dict(self.variables)
        if loop.variable:
            self.variables[loop.variable] = (Piece("", loop.line, hole=f"${loop.variable}"),)
        self._run(loop.body)
        self.variables = merged([self.variables, before], loop.line)
        return False

    def _branch(self, branch: Branch) -> bool:
        arms = [(self.truth_of(condition), body) for condition, body in branch.arms]
        return self._alternatives([*arms, (True, branch.otherwise)], branch.line)

    def _case(self, case: Case) -> bool:
        subject = self.pieces(case.word)
        arms: list[tuple[bool | None, tuple[Statement, ...]]] = []
        for patterns, body in case.arms:
            truths = [self.matches(subject, self.pieces(each)) for each in patterns]
            arms.append((True if True in truths else None if None in truths else False, body))
        return self._alternatives([*arms, (True, ())], case.line)

    def _alternatives(
        self, arms: list[tuple[bool | None, tuple[Statement, ...]]], line: int
    ) -> bool:
        """Run the first arm that holds; several of them where it cannot be told which."""
        possible: list[tuple[Statement, ...]] = []
        for truth, body in arms:
            if truth is not False:
                possible.append(body)
            if truth:
                break
        if len(possible) == 1:
            return self._run(possible[0])
        before = dict(self.variables)
        states = []
        for body in possible:
            self.variables = dict(before)
            if not self._run(body):
                states.append(self.variables)
        self.variables = merged(list(states), line) if states else before
        return not states

    def _chain(self, chain: Chain) -> bool:
        truth: bool | None = None
        for joint, statement in chain.links:
            wanted = {"&&": True, "||": False}.get(joint)
            if wanted is None or truth is wanted:
                truth = self.truth(statement)
                runs = truth is None or not self.is_test(statement)
                if runs and self._statement(statement):
                    return True
            elif truth is None:
                body = (statement,)
                self._alternatives([(None, body), (True, ())], chain.line)
        return False

    # --- commands -----------------------------------------------------------------------------
    def _command(self, command: Command) -> bool:
        first = command.words[0].plain if command.words else ""
        if first in _LEAVES:
            return True
        for assignment in command.assignments:
            self._assign(assignment)
        if not command.words:
            return False
        tokens = tuple(t for word in command.words for t in self._expand(word))
        if not tokens:
            return False
        if first == "unset":
            for each in tokens[1:]:
                self.variables.pop(each.text, None)
        elif first in (".", "source"):
            name = tokens[1].text if len(tokens) > 1 else ""
            self.notes.append(
                f"line {command.line}: {name or 'a file'} is sourced and was not read"
            )
        elif first in self.functions and self._calls < MAX_CALLS:
            self._calls += 1
            self._run(self.functions[first].body)
            self._calls -= 1
        else:
            self.commands.append(Ran(command.line, tokens, dict(self.variables)))
        return False

    def _assign(self, assignment: Assignment) -> None:
        name = assignment.name
        old = self.variables.get(name)
        if assignment.words is not None:
            elements = tuple(pieces for word in assignment.words for pieces in self._fields(word))
            if assignment.append:
                before = old.elements if isinstance(old, Array) else (old,) if old else ()
                elements = (*before, *elements)
            checked(tuple(piece for each in elements for piece in each), name, self.label)
            self.variables[name] = Array(elements)
            return
        pieces = as_quoted(self.pieces(assignment.value)) if assignment.value else ()
        if assignment.append and old is not None:
            if isinstance(old, Array):
                first = (*(scalar(old) or ()), *pieces)
                self.variables[name] = Array((first, *old.elements[1:]))
                return
            pieces = (*old, *pieces)
        self.variables[name] = checked(pieces, name, self.label)

    # --- words --------------------------------------------------------------------------------
    def _expand(self, word: Word) -> list[Token]:
        return [token(pieces) for pieces in self._fields(word)]

    def _fields(self, word: Word) -> list[Scalar]:
        """Words that one word becomes: arrays give several, unquoted values are split."""
        fields: list[Scalar] = []
        run: list[Piece] = []
        for part in word.parts:
            found = self._array_of(part)
            if found is None:
                run += self._part(part, splitting=True)
                continue
            elements = [as_quoted(e) for e in found] if _quoted(part) else found
            for number, element in enumerate(elements):
                if number:
                    fields += split_words(run)
                    run = []
                run += element if _quoted(part) else _unquoted(element)
        return [*fields, *split_words(run)]

    def _array_of(self, part: Part) -> list[Scalar] | None:
        if not isinstance(part, Expansion) or part.index not in ("@", "*"):
            return None
        if part.index == "*" and part.quoted:  # one word, joined by blanks
            return None
        value = self.variables.get(part.name)
        self._spend(value)
        if value is None:
            return [] if part.operator else [(Piece("", part.line, hole=f"${part.name}"),)]
        return list(value.elements) if isinstance(value, Array) else [value]

    def pieces(self, word: Word) -> Scalar:
        """A word without splitting."""
        return tuple(piece for part in word.parts for piece in self._part(part, splitting=False))

    def _part(self, part: Part, splitting: bool) -> Scalar:
        if isinstance(part, Literal):
            return (Piece(part.text, part.line, part.quoted or splitting),)
        if isinstance(part, Unknown):
            return (Piece("", part.line, part.quoted, part.text),)
        if isinstance(part, Arithmetic):
            number = arithmetic(part.text, self.number)
            if number is None:
                return (Piece("", part.line, hole=f"$(({part.text}))"),)
            return (Piece(str(number), part.line, quoted=True),)
        found = self._expansion(part)
        return as_quoted(found) if part.quoted else _unquoted(found)

    def _expansion(self, part: Expansion) -> Scalar:
        value = self._indexed(part)
        empty = value is None or (not text_of(value) and not holes_of(value))
        absent = empty if part.operator.startswith(":") else value is None
        kind = part.operator[-1:]
        if kind in ("-", "=") and absent and part.word is not None:
            given = self.pieces(part.word)
            if kind == "=":
                self.variables[part.name] = given
            return given
        if kind == "+":
            return () if absent or part.word is None else self.pieces(part.word)
        if value is None:
            return (Piece("", part.line, hole=f"${part.name}"),)
        return value

    def _spend(self, value: Value | None) -> None:
        elements = value.elements if isinstance(value, Array) else (value or (),)
        self._expanded += sum(len(piece.text) + 1 for each in elements for piece in each)
        if self._expanded > MAX_EXPANDED:
            raise InputError(self.label, "its variables expand to more text than any launch script")

    def _indexed(self, part: Expansion) -> Scalar | None:
        value = self.variables.get(part.name)
        self._spend(value)
        if not part.index:
            return scalar(value)
        if part.index in ("@", "*"):
            if isinstance(value, Array):
                blank = (Piece(" ", part.line),)
                joined = [p for each in value.elements for p in (*each, *blank)]
                return tuple(joined[:-1])
            return value
        number = arithmetic(part.index, self.number)
        if isinstance(value, Array) and number is not None:
            return value.elements[number] if -1 < number < len(value.elements) else None
        return (Piece("", part.line, hole=f"${{{part.name}[{part.index}]}}"),)

    def number(self, name: str) -> int | None:
        """Value of a variable as a whole number; None where it has none."""
        value = scalar(self.variables.get(name))
        if value is None:  # not set: bash counts it as 0, which no script means
            return None
        text = text_of(value).strip()
        if holes_of(value) or not text.lstrip("-").isdigit() or len(text) > 18:
            return None
        return int(text)


def _quoted(part: Part) -> bool:
    return isinstance(part, Expansion) and part.quoted


def _unquoted(pieces: Scalar) -> Scalar:
    return tuple(Piece(p.text, p.line, False, p.hole) for p in pieces)
