"""lm-evaluation-harness asks this package's server and reports what this package measures."""

import json
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from statistics import fmean

import pytest
import uvicorn
from sklearn.metrics import brier_score_loss, roc_auc_score

from examples import evaluate_with_lm_eval
from svr_lightning.adapters.lm_harness import METRICS, process_results
from svr_lightning.control.backends import Upstream
from svr_lightning.control.controller import Controller
from svr_lightning.control.server import ChatServer as RefiningServer
from svr_lightning.core.types import Verdict
from tests.chat_server import ChatServer
from tests.countdown_server import PROBLEMS, TURNS, opinion, records_of


@contextmanager
def refining(upstream: str) -> Iterator[str]:
    """The server in front of another one."""
    controller = Controller(lambda *_: None, "countdown", max_turns=TURNS)
    app = RefiningServer(controller, Upstream(upstream, "tiny"), model="svr").app()
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
    listening = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield f"http://127.0.0.1:{listening.getsockname()[1]}/v1"
    server.should_exit = True
    thread.join()


def test_the_harness_reports_the_calibration_of_the_returned_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with ChatServer(opinion) as policy, refining(policy.url) as url:
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


def test_a_policy_that_gave_up_is_wrong_and_unsure() -> None:
    document = {"problem": json.dumps(asdict(PROBLEMS[0]))}
    (turn,) = process_results(document, [None])["accuracy"]["turns"]
    assert (turn["correct"], turn["verdict"], turn["confidence"]) == (False, "UNSURE", 0.5)
