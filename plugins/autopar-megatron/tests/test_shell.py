"""Bash as launch scripts use it: words, variables, arrays, conditions, and where each value stands."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autopar_core.api import InputError
from autopar_megatron.shell_numbers import arithmetic
from autopar_megatron.shell_run import Shell
from autopar_megatron.shell_syntax import parse
from autopar_megatron.shell_values import Token


def ran(text: str) -> list[Token]:
    """Words of the last command."""
    return list(Shell(parse(text, "run.sh"), "run.sh").commands[-1].words)


def words(text: str) -> list[str]:
    return [token.text for token in ran(text)]


@pytest.mark.parametrize(
    ("script", "wanted"),
    [
        ("run a 'b c' \"d e\" f\\ g", ["run", "a", "b c", "d e", "f g"]),
        ("run \\\n  --tp 8 \\\n  --pp 4", ["run", "--tp", "8", "--pp", "4"]),
        ("TP=8\nrun --tp $TP --pp ${TP}", ["run", "--tp", "8", "--pp", "8"]),
        ("run ${TP:-8} ${TP-4} ${TP:+no}", ["run", "8", "4"]),
        ("TP=\nrun ${TP:-8} x${TP-4}y", ["run", "8", "xy"]),
        ("run ${A:-${B:-2}}", ["run", "2"]),
        (": ${TP:=4}\nrun $TP", ["run", "4"]),
        ("A=(--x 1\n  # --y 2\n  --z 3)\nrun ${A[@]}", ["run", "--x", "1", "--z", "3"]),
        ("A=(--x)\nA+=(--y 1)\nrun \"${A[@]}\"", ["run", "--x", "--y", "1"]),
        ("A=(\"--x 1\" --y)\nrun ${A[@]}", ["run", "--x", "1", "--y"]),
        ("A=(\"--x 1\" --y)\nrun \"${A[@]}\"", ["run", "--x 1", "--y"]),
        ("A=(a b)\nrun ${A[1]} $A", ["run", "b", "a"]),
        ("A=\"\n  --x 1 \\\n\n  --y 2\n\"\nrun $A", ["run", "--x", "1", "--y", "2"]),
        ("A='x y'\nrun \"$A\" $A", ["run", "x y", "x", "y"]),
        ("A=1\nB=$A$A\nA=2\nrun $B", ["run", "11"]),
        ("A=a\nA+=b\nrun $A", ["run", "ab"]),
        ("export N=4 M=2\nrun $((N * M)) $(($N+${M}))", ["run", "8", "6"]),
        ("run a # b\n", ["run", "a"]),
        ("run a#b", ["run", "a#b"]),
        ("run a > log 2>&1", ["run", "a"]),
        ("run a 2>&1 | tee log\n: end", [":", "end"]),
        ("cat <<EOF > f\nrun '\nEOF\nrun b", ["run", "b"]),
        ("f() { run $X; }\nX=3\nf", ["run", "3"]),
        ("X=1; { X=2; }; (X=3); run $X", ["run", "2"]),
        ("for i in 1 2; do X=$i; done\nrun a$Y", ["run", "a"]),
        ("CMD=\"run --x 1\"\n$CMD", ["run", "--x", "1"]),
        ("eval run --x 1", ["eval", "run", "--x", "1"]),
        ("run $'a b'", ["run", "a b"]),
    ],
)  # fmt: skip
def test_words(script: str, wanted: list[str]) -> None:
    assert words(script) == wanted


@pytest.mark.parametrize(
    ("condition", "truth"),
    [
        ("[ \"$D\" = fp8 ]", True), ("[[ $D == fp* ]]", True), ("[[ $D == \"fp*\" ]]", False),
        ("[ $N -gt 1 ]", True), ("[ $N -eq 1 ]", False), ("[[ $N -ge 8 && $D != bf16 ]]", True),
        ("[ -z \"$UNSET\" ]", True), ("[ -n \"$UNSET\" ]", False), ("! [ $N -eq 1 ]", True),
        ("[ ! -z \"$N\" ]", True), ("(( N > 4 ))", True), ("((N==4))", False), ("true", True),
        ("[ \"$D\" = bf16 ] || [ $N = 8 ]", True), ("[ \"$D\" = bf16 ] && [ $N = 8 ]", False),
        ("[[ ( $N -gt 9 || $D == fp8 ) && $N -lt 9 ]]", True), ("test $N = 8", True),
    ],
)  # fmt: skip
def test_conditions(condition: str, truth: bool) -> None:
    script = f"D=fp8\nN=8\nif {condition}; then X=yes; else X=no; fi\nrun $X"
    assert words(script) == ["run", "yes" if truth else "no"]


def test_case() -> None:
    script = "case $S in\n 7B) L=32 ;;\n 70B|72B) L=80;;\n *) exit 1;;\nesac\nrun $L"
    assert words(f"S=72B\n{script}") == ["run", "80"]


@pytest.mark.parametrize(
    "script",
    [
        "if [ -f config ]; then TP=4; else TP=8; fi\nrun $TP",
        "if [[ $(hostname) == a ]]; then TP=4; fi\nrun $TP",
        "TP=$(cat tp)\nrun $TP",
        "TP=`cat tp`\nrun $TP",
        "run $TP",
        "run $1",
        "while true; do TP=2; done\nrun $TP",
        "N=$((M * 2))\nrun $N",
    ],
)
def test_what_only_an_execution_tells_has_no_value(script: str) -> None:
    token = ran(script)[-1]
    assert not token.text
    assert token.holes


def test_both_branches_that_agree_have_a_value() -> None:
    assert words("if [ -f c ]; then A=1; B=2; else A=1; B=3; fi\nrun $A") == ["run", "1"]
    assert words("A=1\nif [ ! -d c ]; then A=2; exit 1; fi\nrun $A") == ["run", "1"]


def test_lines_reach_through_variables_and_strings() -> None:
    script = 'TP=8\nARGS="\n  --x 1 \\\n  --y $TP\n"\nrun $ARGS'
    lines = {token.text: token.line for token in ran(script)}
    assert lines == {"run": 6, "--x": 3, "1": 3, "--y": 4, "8": 1}


@pytest.mark.parametrize(
    ("script", "line"),
    [
        ("run 'a", 1), ("a\nrun \"b", 2), ("A=(1\n2", 1), ("if true; then\nrun", 1),
        ("run ${A", 1), ("run $((1+", 1), ("run )", 1), ("a\n\nrun --x Et*9|(t*10|)*6", 3),
        ("case $x in a) b", 1), ("run $(a", 1), ("run `a", 1), ("for i in a; run", 1),
    ],
)  # fmt: skip
def test_what_is_no_bash_is_told_with_its_line(script: str, line: int) -> None:
    with pytest.raises(InputError, match=rf"run\.sh: line {line}\b"):
        parse(script, "run.sh")


def test_growth_and_depth_end() -> None:
    doubling = "A=xxxxxxxxxxxxxxxx\n" + "A=$A$A\n" * 40 + "run $A"
    with pytest.raises(InputError, match="longer than"):
        ran(doubling)
    with pytest.raises(InputError, match="more text"):
        ran(f"A={'x' * 200_000}\n" + "run $A\n" * 200)
    with pytest.raises(InputError, match="steps"):
        ran("f() { f; f; }\nf\nrun")
    with pytest.raises(InputError, match="deeper"):
        parse("{ " * 500 + "run" + "; }" * 500, "run.sh")
    with pytest.raises(InputError, match="deeper"):
        parse("run " + "${A:-" * 500 + "}" * 500, "run.sh")
    with pytest.raises(InputError, match="larger than"):
        parse("#" * (1 << 21), "run.sh")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1+2*3", 7), ("(1+2)*3", 9), ("7/2", 3), ("-7/2", -3), ("-7%3", -1), ("2**10", 1024),
        ("2**3**2", 512), ("010", 8), ("!0", 1), ("3>2 && 2>3", 0), ("1 || 1/0 > 2", None), ("1/0", None),
        ("2**99", None), ("1+", None), ("a+1", None), ("n*2", 8), ("$n+1", 5), ("9" * 30, None),
        ("(" * 500 + "1" + ")" * 500, None), ("", None), ("1;2", None),
    ],
)  # fmt: skip
def test_arithmetic(text: str, value: int | None) -> None:
    assert arithmetic(text, {"n": 4}.get) == value


ATOMS = st.recursive(
    st.integers(0, 99).map(str),
    lambda inner: st.tuples(inner, st.sampled_from("+-*"), inner).map(lambda t: f"({' '.join(t)})"),
    max_leaves=12,
)


@settings(max_examples=60, deadline=None)
@given(text=ATOMS)
def test_arithmetic_agrees_with_python(text: str) -> None:
    assert arithmetic(text, lambda _: None) == eval(text)


SNIPPETS = st.lists(
    st.sampled_from([
        "A=1", "A=x", "B=$A", "B=\"$A y\"", "C=(1 \"2 3\" $A)", "C+=(4)", "A+=z", "B=${A:-9}",
        "B=${U:-7}", "unset A", "C=($B)", "B=$((2 * 3))", "if [ \"$A\" = x ]; then A=q; fi",
        "[ -z \"$A\" ] && A=w", "A='s  t'", "case $A in x*) B=c ;; *) B=d ;; esac", "B=${C[0]}",
    ]),
    max_size=8,
)  # fmt: skip


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash to compare with")
@settings(max_examples=25, deadline=None)
@given(lines=SNIPPETS)
def test_words_are_those_of_bash(lines: list[str]) -> None:
    """Whatever has a value here has the same words there."""
    use = 'run "${A:-}" ${B:-} ${C[@]:-} "${C[*]:-}"'
    script = "\n".join([*lines, use])
    prelude = 'run() { printf "%s\\n" "$#" "$@"; }\n'
    done = subprocess.run(
        ["bash", "-c", prelude + script], capture_output=True, text=True, check=True,
        env={"PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    tokens = ran(script)[1:]
    if any(token.holes for token in tokens):
        return
    assert [token.text for token in tokens] == done.stdout.splitlines()[1:]


def test_samples_expand_as_bash_expands_them(samples: Path, tmp_path: Path) -> None:
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("no bash to compare with")
    for file in sorted(samples.glob("megatron/*.sh")):
        text = file.read_text()
        prelude = 'torchrun() { printf "%s\\n" torchrun "$@"; }\n'
        done = subprocess.run(
            [bash, "-c", prelude + text], capture_output=True, text=True, check=True, cwd=tmp_path
        )
        assert words(text) == done.stdout.splitlines(), file.name
