"""The documentation as tests read it: its code, sections and tables."""

import re

from tests.commands import ROOT


def page(name: str) -> str:
    """The text of a page, by its path in the checkout."""
    return (ROOT / name).read_text(encoding="utf-8")


def flowing(name: str) -> str:
    """The text of a page, without line breaks."""
    return " ".join(page(name).split())


def blocks(text: str, language: str = "python") -> list[str]:
    """The code blocks in one language."""
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def section(text: str, heading: str) -> str:
    """What stands under a heading, up to the next one."""
    return text.partition(f"\n{heading}\n")[2].split("\n##")[0]


def tables(text: str) -> list[list[list[str]]]:
    """The cells of every table, row by row, its head first."""
    found = re.findall(r"(?:^\|.*(?:\n|$))+", text, re.MULTILINE)
    return [
        [
            [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
            for line in table.splitlines()
            if not re.fullmatch(r"[|\-: ]+", line)
        ]
        for table in found
    ]
