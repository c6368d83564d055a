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
from functools import partial
from statistics import median
from typing import Any

import numpy as np

from svr_lightning.core.seeds import SeedContext
from svr_lightning.core.types import Decoding, Problem, Trajectory
from svr_lightning.engines.base import Output, Request
from svr_lightning.engines.transformers import TransformersEngine
from svr_lightning.recipes.svr import SVR
from svr_lightning.rollout.driver import Driver, Job
from svr_lightning.rollout.rendering import Renderer
from svr_lightning.training.sources import DataSource, load_problems
from tools.bench.workloads import EMBEDDED, in_turns, long_tailed, start_policy

TYPICAL, LONGEST, SPREAD = 30, 256, 1.0
"""Tokens of a completion: median, cut, and the standard deviation of their logarithm."""
PROBLEMS, GROUP, TURNS, REPEATS = 8, 8, 3, 5


class Wrapped:
    """An engine that passes on to another one what it does not do itself."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)


class LongTailed(Wrapped):
    """Counts its steps and cuts completions at lengths drawn from their seeds."""

    steps = 0

    def submit(self, request: Request) -> None:
        """Pass it on with a limit of its own."""
        sampling = request.sampling
        rng = np.random.default_rng(request.seed)
        limit = long_tailed(rng, TYPICAL, sampling.max_completion_tokens, SPREAD)
        sampling = replace(sampling, max_completion_tokens=limit)
        self._engine.submit(replace(request, sampling=sampling))

    def step(self) -> dict[int, Output]:
        """Count and pass on."""
        self.steps += 1
        return self._engine.step()


class LockStep(Wrapped):
    """Starts new requests only when all running ones have finished.

    With trajectories of equally many turns no turn begins before the last one of the turn before
    has ended, as in trainers without pipelined turns.
    """

    def __init__(self, engine: Any) -> None:
        super().__init__(engine)
        self._held: list[Request] = []
        self._running = 0

    def submit(self, request: Request) -> None:
        """Hold a request until the running ones are done."""
        self._held.append(request)

    def step(self) -> dict[int, Output]:
        """Start the held requests if nothing runs, and advance."""
        if not self._running:
            for request in self._held:
                self._engine.submit(request)
            self._running, self._held = len(self._held), []
        outputs = self._engine.step()
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
        Job(problem, index, rollout)
        for problem in problems
        for index, rollout in enumerate(recipe.rollouts(problem))
    ]
    started = time.perf_counter()
    trajectories = Driver(counted, renderer, decoding, SeedContext(run_seed=42)).run(jobs)
    return trajectories, counted.steps, time.perf_counter() - started


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Both ways on the embedded policy."""
    slots = PROBLEMS * GROUP
    engine: Any = TransformersEngine(max_batch=slots)
    if options.engine == "vllm":
        from svr_lightning.engines.vllm import VLLMEngine

        engine = VLLMEngine(options={"max_num_seqs": slots})
    renderer = start_policy(engine, ends=False)
    source = DataSource(name="train", task="countdown", path=EMBEDDED, limit=PROBLEMS)
    problems = load_problems(source)
    ways = {"pipelined": engine, "lock-step": LockStep(engine)}
    calls = {way: partial(roll_out, one, renderer, problems) for way, one in ways.items()}
    runs = in_turns(calls, REPEATS)
    tokens = {
        way: [[turn.sampled.token_ids for turn in one.turns] for one in found[-1][0]]
        for way, found in runs.items()
    }
    if tokens["pipelined"] != tokens["lock-step"]:
        raise SystemExit("the two ways returned different tokens")
    totals = [sum(map(len, turns)) for turns in tokens["pipelined"]]
    figures: dict[str, Any] = {"trajectories": len(totals), "tokens": sum(totals)}
    figures |= {"engine": options.engine, "bound_steps": max(totals)}
    for way, found in runs.items():
        times = [seconds for _, _, seconds in found]
        speed = {"seconds": median(times), "tokens_per_second": sum(totals) / median(times)}
        figures[way] = {"steps": found[-1][1], "all_seconds": times, **speed}
    ours, other = (figures[way] for way in ways)
    pairs = [b / a for a, b in zip(ours["all_seconds"], other["all_seconds"], strict=True)]
    ratios = {"steps_ratio": ours["steps"] / other["steps"], "speedup_pairs": pairs}
    return {**figures, **ratios, "speedup": median(pairs)}
