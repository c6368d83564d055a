"""What a training method is: dialogue x reward x credit x loss.

Everything else is shared. To add a method, write one file with one dataclass; nothing outside the
file needs to know its name, since a configuration names its class.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from svr_lightning.core.credit import RewardScale, group_advantages
from svr_lightning.core.losses import LossSpec
from svr_lightning.core.ranges import Count, check_fields, require_field
from svr_lightning.core.rewards import (
    BaselineReward,
    Reward,
    RewardWeights,
    baseline_rewards,
    soft_overlong,
)
from svr_lightning.core.seeds import START, SeedContext
from svr_lightning.core.types import Problem, Sample, ScoredTurn, Trajectory, Turn
from svr_lightning.errors import ConfigError, one_line, require
from svr_lightning.recipes.dialogues import Dialogue, PlainRefinement, RolloutGenerator, chain

PLACE = "model.recipe.init_args"

RewardFunction = Callable[[Sequence[ScoredTurn]], Sequence[Reward | float]]
"""Takes the [T] scored turns of one trajectory, with their texts and their problem; returns a
reward for each: named terms, or a number."""


@dataclass(frozen=True, kw_only=True)
class Group:
    """The trajectories of one problem, their labels and what they earned."""

    problem: Problem
    trajectories: tuple[Trajectory, ...]
    scored: tuple[tuple[ScoredTurn, ...], ...]
    rewards: tuple[tuple[Reward, ...], ...]
    returns: tuple[float, ...]
    seeds: SeedContext = START
    """Seeds random draws of :meth:`Recipe.credit`; its attempt is that of dynamic resampling."""
    samples: tuple[Sample, ...] = ()
    """The optimised sequences with their advantages; empty before :meth:`Recipe.credit`."""
    degenerate: bool = False
    """All its samples have an advantage of 0, so resampling may replace it."""


@dataclass(frozen=True, kw_only=True)
class Recipe(ABC):
    """A training method: what it asks, how it rewards, and which sequences are optimised.

    Its fields are held to their ranges when it is made (:mod:`svr_lightning.core.ranges`).
    """

    group_size: Count = 8
    """G, the number of trajectories per problem."""
    length_scale: Count = 1024
    """L_len of the solve reward, in tokens."""
    weights: RewardWeights = field(default_factory=RewardWeights)
    """Reward coefficients; 0 switches a term off."""
    soft_max_length: Count | None = None
    """Long-output safeguard, off by default: each turn's reward has a term ``long_output``, which
    falls linearly: 0 at ``soft_max_length - soft_cache_length`` tokens, -1 here, and further."""
    soft_cache_length: Count = 300
    """Tokens before ``soft_max_length`` at which the term begins."""
    scale_rewards: RewardScale = "group"
    """``group`` divides advantages by the group's standard deviation, ``none`` does not."""
    loss: LossSpec = field(default_factory=LossSpec)
    """Ratio level, clip range and KL coefficient."""
    custom_reward: RewardFunction | None = field(default=None, repr=False)
    """Dotted path of your own function, used instead of the method's reward: it takes the
    scored turns of one trajectory and returns one :class:`~svr_lightning.Reward`, or a number, for
    each. To change the method's reward, subclass the recipe."""

    def __post_init__(self) -> None:
        check_fields(self)
        several = self.group_size >= 2
        require_field(self, "group_size", several, "needs at least 2 trajectories per group")
        calls = self.custom_reward is None or callable(self.custom_reward)
        require_field(self, "custom_reward", calls, "must be a function")

    # --- dialogue -----------------------------------------------------------------------------

    @property
    @abstractmethod
    def dialogue(self) -> Dialogue:
        """The prompts of training and evaluation."""

    @property
    def uses_labels(self) -> bool:
        """Whether its prompts show labels, in evaluation too. Results then say so."""
        return self.dialogue.uses_labels

    @property
    def horizon(self) -> int:
        """Turns per trajectory; a method of several has a field of this name."""
        return 1

    def rollouts(self, problem: Problem, seeds: SeedContext = START) -> list[RolloutGenerator]:
        """The rollouts of one problem: generators that return one trajectory each, or a list.

        By default G trajectories of ``horizon`` turns that never stop early. ``seeds`` seed random
        draws of the generators.
        """
        return [chain(self.dialogue, problem, i, self.horizon) for i in range(self.group_size)]

    def evaluated_turns(self, max_turns: int) -> int:
        """T_max of its policy's evaluation, given the configured one."""
        return max_turns

    # --- reward -------------------------------------------------------------------------------

    @abstractmethod
    def reward(self, scored: Sequence[ScoredTurn]) -> Sequence[Reward]:
        """[T] the method's reward of each turn of one trajectory."""

    @abstractmethod
    def returns(self, rewards: Sequence[Sequence[Reward]]) -> list[float]:
        """[G] one return per trajectory, for logs and, mostly, for credit."""

    # --- credit -------------------------------------------------------------------------------

    @property
    def samples_per_problem(self) -> int:
        """Optimised sequences per problem, which sizes the optimizer step."""
        return self.group_size

    def credit(self, group: Group) -> list[Sample]:
        """The optimised sequences of one group, with their advantages.

        By default the last completion of each trajectory, with its group-relative advantage.

        Returns:
            At most ``samples_per_problem`` samples; missing ones count with a loss of 0 in the
            mean over an optimizer step.
        """
        advantages = group_advantages(group.returns, self.scale_rewards)
        return [
            sample_of(trajectory.turns[-1], group.problem, advantage)
            for trajectory, advantage in zip(group.trajectories, advantages, strict=True)
        ]


@dataclass(frozen=True, kw_only=True)
class Baseline(Recipe):
    """A method without a self-check: neutral prompts, and the last answer's reward as return."""

    reward_kind: BaselineReward = "binary_fmt"
    """``binary_fmt``: 1 for a correct answer, plus ``weights.fmt`` times its format score;
    ``binary``: without the format; ``solve``: SVR's solve reward and the format, with ``weights``
    and ``length_scale``."""

    @property
    def dialogue(self) -> Dialogue:
        """The neutral prompts."""
        return PlainRefinement()

    def evaluated_turns(self, max_turns: int) -> int:
        """One: the first response is the answer."""
        return 1

    def reward(self, scored: Sequence[ScoredTurn]) -> Sequence[Reward]:
        """The reward of each turn, by ``reward_kind``."""
        return baseline_rewards(scored, self.reward_kind, self.weights, self.length_scale)

    def returns(self, rewards: Sequence[Sequence[Reward]]) -> list[float]:
        """[G] the reward of each trajectory's last turn."""
        return [turns[-1].total for turns in rewards]


@dataclass(frozen=True, kw_only=True)
class MultiTurn(Baseline):
    """A baseline whose trajectories are chains of a fixed number of turns."""

    horizon: Count = 3
    """Turns per trajectory."""

    def evaluated_turns(self, max_turns: int) -> int:
        """As configured: it refines."""
        return max_turns

    @property
    def samples_per_problem(self) -> int:
        """Every turn of every trajectory, each as a separate sequence; a method may use fewer."""
        return self.group_size * self.horizon


def rewards_of(recipe: Recipe, scored: Sequence[ScoredTurn]) -> Sequence[Reward]:
    """[T] the rewards of the turns of one trajectory: the recipe's, or its ``custom_reward``'s.

    Raises:
        ConfigError: if they are not one finite reward for each turn.
    """
    place = f"{type(recipe).__name__}.reward"
    reward: RewardFunction = recipe.reward
    if recipe.custom_reward is not None:
        place, reward = f"{PLACE}.custom_reward", recipe.custom_reward
    given = reward(scored)
    if not isinstance(given, Sequence) or len(given) != len(scored):
        returned = f"{len(given)} rewards" if isinstance(given, Sequence) else type(given).__name__
        raise ConfigError(f"{place} returned {returned} for {len(scored)} turns; return one each")
    rewards = [Reward.of(reward=r) if isinstance(r, int | float) else r for r in given]
    for t, value in enumerate(rewards, start=1):
        message = f"{place} returned {value!r:.80} for turn {t}; return a finite number or a Reward"
        require(isinstance(value, Reward) and _is_finite(value), one_line(message))
    if recipe.soft_max_length is None:
        return rewards
    limits = recipe.soft_max_length, recipe.soft_cache_length
    return [
        value.plus(long_output=soft_overlong(turn.completion_tokens, *limits))
        for value, turn in zip(rewards, scored, strict=True)
    ]


def _is_finite(reward: Reward) -> bool:
    try:
        return math.isfinite(reward.total)
    except (TypeError, OverflowError):  # a term is no number, or one too large for a float
        return False


def sample_of(
    turn: Turn, problem: Problem, advantage: float, text_span: tuple[int, int] | None = None
) -> Sample:
    """A turn's completion as an optimised sequence."""
    completion = turn.sampled
    return Sample(
        prompt_ids=completion.prompt_ids,
        completion_ids=completion.token_ids,
        logprobs=completion.logprobs,
        advantage=advantage,
        group_id=problem.id,
        policy_version=completion.policy_version,
        text_span=text_span,
    )
