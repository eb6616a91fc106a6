"""Training frameworks for tests: installed from the package index, apart from the tests' environment.

Frameworks bring gigabytes and their own versions of everything, so they go into environments of their
own, made at first use and kept beside the current one.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path


INSTALL_SECONDS = 800
_STAMP = "complete"


class Unavailable(Exception):  # noqa: N818  (a reason to skip, not a fault)
    """A framework cannot be had here; the text says why."""


def python_with(name: str, requirements: Sequence[str]) -> Path:
    """The interpreter of an environment that has some distributions.

    Args:
        name: Name of its folder; tests that name the same environment share it.
        requirements: What is installed there.

    Raises:
        Unavailable: When the index does not give them.
    """
    folder = _folder(name, requirements)
    python = folder / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    if not _made(folder):
        _run(f"no environment for {name}", sys.executable, "-m", "venv", "--clear", str(folder))
        _run(f"{name} cannot be installed", str(python), *_PIP, "--no-compile", *requirements)
        (folder / _STAMP).touch()
    return python


def unpacked(requirement: str, python: str = "") -> Path:
    """The folder with the modules of one wheel, without what it depends on.

    Args:
        requirement: One distribution.
        python: Take the wheel for this version of Python, ``"3.12"``; its pure modules may well run
            on another.

    Raises:
        Unavailable: When the index has no such wheel.
    """
    options = ["--python-version", python, "--ignore-requires-python"] if python else []
    folder = _folder(requirement, [requirement, python])
    if not _made(folder):
        shutil.rmtree(folder, ignore_errors=True)
        _run(f"{requirement} cannot be had", sys.executable, *_PIP, "--no-deps", "--no-compile",
             "--only-binary=:all:", *options, "--target", str(folder), requirement)  # fmt: skip
        (folder / _STAMP).touch()
    return folder


_PIP = ("-m", "pip", "install", "-q", "--disable-pip-version-check")


def _folder(name: str, parts: Sequence[str]) -> Path:
    inside = Path(sys.prefix) if sys.prefix != sys.base_prefix else Path(tempfile.gettempdir())
    text = "\0".join([sys.version, *parts])
    safe = "".join(char if char.isalnum() else "-" for char in name)
    return inside / "frameworks" / f"{safe}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def _made(folder: Path) -> bool:
    return (folder / _STAMP).exists()


def _run(failure: str, *command: str) -> None:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise Unavailable(f"{failure}: not done after {INSTALL_SECONDS} s") from None
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith("ERROR")] or lines[-1:]
        raise Unavailable(f"{failure}: {errors[0] if errors else 'no reason given'}")
