"""Grade recorded turns again with another grader.

    svr regrade RUN/eval/test --grader symbolic --out RUN/eval/test-symbolic

Writes samples.jsonl and results.json to the folder --out, like an evaluation, and prints how many
turns became right or wrong. No model is run; verdicts, confidences and stopping do not change.
"""

import argparse
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.text import Text

from svr_lightning.analysis.records import SampleRecord, TurnRecord, by_dataset
from svr_lightning.analysis.results import (
    RESULTS,
    SAMPLES,
    package_versions,
    read_results,
    read_samples,
    samples_file,
    section,
    write_results,
)
from svr_lightning.display import plain, text_table
from svr_lightning.errors import ConfigError, faults_of, one_line, require
from svr_lightning.tasks import get_task, require_trusted
from svr_lightning.tasks.fields import shown
from svr_lightning.tasks.grading import GRADERS, Grader, get_grader, label


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
    parser.add_argument("evaluation", type=Path, metavar="FOLDER", help="RUN/eval/NAME")
    parser.add_argument("--grader", choices=sorted(GRADERS), default="symbolic", help="the new one")
    parser.add_argument("--out", type=Path, required=True, help="folder for the two files")
    parser.add_argument(
        "--task",
        action="append",
        default=[],
        metavar="CLASS",
        help="class path of a task outside svr_lightning that the command may run",
    )


def run(options: argparse.Namespace) -> int:
    """Grade, write, print."""
    samples = samples_file(options.evaluation)
    require(
        os.path.realpath(options.out) != os.path.realpath(samples.parent),
        f"--out {options.out}: the samples lie there; name another folder",
    )
    records = read_samples(samples)
    require(bool(records), f"{samples}: there are no samples in it")
    with faults_of(f"{samples}: "):
        require_trusted([record.task for record in records], options.task)
    graded = regrade(records, get_grader(options.grader))
    config = section(read_results(samples.parent / RESULTS), "config")
    config = {
        **config,
        "graders": {record.task: options.grader for record in records},
        "regraded": {"samples": str(samples), "graders": config.get("graders")},
    }
    write_results(options.out, graded, config, package_versions())
    show(records, graded)
    Console().print(Text(f"{options.out / SAMPLES}, {options.out / RESULTS}"))
    return 0


def regrade(records: Sequence[SampleRecord], grader: Grader) -> list[SampleRecord]:
    """Grade every recorded turn again; nothing else of a record changes.

    A turn that cannot be graded counts as wrong and says why in ``grading_error``.

    Raises:
        ConfigError: naming a record that has no reference, or whose task is not known.
    """
    return [
        replace(record, turns=tuple(_regraded_turns(record, grader, "/".join(record.key))))
        for record in records
    ]


def _regraded_turns(record: SampleRecord, grader: Grader, where: str) -> Iterator[TurnRecord]:
    problem = record.problem
    require(problem.has_reference, f"{where} has no reference answer, so that it cannot be graded")
    with faults_of(f"{where}: "):
        task = get_task(record.task)
    for turn in record.turns:
        try:
            new = label(task, turn.text, problem, grader)
        except (TypeError, KeyError, AttributeError) as error:
            raise ConfigError(
                f"{where}: task {record.task} cannot grade with the reference "
                f"{shown(problem.reference)} and the payload {shown(dict(problem.payload))} "
                f"({one_line(repr(error))})"
            ) from error
        yield replace(turn, correct=new.correct, grading_error=new.error)


def show(before: Sequence[SampleRecord], after: Sequence[SampleRecord]) -> None:
    """How many turns changed in each data set."""
    rows = []
    old = by_dataset(before)
    for dataset, found in by_dataset(after).items():
        turns, were = ([t for r in some for t in r.turns] for some in (found, old[dataset]))
        pairs = [(was.correct, now.correct) for was, now in zip(were, turns, strict=True)]
        became = (sum(now == right != was for was, now in pairs) for right in (True, False))
        undecided = sum(turn.grading_error is not None for turn in turns)
        rows.append((plain(dataset), *map(str, (len(turns), *became, undecided))))
    heads = ("data set", "turns", "now right", "now wrong", "undecided")
    Console().print(text_table(heads, rows, "turns graded again"))
