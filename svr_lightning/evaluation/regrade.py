"""Recorded turns graded again, by another notion of correctness."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from svr_lightning.core.types import Problem
from svr_lightning.errors import ConfigError
from svr_lightning.evaluation.results import MATH_5
from svr_lightning.tasks import TASKS, get_task
from svr_lightning.tasks.graders import Grader
from svr_lightning.tasks.grading import label

Record = Mapping[str, Any]

KNOWN_TASKS = {"countdown": "countdown", "gsm8k": "gsm8k", **dict.fromkeys(MATH_5, "math")}
"""The task of each of the paper's data sets."""
_NUMBERS = re.compile(r"[Uu]sing the numbers \[([0-9]{1,9}(?:, ?[0-9]{1,9}){0,15})\]")


@dataclass(frozen=True)
class Change:
    """A turn whose label is another one than before."""

    id: str
    turn: int
    answer: str | None
    reference: str
    correct: bool
    """The new label."""


@dataclass
class Changes:
    """What grading again did to one data set."""

    turns: int = 0
    changed: list[Change] = field(default_factory=list)
    undecided: int = 0
    """Turns that could not be graded and count as wrong."""

    def count(self, *, correct: bool) -> int:
        """Turns that became right, or wrong."""
        return sum(change.correct is correct for change in self.changed)


def regrade(
    records: Sequence[Record], grader: Grader, tasks: Mapping[str, str]
) -> tuple[list[dict[str, Any]], dict[str, Changes]]:
    """Grade every recorded turn again; nothing else of a record changes.

    Args:
        records: of a samples file.
        grader: says what is correct.
        tasks: task by data set; see :func:`tasks_of`.

    Returns:
        The records with new labels, and what changed, by data set. A turn that cannot be graded
        counts as wrong and says why in ``grading_error``.

    Raises:
        ConfigError: naming a record that cannot be graded: no reference, or no numbers.
    """
    changes: dict[str, Changes] = {}
    graded = []
    for record in records:
        problem = problem_of(record, tasks[record["dataset"]])
        seen = changes.setdefault(record["dataset"], Changes())
        turns = []
        for turn in record["turns"]:
            new = label(get_task(problem.task), turn["text"], problem, grader)
            kept = {name: value for name, value in turn.items() if name != "grading_error"}
            turns.append({**kept, **new.fields()})
            seen.turns += 1
            seen.undecided += new.error is not None
            if new.correct != turn["correct"]:
                seen.changed.append(
                    Change(
                        problem.id,
                        turn["turn"],
                        turn.get("answer"),
                        problem.reference,
                        new.correct,
                    )
                )
        graded.append({**record, "turns": turns})
    return graded, changes


def problem_of(record: Record, task: str) -> Problem:
    """The problem that a record is about, as a grader needs it.

    Raises:
        ConfigError: if it has no reference, or is a Countdown problem that does not say its
            numbers in the words of the paper's prompt.
    """
    where = f"{record['dataset']}/{record['id']}"
    reference = record.get("reference")
    if not isinstance(reference, str) or not reference:
        raise ConfigError(f"{where} has no reference answer, so that it cannot be graded")
    payload: dict[str, Any] = {}
    if task == "countdown":
        found = _NUMBERS.search(record["question"])
        if found is None:
            raise ConfigError(
                f"{where} cannot be graded: its question does not say 'Using the numbers [...]'"
            )
        payload = {"nums": [int(digits) for digits in found.group(1).split(",")]}
    return Problem(
        id=record["id"],
        task=task,
        question=record["question"],
        reference=reference,
        payload=payload,
    )


def tasks_of(
    datasets: Sequence[str], config: Mapping[str, Any], named: Mapping[str, str]
) -> dict[str, str]:
    """The task of each data set: as named, else as the run was configured, else as the paper's.

    Args:
        datasets: names in the records.
        config: of the run, as its results file quotes it.
        named: by the user.

    Raises:
        ConfigError: naming a data set whose task is not known, or a task that does not exist.
    """
    known = {**KNOWN_TASKS, **dict(_configured(config)), **named}
    for dataset in datasets:
        if dataset not in known:
            raise ConfigError(f"the task of {dataset!r} is not known; give --task {dataset}=TASK")
        if known[dataset] not in TASKS:
            raise ConfigError(
                f"--task {dataset}={known[dataset]}: no such task; known: {', '.join(TASKS)}"
            )
    return {dataset: known[dataset] for dataset in datasets}


def _configured(node: Any) -> Iterator[tuple[str, str]]:
    """Every ``{name: ..., task: ...}`` within a configuration."""
    if isinstance(node, Mapping):
        if isinstance(node.get("name"), str) and isinstance(node.get("task"), str):
            yield node["name"], node["task"]
        node = list(node.values())
    if isinstance(node, list):
        for item in node:
            yield from _configured(item)
