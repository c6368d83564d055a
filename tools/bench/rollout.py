"""Pipelined turns against lock-step: 64 trajectories of three turns with long-tailed lengths.

    python -m tools.bench rollout --out rollout.json
    python -m tools.bench rollout --engine transformers

The prompts are real: the embedded policy plays Countdown through the same driver, recipe and
parser as in training. Only the lengths are drawn (log-normal, from each request's own seed), since
what pipelining saves depends on their tail: stop tokens are switched off and every completion runs
to its own limit. Both ways complete the same requests and return the same tokens, which is
checked. They alternate within one process; figures are medians over the repeats.

The bound is what no schedule can beat: the tokens of the longest trajectory, one engine step each.
"""

import argparse
import json
import os
import platform
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch

from svr_lightning.core.types import Trajectory
from svr_lightning.engines.base import Engine
from svr_lightning.engines.transformers import TransformersEngine
from svr_lightning.evaluation.results import package_versions
from svr_lightning.recipes.svr import SVR
from svr_lightning.rollout.driver import Decoding, Driver, Job
from svr_lightning.rollout.rendering import Renderer
from svr_lightning.training.config import PolicyConfig
from svr_lightning.training.policy import load_policy
from svr_lightning.training.sources import DataSource, load_problems
from tools.bench.lock_step import LockStep
from tools.gpu_check.rollouts import LongTailed

TYPICAL, LONGEST, SPREAD = 30, 256, 1.0
"""Tokens of a completion: median, cut, and the standard deviation of their logarithm."""
PROBLEMS, GROUP, TURNS = 8, 8, 3
EMBEDDED = "embedded:countdown-tiny"
PROBLEM_SET = DataSource(name="train", task="countdown", path=EMBEDDED, limit=PROBLEMS)


def make_engine(name: str, slots: int) -> Engine:
    """An engine with room for ``slots`` completions at the same time."""
    if name == "transformers":
        return TransformersEngine(max_batch=slots)
    from svr_lightning.engines.vllm import VLLMEngine

    return VLLMEngine(options={"max_num_seqs": slots})


def roll_out(engine: Engine, renderer: Renderer) -> tuple[list[Trajectory], int, float]:
    """One rollout; its trajectories, engine steps and seconds."""
    recipe = SVR(group_size=GROUP, horizon=TURNS)
    decoding = Decoding(max_completion_tokens=LONGEST, temperature=0.9)
    counted = LongTailed(engine, TYPICAL, SPREAD)
    jobs = [
        Job(problem, index, program, decoding)
        for problem in load_problems(PROBLEM_SET)
        for index, program in enumerate(recipe.programs(problem))
    ]
    started = time.perf_counter()
    trajectories = Driver(counted, renderer, run_seed=42).run(jobs)
    return trajectories, counted.steps, time.perf_counter() - started


def compare(engine: Engine, renderer: Renderer, repeats: int) -> dict[str, Any]:
    """Alternate the two ways and sum up."""
    ways: dict[str, Engine] = {"pipelined": engine, "lock-step": LockStep(engine)}
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    steps, said = {}, {}
    for repeat in range(repeats + 1):
        for way, driven in ways.items():
            trajectories, steps[way], elapsed = roll_out(driven, renderer)
            said[way] = [[t.completion.token_ids for t in each.turns] for each in trajectories]
            if repeat:  # the first one warms up
                seconds[way].append(elapsed)
    if said["pipelined"] != said["lock-step"]:
        raise SystemExit("the two ways returned different tokens")
    totals = [sum(map(len, turns)) for turns in said["pipelined"]]
    by_turn = [max(len(turns[t]) for turns in said["pipelined"]) for t in range(TURNS)]
    figures = {
        way: {
            "steps": steps[way],
            "seconds": median(seconds[way]),
            "all_seconds": seconds[way],
            "tokens_per_second": sum(totals) / median(seconds[way]),
        }
        for way in ways
    }
    pairs = [b / a for a, b in zip(seconds["pipelined"], seconds["lock-step"], strict=True)]
    return {
        "trajectories": len(totals),
        "tokens": sum(totals),
        "bound_steps": max(totals),
        "lock_step_bound_steps": sum(by_turn),
        **figures,
        "steps_ratio": steps["pipelined"] / steps["lock-step"],
        "speedup": median(pairs),
        "speedup_pairs": pairs,
    }


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", choices=["vllm", "transformers"], default="vllm")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--slots", type=int, default=PROBLEMS * GROUP, help="engine batch size")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    sizes = {"max_prompt_tokens": 512, "max_model_len": 1024}
    policy, tokenizer = load_policy(PolicyConfig(path=EMBEDDED, **sizes), seed=42)
    policy.eval()
    renderer = Renderer(tokenizer, **sizes)
    engine = make_engine(options.engine, options.slots)
    engine.start(policy, (), 1024)
    engine.sync(policy, 0)
    found = compare(engine, renderer, options.repeats)
    print(
        f"{found['trajectories']} trajectories x {TURNS} turns, {found['tokens']} tokens, "
        f"{options.engine}, {options.slots} slots, {options.repeats} repeats"
    )
    for way in ("pipelined", "lock-step"):
        figure = found[way]
        print(
            f"{way:10} {figure['steps']:5} engine steps {figure['seconds']:7.2f} s "
            f"{figure['tokens_per_second']:8.0f} tokens/s"
        )
    print(
        f"steps {found['steps_ratio']:.2f} of lock-step's, tokens/s {found['speedup']:.2f} times; "
        f"the longest trajectory has {found['bound_steps']} tokens"
    )
    if options.out:
        machine = {"cpus": os.cpu_count(), "threads": torch.get_num_threads()}
        about = {"versions": package_versions(), "platform": platform.platform(), **machine}
        options.out.write_text(json.dumps({**found, "engine": options.engine, **about}, indent=2))


if __name__ == "__main__":
    main()
