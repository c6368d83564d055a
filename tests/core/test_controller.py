"""Adaptive inference over any chat client: outcomes, limits, kinds of clients, what errors keep."""

import asyncio
import json
import threading
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import svr_lightning as svr
from examples.worked_examples import Shown
from svr_lightning.analysis.operating_point import sealed
from svr_lightning.control.controller import LONGEST_TEXT, Controller, Result
from svr_lightning.core.stopping import Confident, FixedTurns, Majority, RepeatedAnswer
from svr_lightning.core.types import FinishReason
from svr_lightning.errors import ConfigError
from svr_lightning.recipes.dialogues import FreshTurns, PlainRefinement, SelfVerifying
from tests.chat_server import DOUBT, QUESTION, SURE, says

Messages = list[dict[str, str]]


@dataclass
class Script:
    """A client that says one text after another, and keeps what it was asked."""

    texts: list[Any]

    def __post_init__(self) -> None:
        self.asked = []
        self.limits = []

    def __call__(self, messages: Messages, max_tokens: int) -> Any:
        self.asked.append(messages)
        self.limits.append(max_tokens)
        said = self.texts[len(self.asked) - 1]
        if isinstance(said, BaseException):
            raise said
        return said


def reply(text: str, tokens: int = 20, ended: str = "stop") -> dict[str, Any]:
    """A chat completion as servers send it."""
    return {
        "choices": [{"message": {"content": text}, "finish_reason": ended}],
        "usage": {"prompt_tokens": 40, "completion_tokens": tokens},
    }


def solved(*said: Any, **settings: Any) -> Result:
    """How a question ends whose turns are these replies."""
    return Controller(Script([*said]), "countdown", **settings).solve(QUESTION)


def test_it_refines_until_the_rule_accepts():
    script = Script([reply(DOUBT), reply(SURE)])
    result = Controller(script, "countdown").solve(QUESTION)
    assert (result.outcome, result.accepted, result.answer) == ("answered", True, "(10/5)*4")
    assert result.reason == "CORRECT at confidence 0.95 >= 0.85"
    assert (result.prompt_tokens, result.completion_tokens) == (80, 40)
    task = svr.get_task("countdown")
    problem = task.from_question(QUESTION)
    said = {"verdict": svr.Verdict.INCORRECT, "confidence": 0.4, "truncated": False}
    assert script.asked == [
        svr.first_turn_messages(task, problem),
        svr.refinement_messages(task, problem, previous=DOUBT, turn=2, **said),
    ]
    assert script.limits == [task.max_completion_tokens] * 2


def test_a_sure_turn_without_an_answer_is_followed_by_another():
    check = "<self_check>VERDICT: CORRECT; CONFIDENCE: 0.95</self_check>"
    result = solved(reply(check), reply(f"<answer>see above</answer>{check}"), reply(SURE))
    assert (result.accepted, result.answer, len(result.turns)) == (True, "(10/5)*4", 3)
    alone = solved(reply(check), max_turns=1)
    assert (alone.accepted, alone.answer) == (False, None)


@pytest.mark.parametrize(
    ("rule", "turns", "returned"),
    [
        (FixedTurns(turns=2), 2, 2),
        (RepeatedAnswer(), 3, 3),
        (Majority(), 4, 2),
        (Confident(threshold=0.99), 4, 4),
    ],
)
def test_any_rule_decides_when_to_stop_and_what_to_return(rule, turns, returned):
    said = DOUBT, SURE, SURE, says("5", "CORRECT", 0.97)
    result = solved(*said, rule=rule, max_turns=4)
    assert (len(result.turns), result.returned.index) == (turns, returned)


def test_the_prompts_can_be_those_of_another_dialogue():
    script = Script([DOUBT, SURE])
    rule = FixedTurns(turns=2)
    Controller(script, "countdown", dialogue=PlainRefinement(), rule=rule).solve(QUESTION)
    assert "self_check" not in script.asked[0][0]["content"]
    with pytest.raises(ConfigError, match=r"reads a self-check, which .*PlainRefinement"):
        Controller(script, "countdown", dialogue=PlainRefinement())


def test_worked_examples_stand_before_the_question_in_the_form_that_is_asked_for():
    problem = svr.Problem(id="p", task="gsm8k", question="1 + 1 = ?", reference="2")
    system, *shown, question = Shown().first(problem)
    assert [system, question] == SelfVerifying().first(problem)
    replies = [message["content"] for message in shown if message["role"] == "assistant"]
    checks = [svr.parse_self_check(reply) for reply in replies]
    assert [(check.verdict, check.confidence) for check in checks] == [
        (svr.Verdict.CORRECT, 0.95),
        (svr.Verdict.INCORRECT, 0.1),
    ]


@pytest.mark.parametrize(
    ("otherwise", "outcome", "answer"),
    [("answer", "answered", "10-4"), ("give_up", "gave_up", None)],
)
def test_an_answer_that_no_turn_vouches_for(otherwise, outcome, answer):
    result = solved(reply(DOUBT), reply(DOUBT), max_turns=2, otherwise=otherwise)
    assert (result.outcome, result.accepted, result.answer) == (outcome, False, answer)
    assert [turn.index for turn in result.turns] == [1, 2]
    assert result.reason == "no turn was accepted by: CORRECT at confidence >= 0.85"


def test_the_limit_of_seconds_holds_for_all_turns_together(monkeypatch, tmp_path):
    clock = SimpleNamespace(now=0.0, monotonic=lambda: clock.now)
    monkeypatch.setattr("svr_lightning.control.controller.time", clock)

    def client(messages, max_tokens):
        clock.now += 4.0
        return DOUBT

    found = certificate(tmp_path, promises=[{"name": "wrong", "limit": 0.1}])  # of all answers
    result = Controller(client, "countdown", seconds=10.0, **under(found)).solve(QUESTION)
    assert len(result.turns) == 3  # they begin at 0, 4 and 8 seconds
    assert result.uncertified == (result.reason,) == ("limit of 10 seconds",)


def test_a_long_text_is_read_beside_the_event_loop():
    readers = []

    class Noting(SelfVerifying):
        def read(self, text):
            readers.append(threading.current_thread().name)
            return super().read(text)

    async def client(messages, max_tokens):
        return DOUBT + "1" * (10**5 if len(readers) == 1 else 0)

    controller = Controller(client, "countdown", dialogue=Noting(), max_turns=3)
    result = asyncio.run(controller.solve_async(QUESTION))
    assert [name == "MainThread" for name in readers] == [True, False, True]
    assert [turn.index for turn in result.turns] == [1, 2, 3]


def test_a_hung_client_is_given_up_at_the_limit_of_seconds():
    async def client(messages, max_tokens):
        if messages[-1]["content"].startswith("[T="):
            await asyncio.Event().wait()
        return reply(DOUBT)

    controller = Controller(client, "countdown", seconds=0.2, max_completion_tokens=21)
    result = asyncio.run(controller.solve_async(QUESTION))
    assert (len(result.turns), result.accepted) == (1, False)
    assert result.unused == (1, 40, 21)  # it hung for longer than the limit takes
    assert result.reason == "limit of 0.2 seconds"


def test_a_text_without_end_is_cut_and_never_accepted():
    endless = SURE + "x" * 2 * LONGEST_TEXT
    result = solved(endless, endless, max_turns=2)
    assert not result.accepted
    assert [len(turn.completion.text) for turn in result.turns] == [LONGEST_TEXT] * 2
    assert result.turns[0].completion.finish_reason is FinishReason.LENGTH


class Dumped:
    """A reply as LiteLLM and pydantic models give it."""

    def model_dump(self) -> dict[str, Any]:
        return reply(SURE)


@pytest.mark.parametrize("said", [SURE, reply(SURE), Dumped()], ids=["text", "mapping", "object"])
def test_a_reply_may_have_several_forms(said):
    async def later(messages, max_tokens):
        return said

    controller = Controller(Script([said]), "countdown")
    assert controller.solve(QUESTION).answer == "(10/5)*4"
    assert asyncio.run(Controller(later, "countdown").solve_async(QUESTION)).accepted
    assert asyncio.run(Controller(Script([said]), "countdown").solve_async(QUESTION)).accepted
    with pytest.raises(TypeError, match="use solve_async"):
        Controller(later, "countdown").solve(QUESTION)


@pytest.mark.parametrize("error", [OSError("gone"), KeyboardInterrupt()])
def test_an_error_of_the_client_comes_as_it_is_with_the_turns_so_far(error):
    with pytest.raises(type(error)) as caught:
        Controller(Script([DOUBT, error]), "countdown").solve(QUESTION)
    assert caught.value is error
    assert [turn.completion.text for turn in error.turns] == [DOUBT]


def certificate(folder: Path, file: str = "certificate.json", **changes: Any) -> svr.Certificate:
    content = {
        "schema_version": 3,
        "promises": [{"name": "pse", "limit": 0.1}],
        "confidence": 0.9,
        "certified": {"threshold": 0.9},
        "rule": {"class_path": "Confident"},
        "max_turns": 4,
        "decoding": {"temperature": 0.0},
        **changes,
    }
    path = folder / file
    path.write_text(json.dumps(sealed(**content)))
    return svr.Certificate.read(path)


def under(found: svr.Certificate) -> dict[str, Any]:
    """The settings of a controller that a certificate is for, and itself."""
    return {"rule": found.rule, "max_turns": found.max_turns, "certificate": found}


@pytest.mark.parametrize(
    ("decoding", "settings", "departure"),
    [
        ({}, {"max_turns": 3}, "max_turns=3 instead of 4"),
        ({"fresh_turns": False}, {"dialogue": FreshTurns(SelfVerifying())}, "fresh_turns=True ins"),
        ({"task": "gsm8k"}, {}, "task="),
        ({"task": ["countdown", "math"]}, {}, "task="),
        ({"max_completion_tokens": 3072}, {}, "max_completion_tokens="),
    ],
)
def test_a_certificate_is_in_force_under_its_own_settings_alone(
    decoding, settings, departure, tmp_path
):
    found = certificate(tmp_path)
    assert (found.rule, found.max_turns) == (Confident(threshold=0.9), 4)
    own = under(found)
    assert solved(SURE, **own).certificate is found
    own["certificate"] = certificate(tmp_path, decoding={})  # of a log, which records none
    assert solved(SURE, **own).certificate is None
    own["certificate"] = certificate(tmp_path, decoding=decoding)
    with pytest.raises(ConfigError, match=f"promises nothing for {departure}"):
        Controller(Script([]), "countdown", **own | settings)


@pytest.mark.parametrize(
    ("promise", "applied", "holds"),
    [
        ("wrong", "answer", True),
        ("wrong", "give_up", False),
        ("tokens", "give_up", True),
        ("pse", "give_up", True),
    ],
)
def test_what_becomes_of_a_doubtful_answer_counts_where_a_promise_depends_on_it(
    promise, applied, holds, tmp_path
):
    promises = [{"name": promise, "limit": 0.1}]
    found = certificate(tmp_path, promises=promises)
    expected = [] if holds else [f"otherwise={applied} instead of answer"]
    assert found.departures(found.rule, 4, otherwise=applied) == expected
    if holds:  # then the answer itself is covered if the promise is about all of them
        result = solved(*[DOUBT] * 4, **under(found), otherwise=applied)
        assert result.uncertified == (() if promise == "wrong" else ("it is not accepted",))


@pytest.mark.parametrize(
    "changes",
    [
        {"certified": None},
        {"certified": {"threshold": 7}},
        {"confidence": 7},
        {"max_turns": 0},
        {"rule": {"class_path": "Confident", "init_args": {"score": "luck"}}},
        {"rule": {"class_path": "FixedTurns"}},
        {"promises": [{}]},
        {"promises": []},
        {"promises": [{"name": "pse", "limit": 0.1, "luck": 1}]},
        {"promises": [{"name": "pse", "limit": -0.1}]},
        {"promises": [{"name": "wrong", "limit": 0.1, "bound": 9}]},
        {"promises": [{"name": "tokens", "limit": 9, "bound": 0}]},
        {"schema_version": 2},
    ],
)
def test_what_is_no_certificate_is_refused(tmp_path, changes):
    with pytest.raises(ConfigError, match="is not a certificate"):
        certificate(tmp_path, **changes)


def test_options_out_of_range_are_refused():
    with pytest.raises(ConfigError, match="seconds=0 must be above 0"):
        Controller(Script([]), "countdown", seconds=0)
    with pytest.raises(ConfigError, match="otherwise='escalate' must be one of answer, give_up"):
        Controller(Script([]), "countdown", otherwise="escalate")  # type: ignore[arg-type]
