"""Files that are too large, too deep or no text are refused fast, in bounded memory, in a sentence."""

from __future__ import annotations

import time
import tracemalloc
from pathlib import Path

import pytest

from autopar_core.api import InputError, read_json, read_toml_text, read_yaml
from autopar_core.cli.main import main
from autopar_core.config.documents import MAX_BYTES


# An alias bomb: 9 levels of 9 aliases are 3.9e8 values.
BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 9)
)
MERGES = "m0: &m0 {k: 1}\n" + "".join(
    f"m{n}: &m{n} {{<<: [{', '.join([f'*m{n - 1}'] * 9)}]}}\n" for n in range(1, 9)
)
NANOTRON = "model: {model_config: 1}\ntokens: 1\nparallelism: 1\n"
FILES: dict[str, tuple[bytes, str]] = {
    "large.json": (b'{"model_type": "' + b"x" * (MAX_BYTES + 10) + b'"}', "is larger than 4 MiB"),
    "nul.json": (b'{"model_type": "llama"\0}', "is a binary file"),
    "random.bin": (bytes(range(256)) * 64, "is a binary file"),
    "utf16.json": ('{"model_type": "llama"}'.encode("utf-16"), "is UTF-16 text; save it as UTF-8"),
    "latin.sh": ("# Gr\u00f6\u00dfe\n".encode("latin-1"), "line 1 is no UTF-8 text"),
    "gbk.sh": ("a=1\n# \u6a21\u578b\n".encode("gbk"), "line 2 is no UTF-8 text"),
    "deep.json": (b'{"model_type": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "is nested deeper"),
    "deeper.json": (b'{"model_type": ' + b'{"a":' * 90 + b"1" + b"}" * 91, "is nested deeper"),
    "cut.json": (b'{"model_type": "llama", ', "is no valid JSON"),
    "twice.json": (
        b'{"model_type": "llama", "model_type": "gpt2"}',
        "key model_type is given twice",
    ),
    "digits.json": (b'{"model_type": ' + b"9" * 5000 + b"}", "a number that is too long"),
    "list.json": (b'{"hidden_size": 1} []', "is no valid JSON"),
    "bomb.yaml": ((NANOTRON + BOMB).encode(), "with its aliases written out"),
    "merges.yaml": ((NANOTRON + MERGES).encode(), "with its aliases written out"),
    "deep.yaml": ((NANOTRON + "a: " + "[" * 5000 + "]" * 5000).encode(), "is nested deeper"),
    "python.yaml": (
        (NANOTRON + "a: !!python/object/apply:os.getcwd []").encode(),
        "is no valid YAML",
    ),
    "keys.yaml": ((NANOTRON + "tokens: 2\n").encode(), "key tokens is given twice, lines 2 and 4"),
    "self.yaml": ((NANOTRON + "a: &a [*a]\n").encode(), "stands inside its own anchor"),
    "empty.json": (b"", "no reader knows the content"),
}


@pytest.mark.parametrize("name", FILES)
def test_hostile_file_is_refused_fast(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content, said = FILES[name]
    (tmp_path / name).write_bytes(content)
    start = time.perf_counter()
    tracemalloc.start()
    assert main(["model", str(tmp_path / name)]) == 2
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert "Traceback" not in error
    assert str(tmp_path) not in error
    assert time.perf_counter() - start < 5
    assert peak < 100 * 2**20


def test_a_file_of_100_mb_is_not_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "huge.json"
    with path.open("wb") as file:
        file.truncate(100 * 2**20)
    tracemalloc.start()
    assert main(["model", str(path)]) == 2
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert "is larger than 4 MiB" in capsys.readouterr().err
    assert peak < 50 * 2**20


def test_a_fifo_or_folder_is_no_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["model", str(tmp_path / "none.json")]) == 2
    assert main(["model", str(tmp_path) + "/"]) == 2
    assert main(["model", "x" * 5000 + ".json"]) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_yaml_knows_the_line_of_every_key() -> None:
    document = read_yaml("a:\n  b: 1\n  c: &c {d: 2}\ne: *c\nf: [{g: 1}]\n", "x.yaml")
    assert document.place("a.b") == "line 2, a.b"
    assert document.place("a.c.d") == "line 3, a.c.d"
    assert document.get("e.d") == 2
    assert document.place("f.0.g") == "line 5, f.0.g"
    assert document.get("a.x", 7) == 7
    assert document.whole("a.b") == 1


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (lambda d: d.whole("a"), "x.json: key a: expected a whole number, got 'auto'"),
        (lambda d: d.whole("b"), "x.json: key b: expected a whole number, got True"),
        (lambda d: d.whole("n"), "x.json: key n: must be 1 or more, got -1"),
        (lambda d: d.flag("a"), "x.json: key a: expected true or false, got 'auto'"),
        (lambda d: d.text("n"), "x.json: key n: expected a text, got -1"),
        (lambda d: d.section("n"), "x.json: key n: expected a table, got -1"),
        (lambda d: d.whole("none"), "x.json: has no key none; expected a whole number there"),
    ],
)
def test_a_value_of_the_wrong_kind_is_one_sentence(ask: object, said: str) -> None:
    document = read_json('{"a": "auto", "b": true, "n": -1}', "x.json")
    with pytest.raises(InputError) as caught:
        ask(document)  # type: ignore[operator]
    assert str(caught.value) == said


def test_deep_toml_is_refused() -> None:
    with pytest.raises(InputError, match="nested deeper"):
        read_toml_text("a = " + "[" * 3000 + "]" * 3000, "x.toml")
