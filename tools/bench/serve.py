"""The server under load: many clients on the embedded policy, every answer checked.

    python -m tools.bench serve --out tools/bench/results/serve.json

200 clients ask the server, which runs the policy, for as long as --seconds; each asks again as soon
as it has its answer. All turns of every answer are compared with those of the driver on the same
questions, greedy, so that a lost or swapped answer is found. The driver runs the same questions as
long in this process. The two take turns, since other work on the machine comes and goes; rates per
second of processor time depend on it least.
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
from statistics import median, quantiles
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
Turns = tuple[str, ...]
ROUNDS = 4
"""How often driver and server take turns."""


class Driven:
    """The driver on the embedded policy, in this process; what it did in all runs together."""

    def __init__(self, problems: list[Problem]) -> None:
        self._engine, self._problems = TransformersEngine(), problems
        _, self._renderer = start_policy(self._engine, ends=True)
        self.found: dict[str, Turns] = {}
        """By question, the texts of its turns."""
        self._turns, self._taken, self._busy = 0, 0.0, 0.0

    def run(self, seconds: float) -> None:
        """Every problem once, and again until ``seconds`` are over."""
        decoding = EvaluationConfig(max_completion_tokens=LIMIT).decoding("countdown")
        rule = Confident(threshold=THRESHOLD)
        started, busy = time.perf_counter(), time.process_time()

        def jobs() -> Iterator[Job]:
            for number, problem in enumerate(itertools.cycle(self._problems)):
                if number >= len(self._problems) and time.perf_counter() - started > seconds:
                    return
                yield Job(problem, 0, chain(SelfVerifying(), problem, 0, TURNS, rule), decoding)

        for _, trajectory in Driver(self._engine, self._renderer, run_seed=0).stream(jobs()):
            texts = tuple(turn.completion.text for turn in trajectory.turns)
            assert self.found.setdefault(trajectory.problem.question, texts) == texts
            self._turns += len(texts)
        self._taken += time.perf_counter() - started
        self._busy += time.process_time() - busy

    def rates(self) -> dict[str, float]:
        """Its throughput."""
        return throughput(self._turns, self._taken, self._busy)


def throughput(turns: int, taken: float, busy: float) -> dict[str, float]:
    """Turns per second and per second of processor time."""
    return {"turns_per_second": turns / taken, "turns_per_processor_second": turns / busy}


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


class Load:
    """Clients of the server; what came back in all rounds, how fast, and the server's memory."""

    def __init__(self, url: str, process: psutil.Process, expected: dict[str, Turns]) -> None:
        self._url, self._process, self._expected = url, process, expected
        self._seen: Counter[str] = Counter()
        self._times: list[float] = []
        self._memory: list[float] = []
        self._taken = self._busy = 0.0

    async def run(self, clients: int, seconds: float) -> None:
        """All clients at once until ``seconds`` are over, and each has its last answer."""
        started, busy = time.perf_counter(), sum(self._process.cpu_times()[:2])
        questions = itertools.cycle(list(self._expected))
        watching = asyncio.ensure_future(self._watch())
        await asyncio.gather(*(self._client(started + seconds, questions) for _ in range(clients)))
        watching.cancel()
        self._taken += time.perf_counter() - started
        self._busy += sum(self._process.cpu_times()[:2]) - busy

    async def _client(self, end: float, questions: Iterator[str]) -> None:
        """One client, with a pool of its own: one for all is slower than the server."""
        # The server speaks plain HTTP; without verify=False every client would read certificates.
        async with httpx.AsyncClient(timeout=120, verify=False) as http:
            while (started := time.perf_counter()) < end:
                question = next(questions)
                body = {"messages": [{"role": "user", "content": question}]}
                answer = await http.post(f"{self._url}/chat/completions", json=body)
                if answer.status_code != 200:
                    self._seen[f"HTTP {answer.status_code}"] += 1
                    await asyncio.sleep(0.1)
                    continue
                turns = tuple(turn["text"] for turn in answer.json()["svr"]["turns"])
                self._times.append(time.perf_counter() - started)
                self._seen["right" if turns == self._expected[question] else "other answers"] += 1
                self._seen["turns"] += len(turns)

    async def _watch(self) -> None:
        while True:
            self._memory.append(self._process.memory_info().rss / 2**20)
            await asyncio.sleep(1)

    def found(self) -> dict[str, Any]:
        """The results."""
        times, memory, turns = self._times, self._memory, self._seen["turns"]
        return {
            "answers": dict(self._seen),
            **throughput(turns, self._taken, self._busy),
            "latency_seconds": {"median": median(times), "p99": quantiles(times, n=100)[98]},
            "memory_mb": {"half_time": memory[len(memory) // 2], "end": memory[-1]},
        }


def add_options(parser: argparse.ArgumentParser) -> None:
    """How many clients, how long, on how many problems."""
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--problems", type=int, default=256)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Driver and server in turns."""
    source = DataSource(name="test", task="countdown", path=EMBEDDED, split="test")
    driven = Driven(load_problems(source)[: options.problems])
    part = options.seconds / ROUNDS
    turns = [f"--max-turns={TURNS}", f"--max-completion-tokens={LIMIT}"]
    # Prompts have half of it, as in SIZES.
    own = ["--policy", EMBEDDED, f"--max-model-len={SIZES['max_model_len']}", *turns]
    with served(*own, f"--threshold={THRESHOLD}") as (url, process):
        clients = Load(url, process, driven.found)
        for _ in range(ROUNDS):
            driven.run(part)
            asyncio.run(clients.run(options.clients, part))
    driver, server = driven.rates(), clients.found()
    share = {name: server[name] / rate for name, rate in driver.items()}
    return {"clients": options.clients, "driver": driver, "server": server, "share": share}
