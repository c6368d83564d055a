"""The guide "stop your own model in ten minutes", run as it stands: only addresses are changed."""

import hashlib
import re
import shlex
from pathlib import Path

from svr_lightning.__main__ import main
from tests.chat_server import Body, ChatServer, Reply, completion, turn_of
from tests.commands import ROOT, read_json, write_jsonl
from tests.pages import blocks, page
from tests.served import started

GUIDE = page("docs/serving.md").partition("## From 60")[2]
PAGE = GUIDE.partition("## What clients get")[0]
UPSTREAM, OWN = "http://127.0.0.1:8000/v1", "http://127.0.0.1:8080/v1"
QUESTIONS = 60


def model(body: Body, _: int) -> Reply:
    """A model that is no policy of this package: sure and right, or in doubt at its first try."""
    a, b = map(int, re.findall(r"What is (\d+) \+ (\d+)", body["messages"][-1]["content"])[0])
    luck = hashlib.sha256(f"{a} {b}".encode()).digest()[0]
    doubts = luck < 100 and turn_of(body) == 1
    answer = a + b + (doubts or luck > 250)  # one in fifty is sure and wrong
    verdict = "UNSURE; CONFIDENCE: 0.4" if doubts else "CORRECT; CONFIDENCE: 0.93"
    return completion(
        f"<think>{a} + {b}</think>\n<answer>#### {answer}</answer>\n"
        f"<self_check>VERDICT: {verdict}</self_check>"
    )


def commands() -> list[list[str]]:
    """What the guide's shell commands say after ``svr``."""
    lines = [line for block in blocks(PAGE, "bash") for line in block.splitlines()]
    return [shlex.split(line)[1:] for line in lines if line.startswith("svr ")]


def test_sixty_labelled_questions_make_a_certified_proxy(tmp_path, monkeypatch):
    record, certify, serve = commands()
    (script,) = blocks(PAGE)
    monkeypatch.chdir(tmp_path)
    Path("configs").symlink_to(ROOT / "configs")
    rows = [
        {"question": f"What is {k} + 17?", "answer": f"#### {k + 17}"} for k in range(QUESTIONS)
    ]
    write_jsonl(Path("questions.jsonl"), rows)
    with ChatServer(model) as upstream:

        def here(words):
            return [word.replace(UPSTREAM, upstream.url) for word in words]

        assert main(here(record)) == 0
        assert main(here(certify)) == 0
        certificate = read_json(Path(serve[-1]))
        assert certificate["data"]["clusters"] == QUESTIONS
        asked = len(upstream.bodies)
        with started(*here(serve[1:])) as (url, _):
            namespace = {}
            question = "What is 1 + 17?"
            exec(
                script.replace(OWN, url).replace("What is 6 * 7?", question),
                namespace,
            )
        namespace["client"].close()
    said = namespace["said"]
    assert said.svr["answer"] == "18"
    assert said.svr["certificate"] is not None
    assert said.svr["uncertified"] == []
    assert said.choices[0].message.content == "18"  # without reasoning, marks and self-check
    assert len(upstream.bodies) - asked == len(said.svr["turns"])
