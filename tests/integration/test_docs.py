"""What the documentation points at exists, and what it states as a table is so."""

import re

import pytest
import yaml

from tests.commands import ROOT, dotted, layer
from tests.pages import page, tables
from tools.site_hook import on_page_content

PAGES = [*sorted(ROOT.glob("*.md")), ROOT / "llms.txt", *sorted((ROOT / "docs").glob("*.md"))]
LINK = re.compile(r"\[([^\]]*)\]\(([^)\s]+)\)")
CODE = re.compile(r"```(\w*)\n(.*?)```", re.DOTALL)
FIDELITY = page("docs/fidelity.md")


def test_the_documentation_stays_short():
    docs = [*(ROOT / "docs").glob("*.md")]
    assert len(docs) <= 16
    assert sum(len(file.read_text(encoding="utf-8").splitlines()) for file in docs) <= 2370
    assert len(page("README.md").splitlines()) <= 130


def anchor(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


@pytest.mark.parametrize("file", PAGES, ids=lambda file: file.name)
def test_every_relative_link_resolves_and_its_file_knows_the_name(file):
    broken = []
    for text, target in LINK.findall(CODE.sub("", file.read_text(encoding="utf-8"))):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, fragment = target.partition("#")
        linked = (file.parent / path).resolve() if path else file
        found = linked.exists() and linked.is_relative_to(ROOT)
        if found and fragment:
            headings = re.findall(r"^#+ (.*)$", linked.read_text(encoding="utf-8"), re.MULTILINE)
            found = fragment in map(anchor, headings)
        name = re.fullmatch(r"`(?:\w+\.)*(?!py`)(\w+)`", text)
        if found and name and target.endswith(".py"):
            found = re.search(rf"\b{name[1]}\b", linked.read_text(encoding="utf-8"))
        if not found:
            broken.append(target)
    assert broken == []


def test_the_site_leads_to_files_of_the_repository_and_breaks_no_option():
    site = {"site_dir": str(ROOT / "runs/site"), "repo_url": ""}
    link = '<a href="../configs/math.yaml">'
    assert on_page_content(link, site) == '<a href="../../configs/math.yaml">'
    site["repo_url"] = "https://host/us/svr"
    assert (
        on_page_content(link, site) == '<a href="https://host/us/svr/blob/main/configs/math.yaml">'
    )
    said = on_page_content("svr test --config my-data.yaml", site)
    assert said == 'svr test <span class="option">--config</span> my-data.yaml'


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
