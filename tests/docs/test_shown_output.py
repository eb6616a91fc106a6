"""Every console block of the documents shows what its commands print.

``python tests/docs/test_shown_output.py`` runs them again and rewrites blocks and pictures. A block
is a fence of language ``console`` whose commands begin with ``$``. A comment before it picks what
is shown of the output, everything else becomes ``...``::

    <!-- show: FROM .. TO ; FROM +COUNT -->

FROM and TO are parts of the first and last line of a range, COUNT is its number of lines. A comment
``<!-- file: NAME -->`` before a fence makes a file of it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import pytest


ROOT = Path(__file__).resolve().parents[2]
# The pages that make the folders which others read come first.
FIRST = ("README.md", "docs/tuning.md")
PICTURES = "out/llama70b/charts"
# Pictures of other commands -> their names in docs/images.
TIMELINES = {
    "out/timeline/timeline.png": "timeline.png",
    "out/timeline-split/timeline.png": "timeline_split.png",
}
FENCE = re.compile(
    r"(?:<!-- (?P<kind>show|file): (?P<note>.*?) -->\n)?"
    r"^```(?P<language>\w+)\n(?P<body>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)


def pages() -> list[Path]:
    """All pages in the order in which they are run."""
    english = [*(ROOT / name for name in FIRST), *sorted((ROOT / "docs").glob("*.md"))]
    chinese = [ROOT / "README.zh.md", *sorted((ROOT / "docs/zh").glob("*.md"))]
    return list(dict.fromkeys([*english, *chinese]))


class Session:
    """A folder in which commands run once each, whatever page shows them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._said: dict[str, tuple[int, list[str]]] = {}
        if not (folder / "examples").exists():
            (folder / "examples").symlink_to(ROOT / "examples", target_is_directory=True)

    def run(self, command: str) -> tuple[int, list[str]]:
        """(exit code, lines of both streams) of a command."""
        if command not in self._said:
            path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
            done = subprocess.run(
                ["bash", "-c", command.replace("python3 dev.py run", "autopar")],
                cwd=self.folder,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PATH": path, "COLUMNS": "140"},
                check=False,
            )
            lines = [line.rstrip() for line in done.stdout.decode().splitlines()]
            self._said[command] = done.returncode, lines
        return self._said[command]


def picked(lines: list[str], note: str | None) -> list[str]:
    """The ranges that a comment names, with ``...`` for what is left out."""
    if note is None:
        return lines
    found: list[str] = []
    end = 0
    for part in note.split(" ; "):
        count = re.fullmatch(r"(.+) \+(\d+)", part)
        first, last = (count[1], "") if count else part.split(" .. ")
        start = next(i for i in range(end, len(lines)) if first in lines[i])
        if count:
            stop = start + int(count[2])
        else:
            stop = next(i for i in range(start, len(lines)) if last in lines[i]) + 1
        found += ["..."] * (start > end) + lines[start:stop]
        end = stop
    return found + ["..."] * any(lines[end:])


def squeezed(lines: list[str]) -> Iterator[str]:
    """Lines without blank ones at the ends, and no two blank ones in a row."""
    text = "\n".join(lines).strip("\n")
    yield from re.sub(r"\n{3,}", "\n\n", text).splitlines()


def block(session: Session, body: str, note: str | None) -> str:
    """The block as it should be."""
    shown: list[str] = []
    code = 0
    for command in (line[2:] for line in body.splitlines() if line.startswith("$ ")):
        if command == "echo $?":
            lines = [str(code)]
        else:
            code, lines = session.run(command)
            lines = list(squeezed(picked(lines, note)))
        shown += [f"$ {command}", *lines]
    return "\n".join(shown) + "\n"


def rendered(session: Session, page: Path) -> str:
    """The page with every block run again."""

    def replace(match: re.Match[str]) -> str:
        if match["kind"] == "file":
            (session.folder / match["note"]).write_text(match["body"], encoding="utf-8")
        if match["language"] != "console":
            return match[0]
        note = match["note"] if match["kind"] == "show" else None
        try:
            fresh = block(session, match["body"], note)
        except StopIteration:
            raise AssertionError(f"{page.name}: nothing matches {match['note']!r}") from None
        return match[0].replace(match["body"], fresh)

    return FENCE.sub(replace, page.read_text(encoding="utf-8"))


def small(picture: Path) -> bytes:
    """A chart with 256 colours: a third of its bytes, and nobody sees the difference."""
    from PIL import Image

    made = BytesIO()
    with Image.open(picture) as image:
        image.convert("RGB").quantize(256).save(made, "PNG", optimize=True)
    return made.getvalue()


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_blocks_show_what_commands_print(tmp_path: Path) -> None:
    session = Session(tmp_path)
    stale = [
        page.relative_to(ROOT).as_posix()
        for page in pages()
        if rendered(session, page) != page.read_text(encoding="utf-8")
    ]
    assert not stale, f"run python tests/docs/test_shown_output.py to renew {', '.join(stale)}"


def main() -> None:
    """Renew every block and picture."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        session = Session(Path(folder))
        for page in pages():
            page.write_text(rendered(session, page), encoding="utf-8")
        for picture in sorted((Path(folder) / PICTURES).glob("*.png")):
            (ROOT / "docs/images" / picture.name).write_bytes(small(picture))
        for made, name in TIMELINES.items():
            (ROOT / "docs/images" / name).write_bytes(small(Path(folder) / made))


if __name__ == "__main__":
    main()
