"""Figures, tables for a paper, and a page to read, from recorded samples.

    svr report SVR=RUN/eval/test --out report
    svr report SVR=A/eval/test SVR=B/eval/test GRPO=C/eval/test

A repeated name adds data sets that it lacks, or otherwise another seed of the method: values are
then means with standard deviations. If every turn was recorded (--record),
the stopping rule of the run's configuration is replayed, fixed budgets and thresholds are shown
too, and all stopping rules are compared within the same tokens. Of recorded fresh turns, majority
votes are shown as well. Writes index.html, tables.tex,
report.json, and figures/ with the numbers of each figure.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from svr_lightning.display import plain
from svr_lightning.errors import ConfigError, require
from svr_lightning.files import write_file, write_json
from svr_lightning.report.drawing import svg
from svr_lightning.report.figures import Plot, all_figures
from svr_lightning.report.page import page
from svr_lightning.report.runs import Method, compare_rules, read_methods
from svr_lightning.report.tables import all_tables, headlines, winners
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
    parser.add_argument(
        "--budget",
        type=float,
        help="tokens per problem at which stopping rules are compared (default: those that the "
        "first method takes)",
    )
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
    require(options.budget is None or options.budget > 0, "--budget must be above 0 tokens")
    methods = read_methods(options.runs)
    rules = compare_rules(methods, options.budget)
    require(
        options.budget is None or bool(rules),
        "--budget: no stopping rule can be replayed; record every turn with --record",
    )
    tables = all_tables(methods, rules)
    figures, notes = all_figures(methods, rules)
    write_report(options.out, methods, figures, notes, tables, options.max_trajectories)
    console = Console()
    for line in [*headlines(methods), *winners(methods, rules)]:
        console.print(Text(plain(line)))
    for note in notes:
        console.print(Text(plain(note), style="grey50"))
    console.print(
        Text(f"{options.out / 'index.html'}: {len(figures)} figures, {len(tables)} tables")
    )
    return 0


def write_report(
    out: Path,
    methods: Sequence[Method],
    figures: Sequence[Plot],
    notes: Sequence[str],
    tables: Sequence[Table],
    most: int,
) -> None:
    """All files of a report."""
    drawn = []
    for figure in figures:
        text = svg(figure.draw, figure.numbers)
        write_file(out / "figures" / f"{figure.name}.svg", [text])
        write_json(out / "figures" / f"{figure.name}.json", figure.numbers)
        drawn.append((figure, text))
    write_file(out / "index.html", [page(methods, drawn, notes, tables, most)])
    write_file(out / "tables.tex", [tables_tex(tables)])
    measured = [
        {
            "name": method.name,
            "samples": [[str(source.samples) for source in run.sources] for run in method.runs],
            "seeds": method.seeds,
        }
        for method in methods
    ]
    write_json(out / "report.json", {"methods": measured, "notes": notes})
