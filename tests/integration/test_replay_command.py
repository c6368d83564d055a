"""``svr replay``: every operating point of recorded turns, and votes of fresh ones."""

import json
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from svr_lightning.__main__ import main
from svr_lightning.analysis.records import SampleRecord
from svr_lightning.analysis.regrade import regrade
from svr_lightning.core.stopping import Confident, Majority, rule_as_config
from svr_lightning.tasks.base import GradingError
from svr_lightning.tasks.grading import GRADERS, SymbolicGrader, get_grader
from tests.commands import refused
from tests.trajectories import adaptive, pool, record, records_of, save, turn, uncensored


def shown_by(capsys, *arguments: object) -> str:
    assert main(["replay", *map(str, arguments)]) == 0
    return capsys.readouterr().out


def test_turns_leave_json_and_print_within_80_columns(tmp_path, capsys):
    hostile = record("x", *[(True, "C", 0.9, 1)] * 3, dataset="=1+1[red]")
    long = record("y", *[(True, "C", 0.9, 1)] * 3, dataset="a_long_name " * 8)
    folder = save(tmp_path, [*uncensored(), hostile, long])
    shown = shown_by(capsys, folder, "--compare-stops", "--budget", "700")
    assert max(map(len, shown.splitlines())) <= 80
    assert "=1+1[red]" in shown
    assert "a_long_name a_long_name a_long_name a_l…: fixed budgets" in shown
    assert "toy: stopping rules within 700 tokens per problem" in shown
    found = json.loads((tmp_path / "replay" / "replay.json").read_text())
    assert found["fixed"][1]["datasets"]["toy"]["accuracy"] == 3 / 6
    assert "over budget" in shown_by(capsys, folder, "--budget", "5")


def test_the_operating_point_is_the_rule_that_the_run_had(tmp_path, capsys):
    rows = [record(str(k), *[(True, "U", 0.9, 100)] * 3) for k in range(4)]
    for rule, words in (
        (Confident(threshold=0.8, needs_correct=False), "confidence >= 0.8"),
        (Majority(), "the majority is settled"),
    ):
        stop = {"model": {"evaluation": {"stop": rule_as_config(rule)}}}
        save(tmp_path, rows, stop | {"protocol": {"privileged": True}})
        shown = shown_by(capsys, tmp_path)
        assert f"the run's rule: {words}" in shown
        assert "privileged: labels in prompts" in shown
        point = json.loads((tmp_path / "replay" / "replay.json").read_text())["operating_point"]
        assert point["datasets"]["toy"]["esr"] == 1.0


@pytest.mark.parametrize("command", [["replay"], ["certify", "--max-wrong-accepted", "0.5"]])
def test_the_texts_of_a_problem_that_was_read_leave_memory(tmp_path, command):
    """Of 150 KB a problem none stays: 40 problems more take less than one more would."""
    turns = [{**turn(k, True, "C", 0.9, 1), "text": "x" * 50_000} for k in (1, 2, 3)]
    peaks = []
    for problems in (20, 20, 60):  # the first fills caches
        rows = [{**record(str(k)), "turns": turns, "returned_turn": 3} for k in range(problems)]
        save(tmp_path, rows)
        tracemalloc.start()
        assert main([*command, str(tmp_path)]) == 0
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[2] - peaks[1] < 150_000


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--budget", "0"], "--budget must be a number of tokens above 0"),
        (["--out", __file__], f"{__file__} is a file"),
    ],
)
def test_a_setting_out_of_range_is_one_line(tmp_path, capsys, options, message):
    assert message in refused(capsys, "replay", save(tmp_path, uncensored()), *options)


def test_recordings_that_cannot_be_used_are_named(tmp_path, capsys):
    old = save(tmp_path / "old", uncensored(), {"model": {"evaluation": {"gate": "verdict"}}})
    cut = save(tmp_path / "cut", adaptive())
    none = save(tmp_path / "none", [])
    listed = save(tmp_path / "listed", uncensored())
    (listed / "results.json").write_text("[]")  # of which the rule of the run is not known
    for file, message in (
        (tmp_path / "absent", "no such file or folder; give a folder with a samples.jsonl"),
        (none, "no samples"),
        (listed, "results.json: holds a list or a value instead of results"),
        (old, "results.json: model.evaluation.gate: settings of version 0.1; evaluate again"),
        (cut, "record every turn with --record"),
    ):
        assert message in refused(capsys, "replay", file)


FRESH = {"model": {"evaluation": {"fresh_turns": True}}}


def test_fresh_turns_vote_and_every_number_is_written(tmp_path, capsys):
    hostile = "[red]\x1b[31m\n" + "long" * 5
    rows = [pool("x", "aab", dataset="math500"), pool("y", "bba", dataset=hostile)]
    shown = shown_by(capsys, save(tmp_path, rows, FRESH))
    assert "\x1b[31m" not in shown
    assert max(map(len, shown.splitlines()[:-1])) <= 80
    votes = json.loads((tmp_path / "replay" / "replay.json").read_text())["votes"]
    # Of the paper's numbers of votes, three turns allow one.
    assert (votes["math500"]["maj@3"], votes[hostile]["maj@3"]) == (1.0, 0.0)
    assert "maj@5" not in votes["math500"]
    majority = "majority of fresh turns"
    assert majority in shown
    # Samples alone: prompts of 100 tokens each, and of 100, 200 and 300.
    assert majority in shown_by(capsys, save(tmp_path / "alone", rows))
    assert majority not in shown_by(capsys, save(tmp_path / "svr", uncensored()))


def answered(dataset: str, name: str, text: str, correct: bool, **changes: Any) -> dict[str, Any]:
    one = record(name, (correct, "C", 0.9, 10), dataset=dataset, early=True)
    one["turns"][0] |= {"text": text, "answer": text}
    return {**one, "task": "math", "reference": r"2\sqrt{3}", **changes}


PUZZLE = {"reference": "8", "task": "countdown", "payload": {"nums": [3, 5]}}
RECORDS = [
    answered("math500", "a", r"\boxed{\sqrt{12}}", False),
    answered("math500", "b", r"\boxed{\sqrt{3}}", True),
    answered("mine", "c", r"\boxed{x+1}", False, reference="1+x"),
    answered("countdown", "d", "<answer>3+5</answer>", False, **PUZZLE),
    answered("gsm8k", "e", "#### 5", True, reference="5", task="gsm8k"),
]


def labels(records: list[SampleRecord]) -> list[bool | None]:
    return [record.turns[0].correct for record in records]


def unlabelled(records: list[SampleRecord]) -> list[SampleRecord]:
    return [replace(r, turns=tuple(replace(t, correct=None) for t in r.turns)) for r in records]


def graded_again(capsys, folder: Path) -> tuple[str, dict[str, Any]]:
    """The first line that a replay with the grader ``symbolic`` prints, and what it writes."""
    first, *_ = shown_by(capsys, folder, "--grader", "symbolic").splitlines()
    return first, json.loads((folder / "replay" / "replay.json").read_text())


def test_another_grader_gives_the_labels_of_a_replay_and_leaves_the_recording(tmp_path, capsys):
    before = save(tmp_path, RECORDS, {"graders": {"math": "paper"}})
    recorded = (before / "samples.jsonl").read_bytes()
    line, found = graded_again(capsys, before)
    assert line == "labels by symbolic: 3 of 5 turns now right, 1 now wrong, 0 undecided"
    assert (found["grader"], (before / "samples.jsonl").read_bytes()) == ("symbolic", recorded)
    for point in (found["operating_point"], found["fixed"][0], found["thresholds"][0]):
        accuracy = {name: row["accuracy"] for name, row in point["datasets"].items()}
        assert accuracy == {"math500": 0.5, "mine": 1.0, "countdown": 1.0, "gsm8k": 1.0}
    assert "labels by" not in shown_by(capsys, before)
    assert json.loads((before / "replay" / "replay.json").read_text())["grader"] is None
    (before / "results.json").write_text('{"config": "lost"}')
    assert graded_again(capsys, before)[0] == line


def test_a_turn_that_the_grader_cannot_decide_counts_as_wrong(tmp_path, capsys, monkeypatch):
    def hangs(*_: str) -> bool:
        raise GradingError("too much time")

    monkeypatch.setitem(GRADERS, "symbolic", SymbolicGrader(hangs))
    line, found = graded_again(capsys, save(tmp_path, RECORDS[:2]))
    assert line == "labels by symbolic: 0 of 2 turns now right, 1 now wrong, 2 undecided"
    assert found["fixed"][0]["datasets"]["math500"]["accuracy"] == 0


def test_labels_by_the_paper_are_given_back_by_the_papers_grader():
    known = records_of([r for r in RECORDS if r["dataset"] != "mine"])
    graded = regrade(known, get_grader("paper"))
    assert labels(graded) == [False, False, True, True]
    assert unlabelled(graded) == unlabelled(known)
    assert regrade(graded, get_grader("paper")) == graded


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"schema_version": 1}, "schema_version 1 is not 2"),
        ({"task": None}, "task: Expected `str`, got `null`"),
        ({"task": "chess"}, "math500/a: unknown task 'chess'"),
        ({"reference": ""}, "math500/a: there is no reference answer"),
        ({"reference": 1}, "math500/a: task math cannot grade with the reference 1"),
        (
            {**PUZZLE, "payload": {}, "turns": RECORDS[3]["turns"]},
            "math500/a: task countdown cannot grade with the reference '8' and the payload {}",
        ),
    ],
)
def test_what_cannot_be_graded_is_one_line(changes, message, tmp_path, capsys):
    folder = save(tmp_path, [{**RECORDS[0], **changes}])
    assert message in refused(capsys, "replay", folder, "--grader", "symbolic")


def test_a_log_has_nothing_to_grade(tmp_path, capsys):
    (tmp_path / "log.csv").write_text("id,confidence,correct\na,0.9,1\n")
    line = refused(capsys, "replay", tmp_path / "log.csv", "--grader", "symbolic")
    assert "log.csv: a log has no texts to grade again" in line


def test_a_task_that_only_the_recording_names_is_not_imported(tmp_path, monkeypatch, capsys):
    mark = tmp_path / "imported"
    code = f"from pathlib import Path\nPath({str(mark)!r}).touch()\n"
    (tmp_path / "evil_task.py").write_text(code, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    save(tmp_path, [answered("mine", "a", "1", False, task="evil_task.Task")])
    words = ["replay", str(tmp_path), "--grader", "symbolic"]
    assert "allow it with --task evil_task.Task" in refused(capsys, *words)
    assert "--task is for --grader" in refused(capsys, *words[:2], "--task", "evil_task.Task")
    assert not mark.exists()
    main([*words, "--task", "evil_task.Task"])
    assert mark.exists()
