"""Runs of the real command line on small inputs, and jobs for tests that look inside a search."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Mapping
from contextlib import redirect_stderr, redirect_stdout
from functools import cached_property
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from autopar_core.cli.main import main
from autopar_core.cli.session import SHIPPED, load_plugins
from autopar_core.config.load import load_job
from autopar_core.config.overrides import Overrides


ROOT = Path(__file__).resolve().parents[2]
DIMENSIONS = ("dp", "tp", "pp", "cp")
# Eight layers, 12 query and 4 key/value heads, a vocabulary that no degree above two divides.
TINY = {
    "num_layers": 8, "hidden": 1536, "ffn_hidden": 4608, "heads": 12, "kv_heads": 4, "vocab": 32002,
}  # fmt: skip


class Answer:
    """What one command line gave."""

    def __init__(self, code: int, out: str, err: str, folder: Path | None) -> None:
        self.code, self.out, self.err, self.folder = code, out, err, folder

    @cached_property
    def document(self) -> dict[str, Any]:
        """result.json."""
        assert self.folder is not None
        made: dict[str, Any] = json.loads((self.folder / "result.json").read_text())
        return made

    @property
    def best(self) -> list[dict[str, Any]]:
        """The top-k strategies."""
        found: list[dict[str, Any]] = self.document["top_k_strategies"]
        return found

    def table(self, name: str) -> list[dict[str, str]]:
        """A CSV file of the run."""
        assert self.folder is not None
        with (self.folder / name).open(newline="") as file:
            return list(csv.DictReader(file))

    def files(self) -> dict[str, bytes]:
        """Every file of the run, by name."""
        assert self.folder is not None
        paths = sorted(path for path in self.folder.rglob("*") if path.is_file())
        return {path.relative_to(self.folder).as_posix(): path.read_bytes() for path in paths}


def run_line(*arguments: object, out: Path | None = None) -> Answer:
    """Run a command line in this process; ``out`` becomes ``--out``."""
    line = [str(each) for each in arguments] + (["--out", str(out)] if out else [])
    written, said = io.StringIO(), io.StringIO()
    with redirect_stdout(written), redirect_stderr(said):
        code = main(line)
    return Answer(code, written.getvalue(), said.getvalue(), out)


def spelled(value: Any) -> str:
    """A value as TOML has it."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key} = {spelled(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(spelled, value)) + "]"
    return json.dumps(value)


def input_text(tables: Mapping[str, Mapping[str, Any]]) -> str:
    """An input file."""
    lines = []
    for section, table in tables.items():
        lines.append(f"[{section}]")
        lines += [f"{key} = {spelled(value)}" for key, value in table.items()]
    return "\n".join(lines) + "\n"


def small_input(**sections: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Eight H100 and the tiny model; ``sections`` are merged into it, key by key."""
    made: dict[str, dict[str, Any]] = {
        "model": dict(TINY),
        "training": {"global_batch_size": 16, "seq_len": 4096},
        "cluster": {"system": "h100-sxm-80gb", "devices": 8},
        "framework": {"name": "generic"},
        "search": {"micro_batch_size": [1, 2], "layer_recompute": ["none", "auto"]},
    }
    for section, table in sections.items():
        if "source" in table:
            made[section] = {}
        made.setdefault(section, {}).update(table)
    return made


class Kit:
    """What the tests share."""

    root = ROOT
    dimensions = DIMENSIONS
    tiny = TINY
    Answer = Answer
    run = staticmethod(run_line)
    input = staticmethod(small_input)

    @staticmethod
    def write(path: Path, **sections: Mapping[str, Any]) -> Path:
        """A small input as a file."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(input_text(small_input(**sections)))
        return path

    @staticmethod
    def manager(*extra: tuple[str, object], **options: Any) -> Any:
        """Installed plugins, those of the core, and ``extra``."""
        if not extra:
            return load_plugins(**options)
        from importlib import import_module

        from autopar_core.plugins import PluginManager

        shipped = [(name, import_module(module)) for name, module in SHIPPED.items()]
        return PluginManager.load(extra=[*shipped, *extra], **options)

    @staticmethod
    def job(manager: Any, **sections: Mapping[str, Any]) -> Any:
        """A small input as a job."""
        return load_job(None, small_input(**sections), Overrides(), manager)


@pytest.fixture(scope="session")
def kit() -> Kit:
    return Kit()


@pytest.fixture(scope="session")
def check_schema() -> Callable[[Any], None]:
    """Fails when a result.json is not what the schema says."""
    schema = json.loads((ROOT / "docs" / "result.schema.json").read_text())
    validator_class = jsonschema.validators.validator_for(schema)
    validator_class.check_schema(schema)
    validator = validator_class(schema)

    def check(document: Any) -> None:
        error = jsonschema.exceptions.best_match(validator.iter_errors(document))
        assert error is None, f"{error.json_path}: {error.message}"

    return check


@pytest.fixture(scope="session")
def no_traceback() -> Callable[[Answer], None]:
    """Fails when a person would see a fault of the program."""

    def check(answer: Answer) -> None:
        for text in (answer.out, answer.err):
            assert "Traceback" not in text
            assert "autopar itself failed" not in text, text

    return check


@pytest.fixture(scope="session")
def drawn(kit: Kit, tmp_path_factory: pytest.TempPathFactory) -> Answer:
    """A run with charts, made once: drawing takes seconds. Its input lies beside the folder."""
    folder = tmp_path_factory.mktemp("drawn")
    search = {"micro_batch_size": [1, 2], "layer_recompute": "none", "cp": [1, 2], "top_k": 6}
    path = kit.write(folder / "in.toml", cluster={"memory_limit": "9 GiB"}, search=search)
    return run_line("search", path, out=folder / "out")


@pytest.fixture
def search(tmp_path: Path) -> Callable[..., Answer]:
    """Searches a file without charts into a fresh folder."""
    count = 0

    def run(*arguments: object) -> Answer:
        nonlocal count
        count += 1
        return run_line("search", *arguments, "--no-charts", out=tmp_path / f"run{count}")

    return run
