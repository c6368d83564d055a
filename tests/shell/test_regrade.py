"""Recorded turns graded again."""

import json
from pathlib import Path
from typing import Any

import pytest

from svr_lightning.cli.commands import run
from svr_lightning.core.types import Problem
from svr_lightning.evaluation.regrade import regrade, tasks_of
from svr_lightning.evaluation.results import RESULTS, SAMPLES, read_samples, write_results
from svr_lightning.tasks.base import GradingError, Task
from svr_lightning.tasks.graders import Grader, get_grader
from tests.trajectories import turn

COUNTDOWN = "Using the numbers [3, 5], create an equation that equals 8."


def record(dataset: str, name: str, text: str, correct: bool, **changes: Any) -> dict[str, Any]:
    one = {**turn(1, correct, "C", 0.9, 10), "text": text, "answer": text}
    return {
        "dataset": dataset,
        "id": name,
        "question": "?",
        "reference": r"2\sqrt{3}",
        "returned_turn": 1,
        "stopped_early": True,
        "turns": [one],
        **changes,
    }


RECORDS = [
    record("math500", "a", r"\boxed{\sqrt{12}}", False),
    record("math500", "b", r"\boxed{\sqrt{3}}", True),
    record("mine", "c", r"\boxed{x+1}", False, reference="1+x"),
    record("countdown", "d", "<answer>3+5</answer>", False, reference="8", question=COUNTDOWN),
    record("gsm8k", "e", "#### 5", True, reference="5"),
]


def test_the_command_leaves_both_files_and_says_what_changed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = {"data": {"test": [{"name": "mine", "task": "math"}]}, "graders": {"math": "paper"}}
    write_results(tmp_path / "run", RECORDS, config, {})
    samples = tmp_path / "run" / SAMPLES
    assert run("regrade", ["--samples", str(samples), "--out", str(tmp_path / "out")]) == 0
    graded = read_samples(tmp_path / "out" / SAMPLES)
    assert [r["turns"][0]["correct"] for r in graded] == [True, False, True, True, True]
    unlabelled = [
        [{**r, "turns": [{**t, "correct": None} for t in r["turns"]]} for r in records]
        for records in (graded, RECORDS)
    ]
    assert unlabelled[0] == unlabelled[1]
    results = json.loads((tmp_path / "out" / RESULTS).read_text())
    assert results["datasets"]["math500"]["accuracy"] == 0.5
    assert results["config"]["data"] == config["data"]
    graders = {"math": "symbolic", "countdown": "symbolic", "gsm8k": "symbolic"}
    assert results["config"]["graders"] == graders
    assert results["config"]["regraded"]["graders"] == {"math": "paper"}
    assert "sympy" in results["versions"]
    shown = capsys.readouterr().out
    assert r"a turn 1: \boxed{\sqrt{12}} for 2\sqrt{3}" in shown
    assert "math500, now wrong" in shown
    assert all(len(line) <= 80 for line in shown.splitlines()[:-2])


def test_labels_by_the_paper_are_given_back_by_the_papers_grader() -> None:
    tasks = tasks_of(["math500", "countdown", "gsm8k"], {}, {})
    known = [r for r in RECORDS if r["dataset"] != "mine"]
    graded, changes = regrade(known, get_grader("paper"), tasks)
    assert [r["turns"][0]["correct"] for r in graded] == [False, False, True, True]
    assert changes["math500"].count(correct=False) == 1
    again, unchanged = regrade(graded, get_grader("paper"), tasks)
    assert again == graded
    assert not any(seen.changed for seen in unchanged.values())


def test_a_turn_that_cannot_be_graded_counts_as_wrong_and_says_why() -> None:
    class Broken(Grader):
        name = "broken"

        def grade(self, task: Task, completion: str, problem: Problem) -> bool:
            raise GradingError("gone")

    graded, changes = regrade(RECORDS[-1:], Broken(), {"gsm8k": "gsm8k"})
    assert graded[0]["turns"][0]["correct"] is False
    assert graded[0]["turns"][0]["grading_error"] == "gone"
    assert changes["gsm8k"].undecided == 1


@pytest.mark.parametrize(
    ("changes", "arguments", "message"),
    [
        ({"dataset": "mine"}, [], "the task of 'mine' is not known; give --task mine=TASK"),
        ({}, ["--task", "math500=x"], "--task math500=x: no such task"),
        ({}, ["--task", "math500"], "must read NAME=TASK"),
        ({"reference": ""}, [], "math500/a has no reference answer"),
        ({"dataset": "countdown"}, [], "countdown/a cannot be graded: its question does not say"),
        ({}, ["--out", "{folder}"], "the samples lie there; name another folder"),
    ],
)
def test_what_cannot_be_graded_is_one_line(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    changes: dict[str, Any],
    arguments: list[str],
    message: str,
) -> None:
    samples = tmp_path / SAMPLES
    samples.write_text(json.dumps({**RECORDS[0], **changes}) + "\n")
    given = ["--samples", str(samples), "--out", str(tmp_path / "out")]
    given += [argument.replace("{folder}", str(tmp_path)) for argument in arguments]
    assert run("regrade", given) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
