"""Text and tables in HTML, Markdown and LaTeX; text of models is shown and never obeyed.

A character that would not show, or that would change how others show (controls, line separators,
direction marks, lone surrogates), is written as its code point. All results are ASCII.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
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
    "\u03b1": r"$\alpha$",
    "\u03b3": r"$\gamma$",
    "\u03bb": r"$\lambda$",
    "\u0394": r"$\Delta$",
}


def visible(text: str) -> str:
    """Text as HTML element content."""
    return _ascii("".join(c if _shows(c) else f"<b class=u>{_point(c)}</b>" for c in _html(text)))


def attribute(text: str) -> str:
    """Text as the value of a quoted HTML attribute."""
    return _ascii("".join(c if _shows(c) else f"[{_point(c)}]" for c in _html(text)))


def markdown(text: str) -> str:
    """Text as part of one line of Markdown, also inside a table."""
    flat = " ".join(text.split(" ")).replace("\n", " ").replace("\t", " ")
    quoted = _MARKUP.sub(lambda match: f"\\{match.group()}", escape(flat, quote=False))
    shown = "".join(c if _shows(c) else f"[{_point(c)}]" for c in quoted)
    return _ascii(shown.replace("](", "]\\("))


def latex(text: str) -> str:
    """Text as part of one line of LaTeX."""
    return "".join(_LATEX.get(c) or _latex_character(c) for c in text)


def clip(text: str, head: int, tail: int) -> tuple[str, str, int]:
    """The beginning and the end of a text, and how many characters between them are left out."""
    if len(text) <= head + tail:
        return text, "", 0
    return text[:head], text[len(text) - tail :], len(text) - head - tail


def _html(text: str) -> str:
    return escape(text, quote=True)


def _shows(character: str) -> bool:
    return character.isprintable() or character in "\n\t"


def _point(character: str) -> str:
    return f"U+{ord(character):04X}"


def _ascii(text: str) -> str:
    return text.encode("ascii", "xmlcharrefreplace").decode("ascii")


def _latex_character(character: str) -> str:
    if character in "\n\t":
        return " "
    return character if " " <= character <= "~" else f"{{[}}{_point(character)}]"


# --- tables -----------------------------------------------------------------------------------

Mark = Literal["", "best", "second"]


@dataclass(frozen=True, slots=True)
class Cell:
    """The text of a cell; the best and the second-best of a column are marked."""

    text: str
    mark: Mark = ""


Row = tuple[Cell, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Plain text throughout: each form escapes it."""

    name: str
    """For its label."""
    caption: str
    head: tuple[str, ...]
    rows: tuple[Row | None, ...]
    """None is a rule between two rows."""
    groups: tuple[tuple[str, int], ...] = ()
    """Heads above heads, (text, columns); "" spans without text."""


def cells(texts: Sequence[str]) -> Row:
    """A row without marks."""
    return tuple(Cell(text) for text in texts)


def ranked(columns: Sequence[Sequence[float | None]]) -> list[list[Mark]]:
    """Best and second-best of each column, the higher the better; equals share their rank.

    A column with fewer than two values has no marks.

    Examples:
        >>> ranked([[0.5, 0.7, 0.7, 0.1, None]])
        [['second', 'best', 'best', '', '']]
    """
    marks: list[list[Mark]] = []
    for column in columns:
        values = sorted({value for value in column if value is not None}, reverse=True)
        names: dict[float, Mark] = {}
        if sum(value is not None for value in column) > 1:
            names = dict(zip(values, ("best", "second"), strict=False))
        marks.append([names.get(value, "") if value is not None else "" for value in column])
    return marks


def to_markdown(table: Table) -> str:
    """A caption and a table of GitHub's Markdown."""
    head = list(table.head)
    if table.groups:
        spans = [text for text, width in table.groups for _ in range(width)]
        head = [f"{span} {name}".strip() for span, name in zip(spans, head, strict=True)]
    lines = [f"**{markdown(table.caption)}**", ""]
    lines.append("| " + " | ".join(markdown(name) for name in head) + " |")
    lines.append("|---" + "|---:" * (len(head) - 1) + "|")
    rows = (row for row in table.rows if row is not None)
    lines += ["| " + " | ".join(_markdown_cell(cell) for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def _markdown_cell(cell: Cell) -> str:
    text = markdown(cell.text)
    return {"best": f"**{text}**", "second": f"<u>{text}</u>"}.get(cell.mark, text)


def to_latex(table: Table) -> str:
    """A floating table over both columns, shrunk if it is wider; for booktabs and graphicx."""
    columns = "l" + "c" * (len(table.head) - 1)
    lines = [
        r"\begin{table*}[t]",
        r"\centering",
        r"\small",
        rf"\caption{{{latex(table.caption)}}}",
        rf"\label{{tab:{table.name}}}",
        r"\resizebox{\ifdim\width>\textwidth\textwidth\else\width\fi}{!}{%",
        rf"\begin{{tabular}}{{@{{}}{columns}@{{}}}}",
        r"\toprule",
    ]
    if table.groups:
        lines += _latex_groups(table.groups)
    lines.append("\n& ".join(_bold(name) for name in table.head) + r" \\")
    lines.append(r"\midrule")
    for row in table.rows:
        lines.append(
            r"\midrule" if row is None else " & ".join(_latex_cell(cell) for cell in row) + r" \\"
        )
    lines += [r"\bottomrule", r"\end{tabular}}", r"\end{table*}"]
    return "\n".join(lines) + "\n"


def tables_tex(tables: Sequence[Table]) -> str:
    """Every table, each a float with a label of its own."""
    preamble = "% Needs \\usepackage{booktabs,graphicx} and two columns (else \\begin{table}).\n"
    return preamble + "\n" + "\n".join(to_latex(table) for table in tables)


def _latex_groups(groups: Sequence[tuple[str, int]]) -> list[str]:
    heads, rules, column = [], [], 1
    for text, width in groups:
        heads.append(
            rf"\multicolumn{{{width}}}{{c}}{{{_bold(text)}}}" if text else "& " * (width - 1)
        )
        if text:
            rules.append(rf"\cmidrule(lr){{{column}-{column + width - 1}}}")
        column += width
    return ["\n& ".join(heads) + r" \\", *rules]


def _bold(text: str) -> str:
    return rf"\textbf{{{latex(text)}}}" if text else ""


def _latex_cell(cell: Cell) -> str:
    command = {"best": r"\textbf", "second": r"\underline"}.get(cell.mark)
    return f"{command}{{{latex(cell.text)}}}" if command else latex(cell.text)


def to_html(table: Table) -> str:
    """A table that scrolls sideways within itself where the screen is narrow."""
    lines = [f'<figure class="table"><figcaption>{visible(table.caption)}</figcaption>']
    lines.append('<div class="scroll" tabindex="0"><table><thead>')
    if table.groups:
        spans = (
            f'<th colspan="{width}" scope="colgroup">{visible(text)}</th>'
            for text, width in table.groups
        )
        lines.append(f"<tr>{''.join(spans)}</tr>")
    heads = "".join(f'<th scope="col">{visible(name)}</th>' for name in table.head)
    lines.append(f"<tr>{heads}</tr></thead><tbody>")
    ruled = False
    for row in table.rows:
        if row is None:
            ruled = True
            continue
        first, *rest = row
        inner = f'<th scope="row">{_html_cell(first)}</th>'
        inner += "".join(f"<td>{_html_cell(cell)}</td>" for cell in rest)
        lines.append(f'<tr class="ruled">{inner}</tr>' if ruled else f"<tr>{inner}</tr>")
        ruled = False
    lines.append("</tbody></table></div></figure>")
    return "\n".join(lines)


def _html_cell(cell: Cell) -> str:
    text = visible(cell.text)
    return f'<span class="{escape(cell.mark)}">{text}</span>' if cell.mark else text
