"""Tables as LaTeX and as Markdown. Every text is escaped."""

from collections.abc import Callable, Sequence
from html import escape

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
_MARKDOWN = {character: f"\\{character}" for character in "\\`*_[]|~$"}


def tables_tex(tables: Sequence[Table]) -> str:
    """Every table as a float over both columns with a label of its own; needs booktabs. UTF-8."""
    return "\n".join(_latex(table) for table in tables)


def _latex(table: Table) -> str:
    lines = [
        r"\begin{table*}",
        r"\centering",
        rf"\caption{{{_in_latex(table.caption)}}}",
        rf"\label{{tab:{table.name}}}",
        rf"\begin{{tabular}}{{l{'r' * (len(table.head) - 1)}}}",
        r"\toprule",
        _latex_row([_in_latex(text) for text in table.head]),
        r"\midrule",
    ]
    rows = _marked(table, _in_latex, r"\textbf{{{}}}", r"\underline{{{}}}")
    lines += [_latex_row(cells) for cells in rows]
    lines += [r"\bottomrule", r"\end{tabular}", r"\end{table*}", ""]
    return "\n".join(lines)


def _latex_row(cells: Sequence[str]) -> str:
    """A row; one that began with [ or * would be read as an argument of the line above."""
    row = " & ".join(cells)
    guard = "{}" if row.startswith(("[", "*")) else ""
    return rf"{guard}{row} \\"


def _in_latex(text: str) -> str:
    return "".join(_LATEX.get(character, character) for character in _on_one_line(text))


def tables_md(tables: Sequence[Table]) -> str:
    """Every table with its caption, in Markdown. UTF-8."""
    return "\n".join(_markdown(table) for table in tables)


def _markdown(table: Table) -> str:
    aligned = [":--"] + ["--:"] * (len(table.head) - 1)
    head = [_in_markdown(text) for text in table.head]
    lines = [f"**{table.name}** {_in_markdown(table.caption)}", ""]
    lines += [_markdown_row(head), _markdown_row(aligned)]
    rows = _marked(table, _in_markdown, "**{}**", "<ins>{}</ins>")
    lines += [_markdown_row(cells) for cells in rows]
    return "\n".join([*lines, ""])


def _markdown_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _in_markdown(text: str) -> str:
    safe = escape(_on_one_line(text), quote=False)
    return "".join(_MARKDOWN.get(character, character) for character in safe)


def _marked(table: Table, escaped: Callable[[str], str], best: str, second: str) -> list[list[str]]:
    """The escaped cells of each row, the best and second-best values within their marks."""
    rows = []
    for number, row in enumerate(table.rows):
        cells = []
        for column, text in enumerate(row):
            cell = escaped(text)
            if (number, column) in table.best:
                cell = best.format(cell)
            elif (number, column) in table.second:
                cell = second.format(cell)
            cells.append(cell)
        rows.append(cells)
    return rows


def _on_one_line(text: str) -> str:
    return plain(" ".join(text.split()))
