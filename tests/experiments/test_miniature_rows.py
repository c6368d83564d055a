"""The rows of the miniature experiment: each is what it says, all are alike in size, all resume."""

import sys
from functools import reduce
from typing import Any

import pytest
import yaml

from experiments.commands import Command
from experiments.miniature import rows
from experiments.miniature.__main__ import run
from experiments.miniature.rows import ROWS, Row, Task
from svr_lightning.core.seeds import SeedContext
from svr_lightning.recipes.base import Recipe
from tests.commands import ROOT
from tests.recipes import WRONG, layered, play

SHORT = [row for row in ROWS if row.trained and row.policy_of is None and row.steps is None]


def merged(below: Any, above: Any) -> Any:
    """What two configurations are together; a list replaces a list."""
    if isinstance(below, dict) and isinstance(above, dict):
        return {**below, **{key: merged(below.get(key), value) for key, value in above.items()}}
    return above


def resolved(row: Row, task: Task) -> tuple[dict[str, Any], Recipe]:
    """The merged configuration of a row, and its recipe."""
    layers = [yaml.safe_load((ROOT / path).read_text()) for path in rows.layered(row, task)[1::2]]
    return reduce(merged, layers), layered(layers)


@pytest.mark.parametrize(
    ("row", "task"), [(r, task) for r in SHORT for task in r.tasks], ids=lambda x: str(x)[:40]
)
def test_every_row_has_the_same_steps_problems_and_generations(row, task):
    config, recipe = resolved(row, task)
    trainer, model, data = config["trainer"], config["model"], config["data"]
    published = row.name == "gspo_published"
    assert (trainer["max_steps"], data["problems_per_step"], model["resample"]) == (100, 6, "off")
    assert model.get("updates_per_rollout", 1) == (4 if published else 1)
    _, actors = play(recipe, lambda *_: WRONG, place=SeedContext(run_seed=1))
    assert len(actors.prompts) == 24
    assert recipe.loss.beta == (0.0 if published else 0.1)
    assert recipe.uses_labels is row.uses_labels
    order = "_one_order" if task == "countdown" else ""
    assert [source["split"] for source in data["val"]] == [f"dev{order}"]
    assert [source["split"] for source in data["test"]] == [f"test{order}"]


def test_rows_of_several_turns_are_judged_on_several():
    for row in (row for row in ROWS if not row.single):
        _, recipe = resolved(row, row.tasks[0])
        assert recipe.evaluated_turns(10) >= 9, row.name


def test_what_is_done_is_skipped_and_an_interrupted_training_goes_on(tmp_path, monkeypatch):
    program = tmp_path / "python"
    program.write_text('#!/bin/sh\necho "$@"\n[ "$4" = leave ] && touch "$5"\n:\n')
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "last.ckpt").touch()
    made, never = tmp_path / "result", tmp_path / "never"
    fit, lost = (
        Command(name=name, folder=tmp_path, arguments=words, result=result)
        for name, words, result in (
            ("a/fit", ("svr_lightning", "fit", "leave", str(made)), made),
            ("a/greedy", ("svr_lightning", "test", "lose"), never),
        )
    )
    assert run([fit, lost]) == f"a/greedy ended with 0, see {tmp_path / 'greedy.log'}"
    assert (tmp_path / "fit.log").read_text().endswith("--ckpt_path last\n")
    assert run([fit]) is None
    assert len((tmp_path / "fit.log").read_text().splitlines()) == 1  # not run again
