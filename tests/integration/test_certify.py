"""The command that certifies a threshold, from recordings to the policy's folder."""

import json
from pathlib import Path
from typing import Any

import pytest

import svr_lightning as svr
from svr_lightning.__main__ import main
from svr_lightning.analysis.operating_point import Certificate, read_operating_point
from svr_lightning.core.stopping import Confident
from tests.trajectories import adaptive, record, write_results, write_samples

RECORD = "record with --model.evaluation.adaptive false"


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


def certify(samples: Path, *arguments: str, max_pse: str = "0.10") -> int:
    promise = ["--max-pse", max_pse] if max_pse else []
    command = ["certify", "--samples", str(samples), *promise, "--max-turns", "3"]
    if not {"--calibrate-on", "--report-on"} & {*arguments}:
        command += ["--calibrate-on", "1"]
    return main([*command, *arguments])


def found(samples: Path) -> dict[str, Any]:
    return dict(json.loads((samples.parent / "certify" / "certificate.json").read_text()))


def by_threshold(samples: Path) -> dict[float, dict[str, Any]]:
    return {row["threshold"]: row for row in found(samples)["candidates"]}


def test_the_cheapest_threshold_that_keeps_the_promise_is_written_where_predict_reads_it(
    samples: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    policy = tmp_path / "policy"
    policy.mkdir()
    assert certify(samples, "--write", str(policy)) == 0
    # .75 to .99 return the same answers; of equals the strictest is taken.
    content = found(samples)
    chosen = content["certified"]
    assert (chosen["rates"]["pse"], chosen["rates"]["wrong"], chosen["threshold"]) == (0, 0, 0.99)
    own = read_operating_point(policy)
    assert isinstance(own, Certificate)
    assert (own.rule, own.otherwise) == (Confident(threshold=0.99), "answer")
    written = json.loads((policy / "operating_point.json").read_text())
    assert written == {"threshold": 0.99, **content}
    assert content["promises"] == [{"name": "pse", "limit": 0.1, "bound": 1.0}]
    assert content["confidence"] == 0.9
    assert content["rule"] == {"score": "confidence", "needs_correct": True, "fallback": "last"}
    assert content["data"]["datasets"] == {"toy": 300}
    assert (content["schema_version"], len(content["data"]["sha256"][0])) == (1, 64)
    assert content["bounds"]["pse"] < 0.02  # 0 of 300
    rows = by_threshold(samples)
    assert (rows[0.65]["rates"]["pse"], rows[0.65]["certified"]) == (0.2, False)
    assert rows[0.5]["rates"]["pse"] == pytest.approx(0.3)
    assert content["measured"] is None  # every problem calibrated
    shown = capsys.readouterr().out
    assert "threshold 0.99: pse at most 0.1, with confidence 0.9, on new problems" in " ".join(
        shown.split()
    )
    assert "no: pse" in shown
    assert max(map(len, shown.split("certificate.json")[0].splitlines()[:-1])) <= 80


def test_a_promise_that_none_can_keep_is_said_with_the_one_that_could_be_kept(
    samples: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    policy = tmp_path / "policy"
    policy.mkdir()
    lax = ("--thresholds", "0.6", "0.7", "--write", str(policy))
    assert certify(samples, *lax) == 1
    assert read_operating_point(policy) is None
    assert "no threshold can keep the promise: pse at most 0.1" in capsys.readouterr().out
    smallest = found(samples)["smallest"]["pse"]
    assert 0.2 < smallest < 0.26  # 60 of 300 were seen to stop too early
    assert certify(samples, *lax, max_pse=f"{smallest + 1e-6:.9f}") == 0
    assert certify(samples, *lax, max_pse=f"{smallest - 1e-6:.9f}") == 1


def test_every_promise_has_to_hold(samples: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bound = ("--token-bound", "1000")
    # One turn of 110 tokens; at .75 to .99 three problems in ten take a second one, of 210.
    assert certify(samples, "--max-tokens", "220", *bound, "--min-accuracy", "0.95") == 0
    bounds = found(samples)["bounds"]
    assert bounds["tokens"] <= 220
    assert bounds["wrong"] <= 0.05 + 1e-9
    assert certify(samples, "--max-tokens", "120", *bound) == 1
    assert "the smallest limit on tokens" in capsys.readouterr().out
    row = by_threshold(samples)[1.0]  # stops nowhere: PSE 0, 630 tokens
    assert row["p_values"]["tokens"] > row["level"] > row["p_values"]["pse"]


def test_accepted_answers_and_escalations_have_promises_of_their_own(samples: Path) -> None:
    assert certify(samples, "--max-wrong-accepted", "0.05", max_pse="") == 0
    assert found(samples)["certified"]["rates"]["wrong_accepted"] == 0.0
    lax = ("--thresholds", "0.7")  # accepted on the first turn, 60 of 300 wrongly
    assert certify(samples, "--max-wrong-accepted", "0.15", *lax, max_pse="") == 1
    assert certify(samples, "--max-wrong-accepted", "0.25", *lax, max_pse="") == 0
    assert certify(samples, "--max-escalated", "0.05", *lax, max_pse="") == 0
    assert certify(samples, "--max-escalated", "0.05", "--thresholds", "1", max_pse="") == 1
    assert found(samples)["candidates"][0]["rates"]["escalated"] == 1.0


def hopeless(size: int = 400) -> list[dict[str, Any]]:
    """Of four problems one is never solved and says so; one in forty is doubted at first."""
    right, doubt, lost = (True, "C", 0.99, 10), (True, "U", 0.1, 10), (False, "U", 0.1, 10)
    firsts = {0: [doubt, right, right], **dict.fromkeys(range(1, 11), [lost] * 3)}
    return [record(f"p{k}", *firsts.get(k % 40, [right] * 3)) for k in range(size)]


def test_a_lower_threshold_gives_up_with_a_promise_of_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_samples(tmp_path, hopeless())
    samples, grid = tmp_path / "samples.jsonl", ("--thresholds", "0.9", "--give-up", "0", "0.3")
    assert certify(samples, *grid, "--max-given-up-wrongly", "0.06") == 0
    chosen = found(samples)["certified"]
    assert (chosen["threshold"], chosen["give_up"]) == (0.9, 0.3)
    assert chosen["rates"]["given_up_wrongly"] == 1 / 40
    assert chosen["rates"]["turns"] == 1.0
    assert svr.Certificate.read(tmp_path / "certify" / "certificate.json").rule.give_up == 0.3
    shown = capsys.readouterr().out
    assert "threshold 0.90 or < 0.3: pse at most 0.1, given_up_wrongly at most 0.06" in shown
    assert max(map(len, shown.split("calibration")[1].split("threshold")[0].splitlines())) <= 80
    assert certify(samples, *grid, "--max-given-up-wrongly", "0.03") == 0
    assert found(samples)["certified"]["give_up"] == 0.0  # nothing is given up, so nothing wrongly
    assert certify(samples, "--thresholds", "0.5", "--give-up", "0.6") == 2
    assert "--give-up: every one is above" in capsys.readouterr().err


def test_a_pair_of_models_has_promises_on_accuracy_and_escalations(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_samples(tmp_path, hopeless())
    write_samples(tmp_path / "second", [record(row["id"], (True, "C", 1, 9)) for row in hopeless()])
    samples, second = tmp_path / "samples.jsonl", tmp_path / "second" / "samples.jsonl"
    promises = ("--min-accuracy", "0.9", "--max-escalated", "0.4", "--thresholds", "0.9")
    pair = ("--second", str(second), "--give-up", "0.3")
    assert certify(samples, *promises) == 1  # a quarter is never solved
    assert certify(samples, *promises, *pair) == 0
    content = found(samples)
    assert content["otherwise"] == "escalate"
    rates = content["certified"]["rates"]
    assert (rates["wrong"], rates["escalated"]) == (0.0, pytest.approx(11 / 40))
    assert rates["tokens"] == pytest.approx(110 + 109 * 11 / 40)
    assert len(content["data"]["sha256"]) == 2
    again = ["certify", "--check", str(tmp_path / "certify" / "certificate.json")]
    again += ["--samples", str(samples)]
    assert main([*again, "--second", str(second)]) == 0
    assert main(again) == 2
    assert "--second is for certificates with a second model" in capsys.readouterr().err
    write_samples(tmp_path / "second", [record("p0", (True, "C", 1, 9))])
    assert certify(samples, *promises, *pair) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "--second: there is no problem 'toy/p1'; record the same problems" in line


def test_a_promise_is_about_all_data_sets_together(tmp_path: Path) -> None:
    good = [record(f"g{k}", (True, "C", 0.7, 1), dataset="good") for k in range(300)]
    for rows, pse in (([*problems("bad", 100), *good], 0.05), (problems("bad", 100), None)):
        write_samples(tmp_path, rows)
        samples = tmp_path / "samples.jsonl"
        assert certify(samples, "--thresholds", "0.7") == (pse is None)
        chosen = found(samples)["certified"]
        assert (chosen and chosen["rates"]["pse"]) == pse  # 20 of 400
    assert found(samples)["data"]["datasets"] == {"bad": 100}


def test_promises_that_only_the_middle_of_the_grid_can_keep_are_found_there(samples: Path) -> None:
    # 1 stops nowhere and takes 630 tokens; .70 and below stop two in ten wrongly; between, 173.
    between = ("--max-tokens", "220", "--token-bound", "2000")
    assert certify(samples, *between, max_pse="0.05") == 0
    certified = [row["threshold"] for row in found(samples)["candidates"] if row["certified"]]
    assert certified == [0.99, 0.97, 0.95, 0.9, 0.85, 0.8, 0.75]


def test_another_rule_is_tested_as_it_would_stop(tmp_path: Path) -> None:
    rows = [record(f"p{k}", (True, "I", 0.9, 10), (True, "C", 0.9, 10)) for k in range(100)]
    write_samples(tmp_path, rows)
    samples = tmp_path / "samples.jsonl"
    for options, accepted in ((("--max-turns", "1"), 0.0), (("--any-verdict",), 1.0)):
        assert certify(samples, "--thresholds", "0.9", "--max-turns", "2", *options) == 0
        assert found(samples)["certified"]["rates"]["accepted"] == accepted
    assert found(samples)["rule"]["needs_correct"] is False


def test_a_threshold_on_log_probabilities_is_written_for_predict_too(tmp_path: Path) -> None:
    rows = problems()
    for row in rows:
        for one in row["turns"]:
            one["answer_logprob"] = -0.01 if one["correct"] else -2.0
    write_samples(tmp_path, rows)
    policy = tmp_path / "policy"
    policy.mkdir()
    scored = ["--score", "answer_logprob", "--thresholds", "-0.1", "--write", str(policy)]
    assert certify(tmp_path / "samples.jsonl", *scored) == 0
    own = read_operating_point(policy)
    assert isinstance(own, Certificate)
    assert own.rule == Confident(threshold=-0.1, score="answer_logprob")


def test_samples_that_end_at_their_stop_are_refused_with_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_samples(tmp_path, adaptive())
    assert certify(tmp_path / "samples.jsonl") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert RECORD in line
    assert "toy/a" in line


def test_the_choice_is_measured_on_problems_that_had_no_part_in_it(
    samples: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert certify(samples, "--calibrate-on", "0.6") == 0
    assert found(samples)["data"]["datasets"] == {"toy": 180}
    assert found(samples)["measured"]["pse"] == {"limit": 0.1, "rate": 0.0, "p_value_if_kept": 1.0}
    shown = capsys.readouterr().out
    assert "measured on problems that had no part in the choice" in shown
    assert "here, 120 problems" in shown
    write_samples(tmp_path / "other", problems("toy", 40))
    other = tmp_path / "other" / "samples.jsonl"
    assert certify(samples, "--report-on", str(other)) == 2  # some problems are in both
    assert "toy/toy-0 is in --samples too" in capsys.readouterr().err
    renamed = [{**row, "id": f"new-{row['id']}"} for row in problems("toy", 40)]
    write_samples(tmp_path / "other", renamed)
    assert certify(samples, "--report-on", str(other)) == 0
    assert found(samples)["data"]["datasets"] == {"toy": 300}
    assert "here, 40 problems" in capsys.readouterr().out


def test_variants_of_one_problem_are_one_observation_on_one_side(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = problems(size=100)
    twins = [{**row, "id": f"{row['id']}-{k}", "cluster": row["id"]} for row in rows for k in "ab"]
    write_samples(tmp_path, twins)
    samples = tmp_path / "samples.jsonl"
    assert certify(samples, "--thresholds", "0.99", max_pse="0.2") == 0
    assert found(samples)["data"]["clusters"] == 100
    assert "200 problems, which count as 100 (variants of one problem are one)" in " ".join(
        capsys.readouterr().out.split()
    )
    assert certify(samples, "--thresholds", "0.99", "--calibrate-on", "0.5", max_pse="0.2") == 0
    assert found(samples)["data"]["datasets"] == {"toy": 100}
    assert found(samples)["data"]["clusters"] == 50


def test_a_choice_that_never_stops_says_so_and_equal_thresholds_are_one_row(
    samples: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert certify(samples, "--thresholds", "0.55", "1.0", max_pse="0.03") == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "this never stops: every problem takes all its 3 turns" in shown
    assert certify(samples) == 0
    shown = capsys.readouterr().out
    assert "this never stops" not in shown
    assert "0.75-0.99" in shown  # all of them return the same
    assert "0.85" not in shown


def test_a_certificate_is_checked_on_new_problems(
    samples: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert certify(samples) == 0
    certificate = str(samples.parent / "certify" / "certificate.json")

    def check(rows: list[dict[str, Any]]) -> int:
        write_samples(tmp_path / "new", rows)
        new = str(tmp_path / "new" / "samples.jsonl")
        return main(["certify", "--check", certificate, "--samples", new])

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


def test_recordings_of_other_settings_are_not_mixed_and_not_compared(
    samples: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert certify(samples) == 0
    config = {"model": {"evaluation": {"temperature": 0.6}}}
    write_results(tmp_path / "hot", problems("other"), config, {})
    hot = str(tmp_path / "hot" / "samples.jsonl")
    assert main(["certify", "--samples", str(samples), hot, "--max-pse", "0.1"]) == 2
    assert "recorded with different settings" in capsys.readouterr().err
    assert certify(samples, "--report-on", hot) == 2
    assert "--report-on: recorded with different settings" in capsys.readouterr().err
    certificate = samples.parent / "certify" / "certificate.json"
    content = json.loads(certificate.read_text())
    certificate.write_text(json.dumps(content | {"decoding": {"temperature": 0.0}}))
    assert main(["certify", "--check", str(certificate), "--samples", hot]) == 2
    assert "--samples: recorded with temperature=0.6 instead of 0.0" in capsys.readouterr().err


def test_the_plan_says_how_many_labels_a_promise_needs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["certify", "--plan", "--max-pse", "0.1", "--thresholds", "0.9"]) == 0
    shown = capsys.readouterr().out
    assert "22" in shown.split()  # 0.9 ** 22 < 0.1: as many right ones and no wrong one
    assert max(map(len, shown.splitlines())) <= 80


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--calibrate-on", "0"], "--calibrate-on: 0 must be above 0 and at most 1"),
        (["--calibrate-on", "0.001"], "--calibrate-on 0.001: no problem is left"),
        (["--max-pse", "1.5"], "--max-pse: 1.5 must be above 0 and below 1"),
        (["--plan", "--min-accuracy", "1"], "--min-accuracy: 1 must be above 0 and below 1"),
        (["--plan", "--confidence", "1"], "--confidence: 1 must be above 0 and below 1"),
        (["--confidence", "nan"], "--confidence: nan must be above 0 and below 1"),
        (["--thresholds", "85"], "must lie in [0, 1]"),
        (["--thresholds", "nan"], "--thresholds: nan is no number"),
        (["--seed", "-3"], "--seed -3: must not be negative"),
        (["--out", __file__], f"--out {__file__}: {__file__} is a file; give another folder"),
        (["--write", "/no/policy"], "--write: /no/policy: no such folder"),
        (["--max-turns", "0"], "max_turns=0 must be at least one turn"),
        (["--max-tokens", "900"], "--max-tokens needs --token-bound"),
        (
            ["--max-tokens", "9", "--token-bound", "99"],
            "loss lies outside [0, 99]; give a larger token bound",
        ),
        (["--score", "answer_logprob", "--thresholds", "-0.1"], "hold no 'answer_logprob'"),
        (["--check", "nowhere.json"], "nowhere.json: no such file"),
        (["--check", "."], ".: no such file; give the certificate.json of certify"),
    ],
)
def test_a_wrong_promise_or_option_is_one_line(
    arguments: list[str], said: str, samples: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert certify(samples, *arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


def test_no_promise_at_all_is_refused(samples: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert certify(samples, max_pse="") == 2
    assert "no promise was given" in capsys.readouterr().err
