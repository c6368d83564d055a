"""Text in HTML and tables in LaTeX; model text is escaped.

A character that would not show, or that would change how others show (controls, line separators,
direction marks, lone surrogates), is written as its code point. All results are ASCII.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

Rows = list[list[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Plain text throughout: each form escapes it."""

    name: str
    """For its label."""
    caption: str
    head: Sequence[str]
    rows: Rows
    main: bool = False
    """Whether a page shows it at the beginning, and unfolded."""


def visible(text: str) -> str:
    """Text as HTML element content."""
    return _ascii(_shown(escape(text), "<b class=u>{}</b>"))


def attribute(text: str) -> str:
    """Text as the value of a quoted HTML attribute, or as a title."""
    return _ascii(_shown(escape(text), "[{}]"))


def clip(text: str, head: int, tail: int = 0) -> tuple[str, str, int]:
    """The beginning and the end of a text, and how many characters between them are left out."""
    if len(text) <= head + tail:
        return text, "", 0
    return text[:head], text[len(text) - tail :], len(text) - head - tail


def tables_tex(tables: Sequence[Table]) -> str:
    """Every table as a float over both columns with a label of its own; needs booktabs."""
    return "\n".join(_latex(table) for table in tables)


def _latex(table: Table) -> str:
    from pandas import DataFrame

    frame = DataFrame([list(map(_plain, row)) for row in table.rows])
    frame.columns = [f"{{{_escaped(name)}}}" for name in table.head]  # names may be equal
    style = frame.style.hide(axis="index").format(escape="latex")
    label, columns = f"tab:{table.name}", "l" + "r" * (len(table.head) - 1)
    caption = _escaped(table.caption)
    float_ = {"environment": "table*", "position_float": "centering", "hrules": True}
    return str(style.to_latex(caption=caption, label=label, column_format=columns, **float_))


def _plain(text: str) -> str:
    """Printable ASCII on one line, so that pandas has only LaTeX's own characters to escape."""
    known = text.replace("\u00b1", "+-").replace("\u03b3", "gamma")
    flat = " ".join(known.split())
    return "".join(c if c.isascii() and c.isprintable() else f"[{_point(c)}]" for c in flat)


def _escaped(text: str) -> str:
    from pandas.io.formats.style_render import _escape_latex

    return str(_escape_latex(_plain(text)))


def _shown(text: str, form: str) -> str:
    """Text whose hidden characters are written as code points."""
    return "".join(c if c.isprintable() or c in "\n\t" else form.format(_point(c)) for c in text)


def _point(character: str) -> str:
    return f"U+{ord(character):04X}"


def _ascii(text: str) -> str:
    return text.encode("ascii", "xmlcharrefreplace").decode("ascii")
