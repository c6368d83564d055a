"""lm-evaluation-harness asks this package's server and reports what this package measures."""

import json
import sys
from dataclasses import asdict
from statistics import fmean

from sklearn.metrics import brier_score_loss, roc_auc_score

from examples import evaluate_with_lm_eval
from svr_lightning.adapters.lm_harness import METRICS, process_results
from svr_lightning.core.types import Verdict
from tests.chat_server import ChatServer
from tests.countdown_server import PROBLEMS, TURNS, opinion, records_of
from tests.served import in_front_of, serving


def test_the_harness_reports_the_calibration_of_the_returned_turns(tmp_path, monkeypatch, capsys):
    with ChatServer(opinion) as policy, serving(in_front_of(policy.url, max_turns=TURNS)) as url:
        records = records_of(policy, tmp_path)
        monkeypatch.setattr(sys, "argv", ["example", "--url", url, "--limit", str(len(PROBLEMS))])
        evaluate_with_lm_eval.main()
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    printed = dict(row for row in rows if len(row) == 2)
    turns = [record.turns[record.returned_turn - 1] for record in records]
    assert len({turn.turn for turn in turns}) > 1  # the server refined
    right = [bool(turn.correct) for turn in turns]
    sure = [turn.confidence or 0.0 for turn in turns]
    wrong_claims = [turn.verdict is Verdict.CORRECT and not turn.correct for turn in turns]
    expected = {
        "accuracy": fmean(right),
        "auroc": roc_auc_score(right, sure),
        "brier": brier_score_loss(right, sure),
        "overconfidence": fmean(wrong_claims),
    }
    assert {name: printed[name] for name in expected} == {
        name: f"{value:.3f}" for name, value in expected.items()
    }
    assert printed.keys() == set(METRICS)


def test_a_policy_that_gave_up_is_wrong_and_unsure():
    document = {"problem": json.dumps(asdict(PROBLEMS[0]))}
    (turn,) = process_results(document, [None])["accuracy"]["turns"]
    assert (turn["correct"], turn["verdict"], turn["confidence"]) == (False, "UNSURE", 0.5)
