"""The core names no dimension: whatever it knows of one comes from a plugin or a data file.

Looked at are all identifiers and whole string literals of `autopar_core`, except docstrings and
the test kit, which needs examples. `cpu` and `tput` are fine; `cp`, `cp_degree`, `CP_RANKS` and
`CpConfig` are not.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest


CORE = Path(__file__).resolve().parents[2] / "autopar_core"
FILES = sorted(file for file in CORE.rglob("*.py") if file.relative_to(CORE).parts[0] != "testing")
DIMENSION = re.compile(r"_*(?:(?i:dp|tp|pp|cp)(?:_\w*)?|(?:Dp|Tp|Pp|Cp|DP|TP|PP|CP)[A-Z][a-z]\w*)")


def docstrings(tree: ast.AST) -> set[int]:
    """Strings that stand alone as a statement, by identity."""
    return {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}


def names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and text of every identifier and of every string literal that is no docstring.

    In the syntax tree an identifier is a field that holds a plain string (or a list of them).
    """
    skipped = docstrings(tree)
    line = 1
    for node in ast.walk(tree):
        line = getattr(node, "lineno", line)
        if isinstance(node, ast.Constant):
            if isinstance(node.value, str) and id(node) not in skipped:
                yield line, node.value
            continue
        for _, value in ast.iter_fields(node):
            for part in value if isinstance(value, list) else [value]:
                if isinstance(part, str):
                    yield from ((line, piece) for piece in part.split("."))


def offences(source: str) -> list[str]:
    return [
        f"line {line}: {name}"
        for line, name in names(ast.parse(source))
        if DIMENSION.fullmatch(name)
    ]


def test_there_is_something_to_look_at() -> None:
    assert FILES


@pytest.mark.parametrize("file", FILES, ids=[str(file.relative_to(CORE)) for file in FILES])
def test_no_dimension_is_named(file: Path) -> None:
    assert not DIMENSION.fullmatch(file.stem)
    assert offences(file.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "source",
    [
        "x = 'tp'",
        "x = row['cp_degree']",
        "dp = 1",
        "PP_STAGES = 4",
        "class CpConfig: ...",
        "def f(tp_size): ...",
        "f(dp_degree=2)",
        "row.pp_rank",
        "import numpy as cp",
        "from autopar_core.tp import f",
        "def f():\n    global dp",
        "match x:\n    case {'a': 1, **tp}: ...",
    ],
)
def test_the_check_sees(source: str) -> None:
    assert offences(source)


@pytest.mark.parametrize(
    "source",
    [
        "'''tp'''\nx = 1",
        "class C:\n    a: int\n    'dp'",
        "cpu = tput = dpkg = ppid = DPI = 1",
        "x = 'tp divides heads'",
        "x = vpp_degree",
    ],
)
def test_the_check_lets_pass(source: str) -> None:
    assert offences(source) == []
