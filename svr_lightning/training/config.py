"""What a configuration file may say about the model's side of a run.

Every field's docstring is its help text. Values are checked when an object is made, so that a
wrong one ends the run before anything is loaded.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

from msgspec import Meta

from svr_lightning.core.ranges import (
    Checked,
    Endless,
    NotNegative,
    Positive,
    Share,
    WholeNumber,
    check_fields,
    require_field,
)
from svr_lightning.core.types import LEAST_TEMPERATURE, Decoding
from svr_lightning.errors import require
from svr_lightning.evaluation.config import EvaluationConfig as EvaluationConfig
from svr_lightning.recipes.base import PLACE, Recipe

Decay = Annotated[float, Meta(ge=0, lt=1)]


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """AdamW under a warmup-stable-decay schedule, on clipped gradients."""

    lr: Positive = 4e-8
    """Peak learning rate."""
    weight_decay: NotNegative = 0.1
    """Not applied to norms and biases."""
    betas: tuple[Decay, Decay] = (0.9, 0.95)
    """AdamW's moment decays."""
    gradient_clip_val: Endless | None = 2.0
    """Largest 2-norm of a step's gradient; a longer one is scaled to it. None clips nothing."""
    warmup_fraction: Share = 0.05
    """Share of the optimizer steps with linear warm-up."""
    decay_fraction: Share = 0.20
    """Share of the optimizer steps with linear decay."""
    floor: Share = 0.05
    """Where the decay ends, as a share of the peak."""

    def __post_init__(self) -> None:
        check_fields(self)
        require_field(
            self,
            "warmup_fraction",
            self.warmup_fraction + self.decay_fraction <= 1,
            f"and decay_fraction={self.decay_fraction} must add up to at most 1",
        )


@dataclass(frozen=True, kw_only=True)
class ReferenceConfig(Checked):
    """How the reference follows the policy: ref = (1 - mix) ref + mix policy, now and then."""

    mix: Share = 0.6
    """Weight of the policy."""
    every: WholeNumber = 40
    """Optimizer steps between two mixes; 0 keeps the reference where it began."""
    dtype: Literal["bfloat16"] | None = None
    """Type of the reference's weights. bfloat16 halves their memory where the policy's are fp32,
    and rounds its log-probabilities and each mix. None is the policy's own type."""


def check_sampling(recipe: Recipe, sampling: Decoding, updates: int) -> None:
    """Reject greedy rollouts, and importance weights under top-p or top-k.

    Raises:
        ConfigError: naming the setting.
    """
    drawn = sampling.temperature >= LEAST_TEMPERATURE
    require_field(sampling, "temperature", drawn, "must be at least 0.01 in training")
    level, top_p, top_k = recipe.loss.behaviour_correction, sampling.top_p, sampling.top_k
    for setting, off in (
        (f"model.updates_per_rollout={updates}", updates == 1),
        (f"{PLACE}.loss.behaviour_correction={level}", level == "off"),
    ):
        require(
            off or not sampling.restricted,
            f"{setting} needs probabilities of the policy that sampled, which model.sampling.top_p="
            f"{top_p}, top_k={top_k} cut off; set these to 1 and 0, or leave the other out",
        )
