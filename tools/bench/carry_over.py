"""Carry-over against rollouts that end with their longest trajectory, on long-tailed lengths.

    python -m tools.bench carry_over --out carry_over.json
    python -m tools.bench carry_over --engine transformers
    python -m tools.bench carry_over --thin

The workload is that of ``tools.bench rollout``, for several optimizer steps in a row: each has 64
trajectories of three turns of its own problems, and a sync before its rollout. Nothing is updated
in between. Seconds are the processor's, since those of a clock depend on what else runs here. A
sequence takes part in at most two rollouts, so that the longest trajectories of any two steps in a
row bound the engine steps of both.

Carry-over saves engine steps and no tokens. A step with one sequence shows what a step costs
beside its tokens; if carry-over saved that for each saved step and cost nothing, the gain would be
the ``expected`` one. ``--thin`` takes a policy of many thin layers with random weights, whose steps
cost mostly the same whatever they hold, as on a GPU.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from svr_lightning.core.types import Problem
from svr_lightning.engines.base import Engine, Request, SamplingParams
from svr_lightning.recipes.svr import SVR
from svr_lightning.rollout.carry import CarryOver
from svr_lightning.rollout.collect import collect_rollout
from svr_lightning.rollout.driver import Decoding
from svr_lightning.rollout.rendering import Renderer
from svr_lightning.training.config import PolicyConfig
from svr_lightning.training.policy import load_tokenizer
from svr_lightning.training.sources import DataSource, load_problems
from tools.bench.machine import this_machine
from tools.bench.rollout import GROUP, LONGEST, PROBLEMS, SPREAD, TURNS, TYPICAL, make_engine
from tools.bench.workloads import EMBEDDED, TEMPERATURE, LongTailed, stale_tokens, start_policy

SEQUENCES = (1, 16, 32, 64)
"""In the steps that are timed."""
CONTEXT = 64
"""Tokens of their prompts. In the median step they are as long as the workload's, on average."""


@dataclass(frozen=True, kw_only=True)
class Workload:
    """Optimizer steps in a row."""

    steps: Sequence[Sequence[Problem]]
    """The problems of each."""
    group: int
    longest: int
    """Tokens of a completion at most."""
    typical: float
    """Their median."""
    clock: Callable[[], float] = time.process_time


def roll_out_steps(
    engine: Engine, policy: Any, renderer: Renderer, work: Workload, *, carry_over: bool
) -> dict[str, Any]:
    """Roll out all steps and count what it takes."""
    counted: Any = LongTailed(engine, work.typical, SPREAD)
    begun, tokens, old, per_step = {}, 0, 0, []
    started = work.clock()
    for step, problems in enumerate(work.steps):
        before = counted.steps
        engine.sync(policy, step)
        later = work.steps[step + 1] if carry_over and step + 1 < len(work.steps) else []
        carry = CarryOver(begun=begun, problems=later)
        groups = collect_rollout(
            counted,
            SVR(group_size=work.group, horizon=TURNS),
            problems,
            renderer=renderer,
            sampling=Decoding(max_completion_tokens=work.longest, temperature=TEMPERATURE),
            seed=42,
            step=step,
            carry=carry,
        )
        begun = carry.ahead
        per_step.append(counted.steps - before)
        turns = [t.sampled for group in groups for one in group.trajectories for t in one.turns]
        tokens += sum(len(turn.token_ids) for turn in turns)
        old += stale_tokens(groups, step)
    seconds = work.clock() - started
    return {
        "engine_steps": per_step,
        "tokens": tokens,
        "stale_share": old / tokens,
        "seconds": seconds,
        "tokens_per_second": tokens / seconds,
    }


def compare(
    engine: Engine, policy: Any, renderer: Renderer, work: Workload, repeats: int
) -> dict[str, Any]:
    """Without and with carry-over, in turns; medians over the repeats."""
    runs: dict[str, list[dict[str, Any]]] = {"off": [], "on": []}
    for _ in range(repeats):
        for way, its in runs.items():
            its.append(roll_out_steps(engine, policy, renderer, work, carry_over=way == "on"))
    found: dict[str, Any] = {}
    for way, its in runs.items():
        found[way] = {**its[-1], "seconds": [one["seconds"] for one in its]}
        found[way]["tokens_per_second"] = median(one["tokens_per_second"] for one in its)
    off, on = found["off"], found["on"]
    found["steps_ratio"] = sum(on["engine_steps"]) / sum(off["engine_steps"])
    found["speedup"] = on["tokens_per_second"] / off["tokens_per_second"]
    return found


def step_seconds(engine: Engine, policy: Any, sequences: int) -> float:
    """How long an engine step takes that adds a token to each of so many sequences."""
    engine.sync(policy, 0)
    for number in range(sequences):
        prompt = tuple(8 + (7 * place + number) % 512 for place in range(CONTEXT))
        sampling = SamplingParams(max_tokens=LONGEST, temperature=TEMPERATURE, seed=number)
        engine.submit(Request(id=number, prompt_ids=prompt, sampling=sampling))
    times = []
    for _ in range(LONGEST - 1):
        started = time.process_time()
        engine.step()
        times.append(time.process_time() - started)
    engine.cancel()
    return median(times)


def expected_speedup(found: dict[str, Any], one_sequence: float) -> float:
    """Times the tokens/s without carry-over, if it saved what its steps cost beside their tokens.

    Args:
        found: by :func:`compare`.
        one_sequence: seconds of a step with one sequence.
    """
    saved = sum(found["off"]["engine_steps"]) - sum(found["on"]["engine_steps"])
    off = median(found["off"]["seconds"])
    return off / (off - saved * one_sequence)


def write_thin_policy(folder: Path) -> None:
    """The embedded policy's architecture and tokenizer with 24 layers of 32 features, random."""
    tokenizer = load_tokenizer(PolicyConfig(path=EMBEDDED))
    config = AutoConfig.from_pretrained(tokenizer.name_or_path)
    layers = 24
    config.num_hidden_layers, config.layer_types = layers, ["full_attention"] * layers
    config.hidden_size, config.intermediate_size, config.num_attention_heads = 32, 64, 1
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Which engine and policy, how long, how often."""
    parser.add_argument("--engine", choices=["vllm", "transformers"], default="vllm")
    parser.add_argument("--steps", type=int, default=6, help="optimizer steps")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--thin", action="store_true", help="a policy of many thin layers")


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """With and without, and how long a step takes."""
    engine = make_engine(options.engine, PROBLEMS * GROUP)
    with TemporaryDirectory() as folder:
        if options.thin:
            write_thin_policy(Path(folder))
        path = folder if options.thin else EMBEDDED
        policy, renderer = start_policy(engine, path, ends=False)
    source = DataSource(
        name="train", task="countdown", path=EMBEDDED, limit=PROBLEMS * options.steps
    )
    problems = load_problems(source)
    batches = [problems[i : i + PROBLEMS] for i in range(0, len(problems), PROBLEMS)]
    work = Workload(steps=batches, group=GROUP, longest=LONGEST, typical=TYPICAL)
    found = compare(engine, policy, renderer, work, options.repeats)
    for way in ("off", "on"):
        its = found[way]
        print(
            f"carry-over {way:3} engine steps {its['engine_steps']} "
            f"{its['tokens_per_second']:.0f} tokens/s, {its['stale_share']:.2f} of the tokens "
            "of the step before"
        )
    seconds = {number: step_seconds(engine, policy, number) for number in SEQUENCES}
    for number, its in seconds.items():
        print(f"a step with {number:2} sequences takes {1000 * its:.2f} ms")
    found["expected"] = expected_speedup(found, seconds[1])
    print(
        f"{options.engine}: {found['steps_ratio']:.2f} of the engine steps, "
        f"{found['speedup']:.2f} times the tokens/s, expected {found['expected']:.2f}"
    )
    return {
        "trajectories": PROBLEMS * GROUP,
        "turns": TURNS,
        **found,
        "step_seconds": seconds,
        "engine": options.engine,
        "policy": "thin" if options.thin else EMBEDDED,
        **this_machine(),
    }
