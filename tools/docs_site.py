"""MkDocs hooks: links from the documentation to files of the repository work on the site.

A page may link to ``../svr_lightning/core/losses.py``, which a site does not resolve. Each
such file becomes a page with its source, and a link whose text is a name jumps to the definition.
"""

import ast
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(\.\./([^)\s#]+)(#[^)\s]*)?\)")
FENCED = re.compile(r"(^```.*?^```$)", re.DOTALL | re.MULTILINE)
ROLE = re.compile(r":(?:class|meth|func|attr|data|mod|exc):(?=<code>|`)")
LANGUAGES = {".py": "python", ".yaml": "yaml", ".json": "json", ".sh": "bash", ".ipynb": "json"}


def on_files(files: Files, config: Any, **_: Any) -> Files:
    """Add a page for every file of the repository that a page links to."""
    pages = [file for file in files if file.src_uri.endswith(".md")]
    links = {
        (target, bang) for page in pages for bang, _, target, _ in LINK.findall(page.content_string)
    }
    for target, picture in sorted(link for link in links if (ROOT / link[0]).exists()):
        name, content = source_page(target), _content(target)
        if picture:
            name, content = _picture(target), (ROOT / target).read_text(encoding="utf-8")
        files.append(File.generated(config, name, content=content))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Point the links at these pages."""
    if page.file.src_uri.startswith("source/"):
        return markdown
    parts = FENCED.split(markdown)
    return "".join(part if part.startswith("```") else LINK.sub(_link, part) for part in parts)


def on_page_content(html: str, **_: Any) -> str:
    """Show the names in docstrings without their Sphinx roles."""
    return ROLE.sub("", html)


def source_page(target: str) -> str:
    """The page of a file or folder of the repository."""
    return f"source/{posixpath.normpath(target)}.md"


def _picture(target: str) -> str:
    return f"source/{posixpath.normpath(target)}"


def definition_line(target: str, name: str) -> int | None:
    """The line that defines a name such as ``losses`` or ``Turn.index``, if the file does."""
    if not target.endswith(".py"):
        return None
    body: list[ast.stmt] = ast.parse((ROOT / target).read_text(encoding="utf-8")).body
    line = None
    for part in name.split("."):
        found = [node for node in body if part in _names(node)]
        if not found:
            return line
        line, body = found[0].lineno, getattr(found[0], "body", [])
    return line


def _names(node: ast.stmt) -> set[str]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return {node.name}
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return {target.id for target in targets if isinstance(target, ast.Name)}


def _link(match: re.Match[str]) -> str:
    picture, text, target, _ = match.groups()
    if not (ROOT / target).exists():
        return match.group()  # MkDocs reports it
    if picture:
        return f"![{text}]({_picture(target)})"
    line = definition_line(target, text.strip("`"))
    fragment = f"#__span-0-{line}" if line else ""
    return f'<a href="{source_page(target).removesuffix(".md")}.html{fragment}">{text}</a>'


def _content(target: str) -> str:
    path = ROOT / target
    head = f"---\ntitle: {target}\nsearch:\n  exclude: true\nhide: [navigation, toc]\n---\n\n"
    if path.is_dir():
        names = sorted(p.name for p in path.iterdir() if not p.name.startswith(("_", ".")))
        return head + f"# `{target}`\n\n" + "\n".join(f"- `{name}`" for name in names) + "\n"
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        return head + text
    language = LANGUAGES.get(path.suffix, "text")
    return head + f'# `{target}`\n\n``````{language} linenums="1"\n{text}\n``````\n'
