"""The exported policy's folder and the threshold that is used with it."""

import json
from pathlib import Path
from typing import Any

import torch
from svr_lightning.callbacks.hf_export import export_policy

from svr_lightning.evaluation.operating_point import read_operating_point, write_operating_point
from svr_lightning.training.config import EvaluationConfig, PolicyConfig
from svr_lightning.training.module import SVRModule
from tests.scripted import RENDERER
from tests.shell.test_loop import module


def exported(root: Path, **settings: Any) -> tuple[float | None, float, str]:
    """The operating point, what ``svr.json`` says, and the model card."""
    trained: SVRModule = module(**settings)
    trained.policy = torch.nn.Module()  # type: ignore[assignment]
    trained.policy.generation_config = type("Generation", (), {})()
    trained.policy.save_pretrained = lambda folder, **_: folder.mkdir(exist_ok=True)
    trained.renderer = RENDERER
    folder = export_policy(trained, root, "float32")
    stopping = json.loads((folder / "svr.json").read_text())
    return read_operating_point(folder), stopping["threshold"], (folder / "README.md").read_text()


def test_without_an_operating_point_the_card_names_the_runs_threshold(tmp_path: Path) -> None:
    own, threshold, card = exported(tmp_path)
    assert (own, threshold) == (None, 0.85)
    assert "confidence >= 0.85" in card


def test_a_threshold_taken_from_the_policy_that_was_trained_is_handed_on(tmp_path: Path) -> None:
    start = tmp_path / "start"
    start.mkdir()
    write_operating_point(start, 0.9125, {"premature_stop_error": 0.1})
    own, threshold, card = exported(tmp_path, policy=PolicyConfig(path=str(start)))
    assert (own, threshold) == (0.9125, 0.9125)
    assert "confidence >= 0.9125" in card
    file = tmp_path / "policy" / "operating_point.json"
    # What was found out about the other weights is not claimed of these.
    assert json.loads(file.read_text()) == {"threshold": 0.9125, "inherited_from": str(start)}


def test_a_threshold_that_the_folder_was_tuned_to_stays(tmp_path: Path) -> None:
    exported(tmp_path)
    write_operating_point(tmp_path / "policy", 0.7, {"tuned": True})
    own, threshold, card = exported(tmp_path, evaluation=EvaluationConfig(threshold=0.6))
    assert (own, threshold) == (0.7, 0.7)
    assert "confidence >= 0.70" in card


def test_a_configured_threshold_is_not_the_policys_own(tmp_path: Path) -> None:
    own, threshold, _ = exported(tmp_path, evaluation=EvaluationConfig(threshold=0.6))
    assert (own, threshold) == (None, 0.6)
