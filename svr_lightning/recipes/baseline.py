"""What the methods without a self-check share: the neutral prompts and the answer's reward."""

from collections.abc import Sequence
from dataclasses import dataclass

from svr_lightning.core.rewards import BaselineReward, Reward, baseline_rewards
from svr_lightning.core.types import ScoredTurn
from svr_lightning.recipes.base import Recipe
from svr_lightning.recipes.dialogues import Dialogue, Neutral


@dataclass(frozen=True, kw_only=True)
class Baseline(Recipe):
    """A method without a self-check."""

    reward_kind: BaselineReward = "binary_fmt"
    """``binary_fmt``: 1 for a correct answer, plus ``weights.fmt`` times its format score;
    ``binary``: without the format; ``solve``: SVR's solve reward and the format, with ``weights``
    and ``length_scale``."""

    def method_dialogue(self) -> Dialogue:
        """The neutral prompts."""
        return Neutral()

    def method_reward(self, scored: Sequence[ScoredTurn]) -> Sequence[Reward]:
        """What ``reward_kind`` says of each turn."""
        return baseline_rewards(scored, self.reward_kind, self.weights, self.length_scale)

    def returns(self, rewards: Sequence[Sequence[Reward]]) -> list[float]:
        """[G] the reward of each trajectory's last turn."""
        return [turns[-1].total for turns in rewards]
