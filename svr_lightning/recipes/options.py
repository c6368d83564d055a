"""What any recipe needs of its options: a wrong one ends a run before anything is loaded."""

from dataclasses import fields
from typing import Any

from svr_lightning.core.losses import LossSpec
from svr_lightning.core.rewards import RewardWeights
from svr_lightning.errors import require

PLACE = "model.recipe.init_args"


def check_options(recipe: Any) -> None:
    """Hold a recipe's options to their ranges; every integer is a count.

    Raises:
        ConfigError: naming the first that is out of range.
    """
    for field in fields(recipe):
        value = getattr(recipe, field.name)
        if isinstance(value, LossSpec):
            _check_loss(value)
        elif isinstance(value, RewardWeights):
            check_range("weights.alpha", value.alpha, 0, 1)
        elif isinstance(value, int) and not isinstance(value, bool):
            _check_count(field.name, value)


def check_range(name: str, value: float, low: float, high: float) -> None:
    """Hold a number to [low, high].

    Raises:
        ConfigError: if it is outside, or not a number.
    """
    require(low <= value <= high, f"{PLACE}.{name}={value} must lie in [{low:g}, {high:g}]")


def _check_count(name: str, value: int) -> None:
    require(value >= 1, f"{PLACE}.{name}={value} must be at least 1")
    require(
        name != "group_size" or value >= 2,
        f"{PLACE}.group_size={value} leaves nobody to compare with; it must be at least 2",
    )


def _check_loss(loss: LossSpec) -> None:
    require(loss.beta >= 0, f"{PLACE}.loss.beta={loss.beta} must not be negative")
    for name in ("clip_eps", "clip_eps_high"):
        value = getattr(loss, name)
        require(
            value is None or value > 0, f"{PLACE}.loss.{name}={value} must be above 0 to learn by"
        )
