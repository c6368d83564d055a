"""Majority voting from a pool of independent samples per problem.

Maj@k is the accuracy of the answer that most of k samples give; ties go to the one sampled first,
and answers that cannot be read do not vote. It is averaged over draws of k from a pool of n
samples. Writes votes.json and prints a table.
"""

import argparse
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from svr_lightning.analysis.results import VOTES, package_versions, read_pools
from svr_lightning.analysis.voting import vote
from svr_lightning.cli.inputs import add_task_option, require_trusted_tasks
from svr_lightning.display import plain, text_table
from svr_lightning.errors import ConfigError, require
from svr_lightning.files import write_json

RESULTS = "votes.json"
EQUALITY = "paper"
"""The grader that decides which answers are equal, whichever grader gave the labels."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``python -m svr_lightning vote``."""
    parser.add_argument(
        "--votes", type=Path, required=True, metavar="FILE", help=f"pools of samples, a {VOTES}"
    )
    parser.add_argument(
        "--k", type=int, nargs="+", default=[3, 5, 10], help="numbers of votes (3 5 10)"
    )
    parser.add_argument(
        "--resamples", type=int, default=1000, help="draws for averages and intervals (1000)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the draws (0)")
    add_task_option(parser)
    parser.add_argument(
        "--out", type=Path, metavar="FOLDER", help=f"where {RESULTS} goes (beside the pools)"
    )


def run(options: argparse.Namespace) -> int:
    """Read the pools, write ``votes.json``, print a table.

    Raises:
        ConfigError: for a fault of the file or of the options.
    """
    ks = sorted(set(options.k))
    for name, value in (("k", ks[0]), ("resamples", options.resamples)):
        require(value >= 1, f"--{name} {value}: must be at least 1")
    require(options.seed >= 0, f"--seed {options.seed}: must not be negative")
    records = read_pools(options.votes)
    require(bool(records), f"{options.votes}: holds no problem; give a {VOTES} with pools")
    require_trusted_tasks(options.votes, records, options)
    try:
        results = vote(records, ks, options.resamples, options.seed)
    except ValueError as error:
        raise ConfigError(f"{options.votes}: {error}") from error
    folder = options.out or options.votes.parent
    settings = {"votes": options.votes, "k": ks, "resamples": options.resamples}
    config = {**settings, "seed": options.seed, "equality": EQUALITY}
    write_json(folder / RESULTS, {**results, "config": config, "versions": package_versions()})
    console = Console()
    console.print(table_of(results, ks))
    console.print(Text(f"{folder / RESULTS}: every number, with intervals"), soft_wrap=True)
    return 0


def table_of(results: Mapping[str, Any], ks: list[int]) -> Table:
    """Accuracy of voting, of one sample and of the best of k, and what k samples cost."""
    rows = []
    for name, values in _parts(results):
        rows.append((name, "1", *_accuracy(values, "mean@1"), "", ""))
        for k in ks:
            others = (f"{values[f'pass@{k}']:.3f}", f"{values[f'tokens@{k}']:.0f}")
            rows.append(("", str(k), *_accuracy(values, f"maj@{k}"), *others))
    return text_table(("data set", "k", "Maj@k", "95 %", "pass@k", "tokens"), rows)


def _parts(results: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every data set; where there are several, their average and that of Math-5."""
    for name, values in results["datasets"].items():
        yield f"{' '.join(plain(name).split())} ({values['n']})", values
    for name, average in results["macro"].items():
        if len(average["datasets"]) > 1:
            yield f"average, {name} ({len(average['datasets'])} sets)", average


def _accuracy(values: Mapping[str, Any], name: str) -> tuple[str, str]:
    low, high = values["ci95"][name]
    return f"{values[name]:.3f}", f"{low:.3f}-{high:.3f}"
