"""TRL's own GRPOTrainer takes the optimizer step that this package's trainer takes."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from trl import GRPOTrainer

from examples import calibrate_with_trl, train_with_trl
from svr_lightning.core.losses import LossSpec
from svr_lightning.core.types import Decoding, Problem
from svr_lightning.engines.transformers import TransformersEngine
from svr_lightning.recipes.svr import SVR
from svr_lightning.recipes.svr_plus import SVRPlus
from svr_lightning.training.config import OptimizerConfig, ReferenceConfig
from tests import small_fit
from tests.tolerance import assert_same_first_step

GROUP, PROBLEMS, SEED, LR = 8, 2, 42, 1e-4


def our_step(folder: Path, recipe: SVR) -> tuple[small_fit.Remembering, list[Problem]]:
    module = small_fit.module(
        recipe=recipe,
        sampling=Decoding(temperature=0.9, max_completion_tokens=96),
        # A schedule of one step starts at the floor.
        optimizer=OptimizerConfig(lr=LR, weight_decay=0.1, betas=(0.9, 0.95), floor=1.0),
        reference=ReferenceConfig(every=0),
        seed=SEED,
    )
    small_fit.trainer(folder, max_steps=1).fit(module, small_fit.data(seed=SEED))
    return module, [group.problem for group in module.rollout.groups]


SETTINGS: Any = {"horizon": 3, "length_scale": 256, "group_size": GROUP, "loss": LossSpec(beta=0.1)}


@pytest.mark.parametrize(
    ("recipe", "kind"),
    [
        (SVR(**SETTINGS), GRPOTrainer),
        (SVRPlus(**SETTINGS, sections=False, proper=False), train_with_trl.TurnCredit),
    ],
    ids=["trajectory", "turn"],
)
def test_the_first_optimizer_step_is_ours(tmp_path, recipe, kind):
    module, problems = our_step(tmp_path, recipe)
    assert any(sample.advantage for group in module.rollout.groups for sample in group.samples)
    engine = TransformersEngine(max_batch=64)
    trainer = train_with_trl.make_trainer(
        problems, str(tmp_path), engine, kind, max_steps=1, seed=SEED, learning_rate=LR
    )
    trainer.train()
    length = 512 + 96
    assert_same_first_step(trainer.model, module, LR, length, PROBLEMS * GROUP * length)


def two_steps(capsys) -> list[str]:
    """What an example printed of its steps."""
    lines = [one for one in capsys.readouterr().out.splitlines() if one.startswith("step ")]
    assert [line.split("  ")[0] for line in lines] == ["step 1", "step 2"]
    return lines


@pytest.mark.parametrize("credit", ["trajectory", "turn"])
def test_the_documented_example_trains_with_trls_own_generation(monkeypatch, capsys, credit):
    monkeypatch.setattr(sys, "argv", ["train_with_trl.py", "--steps", "2", "--credit", credit])
    train_with_trl.main()
    two_steps(capsys)


def test_problems_that_trl_could_not_tell_apart_are_refused():
    twin = Problem(id="a", task="gsm8k", question="1 + 1 = ?", reference="2")
    with pytest.raises(ValueError, match="'a' and 'b' have the same prompt"):
        train_with_trl.SVRRollouts([twin, replace(twin, id="b", reference="3")])


SURE = "<answer>3+5</answer><self_check>VERDICT: CORRECT; CONFIDENCE: 0.9</self_check>"
WRONG = "<think><answer>3+5</answer></think>" + SURE.replace("3+5", "3*5")
UNSURE = SURE.replace("CORRECT", "UNSURE")


@pytest.mark.parametrize(
    ("reward", "earned"),
    [
        ("correct", [1, 0, 1, 1]),
        ("brier", [0.99, 0.19, 0.99, 0]),  # 1 - .01, 1 - .81
        ("log_score", [0.985, 2 / 3, 0.985, 0]),  # 1 + ln .9 / ln 1000, 1 + ln .1 / ln 1000
        # .5 * .99 + .3 * .9, .5 * .19 - .8 * .9, .5 * .99
        ("verification", [0.765, -0.625, 0.495, 0]),
    ],
)
def test_a_calibration_reward_scores_each_completion_by_hand(reward, earned):
    rows = calibrate_with_trl.dataset([{"nums": [3, 5], "target": 8}] * 4)
    written = [SURE, WRONG, UNSURE, "<answer>3+5</answer>"]
    chats = [[{"role": "assistant", "content": text}] for text in written]
    score = getattr(calibrate_with_trl, reward)
    columns = {name: rows[name] for name in ("prompt", "nums", "target")}
    for completions in (written, chats):
        assert score(completions, **columns) == pytest.approx(earned, abs=1e-3)


@pytest.mark.parametrize(("rule", "name"), [("brier", "brier"), ("svr", "verification")])
def test_the_documented_example_trains_with_calibration_rewards(monkeypatch, capsys, rule, name):
    monkeypatch.setattr(sys, "argv", ["calibrate_with_trl.py", "--steps", "2", "--reward", rule])
    calibrate_with_trl.main()
    assert all(name in line for line in two_steps(capsys))
