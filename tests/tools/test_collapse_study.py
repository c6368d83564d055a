"""The study of the collapse into doubt."""

import json
from pathlib import Path

import pytest

from svr_lightning import tiny
from svr_lightning.core.types import Verdict
from svr_lightning.tiny.problems import generate
from tools.collapse import __main__ as study
from tools.collapse import conditions
from tools.collapse.expected import best, break_even, expected_reward

POLICY = Path(tiny.__file__).parent / "countdown_policy"


def test_the_expected_reward_of_a_blind_self_check_is_worked_out_by_hand() -> None:
    # INCORRECT 0.3 on 40 % right: .5 (1 - .4 * .49 - .6 * .09) + .2 * .6
    assert expected_reward(Verdict.INCORRECT, 0.3, 0.4) == pytest.approx(0.5 * 0.75 + 0.12)
    # CORRECT 0.9 on 90 % right: .5 (1 - .9 * .01 - .1 * .81) - .8 * .1 * .9 + .3 * .9 * .9
    assert expected_reward(Verdict.CORRECT, 0.9, 0.9) == pytest.approx(0.455 - 0.072 + 0.243)


def test_doubting_everything_pays_until_most_answers_are_right() -> None:
    even = break_even()
    assert 0.7 < even < 0.8
    assert best(even - 0.02)["CORRECT"][1] < best(even - 0.02)["INCORRECT"][1]
    assert best(even + 0.02)["CORRECT"][1] > best(even + 0.02)["INCORRECT"][1]


@pytest.mark.parametrize("condition", conditions.CONDITIONS, ids=lambda c: c.name)
def test_every_condition_trains_and_logs(
    condition: conditions.Condition, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conditions, "STEPS", 1)
    monkeypatch.setattr(conditions, "PROBLEMS", 1)
    (row,) = conditions.train(condition, POLICY, generate("train"), seed=1)
    assert row["accuracy"] is not None
    assert 0 <= row["would_stop"] <= row["verdict/correct"] <= 1  # type: ignore[operator]


def test_results_average_the_runs_that_are_there_and_name_the_missing(tmp_path: Path) -> None:
    first = conditions.CONDITIONS[0]
    row = {"verdict/correct": 0.9, "would_stop": 0.8, "confidence/spread": 0.1, "auroc": 0.5}
    doubt = {"verdict/correct": 0.1, "would_stop": 0.0, "confidence/spread": 0.1, "auroc": None}
    row["accuracy"] = doubt["accuracy"] = 0.25
    for seed, last in ((42, doubt), (43, row)):
        study.run_file(tmp_path, first, seed).write_text(json.dumps([row] * 5 + [last] * 5))
    found = study.results(tmp_path)
    condition = found["conditions"][0]
    assert {seed: run["warned"] for seed, run in condition["runs"].items()} == {
        "42": 10,
        "43": None,
    }
    assert condition["mean_log"][-1] == {
        "accuracy": 0.25,
        "verdict/correct": 0.5,
        "would_stop": 0.4,
        "confidence/spread": 0.1,
        "auroc": 0.5,
    }
    assert f"{first.name}, seed 44" in found["missing"]
    assert len(found["missing"]) == 3 * len(conditions.CONDITIONS) - 2
