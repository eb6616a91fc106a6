"""The documents name what the program has: links, commands, options, fields."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import click
import pytest

from autopar_core.cli import main as command_line
from autopar_core.cli.session import load_plugins
from autopar_core.config.load import SECTIONS
from autopar_core.config.search_section import Keys
from autopar_core.domain.model import ModelConfig
from autopar_core.plugins.fields import declared_fields


ROOT = Path(__file__).resolve().parents[2]
LANGUAGES = {"en": ("README.md", "docs"), "zh": ("README.zh.md", "docs/zh")}
COMMANDS = (
    "python3 dev.py run search examples/llama3_70b_256xh100.toml --out out/llama70b",
    "python3 dev.py test",
)
LINK = re.compile(r"!?\[[^\]]*\]\((?P<target>[^)\s]+)\)")
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)


def documents() -> list[Path]:
    """READMEs, pages, records and plugin documents."""
    return [
        ROOT / "README.md",
        ROOT / "README.zh.md",
        *sorted((ROOT / "docs").rglob("*.md")),
    ]


@cache
def text_of(language: str) -> str:
    """Everything that a reader of one language has, without the plugin documents."""
    readme, folder = LANGUAGES[language]
    pages = sorted((ROOT / folder).glob("*.md"))
    return "\n".join(page.read_text(encoding="utf-8") for page in [ROOT / readme, *pages])


def page_of(language: str, name: str) -> str:
    return (ROOT / LANGUAGES[language][1] / name).read_text(encoding="utf-8")


def anchors(page: Path) -> set[str]:
    """Anchors of a page's headings as GitHub makes them."""
    titles = HEADING.findall(page.read_text(encoding="utf-8"))
    plain = (re.sub(r"[^\w\- ]", "", title.lower()) for title in titles)
    return {title.strip().replace(" ", "-") for title in plain}


@pytest.mark.parametrize("page", documents(), ids=lambda p: p.relative_to(ROOT).as_posix())
def test_links_resolve(page: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    broken = []
    for target in LINK.findall(text):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        linked = page if not path else (page.parent / path).resolve()
        if not linked.exists() or (anchor and anchor not in anchors(linked)):
            broken.append(target)
    assert not broken


@pytest.mark.parametrize("readme", ["README.md", "README.zh.md"])
def test_readme_names_the_two_commands(readme: str) -> None:
    text = (ROOT / readme).read_text(encoding="utf-8")
    first = re.search(r"^```\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    assert first is not None
    assert tuple(first[1].splitlines()) == COMMANDS


def test_each_page_has_its_twin() -> None:
    english = {page.name for page in (ROOT / "docs").glob("*.md")}
    chinese = {page.name for page in (ROOT / "docs/zh").glob("*.md")}
    assert english == chinese


@pytest.mark.parametrize("name", sorted(p.name for p in (ROOT / "docs").glob("*.md")))
def test_twins_show_the_same(name: str) -> None:
    """Same console and code blocks, tables of the same size, same pictures."""
    fence = re.compile(r"^```\w+\n.*?^```$", re.DOTALL | re.MULTILINE)
    both = [page_of(language, name) for language in LANGUAGES]
    assert fence.findall(both[0]) == fence.findall(both[1])
    assert len(HEADING.findall(fence.sub("", both[0]))) == len(
        HEADING.findall(fence.sub("", both[1]))
    )
    rows = [sum(line.startswith("|") for line in page.splitlines()) for page in both]
    assert rows[0] == rows[1]


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_command_and_option_is_described(language: str) -> None:
    text = text_of(language)
    context = click.Context(command_line.autopar)
    missing = []
    for name in command_line.COMMANDS:
        if f"autopar {name}" not in text:
            missing.append(name)
        command = command_line.autopar.get_command(context, name)
        assert command is not None
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                missing += [option for option in parameter.opts if f"`{option}" not in text]
    assert not missing


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_field_is_described(language: str) -> None:
    page = page_of(language, "strategy-fields.md")
    manager = load_plugins()
    names = set(declared_fields(manager))
    names |= set(schema_of("strategy")["properties"])
    assert sorted(name for name in names if f"`{name}`" not in page) == []


@pytest.mark.parametrize("language", LANGUAGES)
def test_fields_are_described_as_declared(language: str) -> None:
    """Short form, neutral value and owner of each field stand in its row."""
    page = page_of(language, "strategy-fields.md")
    rows = {line.split("`")[1]: line for line in page.splitlines() if line.startswith("| `")}
    wrong = []
    for field in declared_fields(load_plugins()).values():
        neutral = json.dumps(field.neutral).strip('"')
        cells = [cell.strip().strip("`") for cell in rows[field.name].strip("|").split("|")]
        if not {field.short, neutral, field.owner} <= set(cells):
            wrong.append(field.name)
    assert not wrong


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_input_key_is_described(language: str) -> None:
    page = page_of(language, "input.md")
    keys = [f"[{name}]" for name in SECTIONS]
    keys += [f"`{field.name}`" for field in ModelConfig.__attrs_attrs__]
    keys += [f"`{key}`" for key in Keys.of(load_plugins()).legal()]
    assert [key for key in keys if key not in page] == []


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_key_of_the_result_is_described(language: str) -> None:
    page = page_of(language, "output.md")
    schema = json.loads((ROOT / "docs/result.schema.json").read_text(encoding="utf-8"))
    assert [key for key in schema["properties"] if f"`{key}`" not in page] == []


def schema_of(name: str) -> dict[str, Any]:
    schema = json.loads((ROOT / "docs/result.schema.json").read_text(encoding="utf-8"))
    found: dict[str, Any] = schema["$defs"][name]
    return found
