"""Text and tables in HTML, Markdown and LaTeX; model text is escaped.

A character that would not show, or that would change how others show (controls, line separators,
direction marks, lone surrogates), is written as its code point. All results are ASCII.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Literal

_MARKUP = re.compile(r"[\\`*{}\[\]#+|~$]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")
_LATEX = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "%": r"\%",
    "_": r"\_",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': "''",
    # At the beginning of a row these two would be arguments of the row break before it.
    "[": "{[}",
    "*": "{*}",
    # Symbols of the tables' own.
    "\u00b1": r"$\pm$",
    "\u00d7": r"$\times$",
    "\u00b3": r"\textsuperscript{3}",
    "\u03b3": r"$\gamma$",
}


def visible(text: str) -> str:
    """Text as HTML element content."""
    return _ascii(_shown(escape(text), "<b class=u>{}</b>"))


def attribute(text: str) -> str:
    """Text as the value of a quoted HTML attribute, or as a title."""
    return _ascii(_shown(escape(text), "[{}]"))


def markdown(text: str) -> str:
    """Text as part of one line of Markdown, also inside a table."""
    flat = text.replace("\n", " ").replace("\t", " ")
    quoted = _MARKUP.sub(lambda match: f"\\{match.group()}", escape(flat, quote=False))
    return _ascii(_shown(quoted, "[{}]").replace("](", "]\\("))


def latex(text: str) -> str:
    """Text as part of one line of LaTeX."""
    quoted = (_LATEX.get(c) or (" " if c in "\n\t" else c) for c in text)
    return "".join(c if c.isascii() and c.isprintable() else f"{{[}}{_point(c)}]" for c in quoted)


def clip(text: str, head: int, tail: int = 0) -> tuple[str, str, int]:
    """The beginning and the end of a text, and how many characters between them are left out."""
    if len(text) <= head + tail:
        return text, "", 0
    return text[:head], text[len(text) - tail :], len(text) - head - tail


def _shown(text: str, form: str) -> str:
    """Text whose hidden characters are written as code points."""
    return "".join(c if c.isprintable() or c in "\n\t" else form.format(_point(c)) for c in text)


def _point(character: str) -> str:
    return f"U+{ord(character):04X}"


def _ascii(text: str) -> str:
    return text.encode("ascii", "xmlcharrefreplace").decode("ascii")


# --- tables -----------------------------------------------------------------------------------

Mark = Literal["best", "second"]
Rows = list[list[str] | None]
"""The cells of each row; None is a rule between two rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Plain text throughout: each form escapes it."""

    name: str
    """For its label."""
    caption: str
    head: Sequence[str]
    rows: Rows
    groups: Sequence[tuple[str, int]] = ()
    """Heads above heads, (text, columns); "" spans without text."""
    main: bool = False
    """Whether a page shows it at the beginning, and unfolded."""
    marks: Mapping[tuple[int, int], Mark] = field(default_factory=dict)
    """Best and second-best values, by row and column."""


def ranked(columns: Sequence[Sequence[float | None]]) -> dict[tuple[int, int], Mark]:
    """Best and second-best by (row, column), the higher the better; equals share their rank.

    A column with fewer than two values has no marks. Column 0 of a table names its rows, so that
    the first of ``columns`` is column 1.

    Examples:
        >>> ranked([[0.5, 0.7, 0.7, None]])
        {(0, 1): 'second', (1, 1): 'best', (2, 1): 'best'}
    """
    marks: dict[tuple[int, int], Mark] = {}
    for number, column in enumerate(columns, start=1):
        values = sorted({value for value in column if value is not None}, reverse=True)
        if sum(value is not None for value in column) > 1:
            names: dict[float | None, Mark] = dict(zip(values, ("best", "second"), strict=False))
            marks |= {(row, number): names[v] for row, v in enumerate(column) if v in names}
    return marks


def _rows(table: Table, quote: Callable[[str], str], forms: Mapping[str, str]) -> Iterator[str]:
    """Escaped rows, cells separated by the form "between"; a rule is an empty row."""
    for row, cells in enumerate(table.rows):
        marks = (table.marks.get((row, column), "") for column in range(len(cells or [])))
        yield forms["between"].join(
            forms.get(mark, "%s") % quote(cell)
            for mark, cell in zip(marks, cells or [], strict=True)
        )


def to_markdown(table: Table) -> str:
    """A caption and a table of GitHub's Markdown."""
    spans = [text for text, width in table.groups for _ in range(width)] or [""] * len(table.head)
    head = [f"{span} {name}".strip() for span, name in zip(spans, table.head, strict=True)]
    rows = _rows(table, markdown, {"between": " | ", "best": "**%s**", "second": "<u>%s</u>"})
    lines = [
        f"**{markdown(table.caption)}**\n",
        f"| {' | '.join(map(markdown, head))} |",
        f"|---{'|---:' * (len(head) - 1)}|",
        *(f"| {row} |" for row in rows if row),
    ]
    return "\n".join(lines) + "\n"


def to_latex(table: Table) -> str:
    """A floating table over both columns, shrunk if it is wider; for booktabs and graphicx."""
    forms = {"between": " & ", "best": r"\textbf{%s}", "second": r"\underline{%s}"}
    rows = _rows(table, latex, forms)
    lines = [
        r"\begin{table*}[t]",
        r"\centering",
        r"\small",
        rf"\caption{{{latex(table.caption)}}}",
        rf"\label{{tab:{table.name}}}",
        r"\resizebox{\ifdim\width>\textwidth\textwidth\else\width\fi}{!}{%",
        rf"\begin{{tabular}}{{@{{}}l{'c' * (len(table.head) - 1)}@{{}}}}",
        r"\toprule",
        *_latex_groups(table.groups),
        "\n& ".join(map(_bold, table.head)) + r" \\",
        r"\midrule",
        *(rf"{row} \\" if row else r"\midrule" for row in rows),
        *(r"\bottomrule", r"\end{tabular}}", r"\end{table*}"),
    ]
    return "\n".join(lines) + "\n"


def tables_tex(tables: Sequence[Table]) -> str:
    """Every table, each a float with a label of its own."""
    preamble = "% Needs \\usepackage{booktabs,graphicx} and two columns (else \\begin{table}).\n"
    return preamble + "\n" + "\n".join(to_latex(table) for table in tables)


def _latex_groups(groups: Sequence[tuple[str, int]]) -> list[str]:
    heads, rules, column = [], [], 1
    for text, width in groups:
        heads.append(rf"\multicolumn{{{width}}}{{c}}{{{_bold(text)}}}")
        if text:
            rules.append(rf"\cmidrule(lr){{{column}-{column + width - 1}}}")
        column += width
    return ["\n& ".join(heads) + r" \\", *rules] if heads else []


def _bold(text: str) -> str:
    return rf"\textbf{{{latex(text)}}}" if text else ""
