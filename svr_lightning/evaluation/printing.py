"""What ``predict``, ``test`` and ``validate`` show on a terminal: turns, outcomes and results."""

import json
from pathlib import Path
from shlex import quote

from svr_lightning.analysis.metrics import columns_of, summarize
from svr_lightning.analysis.records import SampleRecord
from svr_lightning.analysis.results import setting
from svr_lightning.core.metrics import DEFINITIONS, NONE, PRINTED, abbreviations
from svr_lightning.core.stopping import StopRule
from svr_lightning.core.types import Problem, Turn
from svr_lightning.display import interval, plain, print_table, print_turn, say, short
from svr_lightning.errors import program

_NAME = 16
"""Longest name of a data set that leaves room for the columns."""


class TurnPrinter:
    """Shows each turn as it ends, under its question: turns of several problems alternate."""

    def __init__(self, *, name_problems: bool = False) -> None:
        self._name_problems = name_problems
        self._heading = ""

    def __call__(self, problem: Problem, turn: Turn) -> None:
        """Print one turn."""
        if self._heading != problem.id:
            say(f"\n{problem.question}", style="italic")
            self._heading = problem.id
        tokens = f"{turn.completion.completion_tokens} tokens"
        note = f"{tokens}, truncated" if turn.completion.truncated else tokens
        if self._name_problems:
            note += f"  [{plain(problem.id)}]"
        print_turn(turn, note)


def print_outcome(
    record: SampleRecord, rule: StopRule | None, *, name_problem: bool = False
) -> None:
    """Say what is returned, where the trajectory stopped and why."""
    if not record.turns:
        say(f"{record.id}: {record.error}", style="red")
        return
    turn = record.turns[record.returned_turn - 1]
    grade = {True: ", correct", False: ", incorrect", None: ""}[turn.correct]
    if turn.grading_error is not None:
        grade = ", could not be graded"
    name = f" [{record.id}]" if name_problem else ""
    say(
        f"answer{name}: {turn.answer}{grade} (turn {record.returned_turn}; stopped: "
        f"{stop_reason(record, rule)})"
    )


def stop_reason(record: SampleRecord, rule: StopRule | None) -> str:
    """Why a recorded trajectory ended under ``rule``, in a few words."""
    if rule is not None and (record.accepted or record.stopped_early):
        return rule.reason(record.signals[: record.observed])
    if record.returned_turn < len(record.turns):
        return "no turns were left, the rule prefers an earlier one"
    return "no turns were left"


def print_results(file: Path) -> None:
    """Print a results file, at most 80 columns wide, and the folder it lies in."""
    results = json.loads(file.read_text(encoding="utf-8"))
    datasets = results["datasets"]
    summary = summarize([datasets])
    rows = []
    for part, names in columns_of(datasets).items():
        problems = sum(datasets[name]["n"] for name in names)
        cells = [summary(part, metric).text for metric in PRINTED]
        bounds = summary(part, "accuracy").interval
        rows.append(
            [short(part, _NAME), str(problems), *cells, interval(bounds) if bounds else NONE]
        )
    heads = (DEFINITIONS[metric].head for metric in PRINTED)
    print_table(("data set", "n", *heads, "Acc., 95 %"), rows)
    say(*abbreviations(PRINTED))
    settings = results.get("config", {})
    turns = setting(settings, "protocol", "max_turns")
    if turns != 1 and setting(settings, "model", "evaluation", "adaptive") is False:
        note = f"every turn is recorded and the last of {turns} returned; to stop by a rule:"
        print(f"{note} {program()} replay {quote(str(file.parent))}")
    print(f"{file.parent}: samples.jsonl, results.json")
