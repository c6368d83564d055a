"""A hook of mkdocs: equations become MathML, the API page is generated, and llms.txt is served."""

import re
from html import unescape
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.structure.files import File, Files

from svr_lightning import _HOME, __all__

_EQUATION = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)
"""What pymdownx.arithmatex, with its option generic, makes of ``$...$`` and ``$$...$$``."""
_API = """# Python API

Everything here is imported from the package root: `import svr_lightning as svr`. The trainer's
classes import torch when they are first used.

"""


def on_files(files: Files, config: Any) -> Files:
    """The pages of ``docs``, and one of every public name with its signature and docstring."""
    entries = [f"::: svr_lightning.{_HOME[name]}.{name}\n" for name in __all__]
    files.append(File.generated(config, "api.md", content=_API + "\n".join(entries)))
    return files


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
