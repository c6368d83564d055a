"""``report.md`` and ``tables.tex``."""

from collections.abc import Sequence

from svr_lightning.report.pictures import FigureSpec
from svr_lightning.report.runs import Method, heading
from svr_lightning.report.table import Table, to_latex, to_markdown
from svr_lightning.report.text import markdown

_PREAMBLE = """% Needs \\usepackage{booktabs,graphicx} and two columns (else \\begin{table}).
"""


def report_md(
    methods: Sequence[Method],
    pictures: Sequence[FigureSpec],
    notes: Sequence[str],
    tables: Sequence[Table],
) -> str:
    """Tables, figures as links to the SVG files, and where it all comes from."""
    lines = [f"# Report: {markdown(heading(methods))}", ""]
    lines += [to_markdown(table) for table in tables]
    for picture in pictures:
        caption = markdown(picture.caption)
        lines += [f"![{caption}](figures/{picture.name}.svg)", "", caption, ""]
    lines += [f"- {markdown(note)}" for note in notes]
    lines += ["", "Samples:", ""]
    for method in methods:
        for run in method.runs:
            for source in run.sources:
                lines.append(f"- {markdown(method.name)}: {markdown(str(source.samples))}")
    return "\n".join(lines) + "\n"


def tables_tex(tables: Sequence[Table]) -> str:
    """Every table, each a float with a label of its own."""
    return _PREAMBLE + "\n" + "\n".join(to_latex(table) for table in tables)
