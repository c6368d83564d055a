"""The trajectories of optimizer steps, drawn from lengths that were assumed or measured."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from statistics import quantiles

import numpy as np

from svr_lightning.rollout.collect import MAX_ATTEMPTS
from tools.bench.workloads import long_tailed
from tools.scale.schedule import Trajectory, Turn

Attempts = Sequence[Sequence[Trajectory]]
"""Of an optimizer step on one engine: its trajectories, then those that replace some."""


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

    def batches(self, engines: int, steps: int, seed: int) -> list[tuple[Attempts, ...]]:
        """By engine and step; a step's first attempts are the same for any number of engines."""
        drawn = [self._step(engines, np.random.default_rng([seed, step])) for step in range(steps)]
        return list(zip(*drawn, strict=True))

    def _step(self, engines: int, rng: np.random.Generator) -> list[Attempts]:
        groups = [self._groups(1, rng) for _ in range(self.problems)]
        share = self.problems // engines
        parts = [groups[first : first + share] for first in range(0, self.problems, share)]
        return [[list(chain(*part)), *self._replacements(share, rng)] for part in parts]

    def _replacements(self, problems: int, rng: np.random.Generator) -> Iterator[list[Trajectory]]:
        """Of each further attempt, the groups in place of those that teach nothing."""
        for _ in range(MAX_ATTEMPTS - 1):
            problems = int(rng.binomial(problems, self.lengths.degenerate))
            if not problems:
                return
            yield self._groups(problems, rng)

    def _groups(self, count: int, rng: np.random.Generator) -> list[Trajectory]:
        return [self._trajectory(rng) for _ in range(count * self.group)]

    def _trajectory(self, rng: np.random.Generator) -> Trajectory:
        """Each turn reads the draft of the turn before."""
        lengths, turns = self.lengths, list[Turn]()
        for _ in range(self.turns):
            more = min(turns[-1].drawn, lengths.draft) + lengths.refinement if turns else 0
            prompt = min(lengths.prompt + more, self.longest_prompt)
            turns.append(Turn(prompt, long_tailed(rng, lengths.median, self.limit, lengths.spread)))
        return turns


def fitted_lengths(tokens: Sequence[int]) -> dict[str, float]:
    """Median and spread of log-normal lengths, from their lower half: the upper one may be cut.

    Example:
        >>> fitted_lengths([10] * 17 + [20] * 33 + [40] * 50)  # at one deviation, at the median
        {'median': 30.0, 'spread': 1.0986122886681098}
    """
    shares = quantiles(tokens, n=50)
    return {"median": shares[24], "spread": math.log(shares[24] / shares[7])}
