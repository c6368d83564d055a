"""The command that certifies a threshold, from recordings to the policy's folder."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from svr_lightning.__main__ import main
from svr_lightning.analysis.operating_point import read_operating_point
from svr_lightning.core.stopping import (
    Confident,
    FixedTurns,
    RepeatedAnswer,
    rule_as_config,
)
from tests.commands import read_json, refused, screen
from tests.trajectories import record, save, settings_of


def problems(dataset: str = "toy", size: int = 300) -> list[dict[str, Any]]:
    """Of ten problems two are stopped wrongly below .80, and one more below .60."""
    right = (True, "C", 0.99, 10)
    first = {0: (False, "C", 0.7, 10), 1: (False, "C", 0.7, 10), 2: (False, "C", 0.55, 10)}
    return [
        record(f"{dataset}-{k}", first.get(k % 10, right), right, right, dataset=dataset)
        for k in range(size)
    ]


@pytest.fixture
def recording(tmp_path) -> Path:
    return save(tmp_path, problems())


@pytest.fixture
def policy(tmp_path) -> Path:
    (tmp_path / "policy").mkdir()
    return tmp_path / "policy"


def command(recording: Path, *arguments: str, max_pse: str = "0.10") -> list[str]:
    promise = ["--max-pse", max_pse] if max_pse else []
    words = ["certify", str(recording), *promise, "--max-turns", "3"]
    if not {"--calibrate-on", "--check-last"} & {*arguments}:
        words += ["--calibrate-on", "1"]
    return [*words, *arguments]


def certify(recording: Path, *arguments: str, max_pse: str = "0.10") -> int:
    return main(command(recording, *arguments, max_pse=max_pse))


def certificate_of(recording: Path) -> Path:
    return recording / "certify" / "certificate.json"


def check(recording: Path, folder: Path, *arguments: str) -> int:
    """The certificate of ``recording``, checked on a folder's."""
    return main(["certify", "--check", str(certificate_of(recording)), str(folder), *arguments])


def found(recording: Path) -> dict[str, Any]:
    return dict(read_json(certificate_of(recording)))


def by_threshold(recording: Path) -> dict[float, dict[str, Any]]:
    return {row["threshold"]: row for row in found(recording)["candidates"]}


def test_the_cheapest_threshold_that_keeps_the_promise_is_written_where_predict_reads_it(
    recording, policy, capsys
):
    assert certify(recording, "--write", str(policy)) == 0
    # .75 to .99 return the same answers; of equals the strictest is taken.
    content = found(recording)
    chosen = content["certified"]
    assert (chosen["rates"]["pse"], chosen["rates"]["wrong"], chosen["threshold"]) == (0, 0, 0.99)
    assert read_operating_point(policy).rule == Confident(threshold=0.99)
    written = read_json(policy / "operating_point.json")
    assert written == content
    assert content["promises"] == [{"name": "pse", "limit": 0.1, "bound": 1.0}]
    assert content["confidence"] == 0.9
    assert content["rule"] == rule_as_config(Confident())
    assert content["data"]["datasets"] == {"toy": 300}
    assert (content["schema_version"], len(content["data"]["sha256"])) == (3, 64)
    rows = by_threshold(recording)
    assert (rows[0.65]["rates"]["pse"], rows[0.65]["certified"]) == (0.2, False)
    assert rows[0.5]["rates"]["pse"] == pytest.approx(0.3)
    assert content["measured"] is None  # every problem calibrated
    shown = capsys.readouterr().out
    assert (
        "CORRECT at confidence >= 0.99: pse at most 0.1, with confidence 0.9, on new"
        in " ".join(shown.split())
    )
    assert "PSE: premature stop error" in shown
    assert max(map(len, shown.splitlines()[:-1])) <= 80
    assert f", {policy}/operating_point.json\n" in shown  # a path is not broken


def test_a_promise_that_no_threshold_keeps_is_not_certified(recording, policy, capsys):
    assert certify(recording, "--thresholds", "0.6", "0.7", "--write", str(policy)) == 1
    assert read_operating_point(policy) is None
    said = screen(capsys)
    assert "no threshold can keep the promise: pse at most 0.1" in said
    assert "Relax a limit, or use more problems: --plan says how many labels it takes" in said
    assert "With fewer --thresholds fewer labels are enough. A threshold picked from" in said
    assert "Ask for several promises in one command: one by one, more of them fail" in said
    assert "--calibrate-on 1" not in said  # as it was
    assert "The file is no certificate: " in said
    line = refused(capsys, "certify", "--check", certificate_of(recording), recording)
    assert "is not a certificate of a threshold (the file: nothing is certified there)" in line
    assert certify(recording, "--thresholds", "0.6", "--calibrate-on", "0.5") == 1
    said = screen(capsys)
    assert "keeps none for a check. A threshold picked" in said  # one threshold is fewest


def test_every_promise_has_to_hold(recording):
    bound = ("--token-bound", "1000")
    # One turn of 110 tokens; at .75 to .99 three problems in ten take a second one, of 210.
    assert certify(recording, "--max-tokens", "220", *bound, "--min-accuracy", "0.95") == 0
    assert [one["limit"] for one in found(recording)["promises"]] == [0.1, 0.05, 220]
    assert certify(recording, "--max-tokens", "120", *bound) == 1
    row = by_threshold(recording)[1.0]  # stops nowhere: PSE 0, 630 tokens
    assert row["p_values"]["tokens"] > row["level"] > row["p_values"]["pse"]


def test_accepted_answers_have_a_promise_of_their_own(recording):
    assert certify(recording, "--max-wrong-accepted", "0.05", max_pse="") == 0
    assert found(recording)["certified"]["rates"]["wrong_accepted"] == 0.0
    lax = ("--thresholds", "0.7")  # accepted on the first turn, 60 of 300 wrongly
    assert certify(recording, "--max-wrong-accepted", "0.15", *lax, max_pse="") == 1
    assert certify(recording, "--max-wrong-accepted", "0.25", *lax, max_pse="") == 0


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
    recording = save(tmp_path / "own", rows, settings_of(rule, 3))
    grid = ("--thresholds", str(threshold))
    assert certify(recording, *grid, "--write", str(policy)) == 0
    assert read_operating_point(policy).rule == replace(rule, threshold=threshold)
    assert found(recording)["certified"]["rates"]["accepted"] == 1.0
    before = (policy / "operating_point.json").read_bytes()
    fixed = save(tmp_path / "fixed", rows, settings_of(FixedTurns(), 3))
    assert "the stopping rule, 1 turn, has no threshold; name one that has" in refused(
        capsys, *command(fixed, "--write", str(policy))
    )
    assert (policy / "operating_point.json").read_bytes() == before


def test_a_number_of_equal_answers_is_certified_without_any_confidence(tmp_path, policy):
    """Two equal answers are wrong in three of ten problems, three equal ones in none."""
    rows = [record(f"p{k}", *[(k % 10 > 2, None, None, 10)] * 3) for k in range(300)]
    for k, row in enumerate(rows):
        row["turns"][2]["answer_group"] = 2 if k % 10 < 3 else 1
    recording = save(tmp_path, rows)
    words = ("--stop", "RepeatedAnswer", "--max-wrong-accepted", "0.1", "--write", str(policy))
    assert certify(recording, *words, max_pse="") == 0
    assert {t: row["rates"]["accepted"] for t, row in by_threshold(recording).items()} == {
        2.0: 1.0,
        3.0: 0.7,
    }
    assert read_operating_point(policy).rule == RepeatedAnswer(times=3)
    assert check(recording, tmp_path) == 0


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ("FixedTurns", "the stopping rule, 1 turn, has no threshold"),
        ("RepeatedAnswer --thresholds 2.5", "times=2.5 must be int"),
        ("Posterior --thresholds 1", "threshold=1.0 must be below 1"),
    ],
)
def test_a_rule_or_threshold_that_cannot_be_certified_is_one_line(rule, said, recording, capsys):
    assert said in refused(capsys, *command(recording, "--stop", *rule.split()))


def test_the_choice_is_measured_on_problems_that_had_no_part_in_it(recording, capsys):
    assert certify(recording, "--calibrate-on", "0.6") == 0
    assert found(recording)["data"]["datasets"] == {"toy": 180}
    assert found(recording)["measured"]["pse"] == {
        "limit": 0.1,
        "rate": 0.0,
        "p_value_if_kept": 1.0,
    }
    shown = screen(capsys)
    assert "measured on problems drawn at random, which had no part in the choice" in shown
    assert "here, 120 problems" in shown


def test_variants_of_one_problem_are_one_observation_on_one_side(tmp_path, capsys):
    rows = problems(size=100)
    twins = [{**row, "id": f"{row['id']}-{k}", "cluster": row["id"]} for row in rows for k in "ab"]
    recording = save(tmp_path, twins)
    assert certify(recording, "--thresholds", "0.99", max_pse="0.2") == 0
    assert found(recording)["data"]["clusters"] == 100
    shown = capsys.readouterr().out
    assert "calibration: 200 problems (100 without variants), T_max = 3" in shown
    assert certify(recording, "--thresholds", "0.99", "--calibrate-on", "0.5", max_pse="0.2") == 0
    assert found(recording)["data"]["datasets"] == {"toy": 100}
    assert found(recording)["data"]["clusters"] == 50


def test_a_certificate_is_checked_on_new_problems(recording, tmp_path, capsys):
    assert certify(recording) == 0
    new = save(tmp_path / "new", problems("new", 100))
    assert check(recording, new) == 0
    assert "no promise is shown to be broken" in screen(capsys)
    worse = [
        record(f"w{k}", (k % 4 > 0, "C", 0.99, 10), *[(True, "C", 1.0, 1)] * 2) for k in range(99)
    ]
    save(new, worse)
    assert check(recording, new) == 1
    assert "no longer kept: pse" in screen(capsys)
    line = refused(capsys, "certify", "--check", "nowhere.json", new)
    assert "nowhere.json: no such file" in line


def test_a_recording_of_other_settings_is_not_compared(recording, tmp_path, capsys):
    for folder, temperature in ((recording, 0.0), (tmp_path / "hot", 0.6)):
        config = {"model": {"evaluation": {"temperature": temperature}}}
        save(folder, problems(), config)
    assert certify(recording) == 0
    line = refused(capsys, "certify", "--check", certificate_of(recording), tmp_path / "hot")
    assert "recorded with temperature=0.6 instead of 0.0" in line


def test_a_check_of_another_policy_says_so_and_of_another_servers_model_is_none(
    recording, tmp_path, capsys
):
    def evaluated(folder, **model):
        settings = {"model": {"evaluation": {"temperature": 0.0}, **model}}
        return save(folder, problems(folder.name, 100), settings)

    evaluated(recording, policy={"path": "a"})
    assert certify(recording) == 0
    assert check(recording, evaluated(tmp_path / "new", policy={"path": "b"})) == 0
    assert "note: recorded with the policy b, and certified with a" in screen(capsys)
    assert check(recording, evaluated(tmp_path / "same", policy={"path": "a"})) == 0
    assert "note: " not in screen(capsys)
    first, other = ({"engine": {"init_args": {"model_name": name}}} for name in ("m", "n"))
    evaluated(recording, **first)
    assert certify(recording) == 0
    new = evaluated(tmp_path / "other", **other)
    line = refused(capsys, "certify", "--check", certificate_of(recording), new)
    assert "recorded with model_name=n instead of m" in line


def test_the_plan_says_how_many_labels_a_promise_needs(capsys):
    assert main(["certify", "--plan", "--max-pse", "0.1", "--thresholds", "0.9"]) == 0
    shown = capsys.readouterr().out
    assert "22" in shown.split()  # 0.9 ** 22 < 0.1: as many right ones and no wrong one
    assert max(map(len, shown.splitlines())) <= 80
    repeated = ("--stop", "RepeatedAnswer", "--max-turns", "2")  # 2 times is the only threshold
    assert main(["certify", "--plan", "--max-pse", "0.1", *repeated]) == 0
    assert capsys.readouterr().out == shown
    line = refused(capsys, "certify", "--plan", "--max-pse", 0.1, *repeated[:-1], 1)
    assert "T_max = 1: RepeatedAnswer needs two turns or more; give more" in line
    line = refused(capsys, "certify", "--plan", "--max-tokens", 5, "--token-bound", 10)
    assert "add one, such as --max-pse" in line


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("", "no promise was given"),
        ("--calibrate-on 0", "--calibrate-on: 0 must be above 0 and at most 1"),
        ("--calibrate-on 0.001", "--calibrate-on 0.001: no problem is left"),
        ("--min-accuracy 1e-17", "--min-accuracy: 1e-17 must be above 0 and below 1"),
        ("--confidence nan", "--confidence: nan must be above 0 and below 1"),
        ("--confidence 90%", "--confidence: 90% must be above 0 and below 1"),
        ("--thresholds nan", "threshold=nan must lie in [0, 1]"),
        ("--write /no/policy", "--write: /no/policy: no such folder"),
        ("--max-turns 0", "max_turns=0 must be at least one turn"),
        (f"--max-turns {'9' * 30}", "must be at least one turn, at most 2147483647"),
        ("--max-tokens 900", "--max-tokens needs --token-bound"),
        (
            "--max-tokens 9 --token-bound 99",
            "loss lies outside [0, 99]; give a larger token bound",
        ),
        (
            "--max-turns 1",
            "with T_max = 1 no answer could break it; choose another, such as --max-wrong-",
        ),
        (
            "--thresholds 1",
            "at confidence >= 0.85, accepts no answer at any of the thresholds",
        ),
        ("--calibrate-on 0.5 --check-last 0.2", "give one of --calibrate-on and"),
    ],
)
def test_a_wrong_promise_or_option_is_one_line(arguments, said, recording, capsys):
    max_pse = "" if not arguments else "0.10"
    assert said in refused(capsys, *command(recording, *arguments.split(), max_pse=max_pse))


CHECK = ("--check", "certificate.json", "eval")
PLAN = ("--plan", "--max-pse", "0.1")


@pytest.mark.parametrize(
    ("mode", "extra"),
    [
        (CHECK, "--max-pse 0.1"),
        (CHECK, "--check-last 0.5"),
        (CHECK, "--plan"),
        (PLAN, "nowhere"),
        (PLAN, "--columns id=a"),
    ],
)
def test_check_and_plan_refuse_what_they_do_not_use(capsys, mode, extra):
    words = extra.split()
    line = refused(capsys, "certify", *mode, *words)
    assert f"{mode[0]} does not use {words[0]}; leave it out" in line


def with_questions(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**row, "question": f"What is {row['id']}?"} for row in rows]


def test_a_check_leaves_out_the_calibrations_problems_whatever_their_name_and_their_variants(
    tmp_path, capsys
):
    recording = save(tmp_path, with_questions(problems()))
    assert certify(recording, "--calibrate-on", "0.6") == 0
    renamed = [
        {
            **row,
            "id": f"{answer}-{row['id']}",
            "dataset": "copy",
            "question": f"{row['question']}\n" * (answer == "a"),
            "cluster": row["id"],
        }
        for row in with_questions(problems())
        for answer in "ab"
    ]
    capsys.readouterr()
    assert check(recording, save(tmp_path / "renamed", renamed)) == 0
    shown = screen(capsys)
    assert "was calibrated on 180 of 600 problems; they are left out" in shown
    assert "here, 240 problems" in shown


def test_a_check_divides_its_level_among_the_promises(recording, tmp_path, capsys):
    """With 60 problems and 10 wrong at a limit of .1, P(Bin(60, .1) >= 10) is .073: below .1, and
    above .05."""
    assert certify(recording, "--max-wrong-accepted", "0.3", "--thresholds", "0.99") == 0
    right = (True, "C", 0.99, 10)
    rows = [
        record(f"w{k}", (k >= 10, "C", 0.99, 10), right, right, dataset="new") for k in range(60)
    ]
    save(tmp_path / "new", with_questions(rows))
    assert check(recording, tmp_path / "new") == 0
    assert "0.0731" in screen(capsys)
    assert check(recording, tmp_path / "new", "--confidence", "0.8") == 1
    assert "no longer kept: pse, with confidence 0.8" in screen(capsys)


def test_errors_that_grow_with_time_show_in_the_last_problems_alone(tmp_path, policy, capsys):
    """Of 300 problems the first 200 are right, the last 100 wrong in two of five."""
    later = (True, "C", 0.99, 10)
    rows = [
        record(f"p{k}", (k < 200 or k % 5 > 1, "C", 0.99, 10), later, later) for k in range(300)
    ]
    recording = save(tmp_path, with_questions(rows))
    assert (
        certify(recording, "--calibrate-on", "0.5", max_pse="0.25") == 0
    )  # a mixture, on both sides
    assert certify(recording, "--check-last", "0.25", "--write", str(policy), max_pse="0.25") == 1
    assert found(recording)["data"]["datasets"] == {"toy": 225}
    assert found(recording)["measured"]["pse"]["rate"] == 0.4
    assert found(recording)["certified"] is None  # nor does any other command take it
    assert read_operating_point(policy) is None
    assert "note: broken there: pse. Nothing is certified" in screen(capsys)


def test_a_data_set_on_which_the_rule_fails_is_named(tmp_path, capsys):
    right, wrong = (True, "C", 0.9, 1), (False, "C", 0.9, 1)
    easy = [record(f"g{k}", right, right, dataset="easy") for k in range(270)]
    hard = [record(f"b{k}", wrong, wrong, dataset="hard") for k in range(10)]
    recording = save(tmp_path, with_questions([*easy, *hard]))
    command = ["certify", str(tmp_path), "--calibrate-on", "1", "--max-wrong-accepted", "0.1"]
    assert main(command) == 0
    shown = screen(capsys)
    assert (
        "note: wrong_accepted at most 0.1 holds for all data sets mixed, but hard alone has 1.000"
        in shown
    )
    assert "easy alone" not in shown
    assert check(recording, tmp_path) == 0
    shown = screen(capsys)
    assert "note: wrong_accepted at most 0.1 holds for all data sets mixed, but" in shown
    assert "was calibrated on 280 of 280 problems; check on new problems, since these" in shown


def test_a_log_whose_program_stopped_by_itself_is_told_what_it_lacks(tmp_path, capsys):
    log = tmp_path / "log.csv"
    rows = [f"{k},{turn},0.5,1" for k in range(40) for turn in range(1, 2 + k % 3)]
    log.write_text("\n".join(["id,turn,confidence,correct", *rows]))
    line = refused(capsys, "certify", log, "--max-wrong-accepted", "0.1")
    assert "no turn stopped and only 1 of 3 turns are there; a log needs all turns up to" in line
    assert line.endswith("or give --max-turns 1")
    assert main(["certify", str(log), "--max-wrong-accepted", "0.1", "--max-turns", "1"]) in (0, 1)
    assert "a log needs all turns up to T_max" in refused(capsys, "replay", log)


def said_of(capsys, folder: Path, head: str, rows: Sequence[str]) -> str:
    """What is printed of a log with these columns beside the id, of rows numbered in order."""
    lines = [f"{number},{row}" for number, row in enumerate(rows)]
    log = folder / "log.csv"
    log.write_text("\n".join([f"id,confidence,correct,{head}", *lines]))
    assert main(["certify", str(log), "--max-wrong-accepted", "0.2"]) in (0, 1)
    return screen(capsys)


@pytest.mark.parametrize(("copies", "noticed"), [(400, True), (2, False)])
def test_problems_that_agree_are_repeats_but_for_a_few_that_do_by_chance(
    tmp_path, capsys, copies, noticed
):
    generator = np.random.default_rng(0)
    drawn = zip(generator.uniform(0.5, 0.95, 100), generator.integers(50, 500, 100), strict=True)
    rows = [f"{confidence:.3f},1,{tokens}" for confidence, tokens in drawn]
    shown = said_of(capsys, tmp_path, "tokens", [*rows, *(rows * 4)[:copies]])
    note = "log: 500 of 500 problems have the confidences, labels and tokens of another one"
    assert (f"note: {note}" in shown) == ("note: " in shown) == noticed


def test_a_question_that_repeats_is_noticed_unless_it_names_a_cluster(tmp_path, capsys):
    rows = [f"{0.5 + k / 100},1,{'' if k % 2 else 'the same'}" for k in range(40)]
    note = "note: log: 20 of 40 problems have the question of another one"
    assert note in said_of(capsys, tmp_path, "question", rows)
    assert "note: " not in said_of(capsys, tmp_path, "cluster", rows)
    twice = [f"{0.5 + k / 100},1,question {k % 20},{'ab'[k // 20]}" for k in range(40)]
    said = said_of(capsys, tmp_path, "question,dataset", twice)
    assert "note: 20 questions are in several data sets" in said
