"""Figures, tables for a paper, and a page to read, from recorded samples.

    python -m svr_lightning report SVR=RUN/eval/test --out report
    python -m svr_lightning report SVR=A/eval/test SVR=B/eval/test GRPO=C/eval/test

A name that comes again adds data sets that it lacks, or else is another seed of the method: values
are then means with standard deviations. Where every turn was recorded (model.evaluation.adaptive
false) the stopping rule of the run's configuration is replayed, and fixed budgets and thresholds
are shown too. Leaves index.html, report.md, tables.tex, report.json, and figures/ with each
figure's numbers beside it.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table as Screen
from rich.text import Text

from svr_lightning.display import plain
from svr_lightning.errors import ConfigError
from svr_lightning.files import write_file, write_json
from svr_lightning.report.figures import DrawnFigure, all_figures
from svr_lightning.report.figures_style import svg
from svr_lightning.report.names import apart
from svr_lightning.report.numbers import headline
from svr_lightning.report.page import page, report_md
from svr_lightning.report.runs import Method, read_methods
from svr_lightning.report.tables import all_tables, summary
from svr_lightning.report.text import Table, tables_tex


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
    parser.add_argument(
        "runs",
        nargs="+",
        metavar="NAME=FOLDER",
        help="folder with a samples.jsonl, or that file; the name defaults to the folder's",
    )
    parser.add_argument("--out", type=Path, default=Path("report"), help="folder (report)")
    parser.add_argument("--votes", type=Path, help="votes.json that the vote command left")
    parser.add_argument(
        "--max-trajectories",
        type=int,
        default=25,
        help="listed per method of each kind: premature stops, fixed, broken, ... (25)",
    )


def run(options: argparse.Namespace) -> int:
    """Read, measure, draw, write."""
    if options.max_trajectories < 0:
        raise ConfigError(f"--max-trajectories {options.max_trajectories}: must not be negative")
    methods = read_methods(options.runs)
    votes = read_votes(options.votes) if options.votes else None
    tables = all_tables(methods, votes)
    figures, notes = all_figures(methods, votes)
    try:
        write_report(options.out, methods, figures, notes, tables, options.max_trajectories)
    except OSError as error:
        raise ConfigError(f"{options.out}: cannot be written ({error.strerror})") from error
    show(methods)
    console = Console()
    console.print(Text(plain(headline(methods))))
    for note in notes:
        console.print(Text(plain(note), style="grey50"))
    console.print(
        Text(f"{options.out / 'index.html'}: {len(figures)} figures, {len(tables)} tables")
    )
    return 0


def read_votes(path: Path) -> Mapping[str, Any]:
    """The results of majority voting.

    Raises:
        ConfigError: naming the file, if it holds none.
    """
    try:
        votes = json.loads(path.read_text(encoding="utf-8"))
        for values in votes["datasets"].values():
            counts = [key.removeprefix("maj@") for key in values if key.startswith("maj@")]
            if not counts or not all(
                float(values[f"{kind}@{int(k)}"]) >= 0 for k in counts for kind in ("maj", "tokens")
            ):
                raise ValueError("a data set without maj@k")
        if not votes["datasets"]:
            raise ValueError("no data sets")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ConfigError(
            f"--votes {path}: no results of the vote command ({type(error).__name__}: {error}); "
            "give the votes.json that it leaves"
        ) from error
    return dict(votes)


def write_report(
    out: Path,
    methods: Sequence[Method],
    figures: Sequence[DrawnFigure],
    notes: Sequence[str],
    tables: Sequence[Table],
    most: int,
) -> None:
    """All files of a report."""
    drawn = []
    for figure in figures:
        text = svg(figure.draw(figure.numbers))
        text = text.encode("ascii", "xmlcharrefreplace").decode("ascii")
        write_file(out / "figures" / f"{figure.name}.svg", [text])
        write_json(out / "figures" / f"{figure.name}.json", figure.numbers)
        drawn.append((figure, text))
    write_file(out / "index.html", [page(methods, drawn, notes, tables, most)])
    write_file(out / "report.md", [report_md(methods, figures, notes, tables)])
    write_file(out / "tables.tex", [tables_tex(tables)])
    measured = [
        {
            "name": method.name,
            "samples": [[str(source.samples) for source in run.sources] for run in method.runs],
            "seeds": [run.datasets for run in method.runs],
        }
        for method in methods
    ]
    write_json(out / "report.json", {"methods": measured, "notes": notes})


def show(methods: Sequence[Method]) -> None:
    """The averages on the screen, at most 80 columns wide."""
    screen = Screen(box=SIMPLE, padding=(0, 1, 0, 0), pad_edge=False)
    for number, head in enumerate(("", "", "accuracy", "turns", "tokens (k)", "PSE (%)")):
        screen.add_column(head, justify="left" if number < 2 else "right", no_wrap=True)
    screen.columns[0].max_width = screen.columns[1].max_width = 14
    for method, *values in summary(methods):
        name, mark = apart(method)
        lines = f"{plain(name)}\n{mark.strip()}" if mark else plain(name)
        screen.add_row(Text(lines), *(Text(plain(text)) for text in values))
    Console().print(screen)
