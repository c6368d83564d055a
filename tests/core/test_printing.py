"""What an evaluation prints, in 80 columns."""

import json

from svr_lightning.evaluation.printing import print_results
from tests.commands import screen

VALUES = {
    "n": 1319, "accuracy": 0.5333, "accuracy_ci95": [0.4671, 0.5982], "turns": 10.0,
    "avg_total_tokens": 1227.4, "esr": 0.0, "pse": 0.4667, "auroc": 0.5123, "brier": 0.3519,
}  # fmt: skip


def test_names_are_shortened_in_a_narrow_terminal_and_numbers_are_not(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.setenv("COLUMNS", "80")
    average = {**VALUES, "datasets": ["a", "b"], "missing": [], "n_datasets": {}}
    results = {"datasets": {"olympiadbench_of_a_long_name": VALUES}, "macro": {"all": average}}
    (tmp_path / "results.json").write_text(json.dumps(results))
    print_results(tmp_path / "results.json")
    lines = capsys.readouterr().out.splitlines()
    (row,) = [line for line in lines if line.lstrip().startswith("oly")]
    assert len(row) <= 80
    assert row.split()[0].endswith("…"), row
    assert not any("svr replay" in line for line in lines)
    for shown in ("1319", "0.533", "[0.467, 0.598]", "10.0", "0.352"):
        assert shown in row


def test_a_recording_of_every_turn_says_that_no_rule_has_stopped_it(tmp_path, capsys):
    config = {"protocol": {"max_turns": 3}, "model": {"evaluation": {"adaptive": False}}}
    results = {"datasets": {"toy": VALUES}, "config": config}
    folder = tmp_path / "a b"
    folder.mkdir()
    (folder / "results.json").write_text(json.dumps(results))
    print_results(folder / "results.json")
    shown = screen(capsys)
    assert f"svr replay '{folder}'" in shown
    assert "every turn is recorded and the last of 3 returned; to stop by a rule: svr re" in shown
