"""The server: the same answers as an evaluation, in the form that ordinary clients read."""

import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import httpx
import pytest
from openai import OpenAI

import svr_lightning as svr
from svr_lightning.analysis.records import SampleRecord
from svr_lightning.engines.transformers import TransformersEngine
from tests.chat_server import DOUBT, QUESTION, SURE, SURE_OF, doubts_first
from tests.chat_server import ChatServer as Scripted
from tests.core.test_controller import certificate, under
from tests.served import ASKED, Embedded, chat, in_front_of, serving


@pytest.fixture(scope="module")
def policy() -> Embedded:
    return Embedded(TransformersEngine(max_batch=4), problems=12)


@pytest.fixture(scope="module")
def evaluated(policy: Embedded) -> list[SampleRecord]:
    return policy.evaluated()


@pytest.fixture(scope="module")
def embedded(policy: Embedded, evaluated: Any) -> Iterator[str]:
    with policy.served() as url:
        yield url


def test_greedy_answers_are_those_of_an_evaluation_turn_by_turn(embedded, policy, evaluated):
    policy.assert_answers_are(evaluated, embedded)


def test_a_question_that_has_begun_ends_before_another_one_begins(
    embedded, policy, evaluated, monkeypatch
):
    prompts = []
    submit = policy.engine.submit

    def watched(request):
        prompts.append(policy.renderer.tokenizer.decode(request.prompt_ids))
        submit(request)

    monkeypatch.setattr(policy.engine, "submit", watched)
    policy.assert_answers_are(evaluated, embedded)
    begun = [number for number, prompt in enumerate(prompts) if "[T=" not in prompt]
    assert len(begun) == 12
    # Two batches of four run at a time: the last question waits until four have their third turn.
    assert sum("[T=3]" in prompt for prompt in prompts[: begun[-1]]) >= 4


def test_a_client_that_goes_takes_its_request_out_of_the_batch(embedded, policy, monkeypatch):
    dropped, drop = threading.Event(), policy.engine.drop

    def watched(number):
        drop(number)
        dropped.set()

    with monkeypatch.context() as patched:
        patched.setattr(policy.engine, "drop", watched)
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{embedded}/chat/completions", json={"messages": ASKED}, timeout=0.02)
        assert dropped.wait(10)
    assert chat(embedded).status_code == 200


def test_a_question_that_does_not_fit_is_refused(embedded):
    said = chat(embedded, messages=[{"role": "user", "content": "3 " * 3000}])
    assert said.status_code == 400
    assert "too long" in said.json()["error"]["message"]


def test_messages_that_the_policys_template_refuses_are_a_wrong_request(
    embedded, policy, monkeypatch
):
    strict = "{{ raise_exception('roles must alternate') if messages[1].role == 'assistant' }}"
    tokenizer = policy.renderer.tokenizer
    monkeypatch.setattr(tokenizer, "chat_template", strict + tokenizer.chat_template)
    greeted = [{"role": "assistant", "content": "Hi."}, *ASKED]
    said = chat(embedded, messages=greeted)
    assert said.status_code == 400
    assert "roles must alternate" in said.json()["error"]["message"]


def test_a_seed_repeats_what_was_sampled(embedded):
    ask = partial(chat, embedded, temperature=1.0, svr={"max_turns": 1})
    texts = [ask(seed=seed).json()["svr"]["turns"][0]["text"] for seed in (1, 1, 2, 3, 4)]
    assert texts[0] == texts[1]
    assert len(set(texts)) > 1


@pytest.mark.parametrize("method", ["step", "submit"])
def test_an_engine_that_fails_is_reported_and_goes_on(embedded, policy, monkeypatch, method):
    def fail(*_):
        raise RuntimeError("out of memory")

    health = embedded.removesuffix("/v1") + "/health"
    with monkeypatch.context() as patched:
        patched.setattr(policy.engine, method, fail)
        said = chat(embedded)
    assert said.status_code == 503
    assert "RuntimeError: out of memory" in said.json()["error"]["message"]
    assert httpx.get(health).status_code == 503
    assert chat(embedded).status_code == 200
    assert httpx.get(health).json() == {"status": "ok"}


@pytest.fixture(scope="module")
def upstream() -> Iterator[Scripted]:
    with Scripted(doubts_first) as server:
        yield server


@pytest.fixture(scope="module")
def proxy(upstream: Scripted) -> Iterator[str]:
    with serving(in_front_of(upstream.url)) as url:
        yield url


def test_an_unmodified_client_gets_the_accepted_turn(proxy):
    client = OpenAI(base_url=proxy, api_key="none")
    said = client.chat.completions.create(model="svr", messages=ASKED)
    assert said.choices[0].message.content == SURE_OF
    assert (said.usage.prompt_tokens, said.usage.completion_tokens) == (80, 40)
    found = said.model_dump()["svr"]
    assert (found["outcome"], found["accepted"], found["returned_turn"]) == ("answered", True, 2)
    assert (found["verdict"], found["confidence"]) == ("CORRECT", 0.95)
    assert found["stop_reason"] == "CORRECT at confidence 0.95 >= 0.85"
    assert [turn["text"] for turn in found["turns"]] == [DOUBT, SURE]
    chunks = list(
        client.chat.completions.create(
            model="svr", messages=ASKED, stream=True, stream_options={"include_usage": True, "x": 1}
        )
    )
    texts = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert "".join(texts) == SURE_OF
    assert [c.choices[0].finish_reason for c in chunks if c.choices] == [None, None, "stop"]
    assert chunks[-1].usage == said.usage
    for turn in found["turns"]:
        del turn["text"]  # the texts are not repeated
    assert chunks[-2].model_dump()["svr"] == found
    assert [model.id for model in client.models.list()] == ["svr"]
    assert client.models.retrieve("svr").id == "svr"
    client.close()


def test_a_request_sets_threshold_turns_and_sampling(proxy, upstream):
    def turns(**controls):
        return len(chat(proxy, svr=controls).json()["svr"]["turns"])

    assert turns(threshold=0.99, max_turns=3) == 3
    assert turns(max_turns=1) == 1
    assert turns(threshold=None, max_turns=None) == turns() == 2  # null is not set
    chat(proxy, max_tokens=50, temperature=0.5, top_p=0.9)
    sent = upstream.bodies[-1]
    assert (sent["max_tokens"], sent["temperature"], sent["top_p"]) == (50, 0.5, 0.9)


@pytest.mark.parametrize(
    ("decoding", "fields", "uncertified"),
    [
        ({"temperature": 0.0}, {"top_p": 0.5}, []),
        ({"temperature": 0.0}, {"temperature": 0.6}, ["temperature=0.6 instead of 0.0"]),
        ({"temperature": 0.0}, {"svr": {"max_turns": 3}}, ["max_turns=3 instead of 4"]),
        # A log does not say how its answers were made, so that none is known to be covered.
        *(
            (
                known,
                {"temperature": 1.9},
                ["made from a log: prompts, policy and decoding are unknown"],
            )
            for known in ({}, {"task": "countdown"})
        ),
    ],
)
def test_an_answer_names_its_certificate_unless_the_request_departs(
    decoding, fields, uncertified, upstream, tmp_path
):
    found = certificate(tmp_path, decoding=decoding)
    with serving(in_front_of(upstream.url, **under(found))) as url:
        said = chat(url, **fields).json()["svr"]
    named = None if uncertified else found.id
    assert (said["certificate"], said["uncertified"]) == (named, uncertified)


def text(said: str) -> dict[str, str]:
    return {"type": "text", "text": said}


def test_a_conversation_stands_before_the_question_and_what_is_empty_says_nothing(proxy, upstream):
    parts = QUESTION[:6], QUESTION[7:]
    said = chat(
        proxy,
        messages=[
            *({"role": "system", "content": empty} for empty in ("", None, [], [text(" ")])),
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": "My name is Ann."},
            {"role": "assistant", "content": None, "refusal": "hi"},
            {"role": "assistant", "content": "", "tool_calls": []},
            {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
            {"role": "user", "content": [*map(text, (parts[0], "", parts[1]))]},
        ],
        stop=["\n"],
    )
    assert said.json()["svr"]["ignored"] == ["stop"]
    task = svr.get_task("countdown")
    system, question = svr.first_turn_messages(task, task.from_question(QUESTION))
    first, second = [body["messages"] for body in upstream.bodies[-2:]]
    assert first == [
        {"role": "system", "content": system["content"] + "\n\nBe brief."},
        {"role": "user", "content": "My name is Ann."},
        {"role": "assistant", "content": "hi\n\nno"},
        question,
    ]
    assert second[:3] == first[:3]
    assert second[3]["content"].startswith("[T=2]")
