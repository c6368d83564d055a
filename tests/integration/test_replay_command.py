"""``svr replay``: every operating point of recorded turns, and votes of fresh ones."""

import json

import pytest

from svr_lightning.__main__ import main
from svr_lightning.core.stopping import Confident, Majority, rule_as_config
from tests.trajectories import adaptive, pool, record, save, uncensored, write_results


def shown_by(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert main(["replay", *map(str, arguments)]) == 0
    return capsys.readouterr().out


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert main(["replay", *map(str, arguments)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


def test_turns_leave_json_and_print_within_80_columns(tmp_path, capsys):
    hostile = record("x", *[(True, "C", 0.9, 1)] * 3, dataset="=1+1[red]")
    folder = save(tmp_path, [*uncensored(), hostile])
    shown = shown_by(capsys, folder, "--compare-stops", "--budget", "700")
    assert max(map(len, shown.splitlines())) <= 80
    assert "=1+1[red]" in shown
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
        write_results(tmp_path, rows, stop | {"protocol": {"privileged": True}}, {})
        shown = shown_by(capsys, tmp_path)
        assert f"the run's rule: {words}" in shown
        assert "privileged: labels in prompts" in shown
        point = json.loads((tmp_path / "replay" / "replay.json").read_text())["operating_point"]
        assert point["datasets"]["toy"]["esr"] == 1.0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--budget", "0"], "--budget must be a number of tokens above 0"),
        (["--out", __file__], f"{__file__} is a file"),
    ],
)
def test_a_setting_out_of_range_is_one_line(tmp_path, capsys, options, message):
    assert message in refused(capsys, save(tmp_path, uncensored()), *options)


def test_recordings_that_cannot_be_used_are_named(tmp_path, capsys):
    old = save(tmp_path / "old", uncensored(), {"model": {"evaluation": {"gate": "verdict"}}})
    cut = save(tmp_path / "cut", adaptive())
    none = save(tmp_path / "none", [])
    listed = save(tmp_path / "listed", uncensored())
    (listed / "results.json").write_text("[]")  # of which the rule of the run is not known
    for file, message in (
        (tmp_path / "absent", "no evaluation; give a folder with a samples.jsonl"),
        *((none, "no samples"), (listed, "results.json: no results file but a list")),
        (old, "results.json: model.evaluation.gate: settings of version 0.1; evaluate again"),
        (cut, "record every turn with --record"),
    ):
        assert message in refused(capsys, file)


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
    assert "majority of fresh turns" in shown
    assert "majority of fresh turns" not in shown_by(capsys, save(tmp_path / "svr", uncensored()))
