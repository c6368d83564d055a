"""What a training draws where groups teach nothing."""

from collections.abc import Collection
from dataclasses import fields
from pathlib import Path

from svr_lightning.core.rewards import RewardWeights
from svr_lightning.core.types import Problem
from svr_lightning.recipes.svr import SVR
from svr_lightning.training.data import SVRDataModule
from tests import small_fit

NOTHING = RewardWeights(**{field.name: 0.0 for field in fields(RewardWeights)})


class Noting(SVRDataModule):
    """Keeps the seeds of all draws."""

    seeds: list[int]

    def fresh_problems(
        self, seed: int, count: int, exclude_ids: Collection[str] = ()
    ) -> list[Problem]:
        self.seeds.append(seed)
        return super().fresh_problems(seed, count, exclude_ids)


def test_every_attempt_of_every_step_draws_anew(tmp_path: Path) -> None:
    recipe = SVR(group_size=2, horizon=1, weights=NOTHING)  # so that every group is degenerate
    module = small_fit.module(recipe=recipe, resample="batch")
    source = small_fit.data().sources["train"][0]
    data = Noting(train=source, problems_per_step=2)
    data.seeds = []
    small_fit.trainer(tmp_path, max_steps=2).fit(module, data)
    assert len(set(data.seeds)) == len(data.seeds) == 2 * 2
