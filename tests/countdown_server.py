"""A Countdown policy behind a chat server: its prompt decides whether it is right, and sure."""

import hashlib
from itertools import permutations, product
from pathlib import Path
from typing import Any

from svr_lightning.analysis.records import SampleRecord
from svr_lightning.core.stopping import Confident
from svr_lightning.core.types import Problem
from svr_lightning.engines.openai import OpenAIEngine
from svr_lightning.tasks import get_task
from svr_lightning.training.sources import DataSource, load_problems
from tests.chat_server import ChatServer, Reply, completion
from tests.scripted import evaluator, says

PROBLEMS = load_problems(
    DataSource(
        name="countdown", task="countdown", path="embedded:countdown-tiny", split="dev", limit=6
    )
)
TURNS = 3


def expression(problem: Problem) -> str:
    """A right answer to a Countdown problem of three numbers."""
    task = get_task("countdown")
    for *numbers, (a, b) in product(
        permutations(problem.payload["nums"]), product("+-*/", repeat=2)
    ):
        x, y, z = numbers[0]
        for form in (f"({x}{a}{y}){b}{z}", f"{x}{a}({y}{b}{z})"):
            if task.grade(f"<answer>{form}</answer>", problem):
                return form
    raise AssertionError(problem)


def opinion(body: dict[str, Any], _: int) -> Reply:
    """An answer, right or wrong, sure or not, that depends on the prompt alone."""
    prompt = body["messages"][-1]["content"]
    (problem,) = (p for p in PROBLEMS if p.question in prompt)
    draw = hashlib.sha256(prompt.encode()).digest()
    answer = expression(problem) if draw[0] % 2 else "1+1"
    verdict, confidence = (("CORRECT", 0.95), ("UNSURE", 0.4), ("CORRECT", 0.6))[draw[1] % 3]
    text = says(answer, verdict, confidence)
    usage = {"prompt_tokens": 40, "completion_tokens": 20 + draw[3], "total_tokens": 60 + draw[3]}
    if draw[2] % 4 == 0:
        return completion(text[:-20], finish_reason="length", usage=usage)
    return completion(text, usage=usage)


def records_of(server: ChatServer, root: Path) -> list[SampleRecord]:
    """The records of this package's evaluation of the same server."""
    engine = OpenAIEngine(server.url, "policy")
    settings = {"rule": Confident(), "max_turns": TURNS, "temperature": 0.0}
    run = evaluator(engine, renderer=None, root=root, **settings)
    run.begin("test")
    return run.solve(PROBLEMS, "countdown")
