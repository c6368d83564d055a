"""Adaptive inference, recorded turn by turn."""

import random
import re
import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from svr_lightning.analysis.replay import replay
from svr_lightning.core.prompts import first_turn_messages
from svr_lightning.core.stopping import (
    Confident,
    FixedTurns,
    Majority,
    Posterior,
    RepeatedAnswer,
    StopRule,
)
from svr_lightning.core.types import Problem
from svr_lightning.errors import ConfigError
from svr_lightning.evaluation.config import EvaluationConfig, Protocol
from svr_lightning.evaluation.evaluator import OnTurn, warn_of_faults, warn_of_missing_self_checks
from svr_lightning.evaluation.printing import TurnPrinter, print_outcome
from svr_lightning.recipes.grpo import GRPO
from svr_lightning.recipes.mlmt_rl import MLMTRL
from svr_lightning.recipes.svr import SVR
from svr_lightning.tasks import get_task
from tests.commands import screen
from tests.scripted import PROBLEMS, RENDERER, at_places, countdown, evaluator, says, words
from tests.scripted_engine import ScriptedEngine
from tests.trajectories import failed, record, records_of, summarize, turn_tables


def adaptive(
    engine: ScriptedEngine,
    problems: Sequence[Problem] = PROBLEMS,
    *,
    max_turns: int = 4,
    rule: StopRule | None = Confident(),  # noqa: B008 - frozen
    on_turn: OnTurn | None = None,
) -> list[dict[str, Any]]:
    found = evaluator(engine, rule=rule, max_turns=max_turns)
    return [record.to_json() for record in found.solve(problems, "toy", on_turn=on_turn)]


def test_the_turns_of_a_tutor_are_recorded_as_feedback():
    found = evaluator(at_places(opinionated), recipe=MLMTRL(), max_turns=3)
    for one in found.solve(PROBLEMS, "toy"):
        assert [turn.feedback for turn in one.turns] == [None, True, None]
        for kept in ("correct", "answer"):
            assert [getattr(turn, kept) is None for turn in one.turns] == [False, True, False]


OPINIONS = {
    # The gate needs CORRECT, 0.85 and an untruncated completion, all in the same turn.
    "a": [("CORRECT", 0.84), ("INCORRECT", 0.99), ("CORRECT", 0.85), ("CORRECT", 1.0)],
    "b": [("UNSURE", 1.0)] * 4,
    "c": [("INCORRECT", 0.9)] * 3 + [("CORRECT", 0.9)],
}


def opinionated(name: str, _sample: int, turn: int) -> list[int]:
    return words(says("8+4-2", *OPINIONS[name][turn - 1]))


def test_a_record_holds_what_the_samples_file_promises():
    seen = []
    records = adaptive(
        at_places(opinionated), on_turn=lambda problem, turn: seen.append((problem.id, turn.index))
    )
    record = records[0]
    assert list(record) == [
        "schema_version",
        "dataset",
        "id",
        "task",
        "question",
        "reference",
        "payload",
        "returned_turn",
        "stopped_early",
        "accepted",
        "turns",
    ]
    assert (record["dataset"], record["question"], record["reference"]) == (
        "toy",
        PROBLEMS[0].question,
        "10",
    )
    text = says("8+4-2", "INCORRECT", 0.99)
    prompt_tokens = record["turns"][1].pop("prompt_tokens")
    assert record["turns"][1] == {
        "turn": 2,
        "text": text,
        "answer": "8+4-2",
        "correct": True,
        "verdict": "INCORRECT",
        "confidence": 0.99,
        "truncated": False,
        "completion_tokens": len(words(text)),
        "finish_reason": "stop",
        "answer_group": 1,
        "verdict_probability": 0.368,  # one token of log-probability -1: the script's
        "answer_logprob": -1.0,
        "completion_logprob": -1.0,
        "solution_logprob": -1.0,
    }
    assert prompt_tokens > record["turns"][0]["prompt_tokens"] > 20
    assert sorted(seen) == [(r["id"], t["turn"]) for r in records for t in r["turns"]]


def test_a_problem_that_does_not_fit_is_recorded_as_wrong_under_its_own_id():
    long = replace(PROBLEMS[1], id="too-long", question="8 4 2 " * 400)
    engine = at_places(opinionated)
    records = adaptive(engine, [PROBLEMS[0], long, PROBLEMS[2]])
    assert [record["id"] for record in records] == ["a", "too-long", "c"]
    kept = {name: records[1][name] for name in ("reference", "returned_turn", "turns", "error")}
    assert kept == {
        "reference": "15",
        "returned_turn": 0,
        "turns": [],
        "error": "the problem does not fit 600 prompt tokens",
    }
    # 8 + 4 - 2 = 10 solves a alone: one of three, the one that could not be run among them.
    values = summarize(records)["datasets"]["toy"]
    assert (values["n"], values["accuracy"]) == (3, pytest.approx(1 / 3))


def moody(name: str, _sample: int, turn: int) -> list[int]:
    rng = random.Random(f"{name} {turn}")
    verdict = rng.choice(["CORRECT", "CORRECT", "INCORRECT", "UNSURE", "PERHAPS"])
    confidence = rng.choice([0.5, 0.7, 0.8, 0.85, 0.9, 0.95])
    tail = " and" * 200 if rng.random() < 0.15 else ""
    return words(says(rng.choice(["8+4-2", "8 + 4-2", "8*4"]), verdict, confidence) + tail)


RULES = [
    Confident(),
    Confident(needs_correct=False, threshold=0.9),
    FixedTurns(turns=3),
    RepeatedAnswer(times=3, in_a_row=False),
    Majority(),
]
MANY = [countdown(f"p{index}", (8, 4, 2), 10) for index in range(60)]


def moody_records(rule: StopRule | None) -> list[dict[str, Any]]:
    engine = at_places(moody, MANY, samples=1)
    engine.max_batch = 5
    return adaptive(engine, MANY, rule=rule, max_turns=5)


@pytest.fixture(scope="module")
def recording() -> list[dict[str, Any]]:
    """Five turns of each problem, whatever the policy says of them."""
    return moody_records(None)


@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_live_inference_and_a_replayed_recording_agree_turn_by_turn(rule, recording):
    live = moody_records(rule)
    (table,) = turn_tables(recording).values()
    outcome = replay(table, rule, 5)
    for row, (alive, recorded) in enumerate(zip(live, recording, strict=True)):
        assert alive["turns"] == recorded["turns"][: outcome.observed[row]]
        assert alive["returned_turn"] == outcome.returned[row]
        assert alive["stopped_early"] == outcome.stopped_early[row]
        assert alive["accepted"] == outcome.accepted[row]
        assert ("observed_turns" in alive) == (outcome.observed[row] != outcome.returned[row])
        assert alive.get("observed_turns", alive["returned_turn"]) == outcome.observed[row]
    lengths = {len(record["turns"]) for record in live}
    if not isinstance(rule, FixedTurns):
        assert len(lengths) > 1 + isinstance(rule, Confident)  # some ended early and some ran on
    if isinstance(rule, Majority):
        assert any("observed_turns" in record for record in live)


@pytest.mark.parametrize(
    ("rule", "turns", "why"),
    [
        (
            Confident(),
            [("8*4", "UNSURE", 0.5), ("8*4", "UNSURE", 0.5), ("8+4-2", "CORRECT", 0.95)],
            "correct (turn 3; stopped: CORRECT at confidence 0.95 >= 0.85)",
        ),
        (
            Confident(),
            [("8*4", "UNSURE", 0.5), ("8*4", "UNSURE", 0.5), ("8+4-2", "UNSURE", 0.95)],
            "correct (turn 3; stopped: no turns were left)",
        ),
        (Confident(threshold=0.0), [("8*4", "CORRECT", 0.1)], "stopped: CORRECT)"),
        (
            Confident(score="verdict_probability", threshold=0.3),
            [("8*4", "CORRECT", 0.1)],
            "CORRECT at probability of the verdict 0.368 >= 0.3",
        ),
        (
            Majority(),
            [("8*4", "UNSURE", 0.5), ("4 * 8", "CORRECT", 0.7)],
            "(turn 1; stopped: the majority is settled)",
        ),
        (
            FixedTurns(turns=1),
            [("", "UNSURE", 0.5)],
            "answer: None, incorrect (turn 1; stopped: 1 t",
        ),
        (
            Posterior(threshold=0.99),
            [("8*4", "UNSURE", 0.4), ("8+4-2", "UNSURE", 0.9), ("8*4", "UNSURE", 0.5)],
            "8+4-2, correct (turn 2; stopped: no turns were left, the rule prefers an earlier one)",
        ),
    ],
)
def test_the_terminal_names_the_real_reason_of_a_stop(rule, turns, why, capsys):
    engine = at_places(lambda _, __, turn: words(says(*turns[turn - 1])))
    (record,) = adaptive(engine, PROBLEMS[:1], rule=rule, max_turns=3)
    assert len(record["turns"]) == len(turns)
    print_outcome(*records_of([record]), rule)
    assert why in screen(capsys)


def test_every_turn_is_shown_under_its_own_question(capsys):
    adaptive(at_places(opinionated), on_turn=TurnPrinter(name_problems=True))
    shown = screen(capsys)
    turns = list(re.finditer(r" tokens \[(\w)\]", shown))
    assert len(turns) == 3 + 4 + 4
    for turn in turns:
        above = {one.id: shown.rfind(one.question, 0, turn.start()) for one in PROBLEMS}
        assert max(above, key=above.__getitem__) == turn[1]


def test_problems_that_could_not_be_run_or_graded_are_named():
    rows = [record("fine", (True, "C", 0.9, 1)), record("b", (False, "C", 0.9, 1)), failed("long")]
    rows[1]["turns"][0]["grading_error"] = "the grader's process died"
    expected = (
        "counted as wrong of 3 problems: could not be run (the problem does not fit): toy/long; "
        "could not be graded: toy/b"
    )
    with pytest.warns(UserWarning, match=re.escape(expected)):
        warn_of_faults(records_of(rows))


def test_the_output_says_when_no_turn_states_a_self_check():
    records = adaptive(at_places(lambda *_: words("<answer>8+4-2</answer>")), max_turns=2)
    with pytest.warns(UserWarning, match=r"0 of 6 turns state a self-check; was this policy train"):
        warn_of_missing_self_checks(records_of(records))
    one = adaptive(at_places(opinionated), PROBLEMS[:1])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_missing_self_checks(records_of([*records, *one]))


def test_fresh_turns_are_independent_samples_of_the_first_prompt():
    """Turn 2 doubts, turn 3 is sure. No turn sees what came before; each has its own draw."""
    engine = at_places(opinionated)
    (record,) = evaluator(engine, rule=Confident(), fresh_turns=True).solve(PROBLEMS[:1], "toy")
    assert (record.returned_turn, record.stopped_early, len(record.turns)) == (3, True, 3)
    first = RENDERER.prompt_ids(first_turn_messages(get_task("countdown"), PROBLEMS[0]))
    assert [request.prompt_ids for request in engine.requests] == [first] * 3
    assert len({request.seed for request in engine.requests}) == 3
    with pytest.raises(ConfigError, match="fresh_turns at temperature=0: all turns would be the"):
        EvaluationConfig(fresh_turns=True)


def test_a_single_turn_recipe_has_fresh_turns_until_a_rule_without_a_self_check_stops():
    answers = ["8+4", "8*4", "8+4", "8+2"]
    engine = at_places(lambda _name, _sample, turn: words(f"<answer>{answers[turn - 1]}</answer>"))
    twice = RepeatedAnswer(in_a_row=False)
    alone = evaluator(engine, rule=twice, recipe=GRPO())
    assert [len(one.turns) for one in alone.solve(PROBLEMS[:1], "toy")] == [1]
    fresh = evaluator(engine, rule=twice, recipe=GRPO(), fresh_turns=True)
    assert [one.returned_turn for one in fresh.solve(PROBLEMS[:1], "toy")] == [3]


def test_one_place_resolves_prompts_turns_and_rule_of_each_recipes_policy():
    twice = RepeatedAnswer(in_a_row=False)
    given = EvaluationConfig(max_turns=10, stop=twice)
    assert given.resolve(SVR()) == Protocol(SVR().dialogue, 10, twice, True)
    assert given.resolve(GRPO()).max_turns == 1
    # Feedback is no answer, so that nothing stops there and the last turn solves.
    assert given.resolve(MLMTRL())[1:3] == (9, None)
    fresh = replace(given, fresh_turns=True, temperature=0.9)
    assert [fresh.resolve(recipe).max_turns for recipe in (SVR(), GRPO(), MLMTRL())] == [10] * 3
    whole = replace(given, adaptive=False).resolve(SVR())
    assert (whole.rule, whole.applied_rule) == (twice, None)
    # Without a rule it is the paper's, which needs a self-check.
    usual = EvaluationConfig()
    assert usual.resolve(SVR()).rule == Confident()
    assert usual.resolve(GRPO()).rule is None
