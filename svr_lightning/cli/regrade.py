r"""Grade recorded turns again, with another notion of what is correct.

    python -m svr_lightning regrade --samples RUN/eval/test/samples.jsonl \
        --grader symbolic --out RUN/eval/test-symbolic

Leaves samples.jsonl and results.json in the folder --out, like an evaluation, and prints which
turns became right or wrong. No model is run; verdicts, confidences and stopping stay as they were.
Samples that were written by svr_lightning 0.1 do not name their task and cannot be graded again.
"""

import argparse
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from svr_lightning.cli.samples import add_task_option, require_trusted_tasks
from svr_lightning.display import plain
from svr_lightning.errors import ConfigError
from svr_lightning.evaluation.record_files import read_samples
from svr_lightning.evaluation.records import SAMPLES
from svr_lightning.evaluation.regrade import Change, Changes, regrade
from svr_lightning.evaluation.results import (
    RESULTS,
    package_versions,
    read_results,
    write_results,
)
from svr_lightning.tasks.graders import GRADERS, get_grader

_SHOWN = 30
"""Characters of an answer in an example."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
    parser.add_argument("--samples", type=Path, required=True, help="samples.jsonl")
    parser.add_argument("--grader", choices=sorted(GRADERS), default="symbolic", help="the new one")
    parser.add_argument("--out", type=Path, required=True, help="folder for the two files")
    parser.add_argument("--examples", type=int, default=3, help="per data set and direction")
    add_task_option(parser)


def run(options: argparse.Namespace) -> int:
    """Grade, write, print."""
    if options.out.resolve() == options.samples.parent.resolve():
        raise ConfigError(f"--out {options.out}: the samples lie there; name another folder")
    records = read_samples(options.samples)
    if not records:
        raise ConfigError(f"{options.samples}: there are no samples in it")
    require_trusted_tasks(options.samples, records, options)
    graded, changes = regrade(records, get_grader(options.grader))
    config = read_results(options.samples.parent / RESULTS).get("config", {})
    config = {
        **config,
        "graders": {str(record.task): options.grader for record in records},
        "regraded": {"samples": str(options.samples), "graders": config.get("graders")},
    }
    write_results(options.out, graded, config, package_versions())
    show(changes, options.examples)
    Console().print(Text(f"{options.out / SAMPLES}, {options.out / RESULTS}"))
    return 0


def show(changes: Mapping[str, Changes], examples: int) -> None:
    """How many turns changed, and some of them, at most 80 columns wide."""
    console = Console()
    table = Table(title="turns graded again")
    for column in ("data set", "turns", "now right", "now wrong", "undecided"):
        table.add_column(column, justify="left" if column == "data set" else "right")
    for dataset, seen in changes.items():
        counts = (seen.turns, seen.count(correct=True), seen.count(correct=False), seen.undecided)
        table.add_row(Text(plain(dataset)), *map(str, counts))
    console.print(table)
    for dataset, seen in changes.items():
        for correct in (True, False):
            chosen = [change for change in seen.changed if change.correct is correct][:examples]
            if chosen:
                console.print(Text(f"{plain(dataset)}, now {'right' if correct else 'wrong'}"))
            for change in chosen:
                console.print(Text(_example(change)))


def _example(change: Change) -> str:
    answer = "no answer" if change.answer is None else _short(change.answer)
    return f"  {_short(change.id)} turn {change.turn}: {answer} for {_short(str(change.reference))}"


def _short(text: str) -> str:
    line = " ".join(plain(text).split())
    return line if len(line) <= _SHOWN else f"{line[: _SHOWN - 3]}..."
