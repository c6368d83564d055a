"""Many optimizer steps on a number of GPUs, and what they take on average."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from statistics import fmean

import numpy as np

from svr_lightning.rollout.collect import MAX_ATTEMPTS
from tools.bench.workloads import long_tailed
from tools.scale.cost import Costs
from tools.scale.schedule import (
    Places,
    Rolled,
    Trajectory,
    Turn,
    engine_steps,
    idle_share,
    optimizer_steps,
)


@dataclass(frozen=True, kw_only=True)
class Lengths:
    """Tokens of prompts and completions, assumed where they were not measured."""

    prompt: int = 250
    """Of a first prompt."""
    refinement: int = 150
    """Of a later prompt, beside the question and the draft."""
    draft: int = 225
    """Of a draft in a later prompt, at most: 900 characters."""
    median: float = 700.0
    """Of completions, which are log-normal."""
    spread: float = 0.7
    """Standard deviation of their logarithm."""
    degenerate: float = 0.0
    """Share of groups that are replaced, not a length."""


@dataclass(frozen=True, kw_only=True)
class Workload:
    """The trajectories of one optimizer step, over all GPUs."""

    problems: int
    group: int
    turns: int
    carry_over: bool
    limit: int
    """Tokens of a completion at most."""
    longest_prompt: int
    lengths: Lengths

    def trajectory(self, rng: np.random.Generator) -> Trajectory:
        """One, each turn of which reads the draft of the turn before."""
        lengths = self.lengths
        turns: list[Turn] = []
        for _ in range(self.turns):
            more = min(turns[-1].drawn, lengths.draft) + lengths.refinement if turns else 0
            prompt = min(lengths.prompt + more, self.longest_prompt)
            turns.append(Turn(prompt, long_tailed(rng, lengths.median, self.limit, lengths.spread)))
        return turns

    def batches(self, engines: int, steps: int, seed: int) -> list[list[list[list[Trajectory]]]]:
        """By engine and step the trajectories of each attempt; a step's are the same for any split.

        Raises:
            ValueError: if the problems cannot be split evenly.
        """
        if self.problems % engines:
            raise ValueError(f"{self.problems} problems of a step over {engines} engines")
        share = self.problems // engines
        found: list[list[list[list[Trajectory]]]] = [[] for _ in range(engines)]
        for step in range(steps):
            rng = np.random.default_rng([seed, step])
            groups = [
                [self.trajectory(rng) for _ in range(self.group)] for _ in range(self.problems)
            ]
            for engine, its in enumerate(found):
                first = engine * share
                own = list(chain.from_iterable(groups[first : first + share]))
                its.append([own, *self._replaced(rng, share)])
        return found

    def _replaced(self, rng: np.random.Generator, problems: int) -> Iterator[list[Trajectory]]:
        """Of each further attempt, the groups in place of those that teach nothing."""
        for _ in range(MAX_ATTEMPTS - 1):
            problems = int(rng.binomial(problems, self.lengths.degenerate))
            if not problems:
                return
            yield [self.trajectory(rng) for _ in range(problems * self.group)]


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """Means over optimizer steps."""

    gpus: int
    step: float
    """Seconds, like the three parts below; of the slowest rank."""
    rollout: float
    update: float
    """Reference, update, and the exchange of gradients."""
    sync: float
    wait: float
    """Share of the step that a rank waits for the slowest rollout."""
    idle: float
    """Share of the engines' places without work while they roll out."""
    stale: float
    """Share of the tokens that were drawn by the weights of the step before."""
    tokens_per_second: float
    """Of the trajectories that are trained on, over all GPUs."""
    engine_steps: float
    """Of the engine with the most."""
    context: float
    """Tokens in the cache of one engine at most."""


def simulate(
    work: Workload, costs: Costs, places: Places, *, gpus: int, together: int, steps: int, seed: int
) -> Prediction:
    """Predict a training on ``gpus`` GPUs, ``together`` of which share an engine.

    With carry-over the first and the last step are left out: nothing is carried into the one nor
    out of the other.

    Raises:
        ValueError: if the problems cannot be split evenly.
    """
    edge = int(work.carry_over)
    batches = work.batches(gpus // together, steps + 2 * edge, seed)
    kept = slice(edge, edge + steps)
    rolled = [
        list(optimizer_steps(its, places, carry_over=work.carry_over))[kept] for its in batches
    ]
    return _mean(rolled, [its[kept] for its in batches], costs, places, gpus, together)


def _mean(
    rolled: Sequence[Sequence[Rolled]],
    batches: Sequence[Sequence[Sequence[Sequence[Trajectory]]]],
    costs: Costs,
    places: Places,
    gpus: int,
    together: int,
) -> Prediction:
    by_step = list(zip(*rolled, strict=True))
    seconds = [[costs.engine.seconds(one.spans) for one in its] for its in by_step]
    rollout = fmean(max(its) for its in seconds)
    updates = []
    for its in zip(*batches, strict=True):
        sequences = [turns[-1] for first, *_ in its for turns in first]
        size = len(sequences) // gpus
        shares = [sequences[i : i + size] for i in range(0, len(sequences), size)]
        updates.append(max(costs.update(share) for share in shares))
    update = fmean(updates) + costs.exchange
    step = rollout + update + costs.sync
    everything = [one for its in rolled for one in its]
    tokens = sum(one.tokens for one in everything)
    return Prediction(
        gpus=gpus,
        step=step,
        rollout=rollout,
        update=update,
        sync=costs.sync,
        wait=fmean(max(its) - fmean(its) for its in seconds) / step,
        idle=idle_share([span for one in everything for span in one.spans], places.slots),
        stale=sum(one.stale for one in everything) / tokens,
        tokens_per_second=tokens / len(by_step) / step,
        engine_steps=fmean(max(engine_steps(one.spans) for one in its) for its in by_step),
        context=max(span.context + span.rows for one in everything for span in one.spans),
    )
