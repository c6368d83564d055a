"""How full the batch is while a data set is evaluated: one stream of problems, or drained batches.

    python -m tools.bench batch_fill --out tools/bench/results/batch_fill.json

The embedded policy answers 1,000 of its problems through the package's driver. How many turns a
problem takes is drawn, since this policy would stop nearly everywhere at once: 86 % stop before ten
turns, the mean is three, as the paper reports for All-7 (table "adaptive_per_dataset").

A slot is idle in an engine step that advances no completion in it. Slots are counted until the last
``max_batch`` problems have been submitted: after that nothing could fill them.
"""

import argparse
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from svr_lightning.core.types import Problem
from svr_lightning.engines.base import Output
from svr_lightning.engines.transformers import TransformersEngine
from svr_lightning.files import write_json
from svr_lightning.recipes.dialogues import SelfVerifying, chain
from svr_lightning.rollout.driver import Decoding, Driver, Job
from svr_lightning.rollout.rendering import Renderer
from svr_lightning.training.config import PolicyConfig
from svr_lightning.training.policy import load_policy, stop_token_ids
from svr_lightning.training.sources import DataSource, load_problems
from tools.bench.machine import hardware, versions

T_MAX = 10
STOP_FIRST, STOP_LATER = 0.667, 0.105
"""Chance to stop at the first turn, and at each later one: together a mean of 2.99 turns, and
13.7 % of the problems take all ten, as the paper reports for All-7."""


class Counted(TransformersEngine):
    """Counts the completions that each step advances, until it is told to stop counting."""

    def __init__(self, max_batch: int) -> None:
        super().__init__(max_batch)
        self.counting = True
        self.steps = self.advanced = self.tokens = 0

    def step(self) -> list[Output]:
        """A step, and how many completions it gave a token."""
        before = {id(row): (row, len(row.tokens)) for row in self._rows}
        outputs = super().step()
        new = (None, 0)
        grown = sum(len(row.tokens) > before.get(id(row), new)[1] for row in self._rows)
        grown += len(outputs)
        self.tokens += sum(len(output.token_ids) for output in outputs)
        if self.counting:
            self.steps += 1
            self.advanced += grown
        return outputs

    @property
    def idle_share(self) -> float:
        """Of the slots of all counted steps."""
        return 1 - self.advanced / (self.steps * self.max_batch)


def turn_counts(count: int, seed: int) -> list[int]:
    """How many turns each problem takes."""
    rng = random.Random(seed)
    counts = []
    for _ in range(count):
        turns = 1
        while turns < T_MAX and rng.random() >= (STOP_FIRST if turns == 1 else STOP_LATER):
            turns += 1
        counts.append(turns)
    return counts


def measure(
    problems: list[Problem], turns: list[int], policy: tuple[Any, Any], max_batch: int, batch: int
) -> dict[str, Any]:
    """Run all problems, ``batch`` of them handed to the driver at a time."""
    model, tokenizer = policy
    engine = Counted(max_batch)
    engine.start(model, stop_token_ids(model, tokenizer), 1024)
    engine.sync(model, 0)
    renderer = Renderer(tokenizer, max_prompt_tokens=512, max_model_len=1024)
    driver = Driver(engine, renderer, run_seed=42)
    decoding = Decoding(max_completion_tokens=96)
    started = time.perf_counter()

    def jobs(first: int) -> Iterator[Job]:
        for index in range(first, min(first + batch, len(problems))):
            program = chain(SelfVerifying(), problems[index], 0, turns[index])
            yield Job(problems[index], 0, program, decoding)
            if index >= len(problems) - 1:
                engine.counting = False

    for first in range(0, len(problems), batch):
        for _ in driver.stream(jobs(first)):
            pass
    seconds = time.perf_counter() - started
    return {
        "problems_at_once": batch,
        "idle_share": engine.idle_share,
        "engine_steps_counted": engine.steps,
        "completion_tokens": engine.tokens,
        "seconds": seconds,
        "tokens_per_second": engine.tokens / seconds,
    }


def main() -> None:
    """Measure both ways and write the figures down."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--problems", type=int, default=1000)
    parser.add_argument("--max-batch", type=int, default=128)
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    model, tokenizer = load_policy(PolicyConfig(max_prompt_tokens=512, max_model_len=1024), 0)
    policy = (model.eval(), tokenizer)
    problems = load_problems(
        DataSource(
            name="train", task="countdown", path="embedded:countdown-tiny", limit=options.problems
        )
    )
    turns = turn_counts(len(problems), options.seed)
    found: dict[str, Any] = {
        "problems": len(problems),
        "max_batch": options.max_batch,
        "mean_turns": sum(turns) / len(turns),
        "share_of_ten_turns": turns.count(T_MAX) / len(turns),
    }
    for name, batch in (("one_run", len(problems)), ("batches_drained", options.max_batch)):
        found[name] = measure(problems, turns, policy, options.max_batch, batch)
        rate, idle = found[name]["tokens_per_second"], found[name]["idle_share"]
        print(f"{name:<16} idle slots {idle:6.1%}   {rate:6.0f} tokens/s")
    if options.out:
        write_json(options.out, {**found, "versions": versions(), "hardware": hardware()})
