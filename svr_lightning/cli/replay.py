"""Every operating point of a policy from one recording, without a model.

The recording holds T_max turns of every problem:

    svr test --config ... --record
    svr replay RUN/eval/test

Evaluates the stopping rule of the run, fixed budgets K = 1 to T_max, and
thresholds. Writes replay.json. The terminal shows the averages of the paper's
data sets, and each data set that is in none of them. --compare-stops adds
rules that need no self-check (docs/stopping.md) and compares all within the
same tokens: those of the run's rule, or --budget.

Fresh turns (model.evaluation.fresh_turns) are independent samples, so majority
voting is evaluated too. Maj@k is the accuracy of the answer that most of k
samples give, averaged over draws of k; ties go to the answer that was sampled
first, and answers that cannot be read do not vote.
"""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from svr_lightning.analysis.logs import read_recording
from svr_lightning.analysis.metrics import groups, summarize
from svr_lightning.analysis.replay import MissingTurnsError, curves
from svr_lightning.analysis.stops import compare_stops
from svr_lightning.analysis.voting import VOTES, vote
from svr_lightning.core.metrics import DEFINITIONS, abbreviations
from svr_lightning.core.ranges import MAX_COUNT
from svr_lightning.display import interval, print_table, say, short
from svr_lightning.errors import ConfigError, require
from svr_lightning.files import write_json

COLUMNS = ("accuracy", "avg_total_tokens", "accepted", "accepted_accuracy", "turns", "esr", "pse")
"""Metrics on the terminal. A fixed budget has the first two; the last three need several turns."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
    add = parser.add_argument
    add("evaluation", type=Path, metavar="FOLDER", help="an evaluation, RUN/eval/NAME, or a log")
    add("--columns", nargs="+", default=(), metavar="NAME=COLUMN", help="column names of a log")
    add("--compare-stops", action="store_true", help="all stopping rules at equal tokens")
    add("--budget", type=float, help="tokens per problem of that comparison")
    add("--out", type=Path, help="folder; default: replay/ beside the recording")


def run(options: argparse.Namespace) -> int:
    """Replay, write, print."""
    known = options.budget is None or 0 < options.budget <= MAX_COUNT
    require(known, f"--budget must be a number of tokens above 0, at most {MAX_COUNT}")
    recorded = read_recording(options.evaluation, options.columns)
    tables, rule, max_turns = recorded.tables, recorded.rule, recorded.max_turns
    found: dict[str, Any] = {"samples": str(recorded.samples), "privileged": recorded.privileged}
    try:
        found |= curves(tables, rule, max_turns)
        if options.compare_stops or options.budget is not None:
            found["stops"] = {
                part: compare_stops(
                    {name: tables[name] for name in names},
                    rule,
                    max_turns,
                    options.budget,
                    is_log=recorded.is_log,
                )
                for part, names in groups(tables).items()
            }
    except MissingTurnsError as error:
        raise ConfigError(f"{error}; {recorded.how_to_have_all_turns}") from error
    if recorded.independent:
        ks = [k for k in VOTES if k <= max_turns]
        found["votes"] = {name: vote(table, ks) for name, table in tables.items()}
    out = options.out or recorded.folder / "replay"
    write_json(out / "replay.json", found)
    show(found, str(rule))
    print(out / "replay.json")
    return 0


def show(found: Mapping[str, Any], rule: str) -> None:
    """The curves of each data set, or of the paper's average, in tables of at most 80 columns."""
    point = found["operating_point"]
    say(f"the run's rule: {rule}, T_max = {point['max_turns']}")
    if found["privileged"]:
        say("privileged: labels in prompts", style="bold")
    shown = COLUMNS if point["max_turns"] > 1 else COLUMNS[:4]
    heads = [DEFINITIONS[name].head for name in shown]
    for part in groups(point["datasets"]):
        title = short(part, 40)
        budgets = [[str(row["budget"]), *_cells(row, part, shown[:2])] for row in found["fixed"]]
        rows = [
            [f"{row['threshold']:.2f}", *_cells(row, part, shown)] for row in found["thresholds"]
        ]
        own = ["the run's rule", *_cells(point, part, shown)]
        if "votes" not in found:  # the last of K fresh turns knows nothing of the others
            print_table(["K", *heads], budgets, f"{title}: fixed budgets")
        print_table(["threshold", *heads], [*rows, own], f"{title}: adaptive")
        if "stops" in found:
            _print_stops(title, found["stops"][part])
    say(*abbreviations(shown))
    if "votes" in found:
        _print_votes(found["votes"])


def _cells(row: Mapping[str, Any], part: str, columns: Sequence[str]) -> list[str]:
    """The columns of an operating point on a data set or an average."""
    summary = summarize([row["datasets"]])
    return [summary(part, metric).text for metric in columns]


def _print_stops(title: str, stops: Mapping[str, Any]) -> None:
    """Stopping rules at equal tokens, and the winner."""
    rows = []
    for row in stops["rows"]:
        if row["accuracy"] is None:
            rows.append([row["name"], "-", "-", "over budget"])
            continue
        winner = row["name"] == stops["winner"]
        gap = "winner" if winner else f"{row['gap']:+.3f} {interval(row['gap_ci95'])}"
        rows.append([row["name"], f"{row['accuracy']:.3f}", f"{row['tokens']:.0f}", gap])
    title = f"{title}: stopping rules within {stops['budget']:.0f} tokens per problem"
    headings = ["rule", "accuracy", "tokens", "minus the winner, 95 %"]
    print_table(headings, rows, title)
    say("Settings are chosen on one half of the problems and measured on the other.")


def _print_votes(votes: Mapping[str, Any]) -> None:
    """The accuracy of one sample, and Maj@k, of every data set."""
    rows = []
    for name, values in votes.items():
        for metric, bounds in values["ci95"].items():  # mean@1, maj@3 and so on
            k = metric.partition("@")[2]
            spent = DEFINITIONS["avg_total_tokens"].text(values.get(f"tokens@{k}"))
            rows.append([short(name, 40), k, f"{values[metric]:.3f}", interval(bounds), spent])
    heads = ("data set", "k", "Maj@k", "95 %", "tokens")
    print_table(heads, rows, "majority of fresh turns")
