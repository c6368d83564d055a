"""``svr replay``: every operating point of recorded turns, and votes of fresh ones."""

import json
import sys
import tracemalloc

import pytest

from svr_lightning.__main__ import main
from svr_lightning.core.stopping import Confident, Majority
from tests.commands import read_json, refused
from tests.trajectories import adaptive, pool, record, save, settings_of, turn, uncensored


def shown_by(capsys, *arguments: object) -> str:
    assert main(["replay", *map(str, arguments)]) == 0
    return capsys.readouterr().out


def test_turns_leave_json_and_print_within_80_columns(tmp_path, capsys):
    hostile = record("x", *[(True, "C", 0.9, 1)] * 3, dataset="=1+1[red]")
    long = record("y", *[(True, "C", 0.9, 1)] * 3, dataset="a_long_name " * 8)
    folder = save(tmp_path, [*uncensored(), hostile, long])
    shown = shown_by(capsys, folder, "--compare-stops", "--budget", "700")
    assert max(map(len, shown.splitlines()[:-1])) <= 80
    assert "=1+1[red]" in shown
    assert "a_long_name a_long_name a_long_name a_l…: fixed budgets" in shown
    assert "toy: stopping rules within 700 tokens per problem" in shown
    assert "\nPSE: premature stop error, wrong before T_max\n" in shown
    found = read_json(tmp_path / "replay" / "replay.json")
    assert found["fixed"][1]["datasets"]["toy"]["accuracy"] == 3 / 6
    assert "over budget" in shown_by(capsys, folder, "--budget", "5")


def test_a_log_of_single_answers_shows_no_column_of_turns_or_tokens(tmp_path, capsys):
    log = tmp_path / "log.csv"
    log.write_text("id,confidence,correct\na,1,1\nb,0,0\n")
    heads = [line.split() for line in shown_by(capsys, log).splitlines() if "Acc." in line]
    assert heads == [["K", "Acc."], ["threshold", "Acc.", "Accepted", "Sel.", "acc."]]


def test_the_operating_point_is_the_rule_that_the_run_had(tmp_path, capsys):
    rows = [record(str(k), *[(True, "U", 0.9, 100)] * 3) for k in range(4)]
    for rule, words in (
        (Confident(threshold=0.8, needs_correct=False), "confidence >= 0.8"),
        (Majority(), "the majority is settled"),
    ):
        save(tmp_path, rows, settings_of(rule, 3) | {"protocol": {"privileged": True}})
        shown = shown_by(capsys, tmp_path)
        assert f"the run's rule: {words}" in shown
        assert "privileged: labels in prompts" in shown
        point = read_json(tmp_path / "replay" / "replay.json")["operating_point"]
        assert point["datasets"]["toy"]["esr"] == 1.0
        line = refused(capsys, "certify", tmp_path, "--max-pse", 0.1)
        assert "its prompts showed labels, which new problems do not have" in line


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
        (["--budget", "1e308"], "--budget must be a number of tokens above 0, at most 2147483647"),
        (["--out", __file__], f"{__file__} is a file"),
    ],
)
def test_a_setting_out_of_range_is_one_line(tmp_path, capsys, options, message):
    assert message in refused(capsys, "replay", save(tmp_path, uncensored()), *options)


def test_recordings_that_cannot_be_used_are_named(tmp_path, capsys):
    old = save(tmp_path / "old", uncensored(), {"model": {"evaluation": {"gate": "verdict"}}})
    cut = save(tmp_path / "cut", adaptive())
    none = save(tmp_path / "none", [])
    levels = sys.getrecursionlimit() * 6 // 10  # which can be read, and not quoted
    nested = json.loads("[" * levels + "]" * levels)
    deep = save(tmp_path / "deep", uncensored(), {"levels": nested})
    shown = save(tmp_path / "shown", [{**uncensored()[0], "schema_version": {"a": ["b"] * 999}}])
    listed = save(tmp_path / "listed", uncensored())
    (listed / "results.json").write_text("[]")  # of which the rule of the run is not known
    for file, message in (
        (tmp_path / "absent", "no such file or folder; give a folder with a samples.jsonl"),
        (none, "no samples"),
        (listed, "results.json: holds a list or a value instead of results"),
        (old, "results.json: model.evaluation.gate is no longer a setting; evaluate again"),
        (cut, "record every turn with --record"),
        (deep, "results.json: cannot be read as results (maximum recursion depth exceeded"),
        (shown, "samples.jsonl:1: schema_version {'a': ['b', 'b', "),
    ):
        line = refused(capsys, "replay", file)
        assert message in line
        assert len(line) < 2000


def test_fresh_turns_vote_and_every_number_is_written(tmp_path, capsys):
    hostile = "[red]\x1b[31m\n" + "long" * 5
    rows = [pool("x", "aab", dataset="math500"), pool("y", "bba", dataset=hostile)]
    shown = shown_by(capsys, save(tmp_path, rows, settings_of(Confident(), 3, fresh=True)))
    assert "\x1b[31m" not in shown
    assert max(map(len, shown.splitlines()[:-1])) <= 80
    found = read_json(tmp_path / "replay" / "replay.json")
    votes = found["votes"]
    # Of the paper's numbers of votes, three turns allow one.
    assert (votes["math500"]["maj@3"], votes[hostile]["maj@3"]) == (1.0, 0.0)
    assert "maj@5" not in votes["math500"]
    majority = "majority of fresh turns"
    assert majority in shown
    assert "fixed budgets" not in shown
    # Samples alone do not say how they were drawn.
    assert majority not in shown_by(capsys, save(tmp_path / "alone", rows))


def test_a_task_that_only_the_recording_names_is_not_imported(tmp_path, monkeypatch, capsys):
    mark = tmp_path / "imported"
    code = f"from pathlib import Path\nPath({str(mark)!r}).touch()\n"
    (tmp_path / "evil_task.py").write_text(code, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    save(tmp_path, [{**record("a", (True, "C", 0.9, 10), early=True), "task": "evil_task.Task"}])
    assert "the run's rule" in shown_by(capsys, tmp_path)
    assert not mark.exists()
