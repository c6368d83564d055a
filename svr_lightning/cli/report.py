"""Figures, tables for a paper, and a page to read, from recorded samples.

    svr report SVR=RUN/eval/test --out report
    svr report SVR=A/eval/test SVR=B/eval/test GRPO=C/eval/test

A repeated name adds data sets that it lacks, or otherwise another seed of the
method: values are then means with standard deviations. If every turn was
recorded (--record), the stopping rule of the run's configuration is replayed,
and fixed budgets and thresholds are shown too. Of recorded fresh turns,
majority votes are shown as well. Writes index.html, tables.tex, tables.md, and
figures/ with the numbers of each figure.
"""

import argparse
from pathlib import Path

from svr_lightning.display import say
from svr_lightning.files import write_file, write_json
from svr_lightning.report.drawing import svg
from svr_lightning.report.figures import all_figures
from svr_lightning.report.formats import page, tables_text
from svr_lightning.report.runs import read_methods
from svr_lightning.report.tables import all_tables


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
    add = parser.add_argument
    about = "an evaluation, such as RUN/eval/test, or its samples; without NAME= its own name"
    add("runs", nargs="+", metavar="NAME=FOLDER", help=about)
    add("--out", type=Path, default=Path("report"), help="folder (report)")


def run(options: argparse.Namespace) -> int:
    """Read, measure, draw, write."""
    out = options.out
    methods = read_methods(options.runs)
    tables = all_tables(methods)
    figures, notes = all_figures(methods)
    drawn = []
    for figure in figures:
        drawn.append((figure, svg(figure.draw, figure.numbers)))
        write_file(out / "figures" / f"{figure.name}.svg", [drawn[-1][1]])
        write_json(out / "figures" / f"{figure.name}.json", figure.numbers)
    write_file(out / "index.html", [page(methods, drawn, notes, tables)])
    for form in ("tex", "md"):
        write_file(out / f"tables.{form}", [tables_text(tables, form)])
    say(*notes, style="grey50")
    print(f"{out / 'index.html'}: {len(figures)} figures, {len(tables)} tables")
    return 0
