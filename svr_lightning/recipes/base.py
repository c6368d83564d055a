"""What a training method is: how it rolls out, rewards, credits, and weighs tokens.

Everything else is shared. To add a method, write one file with one dataclass that fills these
slots; nothing outside the file needs to know its name, since a configuration names its class.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from svr_lightning.core.credit import is_degenerate
from svr_lightning.core.losses import LossSpec
from svr_lightning.core.rewards import Reward
from svr_lightning.core.seeds import START, SeedContext
from svr_lightning.core.stopping import StopRule
from svr_lightning.core.types import (
    AnyCompletion,
    Message,
    Problem,
    Sample,
    ScoredTurn,
    Trajectory,
    Turn,
)
from svr_lightning.recipes.chain import ProbabilityOf, refinement_chain
from svr_lightning.recipes.options import check_options
from svr_lightning.scoring import svr_formats
from svr_lightning.tasks import get_task
from svr_lightning.tasks.base import Task
from svr_lightning.tasks.messages import first_turn_messages

T = TypeVar("T")


class PromptRequest(NamedTuple):
    """A prompt whose completion has a limit of its own, in tokens, where that is the lower one."""

    messages: list[Message]
    max_completion_tokens: int


PromptRequests = Sequence[list[Message] | PromptRequest]
"""Prompts that a program wants completed before it goes on."""

RolloutFn = Generator[PromptRequests, Sequence[AnyCompletion], Any]
"""One rollout in the making: yields prompts, receives their completions in order, returns its
result. Being a generator it knows nothing of engines, so it can be tested with a list of texts."""

Gather = Callable[[Sequence[T]], list[T]]
"""The values of all processes, in the same order on each; every process has to call it."""


@dataclass(frozen=True, kw_only=True)
class Group:
    """The trajectories of one problem, their labels and what they earned."""

    problem: Problem
    trajectories: tuple[Trajectory, ...]
    scored: tuple[tuple[ScoredTurn, ...], ...]
    rewards: tuple[tuple[Reward, ...], ...]
    returns: tuple[float, ...]
    attempt: int
    place: SeedContext = START
    """Where its draws come from."""
    samples: tuple[Sample, ...] = ()
    """The sequences that learn, with their advantages; empty until the group is credited."""
    degenerate: bool = False
    """Nothing to learn from but the KL term, by the lights of its recipe."""


class Recipe(ABC):
    """A training method."""

    group_size: int
    """G, the number of trajectories per problem."""
    loss: LossSpec
    """How the policy loss weighs tokens."""

    def check(self, updates_per_rollout: int = 1) -> None:
        """Refuse options that are out of range, and a run that the method cannot be part of.

        Not done on construction, since the command line would take an error there for another type.

        Raises:
            ConfigError: naming one.
        """
        check_options(self)

    # --- training -----------------------------------------------------------------------------

    @property
    @abstractmethod
    def samples_per_problem(self) -> int:
        """Optimised sequences per problem, which sizes the optimizer step."""

    @abstractmethod
    def programs(self, problem: Problem, place: SeedContext = START) -> list[RolloutFn]:
        """The rollout of one problem: programs that return one trajectory each, or a list of them.

        Args:
            problem: what to solve.
            place: seeds what programs draw themselves.
        """

    @abstractmethod
    def reward(self, scored: Sequence[ScoredTurn]) -> Sequence[Reward]:
        """[T] the reward breakdown of each turn of one trajectory."""

    @abstractmethod
    def returns(self, rewards: Sequence[Sequence[Reward]]) -> list[float]:
        """[G] one return per trajectory, for logs and, mostly, for credit."""

    @abstractmethod
    def credit(self, group: Group) -> list[Sample]:
        """Who learns from one group, and with what advantage.

        Returns:
            At most ``samples_per_problem`` samples; where there are fewer, the rest counts in the
            mean over an optimizer step with a loss of 0.
        """

    def degenerate(self, group: Group) -> bool:
        """Whether a group teaches nothing, so that resampling may replace it."""
        return is_degenerate(group.returns)

    def formats(self, task: Task, text: str) -> tuple[float, float]:
        """r_taskfmt and r_scfmt of a completion."""
        return svr_formats(task, text)

    # --- evaluation ---------------------------------------------------------------------------

    @property
    def uses_labels(self) -> bool:
        """Whether its prompts show labels, in evaluation too. Results say so wherever they are."""
        return False

    def first_messages(self, problem: Problem) -> list[Message]:
        """The prompt of turn 1."""
        return first_turn_messages(get_task(problem.task), problem)

    def protocol(self, max_turns: int, rule: StopRule | None) -> tuple[int, StopRule | None]:
        """How many turns evaluation may take and what ends it early, of what is configured."""
        return max_turns, rule

    def inference(
        self,
        problem: Problem,
        sample: int,
        max_turns: int,
        rule: StopRule | None = None,
        on_turn: Callable[[Turn], None] | None = None,
        probability_of: ProbabilityOf | None = None,
    ) -> RolloutFn:
        """One trajectory of evaluation, under what ``protocol`` says; its last turn counts."""
        return refinement_chain(problem, sample, max_turns, rule, on_turn, probability_of)

    # --- state: only methods that learn from earlier rollouts have any ------------------------

    def batch(self, problems: Sequence[Problem], place: SeedContext) -> list[Problem]:
        """The problems that a rollout is about, as many as the data bring."""
        return list(problems)

    def remember(self, groups: Sequence[Group], step: int, gather: Gather[Any]) -> None:
        """Keep what later rollouts need, equally on all processes."""
        return

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint has to keep, in plain values."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take it back."""
        return


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
