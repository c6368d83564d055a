"""The experiment from end to end, with the embedded policy in the place of the language model."""

import shutil
from pathlib import Path

import pytest

from experiments.real import __main__ as real
from experiments.real import plan, tasks
from tests.commands import SHIPPED, flags

CHEAP = flags(
    {
        "model.engine.class_path": "svr_lightning.engines.transformers.TransformersEngine",
        "trainer.precision": "32-true",
        "model.evaluation.max_turns": 2,
        "model.sampling.max_completion_tokens": 8,
        "data.problems_per_step": 1,
        "model.evaluation.max_completion_tokens": 8,
        "trainer.max_steps": 1,
    }
)


@pytest.fixture
def small(tmp_path, monkeypatch) -> Path:
    """A folder of runs whose model and start are the embedded policy."""
    monkeypatch.setattr(tasks, "SIZES", {"test": 10, "train": 10, "control": 6})
    monkeypatch.setattr(plan, "RESULTS", tmp_path / "results")
    for name in ("model", "seed7/start"):
        shutil.copytree(SHIPPED, tmp_path / name)
    return tmp_path


def test_run_leaves_a_recording_of_every_policy_and_does_nothing_twice(small, capsys):
    words = ["--out", str(small), "--seeds", "7", "--arms", "svr", *CHEAP]
    assert real.main(["run", *words]) == 0
    names = {path.name for path in (small / "results").iterdir()}
    policies = ("start-sampled", "svr-sampled", "svr-fresh")
    assert names == {f"seed7-{each}.jsonl.gz" for each in policies}
    assert (small / "seed7" / "svr" / "policy" / "config.json").is_file()
    capsys.readouterr()
    assert real.main(["plan", *words]) == 0
    assert "to do" not in capsys.readouterr().out


def test_without_a_model_the_command_that_makes_it_is_named(tmp_path, capsys):
    assert real.main(["run", "--out", str(tmp_path)]) == 1
    assert f"python -m experiments.real.model --out {tmp_path}/model" in capsys.readouterr().err


def test_the_control_differs_by_the_rewards_for_verification_alone(tmp_path):
    made = plan.commands(tmp_path, 1, ["svr", "control"])
    svr, control = (
        [word.replace("/control", "/svr") for word in one.arguments]
        for one in made
        if "fit" in one.arguments
    )
    assert control[: len(svr)] == svr
    assert control[len(svr) :] == [
        part
        for name in ("cal", "over", "detect", "ready")
        for part in (f"--model.recipe.init_args.weights.{name}", "0.0")
    ]
