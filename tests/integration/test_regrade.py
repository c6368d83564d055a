"""Recorded turns graded again."""

import json
from dataclasses import replace
from typing import Any

import pytest

from svr_lightning.__main__ import main
from svr_lightning.analysis.records import SampleRecord
from svr_lightning.analysis.results import RESULTS, SAMPLES, read_samples
from svr_lightning.cli.regrade import regrade
from svr_lightning.tasks.grading import get_grader
from tests.commands import refused
from tests.trajectories import record as one_turn
from tests.trajectories import records_of, turn, write_results


def record(dataset: str, name: str, text: str, correct: bool, **changes: Any) -> dict[str, Any]:
    one = one_turn(name, (correct, "C", 0.9, 10), dataset=dataset, early=True)
    one["turns"][0] |= {"text": text, "answer": text}
    return {**one, "task": "math", "reference": r"2\sqrt{3}", **changes}


ANSWERED = {**turn(1, True, "C", 0.9, 10), "text": "<answer>3+5</answer>", "answer": "3+5"}
RECORDS = [
    record("math500", "a", r"\boxed{\sqrt{12}}", False),
    record("math500", "b", r"\boxed{\sqrt{3}}", True),
    record("mine", "c", r"\boxed{x+1}", False, reference="1+x"),
    record(
        *("countdown", "d", "<answer>3+5</answer>", False),
        **{"reference": "8", "task": "countdown", "payload": {"nums": [3, 5]}},
    ),
    record("gsm8k", "e", "#### 5", True, reference="5", task="gsm8k"),
]


def labels(records: list[SampleRecord]) -> list[bool | None]:
    return [record.turns[0].correct for record in records]


def unlabelled(records: list[SampleRecord]) -> list[SampleRecord]:
    return [replace(r, turns=tuple(replace(t, correct=None) for t in r.turns)) for r in records]


def test_the_command_leaves_both_files_and_says_what_changed(tmp_path, capsys):
    config = {"data": {"test": [{"name": "mine", "task": "math"}]}, "graders": {"math": "paper"}}
    write_results(tmp_path / "run", RECORDS, config, {})
    samples = tmp_path / "run" / SAMPLES
    assert main(["regrade", str(samples.parent), "--out", str(tmp_path / "out")]) == 0
    graded = read_samples(tmp_path / "out" / SAMPLES)
    assert labels(graded) == [True, False, True, True, True]
    assert unlabelled(graded) == unlabelled(records_of(RECORDS))
    results = json.loads((tmp_path / "out" / RESULTS).read_text())
    assert results["datasets"]["math500"]["accuracy"] == 0.5
    assert results["config"]["data"] == config["data"]
    graders = {"math": "symbolic", "countdown": "symbolic", "gsm8k": "symbolic"}
    assert results["config"]["graders"] == graders
    assert results["config"]["regraded"]["graders"] == {"math": "paper"}
    assert "sympy" in results["versions"]
    shown = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["math500", "2", "1", "1", "0"] in shown  # turns, now right, now wrong, undecided
    (samples.parent / RESULTS).write_text('{"config": "lost"}')
    assert main(["regrade", str(samples.parent), "--out", str(tmp_path / "out")]) == 0


def test_labels_by_the_paper_are_given_back_by_the_papers_grader():
    known = records_of([r for r in RECORDS if r["dataset"] != "mine"])
    graded = regrade(known, get_grader("paper"))
    assert labels(graded) == [False, False, True, True]
    assert regrade(graded, get_grader("paper")) == graded


@pytest.mark.parametrize(
    ("changes", "out", "message"),
    [
        ({"schema_version": 1}, "out", "schema_version 1 is not 2"),
        ({"task": None}, "out", "task: Expected `str`, got `null`"),
        ({"task": "chess"}, "out", "chess"),
        ({"reference": ""}, "out", "math500/a has no reference answer"),
        ({"reference": 1}, "out", "math500/a: task math cannot grade with the reference 1"),
        (
            {"task": "countdown", "reference": "8", "turns": [ANSWERED]},
            "out",
            "math500/a: task countdown cannot grade with the reference '8' and the payload {}",
        ),
        ({}, ".", "the samples lie there; name another folder"),
    ],
)
def test_what_cannot_be_graded_is_one_line(changes, out, message, tmp_path, capsys):
    (tmp_path / SAMPLES).write_text(json.dumps({**RECORDS[0], **changes}) + "\n")
    assert message in refused(capsys, "regrade", tmp_path, "--out", tmp_path / out)


EVIL = """
from pathlib import Path
Path({mark!r}).touch()
"""


def test_a_task_that_only_the_file_names_is_not_imported(tmp_path, monkeypatch, capsys):
    mark, path = tmp_path / "imported", tmp_path / SAMPLES
    (tmp_path / "evil_task.py").write_text(EVIL.format(mark=str(mark)), encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    path.write_text(json.dumps(record("mine", "a", "1", False, task="evil_task.Task")) + "\n")
    arguments = [str(tmp_path), "--out", str(tmp_path / "out")]
    assert main(["regrade", *arguments]) == 2
    assert "allow it with --task evil_task.Task" in capsys.readouterr().err
    assert not mark.exists()
    main(["regrade", *arguments, "--task", "evil_task.Task"])
    assert mark.exists()
