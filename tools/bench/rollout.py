"""Pipelined turns against lock-step: 64 trajectories of three turns with long-tailed lengths.

    python -m tools.bench rollout --out rollout.json
    python -m tools.bench rollout --engine transformers

The embedded policy plays Countdown through the driver, recipe and parser of training. Only the
lengths are drawn (log-normal, from each request's own seed), since what pipelining saves depends on
their tail: stop tokens are off and every completion runs to its own limit. Both ways complete the
same requests and return the same tokens, which is checked. They alternate within one process;
figures are medians over the repeats. No schedule takes fewer engine steps than the longest
trajectory has tokens.
"""

import argparse
import time
from dataclasses import replace
from statistics import median
from typing import Any

import numpy as np

from svr_lightning.core.types import Decoding, Problem, Trajectory
from svr_lightning.engines.base import Output, Request
from svr_lightning.engines.transformers import TransformersEngine
from svr_lightning.recipes.svr import SVR
from svr_lightning.rollout.driver import Driver, Job
from svr_lightning.rollout.rendering import Renderer
from svr_lightning.training.sources import DataSource, load_problems
from tools.bench.workloads import EMBEDDED, long_tailed, start_policy, this_machine

TYPICAL, LONGEST, SPREAD = 30, 256, 1.0
"""Tokens of a completion: median, cut, and the standard deviation of their logarithm."""
PROBLEMS, GROUP, TURNS = 8, 8, 3
WAYS = ("pipelined", "lock-step")


class LongTailed:
    """An engine that counts its steps and cuts completions at lengths drawn from their seeds."""

    def __init__(self, engine: Any) -> None:
        self._engine, self.steps = engine, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def submit(self, request: Request) -> None:
        """Pass it on with a limit of its own."""
        sampling = request.sampling
        rng = np.random.default_rng(request.seed)
        limit = long_tailed(rng, TYPICAL, sampling.max_completion_tokens, SPREAD)
        sampling = replace(sampling, max_completion_tokens=limit)
        self._engine.submit(replace(request, sampling=sampling))

    def step(self) -> list[Output]:
        """Count and pass on."""
        self.steps += 1
        return list(self._engine.step())


class LockStep:
    """An engine that starts new requests only when all running ones have finished.

    With trajectories of equally many turns no turn begins before the last one of the turn before
    has ended, as in trainers without pipelined turns.
    """

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self._held: list[Request] = []
        self._running = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def submit(self, request: Request) -> None:
        """Hold a request until the running ones are done."""
        self._held.append(request)

    def step(self) -> list[Output]:
        """Start the held requests if nothing runs, and advance."""
        if not self._running:
            for request in self._held:
                self._engine.submit(request)
            self._running, self._held = len(self._held), []
        outputs: list[Output] = self._engine.step()
        self._running -= len(outputs)
        return outputs


def roll_out(
    engine: Any, renderer: Renderer, problems: list[Problem]
) -> tuple[list[Trajectory], int, float]:
    """All trajectories of all problems through the package's driver, engine steps and seconds."""
    counted: Any = LongTailed(engine)
    decoding = Decoding(max_completion_tokens=LONGEST, temperature=0.9)
    recipe = SVR(group_size=GROUP, horizon=TURNS)
    jobs = [
        Job(problem=problem, sample=index, program=program, decoding=decoding)
        for problem in problems
        for index, program in enumerate(recipe.programs(problem))
    ]
    started = time.perf_counter()
    trajectories = Driver(counted, renderer, run_seed=42).run(jobs)
    return trajectories, counted.steps, time.perf_counter() - started


def compare(engine: Any, renderer: Renderer, repeats: int) -> dict[str, Any]:
    """Alternate the two ways and sum up."""
    source = DataSource(name="train", task="countdown", path=EMBEDDED, limit=PROBLEMS)
    problems, engines = load_problems(source), (engine, LockStep(engine))
    times: dict[str, list[float]] = {way: [] for way in WAYS}
    steps: dict[str, int] = {}
    tokens: dict[str, list[list[tuple[int, ...]]]] = {}
    for _ in range(repeats + 1):  # the first one warms up
        for way, driven in zip(WAYS, engines, strict=True):
            trajectories, steps[way], taken = roll_out(driven, renderer, problems)
            times[way].append(taken)
            tokens[way] = [[turn.sampled.token_ids for turn in t.turns] for t in trajectories]
    if tokens["pipelined"] != tokens["lock-step"]:
        raise SystemExit("the two ways returned different tokens")
    totals = [sum(map(len, turns)) for turns in tokens["pipelined"]]
    figures: dict[str, Any] = {"trajectories": len(totals), "tokens": sum(totals)}
    figures["bound_steps"] = max(totals)
    for way in WAYS:
        found = times[way][1:]
        speed = {"seconds": median(found), "tokens_per_second": sum(totals) / median(found)}
        figures[way] = {"steps": steps[way], "all_seconds": found, **speed}
    pairs = [b / a for a, b in zip(times["pipelined"][1:], times["lock-step"][1:], strict=True)]
    figures["steps_ratio"] = steps["pipelined"] / steps["lock-step"]
    return {**figures, "speedup": median(pairs), "speedup_pairs": pairs}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Which engine, how large, how often."""
    parser.add_argument("--engine", choices=["vllm", "transformers"], default="vllm")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--slots", type=int, default=PROBLEMS * GROUP, help="engine batch size")


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Both ways on the embedded policy."""
    engine: Any = TransformersEngine(max_batch=options.slots)
    if options.engine == "vllm":
        from svr_lightning.engines.vllm import VLLMEngine

        engine = VLLMEngine(options={"max_num_seqs": options.slots})
    _, renderer = start_policy(engine, ends=False)
    found = compare(engine, renderer, options.repeats)
    for way in WAYS:
        one = found[way]
        print(
            f"{way:10} {one['steps']:5} engine steps {one['seconds']:7.2f} s "
            f"{one['tokens_per_second']:8.0f} tokens/s"
        )
    print(
        f"{found['trajectories']} trajectories, {found['tokens']} tokens; steps "
        f"{found['steps_ratio']:.2f} of lock-step's, tokens/s {found['speedup']:.2f} times; "
        f"the longest trajectory has {found['bound_steps']} tokens"
    )
    return {**found, "engine": options.engine, **this_machine()}
