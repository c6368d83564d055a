"""What ``predict``, ``test`` and ``validate`` show on a terminal: turns, outcomes and results."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from svr_lightning.analysis.metrics import averages, macro_average
from svr_lightning.analysis.records import SampleRecord
from svr_lightning.core.stopping import StopRule
from svr_lightning.core.types import Problem, Turn
from svr_lightning.display import excerpt, plain, text_table, turn_header

_COLUMNS = {
    "accuracy": ("accuracy", "{:.3f}"),
    "95 %": ("accuracy_ci95", "{0[0]:.3f}-{0[1]:.3f}"),
    "turns": ("turns", "{:.2f}"),
    "tokens": ("avg_total_tokens", "{:.0f}"),
    "ESR": ("esr", "{:.3f}"),
    "PSE": ("pse", "{:.3f}"),
    "Brier": ("brier", "{:.3f}"),
}
"""By heading, the metric and its format."""
_NAME = 16
"""Longest name of a data set that leaves room for the columns."""


class TurnPrinter:
    """Shows each turn as it ends, under its question: turns of several problems alternate."""

    def __init__(self, *, name_problems: bool = False) -> None:
        self._name_problems = name_problems
        self._heading = ""

    def __call__(self, problem: Problem, turn: Turn) -> None:
        """Print one turn."""
        console = Console()
        if self._heading != problem.id:
            console.print(Text(f"\n{plain(problem.question)}", style="italic"))
            self._heading = problem.id
        tokens = f"{turn.completion.completion_tokens} tokens"
        note = f"{tokens}, truncated" if turn.completion.truncated else tokens
        if self._name_problems:
            note += f"  [{plain(problem.id)}]"
        console.print(turn_header(turn.index, turn.check, note))
        console.print(Text(excerpt(turn.completion.text)))


def print_outcome(
    record: SampleRecord, rule: StopRule | None, *, name_problem: bool = False
) -> None:
    """Say what is returned, where the trajectory stopped and why."""
    console = Console()
    if not record.turns:
        console.print(Text(f"{plain(record.id)}: {record.error}", style="red"))
        return
    turn = record.turns[record.returned_turn - 1]
    grade = {True: ", correct", False: ", incorrect", None: ""}[turn.correct]
    if turn.grading_error is not None:
        grade = ", could not be graded"
    console.print(
        Text.assemble(
            (f"answer [{plain(record.id)}]: " if name_problem else "answer: ", "bold"),
            plain(str(turn.answer)) + grade,
            f"   (turn {record.returned_turn}; stopped: {stop_reason(record, rule)})",
        )
    )


def stop_reason(record: SampleRecord, rule: StopRule | None) -> str:
    """Why a recorded trajectory ended under ``rule``, in a few words."""
    if rule is not None and record.stopped_early:
        return rule.reason(record.signals[: record.observed])
    chosen = record.returned_turn < len(record.turns)
    return "no turns were left" + ", the rule prefers an earlier one" * chosen


def print_results(file: Path) -> None:
    """Print a results file, at most 80 columns wide, and the folder it lies in."""
    results = json.loads(file.read_text(encoding="utf-8"))
    rows = dict(results["datasets"])
    for name, sets in averages(results["datasets"]).items():
        rows[name] = macro_average(results["datasets"], sets)
    console = Console()
    cells = [
        [
            _short(plain(" ".join(name.split()))),
            str(values.get("n", "")),
            *(_cell(values, key, form) for key, form in _COLUMNS.values()),
        ]
        for name, values in rows.items()
    ]
    table = text_table(("data set", "n", *_COLUMNS), cells)
    table.padding = (0, 1, 0, 0)
    console.print(table)
    if any(cell.endswith("*") for row in cells for cell in row[1:]):
        console.print(Text("* average over the data sets where the metric is defined"))
    console.print(Text(f"{file.parent}: samples.jsonl, results.json"), soft_wrap=True)


def _short(name: str) -> str:
    return name if len(name) <= _NAME else f"{name[: _NAME - 1]}\u2026"


def _cell(values: Mapping[str, Any], key: str, form: str) -> str:
    absent = "" if key == "accuracy_ci95" else "--"
    if values.get(key) is None:
        return absent
    partial = values.get("n_datasets", {}).get(key, 0) < len(values.get("datasets", ()))
    return f"{form.format(values[key])}{'*' * partial}"
