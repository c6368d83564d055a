"""TRL's own GRPOTrainer takes the optimizer step that this package's trainer takes."""

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from examples import train_with_trl
from svr_lightning.adapters.trl import SVRRollouts
from svr_lightning.core.types import Decoding, Problem
from svr_lightning.engines.transformers import TransformersEngine
from svr_lightning.errors import ConfigError
from svr_lightning.recipes.base import Group
from svr_lightning.recipes.svr import SVR
from svr_lightning.recipes.svr_plus import SVRPlus
from svr_lightning.training.config import (
    OptimizerConfig,
    PolicyConfig,
    ReferenceConfig,
)
from svr_lightning.training.data import SVRDataModule
from svr_lightning.training.module import SVRModule
from svr_lightning.training.sources import DataSource
from tests.small_fit import trainer as our_trainer
from tests.tolerance import assert_same_first_step

GROUP, PROBLEMS, SEED, LR = 8, 2, 42, 1e-4
SETTINGS = {"group_size": GROUP, "horizon": 3, "length_scale": 256}


class TurnOfTheProblem(SVRPlus):
    """The random-turn variant with one draw for all trajectories of a problem, as TRL needs it."""

    def drawn(self, group: Group, i: int) -> int:
        turns = len(group.trajectories[i].turns)
        return group.seeds.generator(group.problem.id, "turn").randrange(turns)


RECIPES = {
    "last": SVR(**SETTINGS),
    "random": TurnOfTheProblem(**SETTINGS, sections=False, proper=False),
}


def our_step(recipe: SVR, folder: Path) -> tuple[SVRModule, list[Problem]]:
    module = SVRModule(
        policy=PolicyConfig(max_prompt_tokens=512, max_model_len=1024),
        recipe=replace(recipe, loss=replace(recipe.loss, beta=0.1)),
        sampling=Decoding(temperature=0.9, max_completion_tokens=96),
        # A schedule of one step starts at the floor.
        optimizer=OptimizerConfig(lr=LR, weight_decay=0.1, betas=(0.9, 0.95), floor=1.0),
        reference=ReferenceConfig(every=0),
        resample="off",
        seed=SEED,
    )
    data = SVRDataModule(
        train=DataSource(name="train", task="countdown", path="embedded:countdown-tiny"),
        problems_per_step=PROBLEMS,
        seed=SEED,
    )
    our_trainer(folder, max_steps=1).fit(module, data)
    return module, [group.problem for group in module.groups]


def trl_step(problems: Sequence[Problem], folder: Path, **changes: Any) -> Any:
    rollouts = SVRRollouts(problems, SVR(**SETTINGS), max_prompt_tokens=512, **changes)
    trainer = train_with_trl.make_trainer(
        rollouts, str(folder), max_steps=1, seed=SEED, learning_rate=LR
    )
    trainer.train()
    return trainer


@pytest.mark.parametrize("turn", ["last", "random"])
def test_the_first_optimizer_step_is_ours(turn: str, tmp_path: Path) -> None:
    module, problems = our_step(RECIPES[turn], tmp_path)
    assert any(sample.advantage for group in module.groups for sample in group.samples)
    trainer = trl_step(problems, tmp_path, turn=turn, engine=TransformersEngine(max_batch=64))
    length = 512 + 96
    assert_same_first_step(trainer.model, module, LR, length, PROBLEMS * GROUP * length)


def test_the_documented_example_trains_with_trls_own_generation(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["train_with_trl.py", "--steps", "2", "--turn", "random"])
    train_with_trl.main()
    lines = [one for one in capsys.readouterr().out.splitlines() if one.startswith("step ")]
    assert [line.split("  reward")[0] for line in lines] == ["step 1", "step 2"]


def test_problems_that_trl_could_not_tell_apart_are_refused() -> None:
    twin = Problem(id="a", task="gsm8k", question="1 + 1 = ?", reference="2")
    with pytest.raises(ConfigError, match="'a' and 'b' have the same prompt"):
        SVRRollouts([twin, replace(twin, id="b", reference="3")])
