"""The templates of this folder, for the page and for tables. Every text is escaped."""

from collections.abc import Callable, Sequence

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from markupsafe import Markup

from svr_lightning.display import plain
from svr_lightning.report.tables import Table

_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "\u00b1": r"$\pm$",
    "\u03b3": r"$\gamma$",
    "\ufffd": "?",
    **{character: f"\\{character}" for character in "&%$#_{}"},
}
_MARKDOWN = {
    "&": "&amp;",
    "<": "&lt;",
    ">": "&gt;",
    **{character: f"\\{character}" for character in "\\`*_[]|~$"},
}


def templates(escaped: Callable[[str], str]) -> Environment:
    """The templates, in which every expression goes through ``escaped``."""
    return Environment(
        autoescape=select_autoescape(),
        finalize=lambda value: value if isinstance(value, Markup) else escaped(str(value)),
        loader=PackageLoader(__package__, ""),
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )


def tables_tex(tables: Sequence[Table]) -> str:
    """Every table as a float over both columns with a label of its own; needs booktabs. UTF-8."""
    return _rendered("tables.tex", _LATEX, tables)


def tables_md(tables: Sequence[Table]) -> str:
    """Every table with its caption, in Markdown. UTF-8."""
    return _rendered("tables.md", _MARKDOWN, tables)


def _rendered(name: str, escapes: dict[str, str], tables: Sequence[Table]) -> str:
    codes = str.maketrans(escapes)
    environment = templates(lambda text: plain(" ".join(text.split())).translate(codes))
    return environment.get_template(name).render(tables=tables)
