"""What loggers show of a validation, and that showing it changes nothing."""

from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch.loggers import TensorBoardLogger, WandbLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from svr_lightning.callbacks import HFExport, Monitor, RolloutLog
from svr_lightning.recipes.base import Recipe
from svr_lightning.recipes.grpo import GRPO
from svr_lightning.recipes.svr import SVR
from svr_lightning.training.config import EvaluationConfig
from tests.small_fit import data, module, same, trainer, weights

METHOD = SVR(group_size=4, horizon=2, length_scale=92)
SEEN = EvaluationConfig(max_turns=3, max_completion_tokens=64)


def fit(folder: Path, *callbacks: Any, recipe: Recipe = METHOD, **settings: Any) -> Any:
    trained = module(evaluation=SEEN, recipe=recipe)
    every_step = {"val_check_interval": 1, "limit_val_batches": 1.0, "max_steps": 2}
    run = trainer(folder, *callbacks, **every_step | settings, check_val_every_n_epoch=None)
    run.fit(trained, data())
    return trained


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    folder = tmp_path_factory.mktemp("watched")
    logger = TensorBoardLogger(folder, name="logs", version="", default_hp_metric=False)
    return folder, fit(folder, Monitor(), RolloutLog(every=1), HFExport(), logger=logger)


def test_tensorboard_gets_pictures_of_each_validation(watched: tuple[Path, Any]) -> None:
    events = EventAccumulator(str(watched[0] / "logs"), {"images": 0}).Reload()
    pictures = ("validation/accuracy_over_tokens", "validation/reliability")
    assert sorted(events.Tags()["images"]) == sorted(pictures)
    for name in pictures:
        assert [image.step for image in events.Images(name)] == [1, 2]
        assert all(image.width > 600 and image.height > 400 for image in events.Images(name))


def test_a_run_that_is_watched_trains_and_is_measured_as_one_that_is_not(
    watched: tuple[Path, Any], tmp_path: Path
) -> None:
    folder, trained = watched
    alone = fit(tmp_path)
    assert same(weights(trained), weights(alone))
    for step in ("step-000001", "step-000002"):
        files = [root / "eval" / step / "samples.jsonl" for root in (folder, tmp_path)]
        assert files[0].read_bytes() == files[1].read_bytes()


def test_wandb_gets_a_single_turn_methods_picture_in_the_folder_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wandb = pytest.importorskip("wandb", reason="needs the extra wandb")
    for name in ("WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path / "home"))
    try:
        logger = WandbLogger(project="test", offline=True)
        fit(tmp_path, Monitor(), recipe=GRPO(group_size=4), logger=logger, max_steps=1)
    finally:
        wandb.finish()
    (run,) = (tmp_path / "wandb").glob("offline-run-*")
    (picture,) = run.glob("files/media/images/validation/*.png")
    assert picture.name.startswith("accuracy")  # no self-checks, no reliability
