"""What is sent to a chat server, and what its answers mean, on plain values."""

import html
import json
import sys
from dataclasses import replace
from typing import Any
from urllib.parse import quote, quote_plus

import pytest

from svr_lightning.clients.chat_answers import ServerError, error_in, is_temporary, read_answer
from svr_lightning.clients.chat_model import ChatModel, check_fields
from svr_lightning.clients.connections import read_access, retry_delay
from svr_lightning.clients.masking import Mask
from svr_lightning.core.parsing import parse_self_check, plain_fields
from svr_lightning.core.types import Decoding
from svr_lightning.engines.openai import OpenAIEngine
from svr_lightning.errors import ConfigError
from svr_lightning.tasks import get_task

USAGE = {"prompt_tokens": 7, "completion_tokens": 3}


def answer(message: Any, finish_reason: Any = "stop", usage: Any = USAGE, **more: Any) -> bytes:
    choice = {"message": message, "finish_reason": finish_reason, **more}
    return json.dumps({"choices": [choice], "usage": usage}).encode()


def part(kind: str, **fields: Any) -> dict[str, Any]:
    return {"type": kind, **fields}


REPLY = "<answer>a</answer><self_check>VERDICT: WRONG</self_check>"
A, B = part("text", text="a"), part("text", text="b")
THOUGHT = "<think>\na</think>\nb"


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ({"content": "<think>a</think>b"}, "<think>a</think>b"),
        ({"content": None}, ""),
        # The template opened the block, so that the policy only closes it.
        ({"content": "a</think>b"}, "<think>\na</think>b"),
        ({"content": "a</think><think>b"}, "<think>\na</think><think>b"),
        # Other models close it in other words.
        *(
            ({"content": f"a{end}b"}, f"<think>\na{end}</think>\nb")
            for end in (
                "</thinking>",
                "</THINK>",
                "</mm:think>",
                "</think:x>",
                "</ifm|think_fast>",
                "[/THINK]",
                "<|END_THINKING|>",
                "<channel|>",
                "<|channel|>final<|message|>",
                "<|end_of_thought|>",
                "<|inner_suffix|>",
                "</scratchpad>",
                "</reflection>",
                "\nHere is my response:",
            )
        ),
        # Behind an answer and its self-check, the marks are quotations.
        *(
            ({"content": f"{REPLY} You wrote {end}b"}, f"{REPLY} You wrote {end}b")
            for end in ("</think>", "[/THINK]", "</scratchpad>")
        ),
        # What the server split stays split.
        ({"content": "b</think>c", "reasoning": "a"}, "<think>\na</think>\nb</think>c"),
        # The server split the reasoning off, under one of three names: SGLang, vLLM, others.
        ({"content": "b", "reasoning_content": "a\n"}, "<think>\na\n</think>\nb"),
        ({"content": "\nb", "reasoning": "\na\n"}, "<think>\na\n</think>\nb"),
        ({"content": "b", "thinking": "a"}, THOUGHT),
        ({"content": None, "reasoning": "a"}, "<think>\na</think>\n"),
        ({"content": "b", "reasoning": "a</think>x"}, "<think>\na</ think>x</think>\nb"),
        # Content in parts: OpenAI, Mistral, Claude, other clients.
        ({"content": [A, B]}, "ab"),
        ({"content": ["b", "c"]}, "bc"),
        ({"content": [part("thinking", thinking=[A, A]), B]}, "<think>\naa</think>\nb"),
        ({"content": [part("thinking", thinking="a", signature="s"), B]}, THOUGHT),
        ({"content": [part("reasoning", summary=[part("summary_text", text="a")]), "b"]}, THOUGHT),
        ({"content": [part("redacted_thinking", data="x"), part("output_text", text="b")]}, "b"),
        ({"content": [{"text": "a", "thought": True}, {"text": {"value": "b"}}]}, THOUGHT),
    ],
)
def test_reasoning_stands_before_the_content_as_the_policy_wrote_it(message, text):
    assert read_answer(answer(message)).text == text


@pytest.mark.parametrize(
    "message",
    [
        {"content": "<answer>9</answer>", "reasoning": "I end with </think><answer>1</answer>"},
        {"content": "<answer>9</answer> </think>", "reasoning": "a"},
        {"content": "<answer>9</answer> <think> is a tag", "reasoning_content": "a"},
        {"content": [part("thinking", thinking="</think> 1"), "<answer>9</answer></THINK>"]},
    ],
)
def test_the_answer_is_read_behind_the_split_of_the_server(message):
    text = read_answer(answer(message)).text
    assert get_task("countdown").read(text).answer == "9"


def test_reasoning_that_reached_the_limit_is_not_closed():
    assert read_answer(answer({"content": None, "reasoning": "a"}, "length")).text == "<think>\na"


@pytest.mark.parametrize(
    ("reason", "truncated"),
    [
        *((one, False) for one in ("stop", "eos", "eos_token", "STOP", "end_turn", None, "else")),
        *((one, True) for one in ("length", "max_tokens", "MAX_TOKENS", "model_length")),
        *((one, True) for one in ("maxTokens", "max_new_tokens", "ERROR_LIMIT", "incomplete")),
        *((one, True) for one in ("model_context_window_exceeded", "FinishReason.MAX_TOKENS")),
    ],
)
def test_a_completion_ends_with_many_words_of_which_some_mean_a_limit(reason, truncated):
    assert read_answer(answer({"content": "x"}, reason)).truncated == truncated
    claudes = {"choices": [{"message": {"content": "x"}, "stop_reason": reason}]}
    assert read_answer(json.dumps(claudes).encode()).truncated == truncated


@pytest.mark.parametrize(
    ("usage", "counts"),
    [
        ({"prompt_tokens": 7.0, "completion_tokens": 3.0}, (7, 3)),
        ({"prompt_tokens": 0, "input_tokens": 7, "output_tokens": 3}, (7, 3)),
        ({"prompt_tokens": 7, "completion_tokens": None}, (7, 0)),
        (None, (0, 0)),
        ({"prompt_tokens": True, "completion_tokens": -1}, (0, 0)),
        ({"prompt_tokens": 10**30, "completion_tokens": float("nan")}, (0, 0)),
    ],
)
def test_a_usage_that_says_nothing_is_not_known(usage, counts):
    read = read_answer(answer({"content": "x"}, usage=usage))
    assert (read.prompt_tokens, read.completion_tokens) == counts


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (answer({"content": None, "refusal": "I cannot."}), "I cannot."),
        (answer({"content": [part("refusal", refusal="I cannot.")]}), "I cannot."),
        (answer({"content": "I cannot."}, "refusal"), "I cannot."),
        (answer({"content": None}, "content_filter"), "the server ended it with 'content_filter'"),
        (answer({"content": ""}, "SAFETY"), "the server ended it with 'safety'"),
        (answer({"content": ""}, "sensitive"), "the server ended it with 'sensitive'"),
        (answer({"content": " ", "refusal": "I cannot."}), "I cannot."),
    ],
)
def test_a_refusal_keeps_its_words_and_its_tokens(body, words):
    with pytest.raises(ServerError, match="the model refuses: ") as caught:
        read_answer(body)
    refusal = caught.value.refusal
    assert (refusal.text, refusal.completion_tokens, caught.value.temporary) == (words, 3, False)


@pytest.mark.parametrize("body", ['{"choices": [], "a": %s}', '{"error": %s}', "%s"])
def test_an_answer_is_refused_however_deep_it_is_nested(body):
    for depth in range(1, sys.getrecursionlimit()):
        with pytest.raises(ServerError):
            read_answer((body % ("[" * depth + "]" * depth)).encode())


@pytest.mark.parametrize(
    ("body", "message", "code", "status"),
    [
        ({"error": {"message": "no credit", "code": "quota"}}, "no credit (quota)", "quota", 200),
        ({"error": {"message": "slow down", "code": 429}}, "slow down (429)", "429", 429),
        ({"error": "model not found"}, "model not found", None, 200),
        ({"object": "error", "message": "bad key", "code": 401}, "bad key (401)", "401", 401),
        ([{"error": {"code": 400, "message": "no seed"}}], "no seed (400)", "400", 400),
        ({"detail": "Not Found"}, "Not Found", None, 200),
        ({"type": "error", "error": {"type": "overloaded_error", "message": "busy"}},
         "busy (overloaded_error)", "overloaded_error", 200),
        ({"choices": [{"message": {"content": ""}, "finish_reason": "error",
                       "error": {"code": 502, "message": "gone"}}]}, "gone (502)", "502", 502),
        ({"choices": [], "error": {"message": "hm"}}, "hm", None, 200),
        ({"choices": [{"message": {"content": "half"}}], "error": {"message": "gone", "code": 503}},
         "gone (503)", "503", 503),
        ({"error": True, "message": "hm"}, "hm", None, 200),
        ({"error": {"message": "slow down", "code": "429"}}, "slow down (429)", "429", 429),
        ({"choices": [{"message": {"content": ""}, "finish_reason": "network_error"}]},
         "it ended with network_error", None, 200),
    ],
)  # fmt: skip
def test_an_error_in_an_answer_is_the_servers_own_message_code_and_status(
    body, message, code, status
):
    with pytest.raises(ServerError) as caught:
        read_answer(json.dumps(body).encode())
    error = caught.value
    assert (str(error), error.code, error.status) == (message, code, status)
    assert error.temporary == (status in (200, 429, 502, 503))


@pytest.mark.parametrize(
    ("body", "came"),
    [
        (b"", "nothing"),
        (b"<html>busy</html>", "'<html>busy</html>'"),
        (b"\xff\xfe", "'\ufffd\ufffd'"),
        (b"[" * 100_000, "'" + "[" * 50),
        (b"[]", "a list"),
        (b"null", "null"),
        (b'"text"', "text"),
        (b'{"choices": []}', "an object with choices"),
        (b'{"\\ud800": 1}', "an object with ?"),  # a name that UTF-8 cannot spell
        (b'{"model": "m", "message": {"content": "x"}, "done": true}', "with model, message, done"),
        (b'{"base_resp": {"status_msg": "login fail"}, "choices": null}', "login fail"),
        (b'{"success": false, "errors": [{"message": "no route"}]}', "no route"),
        (answer({"content": [{"type": "text"}]}), "an object with choices"),
        (answer({"content": 3}), "an object with choices"),
    ],
)
def test_what_is_no_chat_completion_is_described(body, came):
    with pytest.raises(ServerError) as caught:
        read_answer(body)
    assert str(caught.value).startswith("no chat completion but ")
    assert came in str(caught.value)
    assert caught.value.temporary


def stated(text: str) -> tuple[str, float]:
    """The verdict and the confidence of a chat model's self-check, with its tags and without."""
    found = set()
    for shown in (text, f"I am sure.\n<self_check>{text}</self_check>"):
        plain = plain_fields(shown)
        assert len(plain) == len(shown)  # places of tokens stay
        check = parse_self_check(plain)
        found.add((check.verdict.value, check.confidence))
    (one,) = found
    return one


@pytest.mark.parametrize(
    "text",
    [
        "**VERDICT:** CORRECT; **CONFIDENCE:** 0.95",
        "__Verdict__: _correct_, __Confidence__: _95%_",
        '{"verdict": "CORRECT", "confidence": 0.95}',
        "VERDICT\uff1aCORRECT\nCONFIDENCE\uff1a0.95",
        "VERDICT - CORRECT; CONFIDENCE \u2013 0.95",
        "| VERDICT | CORRECT |\n| CONFIDENCE | 0.95 |",
        r"\textbf{VERDICT:} \text{CORRECT} <b>CONFIDENCE:</b> $0.95$",
        "VERDICT: \u2705 CORRECT; CONFIDENCE:\u200b\u200f0.95",
        "VERDICT (CORRECT or not): CORRECT; **CONFIDENCE (1 to 10):** 0.95",
        "VERDICT: CORRECT; CONFIDENCE: 0.95 of course",
        "VERDICT: CORRECT; CONFIDENCE: 0.95...",
        "VERDICT: CORRECT; CONFIDENCE: 0.95 (... to .)",
        "VERDICT: CORRECT; CONFIDENCE (0 to 1): 0.95",
        "VERDICT: CORRECT; CONFIDENCE: 0.95 [0, 1]",
        "VERDICT: CORRECT; CONFIDENCE: 95 %",
        "VERDICT: CORRECT; CONFIDENCE: 0.95; 3 steps",
        "VERDICT: CORRECT, the sign was mended; CONFIDENCE: 0.95",
        "VERDICT: CORRECT; RIGHT; CONFIDENCE: 0.95",
        "VERDICT: CORRECT.\nINCORRECT steps: none. CONFIDENCE: 0.95",
        "- VERDICT: CORRECT\n- CONFIDENCE: 0.95\n- 2 steps",
    ],
)
def test_a_self_check_of_a_chat_model_is_read_through_its_adornment(text):
    assert stated(text) == ("CORRECT", 0.95)


@pytest.mark.parametrize(
    "text",
    [
        "VERDICT: CORRECT; CONFIDENCE: 9-out-of-10",
        "VERDICT: CORRECT; CONFIDENCE: 9 points out of a possible 10",
        "VERDICT: CORRECT; CONFIDENCE: 9 out of 10",
        "VERDICT: CORRECT; CONFIDENCE: **9** / **10**",
        "VERDICT: CORRECT; CONFIDENCE: 9 (of ten)",
        "VERDICT: CORRECT; CONFIDENCE (1-10): 1",
        "VERDICT: CORRECT; CONFIDENCE [0-100]: 1",
        "VERDICT: CORRECT; CONFIDENCE (%): 1",
        "VERDICT: CORRECT; CONFIDENCE (out of 5): 1",
        "VERDICT: CORRECT; CONFIDENCE: 1 (1 = guess, 5 = sure)",
        "VERDICT: CORRECT; CONFIDENCE: 1, on 1-5",
        "VERDICT: CORRECT; CONFIDENCE: 1 percent",
        "VERDICT: CORRECT; CONFIDENCE: 1\uff05",
        "VERDICT: CORRECT; CONFIDENCE: 1 star",
        "VERDICT: CORRECT; CONFIDENCE: 1 Prozent",
        "VERDICT: CORRECT; CONFIDENCE: 1st",
        "VERDICT: CORRECT; CONFIDENCE: 1:10",
        "VERDICT: CORRECT; CONFIDENCE: 1, lowest",
        "VERDICT: CORRECT; CONFIDENCE: +1 ~ 10",
        "VERDICT: CORRECT; CONFIDENCE (of five): 1",
        "VERDICT: CORRECT; CONFIDENCE: 1 (very low)",
        "VERDICT: CORRECT; CONFIDENCE: 1 - guess",
        "VERDICT: CORRECT; CONFIDENCE {1..10}: 1",
        "VERDICT: CORRECT; CONFIDENCE: 0.9.5",
        "VERDICT: CORRECT; CONFIDENCE: .9 out of 10",
        "VERDICT: CORRECT; CONFIDENCE: \u22120.95",
        "VERDICT: CORRECT; CONFIDENCE: 0.95 -> 0.2",
        "VERDICT: CORRECT; CONFIDENCE: 0.95, no, 0.2",
        "VERDICT: CORRECT; CONFIDENCE: 0.95 \u00b1 0.5",
        "VERDICT: CORRECT; CONFIDENCE: 0.95 that it is wrong",
        "VERDICT: CORRECT; CONFIDENCE: 0.95 or less",
        "VERDICT: CORRECT; CONFIDENCE: 99 red flags",
        "VERDICT: CORRECT; CONFIDENCE: 98.6 degrees",
    ],
)
def test_what_is_no_single_number_between_0_and_1_is_no_confidence(text):
    """A 1 would be the surest."""
    assert stated(text) == ("CORRECT", 0.8)


@pytest.mark.parametrize(
    "text",
    [
        "VERDICT: CORRECT \u274c CONFIDENCE: 0.95",
        "VERDICT: CORRECT? No; CONFIDENCE: 0.95",
        "VERDICT: CORRECT, no. CONFIDENCE: 0.95",
        "VERDICT: CORRECT -> INCORRECT; CONFIDENCE: 0.95",
        "VERDICT: CORRECT ; INCORRECT; CONFIDENCE: 0.95",
        "VERDICT: CORRECT. No, WRONG; CONFIDENCE: 0.95",
        "VERDICT: CORRECT - wait, INCORRECT; CONFIDENCE: 0.95",
        "VERDICT: CORRECT... I mean WRONG; CONFIDENCE: 0.95",
        "VERDICT: CORRECT = 0\nCONFIDENCE: 0.95",
        "VERDICT: CORRECT: false\nCONFIDENCE: 0.95",
        "VERDICT: CORRECT!? CONFIDENCE: 0.95",
        "VERDICT: CORRECT (not); CONFIDENCE: 0.95",
        "VERDICT: CORRECT - partially; CONFIDENCE: 0.95",
        "VERDICT: CORRECT unless 0 counts; CONFIDENCE: 0.95",
        "VERDICT: CORRECT would be WRONG; CONFIDENCE: 0.95",
        "VERDICT: CORRECT vs INCORRECT; CONFIDENCE: 0.95",
        "VERDICT: CORRECT, the WRONG sign was mended; CONFIDENCE: 0.95",
        "VERDICT: CORRECT_NOT; CONFIDENCE: 0.95",
    ],
)
def test_a_verdict_that_the_model_takes_back_is_none(text):
    assert stated(text) == ("UNSURE", 0.95)


@pytest.mark.parametrize(
    ("text", "verdict", "confidence"),
    [
        ("VERDICT -> `INCORRECT`", "INCORRECT", 0.2),
        ("VERDICT: INCORRECT, not 5; CONFIDENCE: 0.1", "INCORRECT", 0.1),
        ("VERDICT: CORRECT: no doubt; CONFIDENCE [1 = sure] = 0.2", "CORRECT", 0.2),
        ('"verdict": {"correct": false}, "confidence": 1 to 10', "UNSURE", 0.5),
        (r"VERDICT: \text{CORRECT} or \text{INCORRECT}", "UNSURE", 0.5),
        ("**VERDICT:** **CORRECT**, **INCORRECT**, or **UNSURE**", "UNSURE", 0.5),
        ('"verdict": "CORRECT/INCORRECT"', "UNSURE", 0.5),
        ("VERDICT: CORRECT; CONFIDENCE: -0.95", "CORRECT", 0.0),
        ("VERDICT: CORRECT; CONFIDENCE: 1 - certain", "CORRECT", 1.0),
        ("CONFIDENCE: 1 VERDICT: CORRECT", "CORRECT", 1.0),
        ("VERDICT: CORRECT; CONFIDENCE: 1 (certain)", "CORRECT", 1.0),
        ("VERDICT: CORRECT; CONFIDENCE (0 to 1): **1**.", "CORRECT", 1.0),
        ('{"verdict": "CORRECT", "confidence": 1, "by": "2"}', "CORRECT", 1.0),
    ],
)
def test_a_self_check_of_a_chat_model_may_say_little(text, verdict, confidence):
    assert stated(text) == (verdict, confidence)


def test_fields_that_only_some_servers_know_are_sent_where_they_say_something():
    greedy = Decoding(max_completion_tokens=9, temperature=0.0)
    messages = [{"role": "user", "content": "q"}]
    model = ChatModel(base_url="http://h/v1", name="m")
    assert model.body(messages, greedy, 5) == {
        "model": "m",
        "messages": messages,
        "max_tokens": 9,
        "temperature": 0.0,
        "top_p": 1.0,
        "seed": 5,
    }
    assert model.body(messages, greedy, 2**63 - 1)["seed"] < 2**31
    drawn = Decoding(max_completion_tokens=9, temperature=0.6, top_p=0.9, top_k=20)
    full = replace(model, chat_template_kwargs={"a": False}).body(messages, drawn, 5)
    assert (full["top_k"], full["top_p"], full["chat_template_kwargs"]) == (20, 0.9, {"a": False})


def test_a_field_is_sent_under_the_name_that_the_server_takes_or_not_at_all():
    own = {"max_tokens": "max_completion_tokens", "temperature": None, "seed": "random_seed"}
    sampling, messages = Decoding(max_completion_tokens=9, temperature=0.6), [{"role": "user"}]
    body = ChatModel(base_url="http://h/v1", name="m", fields=own).body(messages, sampling, 5)
    assert (body["max_completion_tokens"], body["random_seed"]) == (9, 5)
    assert body.keys() == {"model", "messages", "max_completion_tokens", "top_p", "random_seed"}
    for wrong in ({"messages": None}, {"seed": 3}, []):
        with pytest.raises(ConfigError, match="--x must map some of max_tokens, temperature"):
            check_fields(wrong, "--x")


def test_waits_double_lose_up_to_half_by_chance_and_have_an_end():
    def waits(draw):
        return [retry_delay(tries, 1.0, draw, None) for tries in (1, 2, 3, 4, 9)]

    assert waits(0.0) == [1, 2, 4, 8, 60]
    assert waits(1.0) == [0.5, 1, 2, 4, 60]


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("7", 7.0),
        ("0", 1.0),  # the own wait is longer
        ("86400", 60.0),
        ("9" * 5000, 60.0),
        ("Thu, 01 Jan 2026 00:00:10 GMT", 1.0),
        ("-5", 1.0),
        ("soon", 1.0),
        ("\u0663", 1.0),
    ],
)
def test_retry_after_is_honoured_within_bounds(header, seconds):
    assert retry_delay(1, 1.0, 0.0, header) == seconds


def test_what_may_pass_is_temporary_and_what_is_refused_is_not():
    again = [status for status in range(200, 600) if is_temporary(status)]
    assert again == [408, 409, 429, *range(500, 600)]


def test_a_servers_message_becomes_one_short_line():
    def line(body, *keys):
        return error_in(body, Mask(keys))[0]

    assert line(b'{"error": {"message": "too\\nlong", "code": 400}}') == "too long"
    assert line(b'{"message": "older"}') == "older"
    assert line(b"\x1b[2J<html>") == "?[2J<html>"
    assert line(b"") == ""
    assert len(line(b"x" * 10**6)) < 310
    # Also of a key that the line would cut.
    assert "secret" not in line(b"x" * 285 + b" my-secret-key", "my-secret-key")


KEY = 'sk-proj/a+b"c&d e'


@pytest.mark.parametrize(
    "spelled",
    [
        KEY,
        KEY.upper(),
        quote(KEY),
        quote(KEY, safe=""),
        quote(quote(KEY, safe=""), safe=""),
        quote_plus(KEY),
        html.escape(KEY),
        json.dumps(KEY)[1:-1],
        json.dumps(KEY)[1:-1].replace("/", r"\/").replace("&", r"\u0026"),
    ],
)
def test_a_key_is_found_in_every_spelling_of_pages_addresses_and_json(spelled):
    for before in ("", "x" * 290, " " * 65_527):  # also where the line, or what is read, is cut
        line = Mask([KEY]).line(f"{before} {spelled} {'y' * 9000}")
        for piece in ("sk-proj", "SK-PROJ", "sk-pro", "a+b", "a%2Bb"):
            assert piece not in line
    text = f"no key like {spelled}"
    assert Mask([KEY]).line(text) == "no key like [key]"
    assert Mask([KEY]).json({"content": [text]}) == {"content": ["no key like [key]"]}


def test_a_key_that_is_a_word_is_masked_in_errors_and_not_in_answers():
    mask = Mask(["none"])
    assert mask.line("key none, nonesuch") == "key [key], nonesuch"
    said = read_answer(answer({"content": "none of them"}), mask)
    assert said.text == "none of them"


def read_choices(*messages: Any) -> str:
    """The text of an answer with several choices."""
    choices = [{"message": message} for message in messages]
    return read_answer(json.dumps({"choices": choices}).encode()).text


@pytest.mark.parametrize(
    ("choices", "text"),
    [
        ([{"content": ""}, {"content": "b"}], "b"),
        ([{"content": None}, {"content": " \n"}, {"content": [A]}], "a"),
        ([{}, {"content": "b"}, {"content": "c"}], "b"),
        ([None, {"content": "b"}], "b"),
        ([{"content": 3}, {"content": "b"}], "b"),
        ([{"content": None, "reasoning": "a"}, {"content": "b"}], "b"),
        ([{"content": None, "reasoning": "a"}, {"content": ""}], "<think>\na</think>\n"),
        ([{"content": ""}, {"content": ""}], ""),
    ],
)
def test_of_several_choices_the_first_counts_that_says_something(choices, text):
    assert read_choices(*choices) == text


def test_a_refusal_or_a_tool_call_says_something_too():
    empty, text = {"content": ""}, {"content": "b"}
    with pytest.raises(ServerError, match="the model refuses: No"):
        read_choices(empty, {"content": None, "refusal": "No."}, text)
    with pytest.raises(ServerError, match="calls a tool"):
        read_choices(empty, {"content": None, "tool_calls": [{}]}, text)
    with pytest.raises(ServerError, match="no chat completion but an object with choices"):
        read_choices(None, empty)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"model_name": " "}, "model_name is empty"),
        *(
            ({"base_url": url}, said)
            for url, said in (
                ("h:1/v1", "no address"),
                ("ftp://h/v1", "no address"),
                ("http://h:port/v1", "no address"),
                ("http://\u2603.net/v1", "no address"),  # no name that can be looked up
                ("http://xn--/v1", "no address"),
                ("http://h/a b", "no address"),
                ("https://me:hunter2@h/v1", "without user, password"),
                ("https://h/v1?key=hunter2", "without user, password"),
                ("http://h/v1/chat/completions", "ends before"),
            )
        ),
    ],
)
def test_a_server_that_cannot_be_asked_is_one_line_without_secrets(change, said):
    with pytest.raises(ConfigError, match=rf"model\.engine\..*{said}") as caught:
        OpenAIEngine(**{"base_url": "http://h:1/v1", "model_name": "m", **change})
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("headers", "query", "said"),
    [
        ({"api-key": "$NOT_SET"}, {}, "--x-headers api-key NOT_SET: this variable is not set"),
        ({}, {"key": "$NOT_SET"}, "--x-query key NOT_SET: this variable is not set"),
        ({"api key": "x"}, {}, "--x-headers api key: cannot be sent as a header"),
        ({"x": "a\r\nb: c"}, {}, "--x-headers x: cannot be sent as a header"),
        ({"Content-Length": "3"}, {}, "--x-headers Content-Length: cannot be sent"),
        ({"x": " a"}, {}, "--x-headers x: cannot be sent as a header"),
        ({}, {"v": "\ud800"}, "--x-query v: cannot be sent as a query"),
        ({"x": 3}, {}, "--x-headers must map names to texts"),
        ({}, [], "--x-query must map names to texts"),
    ],
)
def test_headers_and_queries_that_cannot_be_sent_are_refused(headers, query, said):
    with pytest.raises(ConfigError, match=said):
        read_access(None, headers, query, "--x-{}")


def test_only_values_of_the_environment_are_secrets(monkeypatch):
    monkeypatch.setenv("MINE", "hunter2-hunter2")
    access = read_access("k", {"api-key": "$MINE", "a": "b"}, {"v": "1"}, "--x-{}")
    assert (access.key, access.secrets) == ("k", ["hunter2-hunter2"])
    assert (access.headers, access.query) == (
        {"api-key": "hunter2-hunter2", "a": "b"},
        {"v": "1"},
    )


def test_a_key_comes_from_the_environment_alone(monkeypatch):
    where = {"base_url": "http://h/v1", "model_name": "m"}
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    assert OpenAIEngine(**where).access().key is None
    monkeypatch.setenv("OPENAI_API_KEY", " abc\n")
    assert OpenAIEngine(**where).access().key == "abc"
    with pytest.raises(ConfigError, match="api_key_env MINE: this variable is not set"):
        OpenAIEngine(**where, api_key_env="MINE")
    monkeypatch.setenv("MINE", "a\u00e9b")
    with pytest.raises(ConfigError, match="MINE: the key has characters") as caught:
        OpenAIEngine(**where, api_key_env="MINE")
    assert "\u00e9" not in str(caught.value)
