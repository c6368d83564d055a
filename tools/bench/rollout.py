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
from statistics import median
from typing import Any

from svr_lightning.engines.base import Engine
from svr_lightning.engines.transformers import TransformersEngine
from svr_lightning.recipes.svr import SVR
from svr_lightning.rollout.driver import Decoding
from svr_lightning.rollout.rendering import Renderer
from svr_lightning.training.sources import DataSource, load_problems
from tools.bench.machine import this_machine
from tools.bench.workloads import EMBEDDED, LockStep, Rollout, roll_out, start_policy

TYPICAL, LONGEST, SPREAD = 30, 256, 1.0
"""Tokens of a completion: median, cut, and the standard deviation of their logarithm."""
PROBLEMS, GROUP, TURNS = 8, 8, 3


def make_engine(name: str, slots: int) -> Engine:
    """An engine with room for ``slots`` completions at the same time."""
    if name == "transformers":
        return TransformersEngine(max_batch=slots)
    from svr_lightning.engines.vllm import VLLMEngine

    return VLLMEngine(options={"max_num_seqs": slots})


def compare(engine: Engine, renderer: Renderer, repeats: int) -> dict[str, Any]:
    """Alternate the two ways and sum up."""
    problems = load_problems(
        DataSource(name="train", task="countdown", path=EMBEDDED, limit=PROBLEMS)
    )
    recipe = SVR(group_size=GROUP, horizon=TURNS)
    decoding = Decoding(max_completion_tokens=LONGEST, temperature=0.9)
    ways: dict[str, Any] = {"pipelined": engine, "lock-step": LockStep(engine)}
    runs: dict[str, list[Rollout]] = {way: [] for way in ways}
    for _ in range(repeats + 1):  # the first one warms up
        for way, driven in ways.items():
            runs[way].append(
                roll_out(
                    driven, renderer, recipe, problems, decoding, median=TYPICAL, spread=SPREAD
                )
            )
    said = {
        way: [[turn.sampled.token_ids for turn in one.turns] for one in found[-1].trajectories]
        for way, found in runs.items()
    }
    if said["pipelined"] != said["lock-step"]:
        raise SystemExit("the two ways returned different tokens")
    totals = [sum(map(len, turns)) for turns in said["pipelined"]]
    figures: dict[str, Any] = {"trajectories": len(totals), "tokens": sum(totals)}
    figures["bound_steps"] = max(totals)
    for way, found in runs.items():
        times = [run.seconds for run in found[1:]]
        figures[way] = {
            "steps": found[-1].steps,
            "seconds": median(times),
            "all_seconds": times,
            "tokens_per_second": sum(totals) / median(times),
        }
    one, other = figures["pipelined"], figures["lock-step"]
    pairs = [b / a for a, b in zip(one["all_seconds"], other["all_seconds"], strict=True)]
    figures["steps_ratio"] = one["steps"] / other["steps"]
    return {**figures, "speedup": median(pairs), "speedup_pairs": pairs}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Which engine, how large, how often."""
    parser.add_argument("--engine", choices=["vllm", "transformers"], default="vllm")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--slots", type=int, default=PROBLEMS * GROUP, help="engine batch size")


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Both ways on the embedded policy."""
    engine = make_engine(options.engine, options.slots)
    _, renderer = start_policy(engine, ends=False)
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
    return {**found, "engine": options.engine, **this_machine()}
