"""The fit loop: one rollout, then its optimizer steps."""

import fcntl
import logging
import math
import os
import warnings
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader

from svr_lightning.callbacks import BeforeAfter, HFExport
from svr_lightning.core.losses import LossSpec
from svr_lightning.core.schedule import warmup_stable_decay
from svr_lightning.core.types import Decoding, ScoredTurn
from svr_lightning.engines.base import Output
from svr_lightning.engines.transformers import TransformersEngine
from svr_lightning.errors import ConfigError
from svr_lightning.recipes.svr import SVR
from svr_lightning.recipes.svr_plus import SVRPlus
from svr_lightning.training.config import EvaluationConfig, OptimizerConfig, ReferenceConfig
from svr_lightning.training.data import SVRDataModule
from svr_lightning.training.logs import NOTHING_RIGHT, CSVLog, nothing_to_learn
from svr_lightning.training.sources import DataSource
from tests.commands import jsonl, logged, read_json, screen
from tests.small_fit import (
    data,
    module,
    policy,
    recipe,
    saver,
    tiny,
    trainer,
    turns_of,
)
from tests.tolerance import assert_same_first_step, of_logprobs, rounding

FIRST_STEP = {"lr": 1e-3 * warmup_stable_decay(0, total_steps=1), "length": 576, "tokens": 8 * 576}
"""Of :func:`tests.small_fit.module`: 8 sequences of at most 512 and 64 tokens."""


class Watch(Callback):
    """Notes which step each rollout was sampled at, and what was trained on."""

    def __init__(self) -> None:
        self.versions = []
        self.steps = []
        self.problems = []

    def on_train_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        (version,) = {turn.sampled.policy_version for turn in turns_of(pl_module)}
        self.versions.append(version)
        self.steps.append(trainer.global_step)
        self.problems.append(tuple(group.problem.id for group in batch.groups))


def test_each_rollout_is_sampled_by_the_weights_of_its_own_step(tmp_path):
    watch, model = Watch(), module(micro_batch_size=2)
    trainer(tmp_path, watch).fit(model, data())
    assert watch.steps == [*range(6)]  # 12 problems, 2 a step
    assert watch.versions == watch.steps
    assert len(set(watch.problems)) == 6
    model.configure_model()  # by another trainer, which counts its own steps: nothing is synced
    assert model.actor.synced is None


def test_several_updates_share_one_rollout(tmp_path):
    watch = Watch()
    run = trainer(tmp_path, watch)
    run.fit(module(updates_per_rollout=2, micro_batch_size=4), data())
    # 12 problems, 2 an optimizer step and 4 a rollout.
    assert run.global_step == 6
    assert watch.versions == watch.steps == [0, 2, 4]
    assert {len(problems) for problems in watch.problems} == {4}


class RoundedEngine(TransformersEngine):
    """Reports log-probabilities that are off by 0.01, as those of an engine in bf16 are."""

    def step(self) -> dict[int, Output]:
        found = super().step().items()
        return {i: replace(o, logprobs=tuple(p - 0.01 for p in o.logprobs)) for i, o in found}


def test_the_ratio_starts_at_one_whatever_the_engine_rounds(tmp_path):
    narrow = LossSpec(ratio="sequence", clip_eps=3e-4, clip_eps_high=4e-4, beta=0.0)
    model = module(
        updates_per_rollout=2,
        recipe=recipe(loss=narrow),
        engine=RoundedEngine(),
    )
    trainer(tmp_path, logger=CSVLog(tmp_path), max_steps=4).fit(model, data())
    values = logged(tmp_path)
    ratio = values["train/ratio_max"]
    assert [ratio[1], ratio[3]] == pytest.approx([1.0, 1.0], abs=rounding(1, 1.0), rel=0)
    assert min(abs(ratio[2] - 1.0), abs(ratio[4] - 1.0)) > 10 * rounding(1, 1.0)
    assert values["train/clip_frac"][1] == 0.0
    with torch.no_grad():
        scores = model.policy(torch.arange(model.policy.config.vocab_size)[None]).logits[0]
    allowed = of_logprobs(model.policy, scores)
    assert values["engine/logprob_diff"][1] == pytest.approx(0.01, abs=allowed, rel=0)


RECOMPUTING = policy(gradient_checkpointing=True)


def test_computing_activations_again_in_micro_batches_does_not_change_the_update(tmp_path):
    whole, saving = module(), module(policy=RECOMPUTING, micro_batch_size=3)
    for model in (whole, saving):
        trainer(tmp_path, max_steps=1).fit(model, data())
    assert_same_first_step(saving.policy, whole, **FIRST_STEP)


def test_what_has_no_rollouts_is_refused_in_one_line(tmp_path):
    stock = Trainer(default_root_dir=tmp_path, accelerator="cpu", max_steps=1, logger=False)
    with pytest.raises(ConfigError, match=r"stock lightning Trainer .* svr_lightning.SVRTrainer"):
        stock.fit(module(), datamodule=data())
    loader = DataLoader([1, 2])  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"needs the problems of an SVRDataModule"):
        trainer(tmp_path).fit(module(), loader)


def test_a_limit_counts_problem_batches(tmp_path):
    run = trainer(tmp_path, limit_train_batches=2)
    run.fit(module(micro_batch_size=4), data())
    assert run.global_step == 2


BRIEF = EvaluationConfig(max_turns=1, max_completion_tokens=8)


@pytest.mark.parametrize(
    ("interval", "epochs", "steps"),
    [(2, None, [2, 4, 6]), ("00:00:00:00", None, [2, 4, 6]), (4, 1, [4])],
)
def test_validation_comes_every_so_many_optimizer_steps_or_by_the_clock(
    tmp_path, interval, epochs, steps
):
    often = {"val_check_interval": interval, "check_val_every_n_epoch": epochs}
    run = trainer(tmp_path, limit_val_batches=1.0, **often)
    run.fit(module(micro_batch_size=4, updates_per_rollout=2, evaluation=BRIEF), data())
    names = sorted(path.name for path in tmp_path.glob("eval/*"))
    assert names == [f"step-00000{step}" for step in steps]
    assert "val/dev/accuracy" in run.callback_metrics


RANK_ZERO = "lightning.pytorch.utilities.rank_zero"


class SaveAndStop(Callback):
    """Leaves a checkpoint behind one step and ends the run there."""

    def __init__(self, step: int, path: Path) -> None:
        self.step, self.path = step, path

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        if trainer.global_step == self.step:
            trainer.save_checkpoint(self.path)
            trainer.should_stop = True


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    """The checkpoint of one step of the small training, and its weights alone beside it."""
    folder = tmp_path_factory.mktemp("saved")
    run = trainer(folder, SaveAndStop(1, folder / "1.ckpt"))
    run.fit(module(), data())
    run.save_checkpoint(folder / "weights.ckpt", weights_only=True)
    return folder / "1.ckpt"


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"updates_per_rollout": 2}, "model.updates_per_rollout=2, but.* with 1"),
        ({"problems_per_step": 3}, "data.problems_per_step=3, but.* with 2"),
        ({"seed": 4}, "model.seed=4, but the checkpoint was saved with 3; resume with the saved"),
        ({"recipe": SVRPlus(group_size=4, horizon=2)}, "model.recipe=SVRPlus, but"),
        ({"optimizer": OptimizerConfig(lr=1e-4)}, r"model.optimizer.lr=0.0001, but .* with 0.001"),
        (
            {"recipe": recipe(loss=LossSpec(beta=0.2))},
            "model.recipe.init_args.loss.beta=0.2, but .* with 0.1",
        ),
        (
            {"sampling": Decoding(temperature=0.5, max_completion_tokens=48)},
            "model.sampling.max_completion_tokens=48, .* model.sampling.temperature=0.5, but",
        ),
        ({"reference": ReferenceConfig(every=3)}, "model.reference.every=3, but .* with 2"),
        ({"recipe": recipe(custom_reward=math.prod)}, "custom_reward=math.prod, but .* with None"),
        ({"resample": "batch"}, "model.resample=batch, but .* with off"),
        ({"precision": "bf16-mixed"}, "trainer.precision=bf16-mixed, but .* with 32-true"),
    ],
)
def test_a_run_resumes_only_with_the_settings_that_make_it_the_same_run(
    tmp_path, saved, changed, message
):
    of_data = {k: v for k, v in changed.items() if k.startswith("problems")}
    of_trainer = {k: v for k, v in changed.items() if k == "precision"}
    of_model = {k: v for k, v in changed.items() if k not in of_data | of_trainer}
    resumed = trainer(tmp_path, **of_trainer)
    with pytest.raises(ConfigError, match=message):
        resumed.fit(module(**of_model), data(**of_data), ckpt_path=saved)


def test_a_resumed_run_may_use_its_hardware_and_judge_itself_in_another_way(tmp_path, saved):
    other = {"micro_batch_size": 4, "evaluation": EvaluationConfig(max_turns=1)}
    resumed = trainer(tmp_path, max_steps=2)
    resumed.fit(module(policy=RECOMPUTING, **other), data(), ckpt_path=saved)
    assert resumed.global_step == 2


class Correct:
    """A reward with a state of its own."""

    def __call__(self, scored: Sequence[ScoredTurn]) -> list[float]:
        return [float(turn.correct) for turn in scored]


def test_a_run_with_an_object_among_its_settings_resumes(tmp_path):
    path = tmp_path / "1.ckpt"
    for callbacks, saved in (([SaveAndStop(1, path)], None), ([], path)):
        nested = policy(chat_template_kwargs={"some": [math.prod, {"more": Correct()}]})
        model = module(recipe=recipe(custom_reward=Correct()), policy=nested)
        run = trainer(tmp_path, *callbacks, max_steps=2)
        run.fit(model, data(), ckpt_path=saved)
    assert run.global_step == 2


@pytest.mark.parametrize("left", ["metrics.csv", "policy"])
def test_a_used_folder_without_a_checkpoint_is_not_begun_again_by_a_resume(tmp_path, left):
    (tmp_path / left).touch()
    with pytest.raises(ConfigError, match=f"without a checkpoint; remove its {left} to begin"):
        trainer(tmp_path).fit(module(), data(), ckpt_path="last")


def test_only_one_process_trains_in_a_folder(tmp_path):
    holder = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(holder, fcntl.LOCK_EX)
    with pytest.raises(ConfigError, match="another process is training in this folder"):
        trainer(tmp_path).fit(module(), data())
    assert not (tmp_path / "metrics.csv").exists()
    os.close(holder)
    run = trainer(tmp_path, max_steps=1)
    run.fit(module(), data())
    assert run.global_step == 1


def test_a_trainer_leaves_the_programs_warnings_and_environment_alone(tmp_path):
    before = [*warnings.filters], dict(os.environ), logging.getLogger(RANK_ZERO).filters[:]
    trainer(tmp_path)
    assert before == ([*warnings.filters], dict(os.environ), logging.getLogger(RANK_ZERO).filters)


def test_a_run_goes_on_with_the_next_problems_in_other_micro_batches(tmp_path):
    """As it does with another number of processes."""
    path, seen = tmp_path / "4.ckpt", []
    options = {"max_epochs": 2, "enable_checkpointing": True}
    few = tiny("train", limit=6)
    for size, ends, saved in ((8, False, None), (8, True, None), (2, False, path)):
        seen.append(watch := Watch())
        callbacks = [watch, *([SaveAndStop(4, path)] if ends else [])]
        run = trainer(tmp_path, *callbacks, **options)
        run.fit(module(micro_batch_size=size), data(train=few), ckpt_path=saved)
        assert run.global_step == (4 if ends else 6)
    whole, cut, resumed = (list(dict(zip(w.steps, w.problems, strict=True)).items()) for w in seen)
    assert cut + resumed == whole
    first, second = (
        [name for _, names in part for name in names] for part in (whole[:3], whole[3:])
    )
    assert sorted(first) == sorted(second)
    assert first != second  # Lightning tells the sampler of the second epoch
    assert seen[2].versions == seen[2].steps


def test_a_checkpoint_without_optimizer_or_of_another_method_is_refused(tmp_path, saved):
    with pytest.raises(ConfigError, match="saved with save_weights_only"):
        trainer(tmp_path).fit(module(), data(), ckpt_path=saved.with_name("weights.ckpt"))
    free = recipe(loss=LossSpec(beta=0.0))
    with pytest.raises(ConfigError, match=r"another model or method.*such as reference"):
        trainer(tmp_path).fit(module(recipe=free), data(), ckpt_path=saved)


def test_nothing_is_saved_within_a_rollout(tmp_path):
    path = tmp_path / "now.ckpt"

    class Save(Callback):
        def on_after_backward(self, trainer, pl_module):
            trainer.save_checkpoint(path)

    with pytest.warns(UserWarning, match=r"not saving .*now\.ckpt in mid-rollout"):
        trainer(tmp_path, Save(), max_steps=1).fit(module(), data())
    assert not path.exists()


def test_the_last_checkpoint_is_the_end_of_the_run(tmp_path):
    trainer(tmp_path, saver(2), max_steps=3).fit(module(), data())
    (path,) = tmp_path.rglob("*.ckpt")
    assert path.name == "last.ckpt"
    assert torch.load(path, weights_only=True)["global_step"] == 3


def test_checkpoints_come_every_so_many_optimizer_steps_rounded_up_to_rollouts(tmp_path):
    keep = ModelCheckpoint(tmp_path, "{step}", every_n_train_steps=3, save_top_k=-1)
    trainer(tmp_path, keep).fit(module(updates_per_rollout=2), data())
    assert [path.name for path in tmp_path.glob("*.ckpt")] == ["step=4.ckpt"]  # of 6 steps
    with pytest.raises(ConfigError, match="train_time_interval would save nothing"):
        trainer(tmp_path, ModelCheckpoint(train_time_interval=timedelta(minutes=10)))


def test_the_reference_follows_after_every_second_step(tmp_path):
    history = []

    class Look(Callback):
        def on_train_batch_end(self, trainer, pl_module, *_):
            history.append(next(pl_module.reference.parameters()).clone())

        on_train_start = on_train_batch_end

    trainer(tmp_path, Look(), max_steps=4).fit(module(), data())
    changes = [not torch.equal(one, other) for one, other in pairwise(history)]
    assert changes == [False, True, False, True]


def test_a_run_without_an_end_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="needs a length"):
        trainer(tmp_path, max_epochs=-1).fit(module(), data())


def test_a_rate_too_small_for_the_weights_is_warned_of(tmp_path):
    frozen = module(
        optimizer=OptimizerConfig(lr=1e-30, weight_decay=0.0),
        recipe=SVR(group_size=2, horizon=1),
        sampling=Decoding(max_completion_tokens=8),
    )
    with pytest.warns(UserWarning, match="lr is too small for float32"):
        trainer(tmp_path).fit(frozen, data())


def test_validation_data_is_not_read_by_a_training_that_does_not_validate(tmp_path):
    gone = DataSource(name="gone", task="math", path=str(tmp_path / "gone.jsonl"))
    with pytest.raises(ConfigError, match="gone"):
        trainer(tmp_path, max_steps=1, limit_val_batches=1).fit(module(), data(val=[gone]))
    trainer(tmp_path, max_steps=1).fit(module(), data(val=[gone]))


def test_a_fast_dev_run_is_one_step_and_leaves_nothing_that_the_next_run_trips_over(tmp_path):
    callbacks = (BeforeAfter(), HFExport(), ModelCheckpoint(save_last=True))
    quick = trainer(tmp_path, *callbacks, fast_dev_run=1)
    quick.fit(module(micro_batch_size=4), data(test=data().sources["val"]))
    assert quick.global_step == 1
    assert not list(tmp_path.rglob("*.ckpt"))
    assert not any((tmp_path / name).exists() for name in ("policy", "eval/before", "eval/after"))


@pytest.mark.parametrize(("limit", "count"), [(2, 2), (0.01, 1)])
def test_the_limit_on_test_batches_holds_for_the_comparison(tmp_path, limit, count):
    tested = data(test=data().sources["val"], eval_batch_size=1)
    run = trainer(tmp_path, BeforeAfter(), max_steps=1, limit_test_batches=limit)
    run.fit(module(evaluation=BRIEF), tested)
    for name in ("before", "after"):
        assert len(jsonl(tmp_path / "eval" / name / "samples.jsonl")) == count


def test_the_comparison_shows_what_the_self_check_is_worth_at_equal_tokens(tmp_path, capsys):
    tested = data(test=data().sources["val"])
    one = module(evaluation=EvaluationConfig(max_turns=3))
    trainer(tmp_path, BeforeAfter(fresh_turns=2), max_steps=1).fit(one, tested)
    for name, turns in (("after", 3), ("fresh_before", 2), ("fresh", 2)):
        rows = jsonl(tmp_path / "eval" / name / "samples.jsonl")
        assert all(len(row["turns"]) == turns for row in rows)
        if turns == 2:  # drawn as in training, so that they differ
            quoted = read_json(tmp_path / "eval" / name / "results.json")["config"]
            drawn = quoted["model"]["evaluation"]
            assert (drawn["temperature"], drawn["fresh_turns"]) == (one.sampling.temperature, True)
            assert any(row["turns"][0]["text"] != row["turns"][1]["text"] for row in rows)
    assert one.evaluation.fresh_turns is False
    printed = screen(capsys)
    for way in (
        "first answer",
        "best stop without the self-check",
        "fresh samples, stated check",
        "fresh samples, verdict probability",
        "fresh samples, by the paper's rule",
        "fresh samples, a program evaluates",
    ):
        assert way in printed


@pytest.mark.parametrize(
    ("command", "precision"), [("validate", "bf16-true"), ("predict", "bf16-true"), ("test", 64)]
)
def test_an_evaluation_runs_in_every_precision_and_logs_nothing_in_a_trainings_file(
    tmp_path, command, precision
):
    sets = data().sources["val"]
    log = CSVLog(tmp_path)
    one = trainer(tmp_path, precision=precision, limit_val_batches=1.0, logger=log)
    asked = {"questions": ["3 5 8 = 16"], "questions_task": "countdown"}
    of_training = "step,key,value\n0,val/accuracy,0.5\n0,test/accuracy,0.5\n"
    (tmp_path / "metrics.csv").write_text(of_training)
    getattr(one, command)(module(), datamodule=data(test=sets, **asked))
    assert (tmp_path / "eval" / command / "samples.jsonl").is_file()
    assert (tmp_path / "metrics.csv").read_text() == of_training


def test_a_step_without_a_finished_or_a_correct_answer_is_warned_of_once(tmp_path):
    short = module(sampling=Decoding(max_completion_tokens=2))
    with pytest.warns(UserWarning, match="every completion of the rollout is cut off") as found:
        trainer(tmp_path, max_steps=2).fit(short, data())
    (line,) = [str(one.message) for one in found if "is cut off" in str(one.message)]
    assert line.startswith("optimizer step 1: ")
    for cause in ("eos_token_id", "chat template", "max_completion_tokens"):
        assert cause in line
    assert nothing_to_learn({"train/truncated": 0.5, "train/accuracy": 0.0}) == NOTHING_RIGHT
    assert nothing_to_learn({"train/truncated": 0.5, "train/accuracy": 0.1}) is None
    assert nothing_to_learn({}) is None


def test_a_folder_that_cannot_be_written_to_is_one_line(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"file is a file; give another folder"):
        trainer(tmp_path / "file" / "run")


def test_every_attempt_of_every_step_draws_anew(tmp_path):
    # So that every group is degenerate.
    idle = recipe(group_size=2, horizon=1, custom_reward=lambda scored: [0.0] * len(scored))
    seeds = []

    class Noting(SVRDataModule):
        def fresh_problems(self, seed, *arguments):
            seeds.append(seed)
            return super().fresh_problems(seed, *arguments)

    problems = data()
    problems.__class__ = Noting
    trainer(tmp_path, max_steps=2).fit(module(recipe=idle, resample="batch"), problems)
    assert len(set(seeds)) == len(seeds) == 2 * 2
