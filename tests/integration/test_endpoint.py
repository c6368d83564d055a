"""Adaptive inference against a real HTTP server, healthy and faulty."""

import json
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from svr_lightning.__main__ import main
from svr_lightning.core.prompts import first_turn_messages
from svr_lightning.core.seeds import SeedContext
from svr_lightning.core.stopping import Confident, StopRule
from svr_lightning.core.types import Problem
from svr_lightning.engines.openai import OpenAIEngine
from svr_lightning.errors import ConfigError
from svr_lightning.evaluation.evaluator import Evaluator
from svr_lightning.tasks import get_task
from tests.chat_server import Body, ChatServer, Reply, completion, turn_of
from tests.commands import TINY, flags, jsonl, refused
from tests.scripted import PROBLEMS, RUN_SEED, STEP, evaluator, says
from tests.trajectories import summarize


def remote(
    server: ChatServer,
    root: Path,
    rule: StopRule | None = None,
    max_turns: int = 2,
    **settings: Any,
) -> Evaluator:
    """An evaluator on a server, with its journal in ``root``."""
    engine = OpenAIEngine(server.url, "tiny", **{"timeout": 20.0, **settings})
    engine.retries = replace(engine.retries, first_delay=0.001)
    config = {"temperature": 0.0, "max_completion_tokens": 30}
    return evaluator(engine, renderer=None, rule=rule, max_turns=max_turns, journal=root, **config)


def evaluate(
    server: ChatServer, root: Path, problems: Sequence[Problem] = PROBLEMS, **options: Any
) -> list[dict[str, Any]]:
    records = remote(server, root, **options).solve(problems, "toy")
    return [record.to_json() for record in records]


def question_of(body: Body) -> str:
    content = body["messages"][-1]["content"]
    return next(p.id for p in PROBLEMS if p.question in content)


def unsure(body: Body, _number: int = 0) -> Reply:
    """Adds a problem's numbers up and never stops."""
    numbers = next(p.payload["nums"] for p in PROBLEMS if p.id == question_of(body))
    return completion(says("+".join(map(str, numbers)), "UNSURE", 0.1 * turn_of(body)))


def test_trajectories_stop_refine_and_count_as_the_server_says(tmp_path):
    def answer(body, _):
        sure = question_of(body) == "a" and turn_of(body) == 2
        usage = {"prompt_tokens": 100 * turn_of(body), "completion_tokens": 17}
        text = says("8+4-2", "CORRECT", 0.9) if sure else says("1", "INCORRECT", 0.7)
        return completion(text, usage=usage, finish_reason="stop" if sure else "length")

    with ChatServer(answer) as server:
        records = evaluate(server, tmp_path, rule=Confident(), max_turns=3)
    ends = [(r["id"], r["returned_turn"], r["stopped_early"]) for r in records]
    assert ends == [("a", 2, True), ("b", 3, False), ("c", 3, False)]
    sure = records[0]["turns"][1]
    assert (sure["text"], sure["correct"]) == (says("8+4-2", "CORRECT", 0.9), True)
    assert (sure["prompt_tokens"], sure["completion_tokens"]) == (200, 17)
    assert records[1]["turns"][0]["truncated"]
    values = summarize(records)["datasets"]["toy"]
    assert (values["accuracy"], values["turns"]) == (pytest.approx(1 / 3), pytest.approx(8 / 3))
    assert len(server.bodies) == 8


def test_a_request_is_what_an_engine_would_be_asked(tmp_path):
    with ChatServer(unsure) as server:
        evaluate(server, tmp_path, PROBLEMS[:1])
    first, second = server.bodies
    assert first["messages"] == first_turn_messages(get_task("countdown"), PROBLEMS[0])
    assert says("8+4+2", "UNSURE", 0.1) in second["messages"][1]["content"]
    place = SeedContext(run_seed=RUN_SEED, step=STEP)
    seeds = [place.seed("a", turn=t) % 2**31 for t in (1, 2)]
    assert [first["seed"], second["seed"]] == seeds
    assert (first["max_tokens"], first["temperature"], "top_k" in first) == (30, 0.0, False)
    assert "Authorization" not in server.headers[0]


def test_turns_follow_at_once_and_requests_in_flight_are_bounded(tmp_path):
    others_are_done = threading.Event()
    last_turns = 0

    def answer(body, _):
        nonlocal last_turns
        if question_of(body) == "a":  # no other trajectory may wait for this one
            assert others_are_done.wait(30)
        elif turn_of(body) == 2:
            last_turns += 1
            if last_turns == 2:
                others_are_done.set()
        return unsure(body)

    with ChatServer(answer) as server:
        records = evaluate(server, tmp_path, concurrency=2)
    assert [len(record["turns"]) for record in records] == [2, 2, 2]
    assert server.most_at_once == 2


FAULTS = {
    "too many requests": Reply(b"{}", status=429, headers={"Retry-After": "0"}),
    "dropped connection": Reply(b"", drop=True),
    "half an answer": Reply(b'{"choices', headers={"Content-Length": "900", "Connection": "close"}),
    "ten megabytes": Reply(b" " * 10 * 2**20 + completion("x").body),
    "slow": Reply(b"{}", delay=4.5),
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=list(FAULTS))
def test_a_fault_that_passes_leaves_no_trace(tmp_path, fault):
    def answer(body, number):
        return fault if number == 2 else unsure(body)

    with ChatServer(unsure) as healthy:
        wanted = evaluate(healthy, tmp_path / "healthy")
    timeout = 3.0 if fault.delay else 120.0
    with ChatServer(answer) as server:
        assert evaluate(server, tmp_path / "faulty", timeout=timeout, concurrency=1) == wanted
    asked = [json.dumps(body) for body in server.bodies]
    assert len(set(asked)) == 6
    assert asked[1] == asked[2]
    if not fault.delay:  # else a busy machine may let another try take too long
        assert len(asked) == 7


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (401, "HTTP 401, no key like .key.; check .* and the key in SECRET_KEY, whose"),
        (404, "HTTP 404.*model_name='tiny'"),
        (402, "HTTP 402"),  # of an account without credit; 403 is read likewise
        (302, "HTTP 302, a redirect"),
    ],
)
def test_a_server_that_lets_nobody_in_ends_the_run_at_once(tmp_path, monkeypatch, status, said):
    monkeypatch.setenv("SECRET_KEY", "hunter2")
    body = b'{"error": {"message": "no key like hunter2"}}'
    reply = Reply(body, status=status, headers={"Location": "http://127.0.0.1:1/v1"})
    with ChatServer(lambda *_: reply) as server, pytest.raises(ConfigError, match=said) as caught:
        evaluate(server, tmp_path, concurrency=1, api_key_env="SECRET_KEY")
    assert len(server.bodies) == 1
    assert server.headers[0]["Authorization"] == "Bearer hunter2"
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("reply", "error", "calls"),
    [
        (
            Reply(b'{"error": {"message": "maximum context length is 1024"}}', status=400),
            "the server refuses it: HTTP 400, maximum context length is 1024",
            1,
        ),
        (
            completion(None, message={"content": None, "refusal": "I cannot."}),
            "the model refuses: I cannot.",
            1,
        ),
        (Reply(b"<html>"), "in 6 tries, the last time: no chat completion but '<html>'", 6),
    ],
    ids=["too long", "a refusal", "never JSON"],
)
def test_a_problem_that_the_server_cannot_complete_counts_as_wrong(tmp_path, reply, error, calls):
    def answer(body, _):
        return reply if (question_of(body), turn_of(body)) == ("b", 2) else unsure(body)

    with ChatServer(answer) as server:
        records = evaluate(server, tmp_path)
    assert [len(record["turns"]) for record in records] == [2, 0, 2]
    assert records[1]["error"] == f"turn 2: {error}"
    values = summarize(records)["datasets"]["toy"]  # 8 + 4 + 2 is not 10, 1 + 2 + 9 is 12
    assert (values["n"], values["accuracy"]) == (3, pytest.approx(1 / 3))
    assert len(server.bodies) == 5 + calls


def test_a_server_that_refuses_everything_is_asked_wrongly(tmp_path):
    many = [PROBLEMS[0]] * 20
    refusal = Reply(b'{"error": "unknown field chat_template_kwargs"}', status=422)
    with (
        ChatServer(lambda *_: refusal) as server,
        pytest.raises(ConfigError, match=r"none of the first 8 prompts: .*unknown field"),
    ):
        evaluate(server, tmp_path, many, concurrency=1)
    assert len(server.bodies) == 8


def test_a_server_that_dies_costs_no_finished_problem(tmp_path):
    def dying(body, number):
        return unsure(body) if number <= 3 else Reply(b"", drop=True)

    with ChatServer(dying) as server:
        with pytest.raises(ConfigError, match=r"did not answer in 2 tries.* the finished problems"):
            evaluate(server, tmp_path, concurrency=1, tries=2)
        assert len(server.bodies) == 5
    with pytest.raises(ConfigError, match=r"ConnectError"):
        evaluate(server, tmp_path, tries=2)
    with ChatServer(unsure) as again:
        records = evaluate(again, tmp_path)
        assert len(again.bodies) == 4  # of six
        assert evaluate(again, tmp_path) == records
        assert len(again.bodies) == 4
    with ChatServer(unsure) as healthy:
        assert evaluate(healthy, tmp_path / "other") == records


@pytest.mark.parametrize(
    ("content", "known"),
    [
        ([{"token": says("8+4-2", "CORRECT", 0.9), "logprob": -0.5, "bytes": []}], True),
        ([{"token": "8", "logprob": 1.0}], False),  # no log-probability
        ([{"token": None, "logprob": -1.0}], False),
        ([3], False),
        ("none", False),
    ],
)
def test_a_server_that_tells_log_probabilities_can_be_stopped_by_them(tmp_path, content, known):
    rule = Confident(score="completion_logprob", threshold=-0.6, needs_correct=False)
    asked = completion(says("8+4-2", "CORRECT", 0.9), logprobs={"content": content})
    with ChatServer(lambda _body, _number: asked) as server:
        # Without the option a server is not asked for them, and no rule may read them.
        with pytest.raises(ConfigError, match=r"set model\.engine\.logprobs, or use a rule"):
            remote(server, tmp_path / "refused", rule=rule)
        records = evaluate(server, tmp_path, PROBLEMS[:1], rule=rule, logprobs=True)
        assert {body.get("logprobs") for body in server.bodies} == {True}
    (record,) = records
    assert len(record["turns"]) == (1 if known else 2)
    assert record["turns"][0].get("completion_logprob") == (-0.5 if known else None)


def through(server: ChatServer, folder: Path) -> list[str]:
    """Options of a command that asks a server."""
    engine = {"": "OpenAIEngine", ".base_url": server.url, ".model_name": "tiny"}
    settings = {f"model.engine{name}": value for name, value in engine.items()}
    return [*TINY, *flags({**settings, "trainer.default_root_dir": folder})]


def test_a_question_is_answered_as_text_with_a_key_that_is_written_nowhere(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setenv("OPENAI_API_KEY", "hunter2-hunter2")
    text = "\x1b[2J[bold]" + says("3+5+8", "CORRECT", 0.9)
    with ChatServer(lambda *_: completion(text)) as server:
        assert main(["predict", *through(server, tmp_path), "--question", "3 5 8 = 16"]) == 0
    shown = "".join(capsys.readouterr())
    assert "answer: 3+5+8, correct" in shown
    assert "predict/samples.jsonl\n" in shown  # and no table of metrics of one question
    assert "data set" not in shown
    assert "\x1b[2J" not in shown
    assert "[bold]" in shown
    (record,) = jsonl(tmp_path / "eval" / "predict" / "samples.jsonl")
    assert record["turns"][0]["text"] == text
    assert server.headers[0]["Authorization"] == "Bearer hunter2-hunter2"
    written = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert not any(b"hunter2" in content for content in [shown.encode(), *written])


STOP = "--model.evaluation.stop"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            f"test {STOP}=Confident {STOP}.score=verdict_probability",
            "verdict >= 0.85: this server's completions come without log-probabilities",
        ),
        ("test --model.engine.api_key_env NOT_SET", "NOT_SET: this variable is not set"),
        (f"test --ckpt_path {__file__}", "--ckpt_path: model.engine is a server"),
        ("export", "svr export: model.engine is a server"),
        ("fit", "OpenAIEngine returns no token ids, which training needs"),
    ],
)
def test_what_a_server_cannot_do_is_refused_before_it_is_asked(arguments, said, tmp_path, capsys):
    name, *rest = arguments.split()
    with ChatServer(unsure) as server:
        assert said in refused(capsys, name, *through(server, tmp_path), *rest)
    assert server.bodies == []
