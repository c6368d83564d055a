"""Carry-over against rollouts that end with their longest trajectory, on long-tailed lengths.

    python -m tools.bench carry_over --out carry_over.json
    python -m tools.bench carry_over --engine transformers

The workload is that of ``tools.bench rollout``, for several optimizer steps in a row: each has 64
trajectories of three turns of its own problems, and a sync before its rollout. Nothing is updated
in between. Seconds are the processor's, since those of a clock depend on what else runs here. A
sequence takes part in at most two rollouts, so that the longest trajectories of any two steps in a
row bound the engine steps of both.
"""

import argparse
import time
from statistics import median
from typing import Any

from svr_lightning.core.types import Problem
from svr_lightning.engines.base import Engine
from svr_lightning.recipes.svr import SVR
from svr_lightning.rollout.carry import CarryOver
from svr_lightning.rollout.collect import collect_rollout
from svr_lightning.rollout.driver import Decoding
from svr_lightning.rollout.rendering import Renderer
from svr_lightning.training.sources import DataSource, load_problems
from tools.bench.machine import this_machine
from tools.bench.rollout import GROUP, LONGEST, PROBLEMS, SPREAD, TURNS, TYPICAL, make_engine
from tools.bench.workloads import EMBEDDED, LongTailed, stale_tokens, start_policy

DECODING = Decoding(max_completion_tokens=LONGEST, temperature=0.9)


def steps_of(
    engine: Engine, policy: Any, renderer: Renderer, problems: list[Problem], *, carry_over: bool
) -> dict[str, Any]:
    """Roll out all problems, ``PROBLEMS`` a step, and count what it takes."""
    counted: Any = LongTailed(engine, TYPICAL, SPREAD)
    batches = [problems[i : i + PROBLEMS] for i in range(0, len(problems), PROBLEMS)]
    begun, tokens, old, per_step = {}, 0, 0, []
    started = time.process_time()
    for step, batch in enumerate(batches):
        before = counted.steps
        engine.sync(policy, step)
        later = batches[step + 1] if carry_over and step + 1 < len(batches) else []
        carry = CarryOver(begun=begun, problems=later)
        groups = collect_rollout(
            counted,
            SVR(group_size=GROUP, horizon=TURNS),
            batch,
            renderer=renderer,
            sampling=DECODING,
            seed=42,
            step=step,
            carry=carry,
        )
        begun = carry.ahead
        per_step.append(counted.steps - before)
        turns = [t.sampled for group in groups for one in group.trajectories for t in one.turns]
        tokens += sum(len(turn.token_ids) for turn in turns)
        old += stale_tokens(groups, step)
    seconds = time.process_time() - started
    return {
        "engine_steps": per_step,
        "tokens": tokens,
        "stale_share": old / tokens,
        "seconds": seconds,
        "tokens_per_second": tokens / seconds,
    }


def add_options(parser: argparse.ArgumentParser) -> None:
    """Which engine, how long, how often."""
    parser.add_argument("--engine", choices=["vllm", "transformers"], default="vllm")
    parser.add_argument("--steps", type=int, default=8, help="optimizer steps")
    parser.add_argument("--repeats", type=int, default=3)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """With and without, in turns."""
    engine = make_engine(options.engine, PROBLEMS * GROUP)
    policy, renderer = start_policy(engine, ends=False)
    source = DataSource(
        name="train", task="countdown", path=EMBEDDED, limit=PROBLEMS * options.steps
    )
    problems = load_problems(source)
    found: dict[str, Any] = {"trajectories": PROBLEMS * GROUP, "turns": TURNS}
    runs: dict[str, list[dict[str, Any]]] = {"off": [], "on": []}
    for _ in range(options.repeats):
        for way, its in runs.items():
            its.append(steps_of(engine, policy, renderer, problems, carry_over=way == "on"))
    for way, its in runs.items():
        found[way] = {**its[-1], "seconds": [one["seconds"] for one in its]}
        found[way]["tokens_per_second"] = median(one["tokens_per_second"] for one in its)
        print(
            f"carry-over {way:3} engine steps {found[way]['engine_steps']} "
            f"{found[way]['tokens_per_second']:.0f} tokens/s, {found[way]['stale_share']:.2f} of "
            "the tokens of the step before"
        )
    found["steps_ratio"] = sum(found["on"]["engine_steps"]) / sum(found["off"]["engine_steps"])
    rates = [found[way]["tokens_per_second"] for way in ("on", "off")]
    found["speedup"] = rates[0] / rates[1]
    print(
        f"{options.engine}: {found['steps_ratio']:.2f} of the engine steps, "
        f"{found['speedup']:.2f} times the tokens/s"
    )
    return {**found, "engine": options.engine, **this_machine()}
