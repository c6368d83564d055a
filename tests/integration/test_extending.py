"""The examples of docs/extending.md: one file each, outside the package, that trains."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from svr_lightning.__main__ import main
from svr_lightning.engines.transformers import TransformersEngine
from tests.commands import ROOT, SMALL, jsonl, logged
from tests.models import tiny_qwen3
from tests.pages import page
from tests.requests import ask, finish, plain_scores
from tests.small_fit import data, module, trainer
from tests.tolerance import of_logprobs

EXTEND = ROOT / "examples" / "extend"
PAGE = page("docs/extending.md")


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(EXTEND)


def test_the_page_shows_the_files_that_are_run() -> None:
    shown = re.findall(r'^--8<-- "(\S+)"$', PAGE, re.MULTILINE)
    others = [ROOT / "examples" / name for name in ("minimal_svr.py", "sorting_task.py")]
    files = [*EXTEND.glob("*.py"), *others]  # the others run in tests of their own
    assert sorted(shown) == sorted(str(file.relative_to(ROOT)) for file in files)


def fit(folder: Path, **model: Any) -> list[dict[str, Any]]:
    """Two optimizer steps on the command line; the rollouts' lines."""
    arguments = [
        *("fit", *SMALL, "--trainer.default_root_dir", str(folder), "--trainer.max_steps", "2"),
        *("--model.updates_per_rollout", "1", "--trainer.limit_val_batches", "0"),
    ]
    for key, value in model.items():
        arguments += [f"--model.{key}", value if isinstance(value, str) else json.dumps(value)]
    assert main(arguments) == 0
    return jsonl(folder / "rollouts.jsonl")


def test_a_recipe_of_ones_own_trains(tmp_path: Path) -> None:
    recipe = {
        "class_path": "last_turn_reward.LastTurnReward",
        "init_args": {"group_size": 4, "horizon": 2},
    }
    lines = fit(tmp_path, recipe=recipe)
    assert len(lines) == 2 * 4  # one problem a step
    assert all(line["return"] == line["turns"][-1]["reward"] for line in lines)


def test_a_reward_term_of_ones_own_is_paid_and_logged(tmp_path: Path) -> None:
    init = {"group_size": 4, "horizon": 2, "custom_reward": "short_answers.short_answers"}
    lines = fit(tmp_path, recipe={"class_path": "svr_lightning.recipes.svr.SVR", "init_args": init})
    assert {"train/reward/correct", "train/reward/brevity"} <= logged(tmp_path).keys()
    assert "train/reward/cal" not in logged(tmp_path)
    turns = [turn for line in lines for turn in line["turns"]]
    assert {turn["reward"] for turn in turns} <= {0.0, 1.0}  # nothing is longer than 200 tokens
    assert all(turn["reward"] == turn["correct"] for turn in turns)


def test_prompts_of_ones_own_are_asked(tmp_path: Path) -> None:
    recipe = {
        "class_path": "second_opinion.SecondOpinionMT",
        "init_args": {"group_size": 4, "horizon": 2},
    }
    lines = fit(tmp_path, recipe=recipe)
    assert {len(line["turns"]) for line in lines} == {2}


def test_an_engine_of_ones_own_agrees_with_the_packages_and_trains(tmp_path: Path) -> None:
    from plain_engine import PlainEngine

    model = tiny_qwen3()
    outputs = []
    for engine in (PlainEngine(), TransformersEngine()):
        engine.start(model, (3,), 512)
        engine.sync(model, 5)
        for index in range(4):
            engine.submit(ask(index, temperature=0.0))
        outputs.append(finish(engine, 4))
    for index in range(4):
        ours, theirs = outputs[0][index], outputs[1][index]
        assert (ours.token_ids, ours.finish_reason) == (theirs.token_ids, theirs.finish_reason)
        allowed = of_logprobs(model, plain_scores(model, ask(index), ours.token_ids))
        assert ours.logprobs == pytest.approx(theirs.logprobs, abs=allowed, rel=0)
    fitted = module(engine=PlainEngine())
    trainer(tmp_path, max_steps=1).fit(fitted, data())
    assert fitted.trainer.global_step == 1
    versions = {
        t.completion.policy_version for g in fitted.groups for x in g.trajectories for t in x.turns
    }
    assert versions == {0}
