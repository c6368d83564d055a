"""The numbers of the experiment with a pretrained model, by hand."""

import gzip
import json
from typing import Any

import numpy as np
import pytest

from experiments.real.report import FREE, adaptive, options_in, report, says_correct
from svr_lightning.analysis.table import TurnTable
from svr_lightning.core.stopping import Confident, Majority
from tests import trajectories
from tests.commands import read_json


def turn(right: bool, confidence: float, logprob: float, answer: int, **more: Any) -> Any:
    verdict = "C" if confidence > 0.5 else "I"
    scores = {"completion_logprob": logprob, "answer_logprob": logprob, "answer_group": answer}
    return (right, verdict, confidence, 4), {"prompt_tokens": 6, **scores, **more}


def record(name: str, *turns: Any, dataset: str = "test") -> dict[str, Any]:
    found = trajectories.record(name, *(values for values, _ in turns), dataset=dataset)
    numbered = zip(found["turns"], turns, strict=True)
    return {**found, "turns": [{**one, **more} for one, (_, more) in numbered]}


def recorded(*rows: dict[str, Any]) -> TurnTable:
    return trajectories.turn_tables(rows)["test"]


def two_problems() -> TurnTable:
    """The first is right at turn 1 and accepted at turn 2; the second is right at turn 3 only."""
    first = [turn(True, 0.7, -0.1, 1), turn(False, 0.9, -0.3, 2), turn(True, 0.1, -0.2, 1)]
    second = [turn(False, 0.1, -0.5, 1), turn(False, 0.2, -0.4, 1), turn(True, 0.8, -0.6, 2)]
    return recorded(record("a", *first), record("b", *second))


def test_adaptive_refinement_returns_the_first_accepted_turn_else_the_last():
    options = adaptive([two_problems()])
    assert options.right.tolist() == [[[False, True]]]
    assert options.tokens.tolist() == [[[20, 30]]]


def test_a_verdict_says_with_which_probability_the_answer_is_right():
    stated = [turn(True, c, -0.1, 1, verdict_probability=0.8) for c in (0.9, 0.1)]
    run = recorded(record("a", *stated, turn(True, 0.9, -0.1, 1)))
    assert says_correct(run) == pytest.approx(np.array([[0.8, 0.2, 0.5]]))


def test_free_rules_stop_at_a_log_probability_or_at_equal_answers():
    options = options_in([two_problems()] * 2, FREE)
    returned = dict(zip(options.names, options.right[:, 1].tolist(), strict=True))  # second seed
    # Only the first problem reaches the highest log-probability; the other goes on to the end.
    sure = Confident(threshold=-0.1, score="completion_logprob", needs_correct=False)
    assert returned[f"{sure}, at most 3 turns"] == [True, True]
    settled = Majority(certainty=1.0)
    assert returned[f"{settled}, at most 3 turns"] == [True, False]
    spent = dict(zip(options.names, options.tokens[:, 1].tolist(), strict=True))
    assert spent[f"{sure}, at most 3 turns"] == [10, 30]


def test_the_report_compares_arms_from_the_published_files_alone(tmp_path):
    for arm, informed in (("svr", True), ("control", False)):
        lines = []
        for dataset, count in (("test", 40), ("control", 120)):
            for number in range(count):
                right = number % 2 == 0
                stated = 0.9 if right and informed and dataset == "test" else 0.3
                turns = [turn(right, stated, -0.1, 1)] * 2
                lines.append(json.dumps(record(str(number), *turns, dataset=dataset)))
        for mode in ("sampled", "fresh"):
            with gzip.open(tmp_path / f"seed1-{arm}-{mode}.jsonl.gz", "wt") as stream:
                stream.write("\n".join(lines))
    kept = read_json(report(tmp_path))
    assert kept["policies"]["seed 1, control, sampled"]["auroc"] == 0.5
    found = kept["comparisons"]["svr"]
    primary, control = found["primary: AUROC"], found["negative control: AUROC"]
    assert (primary["value"], primary["ci95"], primary["by_seed"]) == (0.5, [0.5] * 2, {"1": 0.5})
    assert (control["value"], control["ci95"], control["p_holm"]) == (0.0, [0.0] * 2, 1.0)


def test_a_greedy_check_is_compared_with_that_of_every_other_policy_of_its_seeds(tmp_path):
    for seed, arm, informed in ((1, "start", False), (1, "exact", True), (2, "exact", True)):
        lines = []
        for number in range(8):
            right = number % 2 == 0
            stated = 0.9 if right and informed else 0.3
            lines.append(json.dumps(record(str(number), turn(right, stated, -0.1, 1))))
        with gzip.open(tmp_path / f"seed{seed}-{arm}-checked.jsonl.gz", "wt") as stream:
            stream.write("\n".join(lines))
    kept = read_json(report(tmp_path))
    assert kept["policies"]["seed 1, start, checked"]["auroc"] == 0.5
    found = kept["comparisons"]["exact"]
    assert found["AUROC - start"]["by_seed"] == {"1": 0.5}
    assert found["stated - log-probability"]["by_seed"] == {"1": 0.5, "2": 0.5}
