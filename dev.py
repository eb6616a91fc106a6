#!/usr/bin/env python3
"""The door to a checkout: makes `.venv` beside this file, then runs autopar or the checks in it.

    python3 dev.py run ARGS...     autopar ARGS (from your current folder)
    python3 dev.py test [ARGS...]  pytest ARGS (from the root of the checkout)
    python3 dev.py accuracy        the accuracy page and the residuals, from tests/data
    python3 dev.py lint            ruff, mypy and import-linter
    python3 dev.py setup           only make or renew .venv

Standard library only. The environment is made on first use and renewed when a pyproject.toml,
a requirements file, the interpreter or the checkout's place changes. Remove `.venv` to start over.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import platform
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn


ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
PYTHON = VENV / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
STAMP = VENV / "dev-stamp"
REQUIREMENTS = ROOT / "requirements-dev.txt"
CONSTRAINTS = ROOT / "constraints.txt"
SETUP_FAILED = 3  # 0, 1 and 2 are answers of autopar itself


def wanted_stamp() -> str:
    """The interpreter's version, and a hash of all that decides what is installed where."""
    files = [ROOT / "pyproject.toml", *sorted(ROOT.glob("plugins/*/pyproject.toml"))]
    digest = hashlib.sha256(f"{sys.version}\0{ROOT}".encode())
    for file in [*files, REQUIREMENTS, CONSTRAINTS]:
        digest.update(f"\0{file.relative_to(ROOT).as_posix()}\0".encode() + file.read_bytes())
    return f"{platform.python_version()} {digest.hexdigest()}"


def current_stamp() -> str:
    """The stamp of the last installation that went through; empty if there is none."""
    return STAMP.read_text() if PYTHON.exists() and STAMP.exists() else ""


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """Lets a second dev.py of the same checkout wait instead of installing into the same place."""
    with open(__file__, "rb") as handle:
        try:
            import fcntl

            fcntl.flock(handle, fcntl.LOCK_EX)
        except (ImportError, OSError):  # Windows, some network drives: do without
            pass
        yield


def stop(message: str) -> NoReturn:
    print(f"dev.py: {message}", file=sys.stderr)
    sys.exit(SETUP_FAILED)


def quietly(*command: str | Path) -> None:
    """Runs a step of the set-up; shows its output only if it fails."""
    done = subprocess.run(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
    )
    if done.returncode != 0:
        sys.stderr.write(done.stdout.decode(errors="replace"))
        stop(f"setting up .venv failed at: {' '.join(map(str, command))}")


def set_up() -> None:
    """Makes `.venv` match the checkout; does nothing if it does already."""
    wanted = wanted_stamp()
    if current_stamp() == wanted:
        return
    if importlib.util.find_spec("ensurepip") is None:
        stop("this Python has no ensurepip; on Debian or Ubuntu install python3-venv, then retry")
    with one_at_a_time():
        current = current_stamp()
        if current == wanted:  # another dev.py did it meanwhile
            return
        print("setting up .venv (once) …", file=sys.stderr, flush=True)
        # No stamp means that an earlier set-up was cut short: start from nothing.
        STAMP.unlink(missing_ok=True)
        if current.split(" ")[0] != platform.python_version():
            quietly(sys.executable, "-m", "venv", "--clear", VENV)
        # Bytecode is written when a module is first imported: most of it never is.
        pip = (PYTHON, "-m", "pip", "install", "-q", "--no-compile", "--disable-pip-version-check")
        # One build backend for all distributions instead of an isolated environment for each.
        quietly(*pip, "-c", CONSTRAINTS, "hatchling", "editables")
        quietly(*pip, "--no-build-isolation", "-c", CONSTRAINTS, "-r", REQUIREMENTS)
        STAMP.write_text(wanted)


def hand_over(*arguments: str) -> NoReturn:
    """Becomes `.venv`'s Python with these arguments: same signals, same exit code."""
    sys.stdout.flush()
    if os.name == "posix":
        os.execv(PYTHON, [str(PYTHON), *arguments])
    sys.exit(subprocess.call([PYTHON, *arguments]))


def lint() -> int:
    """Runs every check, whatever the earlier ones say; 0 if all are content."""
    packages = sorted(file.parent.name for file in ROOT.glob("plugins/*/src/*/__init__.py"))
    distributions = [f"-p{name}" for name in ["autopar_core", *packages]]
    checks = {
        "ruff check": ["-m", "ruff", "check", "--quiet", "."],
        "ruff format": ["-m", "ruff", "format", "--quiet", "--check", "."],
        "mypy": ["-m", "mypy", "--no-error-summary", *distributions],
        "mypy dev.py": ["-m", "mypy", "--no-error-summary", "dev.py"],
        "import-linter": [
            "-c",
            "import sys; from importlinter.cli import lint_imports as f; sys.exit(f(no_logo=True))",
        ],
    }
    failed = [
        name
        for name, arguments in checks.items()
        if subprocess.call([PYTHON, *arguments], cwd=ROOT) != 0
    ]
    print(f"lint: {'failed: ' + ', '.join(failed) if failed else 'all checks passed'}")
    return 1 if failed else 0


def spread(arguments: Sequence[str]) -> list[str]:
    """A process per core, a file of tests to each; not where a person debugs or says otherwise."""
    alone = ("-n", "--dist", "--pdb", "-s", "--collect-only", "--co")
    return (
        []
        if any(each.startswith(alone) for each in arguments)
        else ["-n", "auto", "--dist", "loadfile"]
    )


def main(arguments: Sequence[str]) -> int:
    if sys.version_info < (3, 11):  # noqa: UP036  (the reader's Python may well be older)
        stop(f"autopar needs Python 3.11 or newer; this is {platform.python_version()}")
    command, rest = (arguments[0], arguments[1:]) if arguments else ("", [])
    if command not in {"run", "test", "accuracy", "lint", "setup"}:
        print(__doc__, file=sys.stderr)
        return 2
    set_up()
    if command == "run":
        hand_over("-m", "autopar_core", *rest)
    if command == "accuracy":
        hand_over(str(ROOT / "tests" / "accuracy" / "make.py"), *rest)
    if command == "test":
        os.chdir(ROOT)
        hand_over("-m", "pytest", *spread(rest), *rest)
    return lint() if command == "lint" else 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:  # during the set-up; the next run starts it afresh
        sys.exit(130)
