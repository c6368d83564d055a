"""What the documentation points at exists, and what it states as a table is so."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.commands import ROOT, dotted, layer
from tests.pages import page, tables

PAGES = [*sorted(ROOT.glob("*.md")), ROOT / "llms.txt", *sorted((ROOT / "docs").glob("*.md"))]
LINK = re.compile(r"\[([^\]]*)\]\(([^)\s]+)\)")
CODE = re.compile(r"```(\w*)\n(.*?)```", re.DOTALL)
FIDELITY = page("docs/fidelity.md")


def links(file: Path) -> Iterator[tuple[str, str]]:
    """Text and target of every link outside code blocks."""
    yield from LINK.findall(CODE.sub("", file.read_text(encoding="utf-8")))


def test_the_documentation_stays_short():
    docs = [*(ROOT / "docs").glob("*.md")]
    assert len(docs) <= 16
    assert sum(len(file.read_text(encoding="utf-8").splitlines()) for file in docs) <= 2370
    assert len(page("README.md").splitlines()) <= 130


def anchor(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


@pytest.mark.parametrize("file", PAGES, ids=lambda file: file.name)
def test_every_relative_link_resolves(file):
    broken = []
    for _, target in links(file):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, fragment = target.partition("#")
        linked = (file.parent / path).resolve() if path else file
        found = linked.exists() and linked.is_relative_to(ROOT)
        if found and fragment:
            headings = re.findall(r"^#+ (.*)$", linked.read_text(encoding="utf-8"), re.MULTILINE)
            found = fragment in map(anchor, headings)
        if not found:
            broken.append(target)
    assert broken == []


def named() -> Iterator[tuple[str, str]]:
    """Every name in backticks that is the text of a link to a Python file, and that file."""
    for file in PAGES:
        for text, target in links(file):
            if (
                target.endswith(".py")
                and re.fullmatch(r"`\w+(\.\w+)?`", text)
                and ".py" not in text
            ):
                yield text.strip("`"), target.removeprefix("../")


def test_every_name_is_in_the_file_it_links_to():
    found = set(named())
    assert len(found) > 90
    assert {(name, file) for name, file in found if name not in defined(ROOT / file)} == set()


def defined(file: Path) -> set[str]:
    """Names at the top of a file and, behind their class's name, in its classes."""
    names = set()
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        names |= named_by(node)
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}.{name}" for part in node.body for name in named_by(part)}
    return names


def named_by(node: ast.stmt) -> set[str]:
    """What a statement defines, imports or assigns."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {node.name}
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return {target.id for target in targets if isinstance(target, ast.Name)}


def test_the_embedded_default_departs_from_the_paper_where_the_table_says_it_does():
    paper, tiny = (dotted(layer(name)) for name in ("countdown", "countdown_tiny"))
    head = ["key", "appendix A", "embedded default", "why"]
    rows = [row for table in tables(FIDELITY) if table[0] == head for row in table[1:]]
    listed = {row[0].strip("`"): (row[1], row[2]) for row in rows}
    for key, values in listed.items():
        stated = [yaml.safe_load(cell.strip("`")) if cell else None for cell in values]
        assert stated == [paper.get(key), tiny.get(key)], key
    departures = {
        key
        for key, value in tiny.items()
        if key.startswith("model.") and not key.startswith("model.engine.")
        if paper.get(key) != value
    }
    assert departures <= set(listed)
