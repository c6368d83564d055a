"""What a training method is: how it rolls out, rewards, credits, and weighs tokens.

Everything else is shared. To add a method, write one file with one dataclass that has these four
slots; nothing outside the file needs to know its name, since a configuration names its class.
"""

from abc import ABC, abstractmethod
from collections.abc import Generator, Sequence
from typing import Any

from svr_lightning.core.losses import LossSpec
from svr_lightning.core.rewards import TurnReward
from svr_lightning.core.types import (
    AnyCompletion,
    Message,
    Problem,
    Sample,
    ScoredTurn,
    Trajectory,
)

Asked = list[list[Message]]
"""Prompts that a program wants completed before it goes on."""

Program = Generator[Asked, Sequence[AnyCompletion], Any]
"""One rollout in the making: yields prompts, receives their completions in order, returns its
result. Being a generator it knows nothing of engines, so it can be tested with a list of texts."""


class Recipe(ABC):
    """A training method."""

    group_size: int
    """G, the number of trajectories per problem."""
    horizon: int
    """T_tr, the number of turns of every training trajectory."""
    loss: LossSpec
    """How the policy loss weighs tokens."""

    @property
    @abstractmethod
    def samples_per_problem(self) -> int:
        """Optimised sequences per problem, which sizes the optimizer step."""

    @abstractmethod
    def programs(self, problem: Problem) -> list[Program]:
        """The rollout of one problem: programs that return a :class:`Trajectory` each."""

    @abstractmethod
    def reward(self, scored: Sequence[ScoredTurn]) -> list[TurnReward]:
        """[T] the reward breakdown of each turn of one trajectory."""

    @abstractmethod
    def returns(self, rewards: Sequence[Sequence[TurnReward]]) -> list[float]:
        """[G] one return per trajectory; a group whose returns are all equal is degenerate."""

    @abstractmethod
    def credit(
        self, trajectories: Sequence[Trajectory], rewards: Sequence[Sequence[TurnReward]]
    ) -> list[Sample]:
        """Who learns from one group, and with what advantage."""
