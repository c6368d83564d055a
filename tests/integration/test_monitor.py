"""What loggers show of a validation, and that showing it changes nothing."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from lightning.pytorch.loggers import TensorBoardLogger, WandbLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from svr_lightning.analysis.results import read_results, read_samples
from svr_lightning.analysis.sweep import ORACLE
from svr_lightning.callbacks import Monitor
from svr_lightning.callbacks.monitor import show_texts, trajectory_text
from svr_lightning.recipes.base import Recipe
from svr_lightning.recipes.grpo import GRPO
from svr_lightning.recipes.svr import SVR
from svr_lightning.report import drawing
from svr_lightning.report.drawing import Draw
from svr_lightning.report.figures_accuracy import draw_rules
from svr_lightning.report.runs import read_methods
from svr_lightning.report.trajectories import trajectories
from svr_lightning.training.config import EvaluationConfig
from tests.hostile_text import EVIL
from tests.small_fit import data, module, same, trainer, weights
from tests.trajectories import adaptive, save, uncensored, write_results

METHOD = SVR(group_size=4, horizon=2, length_scale=92)
SEEN = EvaluationConfig(max_turns=3, max_completion_tokens=64, validate_past_stop=2)


def fit(
    folder: Path,
    *callbacks: Any,
    evaluation: EvaluationConfig = SEEN,
    recipe: Recipe = METHOD,
    **settings: Any,
) -> Any:
    trained = module(evaluation=evaluation, recipe=recipe)
    every_step = {"val_check_interval": 1, "limit_val_batches": 1.0, "max_steps": 2}
    run = trainer(folder, *callbacks, **every_step | settings, check_val_every_n_epoch=None)
    run.fit(trained, data())
    return trained


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    folder = tmp_path_factory.mktemp("watched")
    logger = TensorBoardLogger(folder, name="logs", version="", default_hp_metric=False)
    return folder, fit(folder, Monitor(), logger=logger)


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


def drawn(
    folder: Path, chosen: str, monkeypatch: pytest.MonkeyPatch
) -> tuple[dict[str, Any], list[str]]:
    """Numbers and names of the lines of accuracy over tokens; ``chosen`` ran past their stop."""
    whole = {row["id"]: row["turns"] for row in uncensored()}
    rows = [
        row | ({"turns": whole[row["id"]], "past_stop": True} if row["id"] in chosen else {})
        for row in adaptive()
    ]
    write_results(folder / "eval" / "one", rows, {"protocol": {"max_turns": 3}}, {})
    shown: dict[Draw, Any] = {}

    def pixels(draw: Draw, numbers: Any) -> Any:
        shown[draw] = numbers
        return drawing.pixels(draw, numbers)

    monkeypatch.setattr("svr_lightning.callbacks.monitor.pixels", pixels)
    loggers = [TensorBoardLogger(folder, name="logs", version="")]
    state = {"sanity_checking": False, "is_global_zero": True, "global_step": 1}
    run: Any = SimpleNamespace(default_root_dir=str(folder), loggers=loggers, **state)
    evaluating = SimpleNamespace(validation_name="one")
    Monitor().on_validation_end(run, SimpleNamespace(evaluating=evaluating))
    legend = draw_rules(shown[draw_rules]).legends[0]
    return shown[draw_rules], [text.get_text() for text in legend.get_texts()]


def test_rules_are_compared_on_the_problems_chosen_before_their_first_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """e and f never stop, so that all of their turns are recorded, but they were not chosen."""
    numbers, names = drawn(tmp_path, "abd", monkeypatch)
    # First turns: a right at 150 tokens, b wrong at 160, d wrong at 110. At T_max = 3 the own rule
    # has a right at 150 and b wrong at 160 still, d right at 660.
    own = [{"tokens": 420 / 3, "accuracy": 1 / 3}, {"tokens": 970 / 3, "accuracy": 2 / 3}]
    assert [numbers["own"][0], numbers["own"][-1]] == own
    lines = {line["name"]: line["points"] for line in numbers["lines"]}
    # All three turns take 750 tokens of a, 780 of b and 660 of d; b and d end right.
    fixed = [(point["tokens"], point["accuracy"]) for point in lines["fixed turns"]]
    assert fixed == [(420 / 3, 1 / 3), (2190 / 3, 2 / 3)]
    assert names == [*lines, "its own rule, at most 1 to T_max turns"]
    assert {"repeated answer", "majority", "verdict and confidence", ORACLE} <= lines.keys()


def test_without_chosen_problems_the_own_rule_is_shown_on_all_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers, names = drawn(tmp_path, "", monkeypatch)
    assert numbers["own"][-1] == {"tokens": 3328 / 6, "accuracy": 3 / 6}
    assert names == ["its own rule, at most 1 to T_max turns"]


def test_a_run_that_is_watched_trains_and_is_measured_as_one_that_is_not(
    watched: tuple[Path, Any], tmp_path: Path
) -> None:
    folder, trained = watched
    alone = fit(tmp_path, evaluation=replace(SEEN, validate_past_stop=0))
    assert same(weights(trained), weights(alone))
    stopped = 0
    for step in ("step-000001", "step-000002"):
        seen, bare = (root / "eval" / step for root in (folder, tmp_path))
        assert (
            read_results(seen / "results.json")["datasets"]
            == (read_results(bare / "results.json")["datasets"])
        )
        pairs = zip(*(read_samples(one / "samples.jsonl") for one in (seen, bare)), strict=True)
        for number, (whole, cut) in enumerate(pairs):
            assert len(whole.turns) == (3 if number < 2 else len(cut.turns))
            assert (whole.past_stop, cut.past_stop) == (True if number < 2 else None, None)
            assert whole.turns[: cut.observed] == cut.turns
            assert (whole.observed, whole.stopped_early) == (cut.observed, cut.stopped_early)
            stopped += cut.stopped_early and number < 2
    assert stopped > 0


def test_wandb_gets_the_same_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = pytest.importorskip("wandb", reason="needs the extra wandb")
    for name in ("WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path / "home"))
    logger = WandbLogger(project="test", save_dir=str(tmp_path), offline=True)
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
