"""A hook of mkdocs: equations become MathML, which needs no script, and llms.txt is served."""

import re
from html import unescape
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert

_EQUATION = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)
"""What pymdownx.arithmatex, with its option generic, makes of ``$...$`` and ``$$...$$``."""


def on_page_content(html: str, **_: Any) -> str:
    """The page with its equations converted."""
    return _EQUATION.sub(_mathml, html)


def on_post_build(config: Any) -> None:
    """Write llms.txt, whose links lead to the repository's pages, with those of the site."""
    text = Path("llms.txt").read_text(encoding="utf-8")
    served = re.sub(r"\]\(docs/(\w+)\.md", r"](\1.html", text)
    Path(config["site_dir"], "llms.txt").write_text(served, encoding="utf-8")


def _mathml(found: re.Match[str]) -> str:
    block = found[1] == "div"
    return convert(unescape(found[2]).strip(), display="block" if block else "inline")
