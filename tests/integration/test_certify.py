"""The command that certifies a threshold, from recordings to the policy's folder."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from svr_lightning.__main__ import main
from svr_lightning.analysis.operating_point import Certificate, read_operating_point
from svr_lightning.core.stopping import Confident, Majority, StopRule, rule_as_config
from tests.trajectories import adaptive, record, write_results, write_samples

RECORD = "record every turn with --record"


def problems(dataset: str = "toy", size: int = 300) -> list[dict[str, Any]]:
    """Of ten problems two are stopped wrongly below .80, and one more below .60."""
    right, later = (True, "C", 0.99, 10), (True, "C", 0.99, 10)
    first = {0: (False, "C", 0.7, 10), 1: (False, "C", 0.7, 10), 2: (False, "C", 0.55, 10)}
    return [
        record(f"{dataset}-{k}", first.get(k % 10, right), later, later, dataset=dataset)
        for k in range(size)
    ]


@pytest.fixture
def samples(tmp_path: Path) -> Path:
    write_samples(tmp_path, problems())
    return tmp_path / "samples.jsonl"


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    (tmp_path / "policy").mkdir()
    return tmp_path / "policy"


def certify(samples: Path, *arguments: str, max_pse: str = "0.10") -> int:
    promise = ["--max-pse", max_pse] if max_pse else []
    command = ["certify", str(samples.parent), *promise, "--max-turns", "3"]
    if "--calibrate-on" not in arguments:
        command += ["--calibrate-on", "1"]
    return main([*command, *arguments])


def found(samples: Path) -> dict[str, Any]:
    return dict(json.loads((samples.parent / "certify" / "certificate.json").read_text()))


def by_threshold(samples: Path) -> dict[float, dict[str, Any]]:
    return {row["threshold"]: row for row in found(samples)["candidates"]}


def test_the_cheapest_threshold_that_keeps_the_promise_is_written_where_predict_reads_it(
    samples, policy, capsys
):
    assert certify(samples, "--write", str(policy)) == 0
    # .75 to .99 return the same answers; of equals the strictest is taken.
    content = found(samples)
    chosen = content["certified"]
    assert (chosen["rates"]["pse"], chosen["rates"]["wrong"], chosen["threshold"]) == (0, 0, 0.99)
    own = read_operating_point(policy)
    assert isinstance(own, Certificate)
    assert own.rule == Confident(threshold=0.99)
    written = json.loads((policy / "operating_point.json").read_text())
    assert written == {"threshold": 0.99, **content}
    assert content["promises"] == [{"name": "pse", "limit": 0.1, "bound": 1.0}]
    assert content["confidence"] == 0.9
    assert content["rule"] == {"score": "confidence", "needs_correct": True}
    assert content["data"]["datasets"] == {"toy": 300}
    assert (content["schema_version"], len(content["data"]["sha256"])) == (2, 64)
    rows = by_threshold(samples)
    assert (rows[0.65]["rates"]["pse"], rows[0.65]["certified"]) == (0.2, False)
    assert rows[0.5]["rates"]["pse"] == pytest.approx(0.3)
    assert content["measured"] is None  # every problem calibrated
    shown = capsys.readouterr().out
    assert "threshold 0.99: pse at most 0.1, with confidence 0.9, on new problems" in " ".join(
        shown.split()
    )
    assert max(map(len, shown.split("certificate.json")[0].splitlines()[:-1])) <= 80


def test_a_promise_that_no_threshold_keeps_is_not_certified(samples, policy, capsys):
    assert certify(samples, "--thresholds", "0.6", "0.7", "--write", str(policy)) == 1
    assert read_operating_point(policy) is None
    shown = capsys.readouterr().out
    assert "no threshold can keep the promise: pse at most 0.1" in shown
    assert "relax a limit, or use more problems: --plan says how many" in shown


def test_every_promise_has_to_hold(samples):
    bound = ("--token-bound", "1000")
    # One turn of 110 tokens; at .75 to .99 three problems in ten take a second one, of 210.
    assert certify(samples, "--max-tokens", "220", *bound, "--min-accuracy", "0.95") == 0
    assert certify(samples, "--max-tokens", "120", *bound) == 1
    row = by_threshold(samples)[1.0]  # stops nowhere: PSE 0, 630 tokens
    assert row["p_values"]["tokens"] > row["level"] > row["p_values"]["pse"]


def test_accepted_answers_have_a_promise_of_their_own(samples):
    assert certify(samples, "--max-wrong-accepted", "0.05", max_pse="") == 0
    assert found(samples)["certified"]["rates"]["wrong_accepted"] == 0.0
    lax = ("--thresholds", "0.7")  # accepted on the first turn, 60 of 300 wrongly
    assert certify(samples, "--max-wrong-accepted", "0.15", *lax, max_pse="") == 1
    assert certify(samples, "--max-wrong-accepted", "0.25", *lax, max_pse="") == 0


def test_a_promise_is_about_all_data_sets_together(tmp_path):
    good = [record(f"g{k}", (True, "C", 0.7, 1), dataset="good") for k in range(300)]
    write_samples(tmp_path, [*problems("bad", 100), *good])
    assert certify(tmp_path / "samples.jsonl", "--thresholds", "0.7") == 0
    content = found(tmp_path / "samples.jsonl")
    assert content["certified"]["rates"]["pse"] == 0.05  # 20 of 400
    assert content["data"]["datasets"] == {"bad": 100, "good": 300}


def with_rule(folder: Path, rows: list[dict[str, Any]], rule: StopRule, turns: int) -> Path:
    """An evaluation of every turn, whose results quote a stopping rule."""
    evaluation = {"model": {"evaluation": {"stop": rule_as_config(rule)}}}
    write_results(folder, rows, {**evaluation, "protocol": {"max_turns": turns}}, {})
    return folder / "samples.jsonl"


@pytest.mark.parametrize(
    ("verdict", "rule", "threshold"),
    [
        # RLCR's self-check is a confidence alone, whose verdict reads UNSURE.
        ("U", Confident(threshold=0.8, needs_correct=False), 0.9),
        ("C", Confident(threshold=-1.0, score="answer_logprob"), -0.1),
    ],
)
def test_the_rule_of_the_recording_is_certified_and_one_that_cannot_be_changes_nothing(
    verdict, rule, threshold, tmp_path, policy, capsys
):
    rows = [record(f"p{k}", *[(True, verdict, 0.9, 10)] * 3) for k in range(300)]
    for turn in (turn for row in rows for turn in row["turns"]):
        turn["answer_logprob"] = -0.01
    samples = with_rule(tmp_path / "own", rows, rule, 3)
    grid = ("--thresholds", str(threshold))
    assert certify(samples, *grid, "--write", str(policy)) == 0
    own = read_operating_point(policy)
    assert isinstance(own, Certificate)
    assert own.rule == replace(rule, threshold=threshold)
    assert found(samples)["certified"]["rates"]["accepted"] == 1.0
    before = (policy / "operating_point.json").read_bytes()
    assert certify(with_rule(tmp_path / "votes", rows, Majority(), 3), "--write", str(policy)) == 2
    assert "its stopping rule, the majority is settled, has no threshold" in capsys.readouterr().err
    assert (policy / "operating_point.json").read_bytes() == before


def test_samples_that_end_at_their_stop_are_refused_with_what_to_do(tmp_path, capsys):
    write_samples(tmp_path, adaptive())
    assert certify(tmp_path / "samples.jsonl") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert RECORD in line
    assert "toy/a" in line


def test_the_choice_is_measured_on_problems_that_had_no_part_in_it(samples, capsys):
    assert certify(samples, "--calibrate-on", "0.6") == 0
    assert found(samples)["data"]["datasets"] == {"toy": 180}
    assert found(samples)["measured"]["pse"] == {"limit": 0.1, "rate": 0.0, "p_value_if_kept": 1.0}
    shown = capsys.readouterr().out
    assert "measured on problems that had no part in the choice" in shown
    assert "here, 120 problems" in shown


def test_variants_of_one_problem_are_one_observation_on_one_side(tmp_path, capsys):
    rows = problems(size=100)
    twins = [{**row, "id": f"{row['id']}-{k}", "cluster": row["id"]} for row in rows for k in "ab"]
    write_samples(tmp_path, twins)
    samples = tmp_path / "samples.jsonl"
    assert certify(samples, "--thresholds", "0.99", max_pse="0.2") == 0
    assert found(samples)["data"]["clusters"] == 100
    shown = capsys.readouterr().out
    assert "calibration: 200 problems (100 without variants), T_max = 3" in shown
    assert certify(samples, "--thresholds", "0.99", "--calibrate-on", "0.5", max_pse="0.2") == 0
    assert found(samples)["data"]["datasets"] == {"toy": 100}
    assert found(samples)["data"]["clusters"] == 50


def test_a_certificate_is_checked_on_new_problems(samples, tmp_path, capsys):
    assert certify(samples) == 0
    certificate = str(samples.parent / "certify" / "certificate.json")

    def check(rows: list[dict[str, Any]]) -> int:
        write_samples(tmp_path / "new", rows)
        return main(["certify", "--check", certificate, str(tmp_path / "new")])

    assert check(problems(size=100)) == 0
    assert "no promise is shown to be broken" in capsys.readouterr().out
    worse = [
        record(f"w{k}", (k % 4 > 0, "C", 0.99, 10), *[(True, "C", 1.0, 1)] * 2) for k in range(99)
    ]
    assert check(worse) == 1
    assert "no longer kept: pse" in capsys.readouterr().out
    Path(certificate).write_text("{}")
    assert check(worse) == 2
    assert "is no certificate of a threshold" in capsys.readouterr().err


def test_a_recording_of_other_settings_is_not_compared(samples, tmp_path, capsys):
    assert certify(samples) == 0
    config = {"model": {"evaluation": {"temperature": 0.6}}}
    write_results(tmp_path / "hot", problems("other"), config, {})
    hot = str(tmp_path / "hot")
    certificate = samples.parent / "certify" / "certificate.json"
    content = json.loads(certificate.read_text())
    certificate.write_text(json.dumps(content | {"decoding": {"temperature": 0.0}}))
    assert main(["certify", "--check", str(certificate), hot]) == 2
    assert "recorded with temperature=0.6 instead of 0.0" in capsys.readouterr().err


def test_the_plan_says_how_many_labels_a_promise_needs(capsys):
    assert main(["certify", "--plan", "--max-pse", "0.1", "--thresholds", "0.9"]) == 0
    shown = capsys.readouterr().out
    assert "22" in shown.split()  # 0.9 ** 22 < 0.1: as many right ones and no wrong one
    assert max(map(len, shown.splitlines())) <= 80


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "no promise was given"),
        (["--calibrate-on", "0"], "--calibrate-on: 0 must be above 0 and at most 1"),
        (["--calibrate-on", "0.001"], "--calibrate-on 0.001: no problem is left"),
        (["--max-pse", "1.5"], "--max-pse: 1.5 must be above 0 and below 1"),
        (["--confidence", "nan"], "--confidence: nan must be above 0 and below 1"),
        (["--thresholds", "nan"], "--thresholds: nan must be a number"),
        (["--write", "/no/policy"], "--write: /no/policy: no such folder"),
        (["--max-turns", "0"], "max_turns=0 must be at least one turn"),
        (["--max-tokens", "900"], "--max-tokens needs --token-bound"),
        (
            ["--max-tokens", "9", "--token-bound", "99"],
            "loss lies outside [0, 99]; give a larger token bound",
        ),
        (["--max-tokens", "99", "--token-bound", "99"], "no answer could break the promise"),
        (
            ["--thresholds", "1"],
            "at confidence >= 0.85, accepts no answer at any of the thresholds",
        ),
        (["--check", "nowhere.json"], "nowhere.json: no such file"),
    ],
)
def test_a_wrong_promise_or_option_is_one_line(arguments, said, samples, capsys):
    assert certify(samples, *arguments, max_pse="" if not arguments else "0.10") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line
