"""What a recipe refuses before a run begins, in one line that names the option."""

from typing import Any

import pytest

from svr_lightning.core.losses import LossSpec
from svr_lightning.core.rewards import RewardWeights
from svr_lightning.errors import ConfigError
from svr_lightning.recipes.base import Recipe
from svr_lightning.recipes.grpo import GRPO
from svr_lightning.recipes.igrpo import IGRPO
from svr_lightning.recipes.mlmt_rl import MLMTRL
from svr_lightning.recipes.oracle import Oracle
from svr_lightning.recipes.scrpo import ScRPO
from svr_lightning.recipes.svr import SVR


@pytest.mark.parametrize(
    ("recipe", "options", "message"),
    [
        (SVR, {"horizon": 0}, "horizon=0 must be at least 1"),
        (SVR, {"length_scale": 0}, "length_scale=0 must be at least 1"),
        (SVR, {"group_size": 1}, "group_size=1 leaves nobody to compare with"),
        (SVR, {"loss": LossSpec(beta=-0.08)}, "loss.beta=-0.08 must not be negative"),
        (SVR, {"loss": LossSpec(clip_eps=0.0)}, "loss.clip_eps=0.0 must be above 0"),
        (SVR, {"loss": LossSpec(clip_eps_high=-1.0)}, "loss.clip_eps_high=-1.0 must be above 0"),
        (SVR, {"weights": RewardWeights(alpha=3.0)}, "weights.alpha=3.0 must lie in [0, 1]"),
        (GRPO, {"soft_cache_length": 0}, "soft_cache_length=0 must be at least 1"),
        (GRPO, {"optimised": 0}, "optimised=0 must be at least 1"),
        (IGRPO, {"drafts": 0}, "drafts=0 must be at least 1"),
        (MLMTRL, {"horizon": 4}, "horizon=4 must be odd"),
        (Oracle, {"horizon": -2}, "horizon=-2 must be at least 1"),
        (ScRPO, {"min_variance": 0.3}, "min_variance=0.3 must lie in [0, 0.25]"),
        (ScRPO, {"min_variance": float("nan")}, "min_variance=nan must lie in [0, 0.25]"),
    ],
)
def test_an_option_out_of_range_is_named(
    recipe: type[Recipe], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError) as raised:
        recipe(**options).check()
    assert str(raised.value).startswith(f"model.recipe.init_args.{message}")
