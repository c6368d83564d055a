"""``serve`` in front of programs that know nothing of it: plain answers, counts, a second model."""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

import svr_lightning as svr
from svr_lightning.clients.chat_model import ChatModel
from svr_lightning.clients.connections import Access
from svr_lightning.control.backends import Upstream
from svr_lightning.control.monitoring import REQUESTS
from svr_lightning.control.protocol import answer_text
from svr_lightning.errors import ConfigError
from tests.chat_server import (
    DOUBT,
    DOUBTED,
    QUESTION,
    SURE,
    SURE_OF,
    ChatServer,
    Reply,
    completion,
    doubts_first,
)
from tests.core.test_controller import Script, certificate, reply, solved, under
from tests.served import ASKED, by_openai, chat, in_front_of, proxy, serving, started

CHECK = "<self_check>VERDICT: CORRECT; CONFIDENCE: 0.9</self_check>"


@pytest.mark.parametrize(
    ("completion", "text"),
    [
        (f"<think>6*7</think>\n<answer>42</answer>\n{CHECK}", "42"),
        (f"6 * 7 is 42.\n<answer>\\boxed{{42}}</answer>\n{CHECK}", "6 * 7 is 42.\n\\boxed{42}"),
        (f"{CHECK}<answer>1</answer>{CHECK} or <answer>2</answer>", "1 or 2"),
        ("<answer>42</answer>\n<self_check>VERD", "42"),  # cut off
        ("<answer>42</answer> VERDICT: CORRECT; CONFIDENCE: 0.9", "42"),
        ("**42**\n\nSelf-check:\n- **VERDICT:** CORRECT\n- **CONFIDENCE:** 0.9\n```", "**42**"),
        ("I say 42 with confidence.\n}", "I say 42 with confidence.\n}"),
        ("<answer>a < b</answer> I am sure of the verdict.", "a < b I am sure of the verdict."),
        ("42", "42"),
        (CHECK, ""),
        ("<think>\n6*7 is", ""),  # cut off
        ("<think>a</think>42, not </think>41", "42, not </think>41"),
    ],
)
def test_the_text_of_an_answer_has_no_tags_and_no_self_check(completion, text):
    assert answer_text(completion) == text


@pytest.mark.parametrize(
    ("written", "text"),
    [
        (r"\boxed{42}", "42"),
        (r"\[ \boxed{42} \].", "42"),
        (r"$\boxed{\frac{1}{2}}$", r"\frac{1}{2}"),
        ("#### 42", "42"),
        (r"It is \boxed{42}.", r"It is \boxed{42}."),
        (r"\boxed{41}, no: \boxed{42}", r"\boxed{41}, no: \boxed{42}"),
        ("#### Answer\n\n42 pens", "#### Answer\n\n42 pens"),
    ],
)
def test_a_box_around_the_answer_alone_is_for_clients_that_ask_for_it(written, text):
    turn = f"<think>6*7</think><answer>{written}</answer>{CHECK}"
    box = {"role": "system", "content": r"Put your answer in \boxed{}."}
    with proxy(lambda body, number: completion(turn), task="gsm8k") as (url, _):
        for messages, content in ((ASKED, text), ([box, *ASKED], written)):
            said = chat(url, messages=messages).json()
            assert said["choices"][0]["message"]["content"] == content


@pytest.mark.parametrize(
    ("server", "request_", "content"),
    [
        ("answer", {"svr": {"content": "turn"}}, SURE),
        ("turn", {}, SURE),
        ("turn", {"svr": {"content": "answer"}}, SURE_OF),
        ("turn", {"svr": {"max_turns": 3}}, SURE),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_message_holds_the_answer_or_the_turn(server, request_, content, stream):
    with proxy(doubts_first, content=server) as (url, _):
        assert by_openai(url, stream, **request_) == content


@contextmanager
def escalating(first: Any, second: Any, **settings: Any) -> Iterator[tuple[str, Any, Any]]:
    """A server whose unsure answers go to a second one; and both servers."""
    with ChatServer(first) as one, ChatServer(second) as two:
        stronger = Upstream(
            ChatModel(base_url=two.url, name="strong"),
            access=Access(key="second-secret"),
            name="the second",
        )
        server = in_front_of(one.url, stronger=stronger, **{"max_turns": 2, **settings})
        with serving(server) as url:
            yield url, one, two


def unsure(body: dict[str, Any], number: int) -> Reply:
    return completion(DOUBT)


def metrics(url: str) -> dict[str, float]:
    """Each sample of the page by its name and labels, as Prometheus reads it."""
    page = httpx.get(f"{url.removesuffix('/v1')}/metrics").text
    return {
        " ".join([sample.name, *sample.labels.values()]): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }


def test_a_question_leaves_its_place_while_the_second_model_thinks(monkeypatch):
    place = asyncio.Semaphore(1)
    monkeypatch.setattr(Upstream, "admission", place)
    held = []

    def doubts(*_):
        held.append(place.locked())
        return completion(DOUBT)

    with escalating(doubts, doubts) as (url, *_):
        chat(url)
    assert held == [True, True, False]  # two turns of the first model


@pytest.mark.parametrize("stream", [False, True])
def test_an_unsure_question_goes_to_the_second_model_once_and_plainly(stream, caplog):
    caplog.set_level(logging.INFO, REQUESTS)
    context = [{"role": "system", "content": "Be brief."}]
    asked = [*context, *ASKED]
    with escalating(unsure, lambda *_: completion("It is (10/5)*4.")) as (url, one, two):
        said = chat(url, messages=asked, stream=stream, max_tokens=50, temperature=0.5)
        assert (len(one.bodies), len(two.bodies)) == (2, 1)
        counts = metrics(url)
    sent = two.bodies[0]
    assert (sent["messages"], sent["model"]) == (asked, "strong")
    assert (sent["max_tokens"], sent["temperature"]) == (50, 0.5)
    assert two.headers[0]["Authorization"] == "Bearer second-secret"
    assert "It is (10/5)*4." in said.text
    if not stream:
        found = said.json()["svr"]
        assert (found["outcome"], found["accepted"], found["returned_turn"]) == (
            "answered",
            False,
            None,
        )
        tokens = {"prompt_tokens": 40, "completion_tokens": 20}
        assert found["escalation"] == {"outcome": "answered", "error": None, **tokens}
        assert said.json()["usage"]["total_tokens"] == 180
    assert counts["svr_answers_total escalated"] == counts["svr_escalations_total answered"] == 1
    assert counts["svr_answers_total accepted"] == counts["svr_answers_total unsure"] == 0
    assert "status=200" in caplog.text
    assert "outcome=escalated turns=2 prompt_tokens=120 completion_tokens=60" in caplog.text


def test_accepted_answers_alone_are_certified_and_never_reach_the_second_model(tmp_path):
    found = certificate(tmp_path, max_turns=2)

    def sure_once(_, number):
        return completion(SURE if number == 2 else DOUBT)

    with escalating(sure_once, unsure, **under(found)) as (url, _, two):
        said = chat(url).json()["svr"]
        assert two.bodies == []
        escalated = chat(url).json()["svr"]
    assert (said["accepted"], said["escalation"], said["certificate"]) == (True, None, found.id)
    assert (escalated["certificate"], escalated["uncertified"]) == (
        None,
        ["the answer is the second model's"],
    )


@pytest.mark.parametrize(
    ("fault", "tries", "words", "tokens"),
    [
        (Reply(b"over", 503), 3, "the second: HTTP 503, over", 120),
        (Reply(b"no key second-secret", 401), 1, "the second: HTTP 401, no key [key]", 120),
        (completion(None, message={"refusal": "No."}), 1, "the model refuses: No.", 180),
        (completion(""), 1, "an answer without text", 180),
        (completion("<think>10 / 5 is 2, and"), 1, "an answer without text", 180),
        (Reply(b"{}", delay=5.0), 1, "limit of 1.5 seconds", 120),
    ],
    ids=["down", "key", "refusal", "empty", "reasoning", "slow"],
)
def test_a_second_model_that_fails_leaves_the_first_ones_unsure_answer(fault, tries, words, tokens):
    with escalating(unsure, lambda *_: fault, seconds=1.5) as (url, _, two):
        said = chat(url).json()
        counts = metrics(url)
        assert len(two.bodies) == tries
    found = said["svr"]
    assert said["choices"][0]["message"]["content"] == DOUBTED
    assert (found["accepted"], found["returned_turn"]) == (False, 2)
    assert found["escalation"]["outcome"] == "failed"
    assert words in found["escalation"]["error"]
    assert said["usage"]["total_tokens"] == tokens  # also what it wrote in vain
    assert counts["svr_escalations_total failed"] == counts["svr_answers_total unsure"] == 1
    errors = sum(n for name, n in counts.items() if "upstream_errors_total second" in name)
    assert errors == (tries if "HTTP" in words else 0)  # a refusal is no failed call


def test_a_controller_escalates_likewise_with_any_client():
    second = Script([reply("It is (10/5)*4.")])
    first = Script([reply(DOUBT)] * 2)
    context = [{"role": "system", "content": "Be brief."}]
    controller = svr.Controller(first, "countdown", max_turns=2, escalate=second)
    result = controller.solve(QUESTION, context=context)
    assert second.asked == [[*context, *ASKED]]
    assert result.completion.text == "It is (10/5)*4."
    failing = Script([OSError("gone")])
    result = solved(reply(DOUBT), max_turns=1, escalate=failing)
    assert (result.answer, result.escalation.error) == (DOUBTED, "OSError: gone")


def test_the_second_models_answer_is_read_as_the_firsts_if_it_is_cut_off():
    begun = reply("<think>So <answer>(10/5)*4</answer>, I think", ended="length")
    alone = solved(begun, max_turns=1)
    escalated = solved(reply(DOUBT), max_turns=1, escalate=Script([begun]))
    assert alone.answer == escalated.answer == "(10/5)*4"


def test_a_promise_about_all_answers_does_not_hold_with_a_second_model(tmp_path):
    found = certificate(tmp_path, promises=[{"name": "wrong", "limit": 0.1}], max_turns=2)
    with pytest.raises(ConfigError, match="promises nothing for otherwise=escalate instead of"):
        svr.Controller(Script([]), "countdown", **under(found), escalate=Script([]))
    with escalating(unsure, unsure, **under(found)) as (url, *_):
        said = chat(url).json()["svr"]
    assert (said["certificate"], said["uncertified"][0]) == (
        None,
        "otherwise=escalate instead of answer",
    )


def test_every_request_is_counted_and_logged_without_a_word_of_it(caplog):
    caplog.set_level(logging.INFO, REQUESTS)

    def answers(body, number):
        fails = number in (3, 4) or number > 6
        return Reply(b"over", 503) if fails else doubts_first(body, number)

    with proxy(answers) as (url, _):
        assert chat(url).status_code == 200
        assert chat(url, svr={"max_turns": 1}).status_code == 200  # after two failed tries
        assert chat(url, n=2).status_code == 400
        assert chat(url).status_code == 502  # in its second turn
        counts = metrics(url)
    assert counts["svr_requests_total 200"] == 2
    assert counts["svr_requests_total 400"] == counts["svr_requests_total 502"] == 1
    assert counts["svr_answers_total accepted"] == counts["svr_answers_total unsure"] == 1
    assert counts["svr_turns_total"] == 4
    assert counts["svr_tokens_total prompt"] == 160
    assert counts["svr_tokens_total completion"] == 80
    assert counts["svr_upstream_errors_total first 503"] == 5
    assert counts["svr_request_seconds_count"] == 4
    assert counts["svr_requests_in_progress"] == 0
    assert [line.split(" outcome=")[-1].split()[0] for line in caplog.messages[:2]] == [
        "accepted",
        "unsure",
    ]
    assert """error="n: '2' is not one of 1\"""" in caplog.messages[2]
    assert QUESTION not in caplog.text
    assert SURE_OF not in caplog.text


def test_the_command_says_what_it_serves_and_logs_on_standard_error(tmp_path):
    found = certificate(tmp_path, max_turns=1, promises=[{"name": "wrong_accepted", "limit": 0.1}])
    with ChatServer(unsure) as upstream, ChatServer(lambda *_: completion("4")) as second:
        options = ["--task", "countdown", "--upstream", upstream.url, "--model", "tiny"]
        options += ["--certificate", str(tmp_path / "certificate.json"), "--log", "requests"]
        options += ["--escalate", second.url, "--escalate-model", "strong"]
        with started(*options) as (url, process):
            assert chat(url).json()["choices"][0]["message"]["content"] == "4"
            assert "outcome=escalated turns=1" in process.stderr.readline()
        assert len(second.bodies) == 1
    *said, where = process.said
    assert said == [
        "stops at CORRECT at confidence >= 0.9; at most 1 turn",
        f"certificate {found.id} of accepted answers alone:",
        "  wrong_accepted at most 0.1, confidence 0.9",
        "  weights are not compared",
        "unsure answers go to strong",
    ]
    assert where.startswith("serving tiny at http://127.0.0.1:")
