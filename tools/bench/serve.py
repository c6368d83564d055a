"""The server under load: many clients on the embedded policy, every answer checked.

    python -m tools.bench serve --out tools/bench/results/serve.json

200 clients ask the server, which runs the policy in its own process, for as long as --seconds; each
asks again as soon as it has its answer. All turns of every answer are compared with those of the
driver on the same questions, greedy, so that a lost or swapped answer is found. The driver runs the
same questions as long, before, in this process. Then the server stands in front of a server that
answers at once, to see what a turn costs in it.
"""

import argparse
import asyncio
import contextlib
import itertools
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import httpx
import psutil

from svr_lightning.core.stopping import Confident
from svr_lightning.core.types import Problem
from svr_lightning.engines.transformers import TransformersEngine
from svr_lightning.evaluation.config import EvaluationConfig
from svr_lightning.files import write_json
from svr_lightning.recipes.dialogues import SelfVerifying, chain
from svr_lightning.rollout.driver import Driver, Job
from svr_lightning.rollout.rendering import Renderer
from svr_lightning.training.config import PolicyConfig
from svr_lightning.training.policy import load_policy, stop_token_ids
from svr_lightning.training.sources import DataSource, load_problems
from tools.bench.machine import hardware, versions

EMBEDDED, TURNS, LIMIT = "embedded:countdown-tiny", 3, 160
SIZES: dict[str, Any] = {"max_prompt_tokens": 512, "max_model_len": 1024}
RULE = Confident(threshold=0.96)
"""No confidence of this policy reaches it: every question takes all its turns."""
Turns = tuple[str, ...]


def driven(problems: list[Problem], seconds: float) -> tuple[dict[str, Turns], dict[str, float]]:
    """The driver's turns of each problem, and its throughput over about ``seconds``."""
    model, tokenizer = load_policy(PolicyConfig(path=EMBEDDED, **SIZES), seed=0)
    model.eval()
    engine = TransformersEngine()
    engine.start(model, stop_token_ids(model, tokenizer), SIZES["max_model_len"])
    engine.sync(model, 0)
    decoding = EvaluationConfig(max_completion_tokens=LIMIT).decoding("countdown")
    found: dict[str, Turns] = {}
    begun, busy = time.perf_counter(), time.process_time()

    def jobs() -> Iterator[Job]:
        for number, problem in enumerate(itertools.cycle(problems)):
            if number >= len(problems) and time.perf_counter() - begun > seconds:
                return
            yield Job(problem, 0, chain(SelfVerifying(), problem, 0, TURNS, RULE), decoding)

    done = turns = 0
    for _, trajectory in Driver(engine, Renderer(tokenizer, **SIZES), run_seed=0).stream(jobs()):
        found[trajectory.problem.question] = tuple(t.completion.text for t in trajectory.turns)
        done, turns = done + 1, turns + len(trajectory.turns)
    taken = time.perf_counter() - begun
    return found, {
        "requests_per_second": done / taken,
        "turns_per_second": turns / taken,
        "turns_per_processor_second": turns / (time.process_time() - busy),
    }


@contextlib.contextmanager
def served(*options: str) -> Iterator[tuple[str, psutil.Process]]:
    """The server in a process of its own: its address, and the process."""
    command = [sys.executable, "-m", "svr_lightning", "serve", "--task", "countdown", "--port", "0"]
    with subprocess.Popen([*command, *options], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = next(line for line in process.stdout if line.startswith("serving"))
            yield line.split()[-1], psutil.Process(process.pid)
        finally:
            process.terminate()


async def load(
    url: str, process: psutil.Process, expected: dict[str, Turns], clients: int, seconds: float
) -> dict[str, Any]:
    """All clients at once; what came back, how fast, and the server's memory meanwhile."""
    questions = itertools.cycle(expected)
    seen: Counter[str] = Counter()
    times: list[float] = []
    memory: list[float] = []
    begun, busy = time.perf_counter(), sum(process.cpu_times()[:2])

    async def client(http: httpx.AsyncClient) -> None:
        while (started := time.perf_counter()) - begun < seconds:
            question = next(questions)
            body = {"messages": [{"role": "user", "content": question}]}
            said = await http.post(f"{url}/chat/completions", json=body)
            if said.status_code != 200:
                seen[f"HTTP {said.status_code}"] += 1
                await asyncio.sleep(0.1)
                continue
            turns = tuple(turn["text"] for turn in said.json()["svr"]["turns"])
            times.append(time.perf_counter() - started)
            seen["right" if turns == expected[question] else "other answers"] += 1
            seen["turns"] += len(turns)

    async def watch() -> None:
        while True:
            memory.append(process.memory_info().rss / 2**20)
            await asyncio.sleep(1)

    limits = httpx.Limits(max_connections=clients, max_keepalive_connections=clients)
    async with httpx.AsyncClient(limits=limits, timeout=120) as http:
        watching = asyncio.ensure_future(watch())
        await asyncio.gather(*(client(http) for _ in range(clients)))
        watching.cancel()
    taken, busy = time.perf_counter() - begun, sum(process.cpu_times()[:2]) - busy
    half = memory[len(memory) // 2 :]
    return {
        "seconds": taken,
        "answers": dict(seen),
        "requests_per_second": len(times) / taken,
        "turns_per_second": seen["turns"] / taken,
        "turns_per_processor_second": seen["turns"] / busy,
        "latency_seconds": {"median": median(times), "p99": quantiles(times, n=100)[98]},
        "memory_mb": {"half_time": half[0], "end": half[-1], "most": max(memory)},
    }


async def turn_cost(rounds: int) -> dict[str, float]:
    """Milliseconds of a turn beyond those of a request to the server behind, medians."""
    text = "<answer>1</answer><self_check>VERDICT: UNSURE; CONFIDENCE: 0.5</self_check>"
    choice = {"message": {"content": text}, "finish_reason": "stop"}
    usage = {"prompt_tokens": 1, "completion_tokens": 1}
    body = json.dumps({"choices": [choice], "usage": usage}).encode()
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body

    async def at_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError):  # the client has gone
            while head := await reader.readuntil(b"\r\n\r\n"):
                await reader.readexactly(int(head.lower().split(b"content-length:")[1].split()[0]))
                writer.write(answer)

    async def milliseconds(http: httpx.AsyncClient, url: str) -> float:
        asked = {"messages": [{"role": "user", "content": "1 2 3 = 6"}]}
        begun = time.perf_counter()
        (await http.post(f"{url}/chat/completions", json=asked)).raise_for_status()
        return 1000 * (time.perf_counter() - begun)

    behind = await asyncio.start_server(at_once, "127.0.0.1", 0)
    direct = f"http://127.0.0.1:{behind.sockets[0].getsockname()[1]}/v1"
    loop = asyncio.get_running_loop()
    context = served("--upstream", direct, "--model", "none")
    url, process = await loop.run_in_executor(None, context.__enter__)
    async with httpx.AsyncClient(timeout=60) as http:
        alone = [await milliseconds(http, direct) for _ in range(10 * rounds)]
        busy = sum(process.cpu_times()[:2])
        through = [await milliseconds(http, url) / 10 for _ in range(rounds)]  # T_max is 10
        busy = sum(process.cpu_times()[:2]) - busy
    await loop.run_in_executor(None, context.__exit__, None, None, None)
    behind.close()
    return {
        "direct_ms": median(alone),
        "per_turn_ms": median(through),
        "added_per_turn_ms": median(through) - median(alone),
        "processor_ms_per_turn": 1000 * busy / (10 * rounds),
    }


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--problems", type=int, default=256)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    source = DataSource(name="test", task="countdown", path=EMBEDDED, split="test")
    problems = load_problems(source)[: options.problems]
    expected, driver = driven(problems, options.seconds)
    sizes = [f"--{name.replace('_', '-')}={value}" for name, value in SIZES.items()]
    turns = [f"--max-turns={TURNS}", f"--max-completion-tokens={LIMIT}", "--threshold=0.96"]
    own = ["--policy", EMBEDDED, "--engine", "transformers", *sizes, *turns]
    with served(*own) as (url, process):
        found = asyncio.run(load(url, process, expected, options.clients, options.seconds))
    rates = ("turns_per_second", "turns_per_processor_second")
    share = {rate: found[rate] / driver[rate] for rate in rates}
    cost = asyncio.run(turn_cost(100))
    whole = {"clients": options.clients, "driver": driver, "server": found, "share": share}
    whole |= {"proxy": cost, "versions": versions(), "hardware": hardware()}
    print(json.dumps({k: whole[k] for k in ("driver", "server", "share", "proxy")}, indent=2))
    if options.out:
        write_json(options.out, whole)
