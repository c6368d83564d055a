"""What the methods without a self-check share: reward, prompts, chains of a fixed length."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from svr_lightning.core import baseline_prompts
from svr_lightning.core.credit import RewardScale
from svr_lightning.core.losses import LossSpec
from svr_lightning.core.rewards import BaselineReward, Reward, RewardWeights, baseline_rewards
from svr_lightning.core.stopping import StopRule
from svr_lightning.core.types import (
    AnyCompletion,
    DraftState,
    Message,
    Problem,
    Sample,
    ScoredTurn,
    Trajectory,
    Turn,
)
from svr_lightning.recipes.base import Group, PromptRequest, Recipe, RolloutFn, sample_of
from svr_lightning.recipes.chain import ProbabilityOf
from svr_lightning.tasks import get_task
from svr_lightning.tasks.base import Task

LossTurns = Literal["final", "all"]
"""Which completions of a trajectory are optimised."""


@dataclass(frozen=True, kw_only=True)
class Baseline(Recipe):
    """A method without a self-check. Left as it is, later turns get the neutral prompt."""

    reward_kind: BaselineReward = "binary_fmt"
    """``binary_fmt``: 1 for a correct answer, plus ``weights.fmt`` times its format score;
    ``binary``: without the format; ``solve``: SVR's solve reward and the format."""
    length_scale: int = 1024
    """L_len of ``reward_kind: solve``, in tokens."""
    weights: RewardWeights = field(default_factory=RewardWeights)
    """Coefficients of ``reward_kind: solve``, and the format weight."""
    scale_rewards: RewardScale = "group"
    """``group`` divides advantages by the group's standard deviation, ``none`` does not."""
    loss: LossSpec = field(default_factory=LossSpec)
    """Ratio level, clip range and KL coefficient."""

    def reward(self, scored: Sequence[ScoredTurn]) -> list[Reward]:
        """What ``reward_kind`` says of each turn."""
        return baseline_rewards(scored, self.reward_kind, self.weights, self.length_scale)

    def returns(self, rewards: Sequence[Sequence[Reward]]) -> list[float]:
        """[G] the reward of each trajectory's last turn."""
        return [turns[-1].total for turns in rewards]

    def degenerate(self, group: Group) -> bool:
        """Whether no sample has an advantage."""
        return not any(sample.advantage for sample in self.credit(group))

    def formats(self, task: Task, text: str) -> tuple[float, float]:
        """The task's format score; there is no self-check to score."""
        return task.format_score(text), 0.0

    def first_messages(self, problem: Problem) -> list[Message]:
        """The question, under a system message that asks for no self-check."""
        return baseline_prompts.first_turn(get_task(problem.task).style, problem.question)

    def later_messages(
        self, problem: Problem, turns: Sequence[Turn]
    ) -> list[Message] | PromptRequest:
        """The prompt that follows ``turns``."""
        style = get_task(problem.task).style
        return baseline_prompts.neutral(
            style, problem.question, draft_of(turns[-1]), turns[-1].index + 1
        )

    def protocol(self, max_turns: int, rule: StopRule | None) -> tuple[int, StopRule | None]:
        """All turns, the last one returned: nothing in a response says that it is good enough."""
        return max_turns, None

    def inference(
        self,
        problem: Problem,
        sample: int,
        max_turns: int,
        rule: StopRule | None = None,
        on_turn: Callable[[Turn], None] | None = None,
        probability_of: ProbabilityOf | None = None,
    ) -> RolloutFn:
        """``max_turns`` turns, in training as in evaluation."""
        turns: list[Turn] = []
        messages: list[Message] | PromptRequest = self.first_messages(problem)
        while True:
            (completion,) = yield [messages]
            turns.append(turn_of(completion, len(turns) + 1))
            if on_turn is not None:
                on_turn(turns[-1])
            if len(turns) == max_turns:
                return Trajectory(problem=problem, sample=sample, turns=tuple(turns))
            messages = self.later_messages(problem, turns)


def turn_of(completion: AnyCompletion, index: int) -> Turn:
    """A completion as turn ``index``, from 1."""
    return Turn(index=index, completion=completion, check=None)


def node(problem: Problem, sample: int, turn: Turn, parent: Trajectory | None = None) -> Trajectory:
    """A tree's node: a trajectory of one turn that goes on from ``parent``."""
    number = None if parent is None else parent.sample
    return Trajectory(problem=problem, sample=sample, turns=(turn,), parent=number)


def draft_of(turn: Turn) -> DraftState:
    """What the next prompt may know of a turn."""
    return DraftState(draft=turn.completion.text, truncated=turn.completion.truncated)


def learns(turn: Turn, horizon: int, which: LossTurns) -> bool:
    """Whether a turn of trajectories of ``horizon`` turns is optimised."""
    return which == "all" or turn.index == horizon


def turns_learned(horizon: int, which: LossTurns) -> int:
    """How many turns of such a trajectory are optimised."""
    return horizon if which == "all" else 1


def trajectory_samples(group: Group, advantages: Sequence[float], which: LossTurns) -> list[Sample]:
    """Every turn of each trajectory, or the last one, with the trajectory's advantage."""
    return [
        sample_of(turn, group.problem, advantage)
        for trajectory, advantage in zip(group.trajectories, advantages, strict=True)
        for turn in trajectory.turns
        if learns(turn, len(trajectory.turns), which)
    ]
