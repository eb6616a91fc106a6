"""Tables to attrs classes, strictly, with one sentence for what is wrong."""

from __future__ import annotations

import difflib
import math
import re
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

import attrs
from cattrs import Converter
from cattrs.cols import homogenous_tuple_structure_factory, is_mapping, mapping_structure_factory
from cattrs.errors import (
    AttributeValidationNote,
    ClassValidationError,
    ForbiddenExtraKeysError,
    IterableValidationError,
)
from cattrs.gen import make_dict_structure_fn

from autopar_core.errors import InputError


T = TypeVar("T")
Hook = Callable[[Any, Any], Any]

# A sentence that names its field itself: "model.heads = 7: does not divide ...".
_NAMED = re.compile(r"\w+\.(?P<name>\w+) = (?P<value>[^:]+): (?P<rest>.*)", re.DOTALL)
# attrs' own validators begin with the quoted name of the attribute.
_VALIDATOR = re.compile(r"'(?P<name>\w+)' must be (?P<rest>.*)", re.DOTALL)
# "must be > 0: -3" of attrs.
_BOUND = re.compile(r"(?P<bound>[<>]=? \S+): (?P<value>.*)", re.DOTALL)
_UNIONS = (Union, types.UnionType)
_KINDS: dict[Any, str] = {
    int: "a whole number", float: "a number", bool: "true or false", str: "a text",
}  # fmt: skip


@attrs.frozen
class Problem:
    """Something wrong at a dotted path below the structured table; the path may be empty.

    ``value`` is the value at fault where the sentence speaks of it before anything else.
    """

    path: tuple[str, ...]
    what: str
    value: str = ""


def structure(cls: type[T], table: object, where: str | Callable[[tuple[str, ...]], str]) -> T:
    """Build ``cls`` from a table.

    Args:
        cls: An attrs class.
        table: Plain values as TOML or JSON gives them.
        where: File and key of the table, for messages; or a function from the path below it.

    Raises:
        InputError: The first problem in the order of the class, as one sentence.
    """
    try:
        return _converter().structure(table, cls)
    except Exception as error:
        found = list(_problems(error, cls))
        # Misspelt keys first: they are why another key is missing.
        first = min(found, key=lambda problem: "unknown key" not in problem.what)
        place = join(where, *first.path) if isinstance(where, str) else where(first.path)
        place = f"{place} = {first.value}" if first.value else place
        raise InputError(place, first.what) from error


def join(where: str, *keys: str) -> str:
    """``run.toml: training`` and ``seq_len`` to ``run.toml: training.seq_len``."""
    path = ".".join(keys).replace(".[", "[")
    if not path:
        return where
    if not where:
        return path
    between = " " if where.endswith(":") else "" if path.startswith("[") else "."
    return f"{where}{between}{path}"


def nearest(name: str, known: Iterable[str], *, noun: str = "", many: int = 12) -> str:
    """``"; did you mean seq_len?"``, the names with this text in them, or all when none is near."""
    names = list(dict.fromkeys(known))
    lower = {each.lower(): each for each in names}
    close = difflib.get_close_matches(name.lower(), list(lower), n=1, cutoff=0.6)
    if close:
        return f"; did you mean {lower[close[0]]}?"
    holding = [each for each in names if len(name) > 2 and name.lower() in each.lower()]
    if holding:
        return f"; did you mean {' or '.join(holding)}?"
    if not names:
        return f"; there is no {noun or 'legal key'}"
    shown = ", ".join(names[:many]) + (", ..." if len(names) > many else "")
    return f"; {noun or 'legal keys'}: {shown}"


def kind_of(cls: Any) -> str:
    """What a type accepts, for people: ``a whole number``."""
    origin = _origin(cls)
    if origin is Literal:
        return "one of " + ", ".join(map(str, get_args(cls)))
    if origin in _UNIONS:
        return " or ".join(kind_of(part) for part in get_args(cls) if part is not type(None))
    if origin is tuple or origin is list:
        return "a list"
    if attrs.has(cls) or is_mapping(cls):
        return "a table"
    return _KINDS.get(cls, getattr(cls, "__name__", str(cls)))


def _origin(cls: Any) -> Any:
    """``get_origin``, which type checkers believe to give other things than it does."""
    return get_origin(cls)


def _wrong(kind: str, value: object) -> ValueError:
    return ValueError(f"expected {kind}, got {value!r}")


def _number(value: Any, _: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise _wrong("a number", value)
    return float(value)


def _exactly(cls: type) -> Hook:
    def check(value: Any, _: Any) -> Any:
        if type(value) is not cls:
            raise _wrong(_KINDS[cls], value)
        return value

    return check


def _literal(value: Any, cls: Any) -> Any:
    # True == 1, so equality alone would let a boolean pass for a number.
    if not any(type(value) is type(each) and value == each for each in get_args(cls)):
        raise _wrong(kind_of(cls), value)
    return value


def _union(value: Any, cls: Any) -> Any:
    parts = get_args(cls)
    if value is None and type(None) in parts:
        return None
    for part in parts:
        if part is not type(None):
            try:
                return _converter().structure(value, part)
            except Exception:  # the next member of the union may accept it
                continue
    raise _wrong(kind_of(cls), value)


def _guarded(cls: Any, accepted: Any, inner: Hook) -> Hook:
    """``inner`` behind a check of the container, so that a text is not read as a list."""

    def check(value: Any, asked: Any) -> Any:
        if attrs.has(asked) and isinstance(value, asked):
            return value  # built already, by a plugin
        if not isinstance(value, accepted):
            raise _wrong(kind_of(cls), value)
        return inner(value, asked)

    return check


@cache
def _converter() -> Converter:
    """The strict converter; made on first use because code generation takes time."""
    made = Converter(forbid_extra_keys=True, detailed_validation=True)
    made.register_structure_hook(float, _number)
    for cls in (int, bool, str):
        made.register_structure_hook(cls, _exactly(cls))
    made.register_structure_hook_func(lambda cls: _origin(cls) is Literal, _literal)
    made.register_structure_hook_func(lambda cls: _origin(cls) in _UNIONS, _union)
    made.register_structure_hook_factory(
        lambda cls: _origin(cls) is tuple and ... in get_args(cls),
        lambda cls: _guarded(cls, (list, tuple), homogenous_tuple_structure_factory(cls, made)),
    )
    made.register_structure_hook_factory(
        is_mapping, lambda cls: _guarded(cls, Mapping, mapping_structure_factory(cls, made, dict))
    )
    made.register_structure_hook_factory(attrs.has, lambda cls: _class_hook(cls, made))
    return made


def _class_hook(cls: Any, made: Converter) -> Hook:
    attrs.resolve_types(cls)
    return _guarded(cls, Mapping, make_dict_structure_fn(cls, made, _cattrs_forbid_extra_keys=True))


def _problems(error: BaseException, cls: Any) -> Iterator[Problem]:
    """Every problem in an error of cattrs, attributes in the order of their class."""
    if isinstance(error, ClassValidationError):
        inside = {a.name: a.type for a in attrs.fields(cls)} if attrs.has(cls) else {}
        noted, others = error.group_exceptions()
        order = list(inside)
        for one, note in sorted(noted, key=lambda pair: _place(order, pair[1].name)):
            yield from _below(_of_attribute(one, note), note.name)
        for one in others:
            yield from _of_class(one, cls)
    elif isinstance(error, IterableValidationError):
        for one, item in error.group_exceptions()[0]:
            index = f"[{item.index}]" if isinstance(item.index, int) else str(item.index)
            yield from _below(_problems(one, item.type), index)
    else:
        yield Problem((), str(error))


def _place(order: list[str], name: str) -> int:
    return order.index(name) if name in order else len(order)


def _below(found: Iterable[Problem], key: str) -> Iterator[Problem]:
    for problem in found:
        yield attrs.evolve(problem, path=(key, *problem.path))


def _of_attribute(error: Exception, note: AttributeValidationNote) -> Iterator[Problem]:
    if type(error) is KeyError and error.args == (note.name,):
        yield Problem((), f"missing; expected {kind_of(note.type)}")
    else:
        yield from _problems(error, note.type)


def _of_class(error: Exception, cls: Any) -> Iterator[Problem]:
    """Unknown keys, and what validators and ``__attrs_post_init__`` say."""
    if isinstance(error, ForbiddenExtraKeysError):
        legal = [a.alias for a in attrs.fields(cls) if a.init]
        for key in sorted(error.extra_fields):
            yield Problem((key,), f"unknown key{nearest(key, legal)}")
        return
    if isinstance(error, InputError):
        yield Problem(tuple(error.where.split(".")) if error.where else (), error.what)
        return
    text = str(error.args[0]) if error.args else str(error)
    named = _NAMED.fullmatch(text)
    if named is not None and named["name"] in {a.name for a in attrs.fields(cls)}:
        yield Problem((named["name"],), named["rest"], named["value"])
        return
    match = _VALIDATOR.fullmatch(text)
    if match is None:
        yield Problem((), text)
        return
    bound = _BOUND.fullmatch(match["rest"])
    rest = f"{bound['bound']}, got {bound['value']}" if bound else match["rest"]
    yield Problem((match["name"],), f"must be {rest}")
