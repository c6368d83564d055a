"""What loggers show of a validation, and that showing it changes nothing."""

import json
from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch.loggers import TensorBoardLogger, WandbLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from svr_lightning.callbacks import HFExport, Monitor, RolloutLog
from svr_lightning.callbacks.monitor import show_texts, trajectory_text
from svr_lightning.recipes.base import Recipe
from svr_lightning.recipes.grpo import GRPO
from svr_lightning.recipes.svr import SVR
from svr_lightning.report.runs import read_methods
from svr_lightning.report.trajectories import trajectories
from svr_lightning.training.config import EvaluationConfig
from tests.hostile_text import EVIL
from tests.small_fit import data, module, same, trainer, weights
from tests.trajectories import save, uncensored

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


def test_tensorboard_gets_pictures_texts_and_hyperparameters_of_each_validation(
    watched: tuple[Path, Any],
) -> None:
    events = EventAccumulator(str(watched[0] / "logs"), {"images": 0, "tensors": 0}).Reload()
    pictures = ("validation/accuracy_over_tokens", "validation/reliability")
    assert sorted(events.Tags()["images"]) == sorted(pictures)
    for name in pictures:
        assert [image.step for image in events.Images(name)] == [1, 2]
        assert all(image.width > 600 and image.height > 400 for image in events.Images(name))
    texts = [tag for tag in events.Tags()["tensors"] if tag.startswith("trajectories/")]
    assert len(texts) == 4  # two of the best and two of the worst, of three problems
    (first, _) = events.Tensors(texts[0])
    (text,) = first.tensor_proto.string_val
    assert b"turn 1: " in text
    assert all(line.startswith(b"    ") for line in text.split(b"\n"))
    hyperparameters = events.SummaryMetadata("_hparams_/session_start_info")
    assert b"model/optimizer/lr" in hyperparameters.plugin_data.content


def test_a_method_of_one_turn_has_one_point_and_no_reliability(tmp_path: Path) -> None:
    logger = TensorBoardLogger(tmp_path, name="logs", version="")
    fit(tmp_path, Monitor(), recipe=GRPO(group_size=4), logger=logger, max_steps=1)
    events = EventAccumulator(str(tmp_path / "logs"), {"images": 0}).Reload()
    assert events.Tags()["images"] == ["validation/accuracy_over_tokens"]


def test_a_run_that_is_watched_trains_and_is_measured_as_one_that_is_not(
    watched: tuple[Path, Any], tmp_path: Path
) -> None:
    folder, trained = watched
    alone = fit(tmp_path)
    assert same(weights(trained), weights(alone))
    for step in ("step-000001", "step-000002"):
        files = [root / "eval" / step / "samples.jsonl" for root in (folder, tmp_path)]
        assert files[0].read_bytes() == files[1].read_bytes()


def test_wandb_gets_the_same_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = pytest.importorskip("wandb", reason="needs the extra wandb")
    for name in ("WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path / "home"))
    logger = WandbLogger(project="test", offline=True)  # lands in the folder of the run
    try:
        fit(tmp_path, Monitor(trajectories=1), logger=logger, max_steps=1)
        assert logger.experiment.config["model"]["optimizer"]["lr"] == 1e-3
    finally:
        wandb.finish()
    media = next((tmp_path / "wandb").glob("offline-run-*")) / "files" / "media"
    pictures = {path.name.split("_")[0] for path in media.glob("images/validation/*.png")}
    assert pictures == {"accuracy", "reliability"}
    (table,) = media.glob("table/validation/*.json")
    rows = dict(json.loads(table.read_text())["data"])
    assert list(rows) == ["best_1", "worst_1"]
    assert "turn 1: " in rows["best_1"]


def test_text_of_a_model_is_text_in_tensorboards_markdown(tmp_path: Path) -> None:
    rows = uncensored()
    for row in rows:
        row |= {"question": EVIL, "reference": EVIL}
        for turn in row["turns"]:
            turn["text"] = EVIL + "```\n" + "x" * 10**5
    (method,) = read_methods([str(save(tmp_path, rows))])
    texts = {one.id: trajectory_text(one) for one, _ in trajectories(method.runs[0])}
    assert all(len(text) < 50_000 for text in texts.values())
    logger = TensorBoardLogger(tmp_path, name="logs", version="")
    show_texts(logger, texts, 1)
    logger.experiment.flush()
    events = EventAccumulator(str(tmp_path / "logs"), {"tensors": 0}).Reload()
    for tag in events.Tags()["tensors"]:
        (text,) = events.Tensors(tag)[0].tensor_proto.string_val
        lines = text.decode().split("\n")
        assert all(line.startswith("    ") and line.isprintable() for line in lines)
