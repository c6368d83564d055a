"""The settings of evaluation (``model.evaluation``)."""

from dataclasses import dataclass, fields
from typing import Literal

from svr_lightning.core.stopping import DEFAULT_THRESHOLD, StopRule, StopSettings
from svr_lightning.errors import require
from svr_lightning.rollout.driver import Decoding
from svr_lightning.tasks import get_task


@dataclass(frozen=True, kw_only=True)
class EvaluationConfig(StopSettings):
    """How validation, test and predict run a policy."""

    max_turns: int = 10
    """T_max."""
    threshold: float | None = None
    """gamma: the confidence that a CORRECT verdict needs to stop. None takes the policy's own,
    ``operating_point.json`` in its folder, and without one the paper's 0.85."""
    adaptive: bool = True
    """False runs every turn and returns the last one (fixed-budget inference)."""
    votes: int = 0
    """Above 0, ``test`` samples as many single-turn solutions per problem instead and leaves them
    in ``eval/votes/votes.jsonl`` for majority voting."""
    max_completion_tokens: int | None = None
    """Lowers the completion limit of every data set, which is ``max_completion_tokens`` of its
    data source, else that of its task. Training has ``model.sampling.max_completion_tokens``."""
    temperature: float = 0.0
    """0 is greedy decoding."""
    top_p: float = 1.0
    """Nucleus mass, if the temperature is above 0."""
    top_k: int = 0
    """Candidates per token, if the temperature is above 0; 0 keeps all."""
    grader: Literal["paper", "symbolic"] = "paper"
    """What counts as correct: the paper's rule, or mathematical equality. Training rewards are
    always the paper's."""

    def __post_init__(self) -> None:
        for name in ("threshold", "agreement_threshold"):
            value = getattr(self, name)
            require(
                value is None or 0 <= value <= 1,
                f"model.evaluation.{name}={value} must lie in [0, 1]; the paper's threshold is "
                f"{DEFAULT_THRESHOLD}",
            )
        require(
            self.max_turns >= 1, f"model.evaluation.max_turns={self.max_turns} must be at least 1"
        )
        require(
            self.temperature >= 0,
            f"model.evaluation.temperature={self.temperature} must not be negative",
        )
        require(0 < self.top_p <= 1, f"model.evaluation.top_p={self.top_p} must lie in (0, 1]")
        require(self.top_k >= 0, f"model.evaluation.top_k={self.top_k} must not be negative")
        require(
            self.max_completion_tokens is None or self.max_completion_tokens > 0,
            f"model.evaluation.max_completion_tokens={self.max_completion_tokens} must be positive",
        )
        require(
            self.votes == 0 or (self.votes > 0 and self.temperature > 0),
            f"model.evaluation.votes={self.votes} at temperature={self.temperature}: votes must "
            "not be negative, and need a temperature above 0 to differ; the paper's is 0.6",
        )

    @property
    def full_rule(self) -> StopRule:
        """The configured stopping rule, also if every turn is recorded."""
        settings = {field.name: getattr(self, field.name) for field in fields(StopSettings)}
        threshold = DEFAULT_THRESHOLD if self.threshold is None else self.threshold
        return StopRule(threshold=threshold, **settings)

    @property
    def rule(self) -> StopRule | None:
        """The stopping rule; None if every turn is recorded."""
        return self.full_rule if self.adaptive else None

    def decoding(self, task: str, max_completion_tokens: int | None = None) -> Decoding:
        """How completions are drawn.

        Args:
            task: whose completion limit holds if the data set has none of its own.
            max_completion_tokens: the data set's limit. ``max_completion_tokens`` of this
                configuration bounds both.
        """
        limit = max_completion_tokens or get_task(task).max_completion_tokens
        if self.max_completion_tokens is not None:
            limit = min(limit, self.max_completion_tokens)
        return Decoding(
            max_completion_tokens=limit,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
        )
