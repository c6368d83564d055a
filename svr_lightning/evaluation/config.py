"""The settings of evaluation (``model.evaluation``)."""

from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

from msgspec import Meta

from svr_lightning.analysis.results import applied_limit
from svr_lightning.core.ranges import Count, NotNegative, WholeNumber, check_fields, require_field
from svr_lightning.core.stopping import DEFAULT_TURNS, Confident, StopRule
from svr_lightning.core.types import LEAST_TEMPERATURE, Decoding
from svr_lightning.errors import require
from svr_lightning.recipes.base import Recipe
from svr_lightning.recipes.dialogues import Dialogue, FreshTurns


class Protocol(NamedTuple):
    """How trajectories of one policy are prompted and ended in an evaluation."""

    dialogue: Dialogue
    max_turns: int
    """T_max."""
    rule: StopRule | None
    """The stopping rule, also if every turn is recorded; None where none applies."""
    adaptive: bool
    """False records every turn, so that any rule can be replayed."""

    @property
    def applied_rule(self) -> StopRule | None:
        """What ends a trajectory before T_max; None if nothing does."""
        return self.rule if self.adaptive else None


@dataclass(frozen=True, kw_only=True)
class EvaluationConfig:
    """How validation, test and predict run a policy."""

    max_turns: Count = DEFAULT_TURNS
    """T_max, the most turns of a trajectory."""
    stop: StopRule | None = None
    """When a trajectory ends, by class path: see docs/stopping.md. None takes the rule of the
    certificate in the policy's folder (``operating_point.json``), and without one the paper's."""
    adaptive: bool = True
    """False runs every turn and returns the last one, so that any rule can be replayed."""
    fresh_turns: bool = False
    """Every turn answers the first prompt again and sees no draft, so that turns are independent
    samples. Needs a temperature."""
    max_completion_tokens: Count | None = None
    """Lowers the completion limit of every data set, which is ``max_completion_tokens`` of its
    data source, else that of its task. Training has ``model.sampling.max_completion_tokens``."""
    temperature: NotNegative = 0.0
    """0 is greedy decoding."""
    top_p: Annotated[float, Meta(gt=0, le=1)] = 1.0
    """Nucleus mass, if the temperature is above 0."""
    top_k: WholeNumber = 0
    """Candidates per token, if the temperature is above 0; 0 keeps all."""
    greedy_check: bool = False
    """Draw solutions at ``temperature``, but decode self-checks greedily: a drawn verdict is only
    one sample of what the policy believes. ``auroc_first_turn`` then measures its likeliest one."""
    grader: Literal["paper", "symbolic"] = "paper"
    """What counts as correct: the paper's rule, or mathematical equality. Training rewards are
    always the paper's."""

    def __post_init__(self) -> None:
        check_fields(self)
        drawn = self.temperature == 0 or self.temperature >= LEAST_TEMPERATURE
        require_field(self, "temperature", drawn, "must be 0, or at least 0.01")
        require(
            self.temperature > 0 or not self.fresh_turns,
            "model.evaluation.fresh_turns at temperature=0: all turns would be the same; set "
            "model.evaluation.temperature",
        )
        require(
            self.temperature > 0 or not self.greedy_check,
            "model.evaluation.greedy_check at temperature=0: all tokens are greedy already; set "
            "model.evaluation.temperature",
        )
        decoding = Decoding(temperature=self.temperature, top_p=self.top_p, top_k=self.top_k)
        require(
            not (decoding.restricted and self.full_rule.needs_tokens),
            f"model.evaluation.stop={self.full_rule} with top_p={self.top_p}, top_k={self.top_k}: "
            "vLLM reports log-probabilities of the restricted distribution; leave both out",
        )

    @property
    def full_rule(self) -> StopRule:
        """The configured stopping rule, also if every turn is recorded."""
        return self.stop or Confident()

    def resolve(self, recipe: Recipe) -> "Protocol":
        """How the policy of a recipe is evaluated; even a single-turn one may have fresh turns.

        Nothing else decides what ends a trajectory.
        """
        dialogue = recipe.dialogue
        rule = dialogue.applied_rule(self.full_rule)
        if self.fresh_turns:
            return Protocol(FreshTurns(dialogue), self.max_turns, rule, self.adaptive)
        return Protocol(dialogue, recipe.evaluated_turns(self.max_turns), rule, self.adaptive)

    def decoding(self, task: str, max_completion_tokens: int | None = None) -> Decoding:
        """How completions are drawn.

        Args:
            task: whose completion limit holds if the data set has none of its own.
            max_completion_tokens: the data set's limit. ``max_completion_tokens`` of this
                configuration bounds both.
        """
        return Decoding(
            max_completion_tokens=applied_limit(
                task, max_completion_tokens, self.max_completion_tokens
            ),
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
        )
