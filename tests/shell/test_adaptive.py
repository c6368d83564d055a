"""Adaptive inference, recorded turn by turn."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from svr_lightning.core.stopping import StopRule
from svr_lightning.core.types import Problem
from svr_lightning.engines.scripted import ScriptedEngine
from svr_lightning.evaluation.adaptive import run_adaptive
from svr_lightning.evaluation.results import summarize
from tests.scripted import (
    DECODING,
    ORDERS,
    PROBLEMS,
    RENDERER,
    at_places,
    driver,
    exam,
    mixed_answers,
    says,
    words,
)


def adaptive(
    engine: ScriptedEngine,
    problems: Sequence[Problem] = PROBLEMS,
    *,
    max_turns: int = 4,
    rule: StopRule | None = StopRule(),  # noqa: B008 - frozen
    **options: Any,
) -> list[dict[str, Any]]:
    return run_adaptive(
        problems,
        dataset="toy",
        driver=driver(engine),
        renderer=RENDERER,
        decoding=DECODING,
        max_turns=max_turns,
        rule=rule,
        **options,
    )


OPINIONS = {
    # The gate needs CORRECT, 0.85 and an untruncated completion, all in the same turn.
    "a": [("CORRECT", 0.84), ("INCORRECT", 0.99), ("CORRECT", 0.85), ("CORRECT", 1.0)],
    "b": [("UNSURE", 1.0)] * 4,
    "c": [("INCORRECT", 0.9)] * 3 + [("CORRECT", 0.9)],
}


def opinionated(name: str, _sample: int, turn: int) -> list[int]:
    return words(says("8+4-2", *OPINIONS[name][turn - 1]))


def test_adaptive_inference_stops_at_the_first_open_gate_and_runs_to_the_end_otherwise() -> None:
    records = adaptive(at_places(opinionated))
    assert [(r["id"], r["returned_turn"], r["stopped_early"]) for r in records] == [
        ("a", 3, True),
        ("b", 4, False),
        ("c", 4, False),  # its gate opens at T_max itself, which is not early
    ]
    assert [len(record["turns"]) for record in records] == [3, 4, 4]


def test_a_truncated_turn_does_not_stop_whatever_it_claims() -> None:
    engine = at_places(lambda *_: words(says("8+2", "CORRECT", 1.0) + " and" * 200))
    (record,) = adaptive(engine, PROBLEMS[:1], max_turns=3)
    assert (record["returned_turn"], record["stopped_early"]) == (3, False)
    assert [turn["finish_reason"] for turn in record["turns"]] == ["length"] * 3
    assert [turn["truncated"] for turn in record["turns"]] == [True] * 3


def test_without_a_rule_every_turn_runs_and_the_last_is_returned() -> None:
    records = adaptive(at_places(opinionated), rule=None)
    assert {(r["returned_turn"], r["stopped_early"], len(r["turns"])) for r in records} == {
        (4, False, 4)
    }


def test_a_record_holds_what_the_samples_file_promises() -> None:
    seen: list[tuple[str, int]] = []
    records = adaptive(
        at_places(opinionated), on_turn=lambda problem, turn: seen.append((problem.id, turn.index))
    )
    record = records[0]
    assert list(record) == [
        "dataset",
        "id",
        "question",
        "reference",
        "returned_turn",
        "stopped_early",
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
        "verdict_probability": 0.3679,  # one token of log-probability -1: the script's
    }
    assert prompt_tokens > record["turns"][0]["prompt_tokens"] > 20
    assert sorted(seen) == [(r["id"], t["turn"]) for r in records for t in r["turns"]]


def test_a_question_without_a_reference_is_answered_and_not_graded() -> None:
    own = replace(PROBLEMS[0], reference="")
    (record,) = adaptive(at_places(opinionated), [own])
    assert [turn["correct"] for turn in record["turns"]] == [None] * 3


def test_a_problem_that_does_not_fit_is_recorded_as_wrong_under_its_own_id() -> None:
    long = replace(PROBLEMS[1], id="too-long", question="8 4 2 " * 400)
    engine = at_places(opinionated)
    records = adaptive(engine, [PROBLEMS[0], long, PROBLEMS[2]])
    assert [record["id"] for record in records] == ["a", "too-long", "c"]
    assert records[1] == {
        "dataset": "toy",
        "id": "too-long",
        "question": long.question,
        "reference": "15",
        "returned_turn": 0,
        "stopped_early": False,
        "turns": [],
        "error": "the problem does not fit 600 prompt tokens",
    }
    # 8 + 4 - 2 = 10 solves a alone: one of three, the one that could not be run among them.
    values = summarize(records)["datasets"]["toy"]
    assert (values["n"], values["accuracy"]) == (3, pytest.approx(1 / 3))


def test_permuting_the_references_leaves_every_prompt_of_adaptive_inference_as_it_was() -> None:
    prompts, labels = set(), set()
    for references in ORDERS:
        engine = ScriptedEngine(mixed_answers)
        records = adaptive(engine, exam(references))
        prompts.add(tuple(request.prompt_ids for request in engine.requests))
        labels.add(tuple(turn["correct"] for record in records for turn in record["turns"]))
    assert len(prompts) == 1
    assert len(labels) > 1
