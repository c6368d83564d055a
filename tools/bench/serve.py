"""The server under load: many clients on the embedded policy, every answer checked.

    python -m tools.bench serve --out tools/bench/results/serve.json

200 clients ask the server, which runs the policy, for as long as --seconds; each asks again as soon
as it has its answer. All turns of every answer are compared with those of the driver on the same
questions, greedy, so that a lost or swapped answer is found. The driver runs the same questions as
long in this process. The two take turns, since other work on the machine comes and goes.
"""

import argparse
import asyncio
import contextlib
import itertools
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import httpx
import psutil

from svr_lightning.core.stopping import Confident
from svr_lightning.core.types import Problem
from svr_lightning.engines.transformers import TransformersEngine
from svr_lightning.evaluation.config import EvaluationConfig
from svr_lightning.recipes.dialogues import SelfVerifying, chain
from svr_lightning.rollout.driver import Driver, Job
from svr_lightning.training.sources import DataSource, load_problems
from tools.bench.workloads import EMBEDDED, SIZES, start_policy

TURNS, LIMIT, THRESHOLD = 3, 160, 0.96
"""No confidence of this policy reaches the threshold: every question takes all its turns."""
PROBLEMS, CLIENTS = 256, 200
ROUNDS = 4
"""How often driver and server take turns."""
Known = dict[str, tuple[str, ...]]
"""By question, the texts of its turns."""
Pace = tuple[int, float]
"""Turns, and the seconds that they took."""


class Driven:
    """The driver on the embedded policy, in this process."""

    def __init__(self, problems: list[Problem]) -> None:
        self._engine, self._problems = TransformersEngine(), problems
        self._renderer = start_policy(self._engine, ends=True)

    def run(self, seconds: float, known: Known) -> Pace:
        """Every problem once, and again until ``seconds`` are over; notes the texts."""
        decoding = EvaluationConfig(max_completion_tokens=LIMIT).decoding("countdown")
        rule = Confident(threshold=THRESHOLD)
        started, turns = time.perf_counter(), 0

        def jobs() -> Iterator[Job]:
            for number, problem in enumerate(itertools.cycle(self._problems)):
                if number >= len(self._problems) and time.perf_counter() - started > seconds:
                    return
                yield Job(problem, 0, chain(SelfVerifying(), problem, 0, TURNS, rule))

        driver = Driver(self._engine, self._renderer, decoding)
        for _, trajectory in driver.stream(jobs()):
            texts = tuple(turn.completion.text for turn in trajectory.turns)
            assert known.setdefault(trajectory.problem.question, texts) == texts
            turns += len(texts)
        return turns, time.perf_counter() - started


@contextlib.contextmanager
def served(*options: str) -> Iterator[tuple[str, psutil.Process]]:
    """The server beside this process: its address, and its process."""
    command = [sys.executable, "-m", "svr_lightning", "serve", "--task", "countdown", "--port", "0"]
    with subprocess.Popen([*command, *options], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = next(line for line in process.stdout if line.startswith("serving"))
            yield line.split()[-1], psutil.Process(process.pid)
        finally:
            process.terminate()


async def load(url: str, seconds: float, known: Known, answers: Counter[str]) -> Pace:
    """All clients at once until ``seconds`` are over, and each has its last answer, counted."""
    questions, started, turns = itertools.cycle([*known]), time.perf_counter(), 0

    async def client() -> None:
        """A client with a pool of its own: one for all is slower than the server."""
        nonlocal turns
        # The server speaks plain HTTP; without verify=False every client would read certificates.
        async with httpx.AsyncClient(timeout=120, verify=False) as http:
            while time.perf_counter() < started + seconds:
                question = next(questions)
                body = {"messages": [{"role": "user", "content": question}]}
                answer = await http.post(f"{url}/chat/completions", json=body)
                if answer.status_code != 200:
                    answers[f"HTTP {answer.status_code}"] += 1
                    await asyncio.sleep(0.1)
                    continue
                texts = tuple(turn["text"] for turn in answer.json()["svr"]["turns"])
                answers["right" if texts == known[question] else "other answers"] += 1
                turns += len(texts)

    await asyncio.gather(*(client() for _ in range(CLIENTS)))
    return turns, time.perf_counter() - started


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Driver and server in turns: their turns per second, and the server's memory each time."""
    source = DataSource(name="test", task="countdown", path=EMBEDDED, split="test")
    driven, known, answers = Driven(load_problems(source)[:PROBLEMS]), Known(), Counter[str]()
    paces: dict[str, list[Pace]] = {"driver": [], "server": []}
    memory, part = [], options.seconds / ROUNDS
    turns = [f"--max-turns={TURNS}", f"--max-completion-tokens={LIMIT}"]
    # Prompts have half of it, as in SIZES.
    own = ["--policy", EMBEDDED, f"--max-model-len={SIZES['max_model_len']}", *turns]
    with served(*own, f"--threshold={THRESHOLD}") as (url, process):
        for _ in range(ROUNDS):
            paces["driver"].append(driven.run(part, known))
            paces["server"].append(asyncio.run(load(url, part, known, answers)))
            memory.append(process.memory_info().rss / 2**20)
    rates = {
        name: sum(n for n, _ in all_) / sum(s for _, s in all_) for name, all_ in paces.items()
    }
    share = rates["server"] / rates["driver"]
    found = {"turns_per_second": rates, "share": share, "memory_mb": memory}
    return {"clients": CLIENTS, "answers": answers, **found}
