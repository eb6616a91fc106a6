"""Writes the folder of a run: whole, or not at all."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Collection, Mapping
from pathlib import Path

from autopar_core.cli.earlier import RESULT, is_result
from autopar_core.errors import InputError


# What a run of this version writes at the top of its folder.
_USUAL = {RESULT, "candidates.csv", "rejected.csv", "charts", "report.html", "search.log"}


def check_target(folder: Path) -> None:
    """Whether a run may be written there; asked before the search, which may take long.

    Raises:
        InputError: When the place holds something that is not an earlier run.
    """
    where = f"--out {folder}"
    if not folder.exists():
        return
    if not folder.is_dir():
        raise InputError(where, "is a file; name a folder")
    if Path.cwd().is_relative_to(folder.resolve()):
        raise InputError(where, "is the current folder or holds it; name a folder of its own")
    if any(folder.iterdir()) and not _is_run(folder):
        raise InputError(
            where, "is neither empty nor an earlier run of autopar; name another folder"
        )


def write_files(folder: Path, files: Mapping[str, bytes], ours: Collection[str] = ()) -> None:
    """Write the files of a folder that holds nothing else, all or none.

    Args:
        folder: Where.
        files: Name -> content.
        ours: Names besides those of ``files`` that an earlier call may have left.

    Raises:
        InputError: When the place cannot be written or holds files of someone else.
    """
    where = f"--out {folder}"
    if folder.exists():
        if not folder.is_dir():
            raise InputError(where, "is a file; name a folder")
        if Path.cwd().is_relative_to(folder.resolve()):
            raise InputError(where, "is the current folder or holds it; name a folder of its own")
        strangers = sorted(
            path.name for path in folder.iterdir() if path.name not in {*files, *ours}
        )
        if strangers:
            shown = ", ".join(strangers[:3])
            raise InputError(where, f"holds other files ({shown}); name a folder of its own")
    _put(folder, files)


def write_folder(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write all files beside the place, then put them there in one move.

    Raises:
        InputError: When the place cannot be written or holds files of someone else.
    """
    check_target(folder)
    _check_strangers(folder, files)
    _put(folder, files)


def _put(folder: Path, files: Mapping[str, bytes]) -> None:
    target = folder.resolve()
    fresh = target.with_name(f".{target.name}.new-{os.getpid()}")
    try:
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            for name, content in files.items():
                path = fresh / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
            _swap(fresh, target)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
    except OSError as error:
        raise InputError(f"--out {folder}", f"cannot be written: {error.strerror}") from error


def _swap(fresh: Path, target: Path) -> None:
    if not target.exists():
        fresh.rename(target)
        return
    old = target.with_name(f".{target.name}.old-{os.getpid()}")
    target.rename(old)
    try:
        fresh.rename(target)
    except OSError:
        old.rename(target)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _is_run(folder: Path) -> bool:
    try:
        return is_result(json.loads((folder / RESULT).read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return False


def _check_strangers(folder: Path, files: Mapping[str, bytes]) -> None:
    """An earlier run is replaced, but never together with files that no run wrote."""
    if not folder.exists():
        return
    ours = _USUAL | {name.split("/")[0] for name in files}
    strangers = sorted(path.name for path in folder.iterdir() if path.name not in ours)
    if strangers:
        shown = ", ".join(strangers[:3])
        raise InputError(
            f"--out {folder}", f"holds files that are no part of a run ({shown}); move them away"
        )


def add_files(folder: Path, files: Mapping[str, bytes], where: str) -> None:
    """Write files into a folder that may hold others, each whole or not at all.

    Raises:
        InputError: When the place cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            fresh = folder / f".{name}.new-{os.getpid()}"
            fresh.write_bytes(content)
            fresh.replace(folder / name)
    except OSError as error:
        raise InputError(where, f"cannot be written: {error.strerror}") from None
