"""A run that is resumed with another seed, other problems or another method says so."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from svr_lightning.core.losses import LossSpec
from svr_lightning.recipes.svr import SVR
from svr_lightning.recipes.svr_plus import SVRPlus
from svr_lightning.training.config import (
    EvaluationConfig,
    OptimizerConfig,
    ReferenceConfig,
    SamplingConfig,
)
from svr_lightning.training.identity import identity_of, warn_of_changes
from svr_lightning.training.sources import DataSource
from tests.small_fit import data, module, trainer

RECIPE, POLICY = module().recipe, module().policy_config
Settings = dict[str, Any]


def train(limit: int) -> DataSource:
    return DataSource(name="train", task="countdown", path="embedded:countdown-tiny", limit=limit)


def identity(of_model: Settings, of_data: Settings) -> dict[str, str]:
    return identity_of(module(**of_model), data(**of_data))


def told(said: pytest.WarningsRecorder) -> list[str]:
    """The warnings about what a resumed run is not."""
    messages = [str(warning.message) for warning in said]
    return [message for message in messages if "not equal an uninterrupted one" in message]


@pytest.mark.parametrize(
    ("of_model", "of_data", "said"),
    [
        ({"seed": 4}, {"seed": 4}, ["seed_everything=4, but the checkpoint was saved with 3: "]),
        ({}, {"seed": 4}, ["seed_everything=3, 4, but the checkpoint was saved with 3: "]),
        ({}, {"train": train(10)}, ["data.train=10 problems with sha256 "]),
        ({"resample": "top_up"}, {}, ["model.resample=top_up, "]),
        (
            {"policy": replace(POLICY, max_prompt_tokens=300)},
            {},
            ["model.policy.max_prompt_tokens=300, but"],
        ),
        ({"reference": ReferenceConfig(every=3)}, {}, ["model.reference.every=3, but"]),
        ({"sampling": SamplingConfig(max_completion_tokens=60)}, {}, [".max_completion_tokens=60"]),
        (
            {"recipe": replace(RECIPE, loss=LossSpec(beta=0.2), horizon=1)},
            {},
            ["model.recipe.horizon=1, but", "model.recipe.loss.beta=0.2, but"],
        ),
        (
            {"recipe": SVRPlus(**vars(RECIPE))},
            {},
            ["model.recipe=svr_lightning.recipes.svr_plus.SVRPlus, but the checkpoint was saved "
             "with svr_lightning.recipes.svr.SVR: "],
        ),
    ],
)  # fmt: skip
def test_each_difference_is_one_warning(
    recwarn: pytest.WarningsRecorder, of_model: Settings, of_data: Settings, said: list[str]
) -> None:
    warn_of_changes(identity({}, {}), identity(of_model, of_data))
    found = sorted(told(recwarn))
    assert len(found) == len(said)
    assert all(part in message for part, message in zip(said, found, strict=True))


def test_rates_lengths_and_places_may_change() -> None:
    of_model = {
        "optimizer": OptimizerConfig(lr=1e-4),
        "evaluation": EvaluationConfig(max_turns=1, max_completion_tokens=8),
        "micro_batch_size": 4,
    }
    assert identity(of_model, {"val": [], "eval_batch_size": 1}) == identity({}, {})


def test_a_run_resumed_with_another_seed_says_so_and_goes_on(
    tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    keep = ModelCheckpoint(tmp_path, "{step}", every_n_train_steps=1, save_top_k=-1)
    trainer(tmp_path, keep, max_steps=1, enable_checkpointing=True).fit(module(), data())
    path = tmp_path / "step=1.ckpt"
    saved = torch.load(path, weights_only=True)
    del saved["loops"]["fit_loop"]["state_dict"]["identity"]
    torch.save(saved, tmp_path / "earlier_version.ckpt")
    for resumed, seed, warnings in (
        (path, 3, 0),
        (tmp_path / "earlier_version.ckpt", 4, 0),
        (path, 4, 1),
    ):
        run = trainer(tmp_path, max_steps=2)
        run.fit(module(seed=seed), data(seed=seed), ckpt_path=resumed)
        assert run.global_step == 2
        assert len(told(recwarn)) == warnings


def test_a_function_of_the_users_own_is_identified_by_its_name() -> None:
    def own() -> dict[str, str]:
        recipe = SVR(custom_reward=train)
        return identity_of(module(recipe=recipe), data())

    assert own() == own()
    assert own()["model.recipe.custom_reward"] == f"{__name__}.train"
