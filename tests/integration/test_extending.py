"""The files of docs/extending.md, written from the page's own text, train and evaluate."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from svr_lightning.__main__ import main
from svr_lightning.core.metrics import DEFINITIONS, PRINTED
from svr_lightning.engines.transformers import TransformersEngine
from tests.commands import ROOT, SMALL, TINY, embedded, jsonl, logged, read_json, write_jsonl
from tests.models import tiny_qwen3
from tests.pages import page
from tests.requests import ask, finish, plain_scores
from tests.small_fit import data, module, trainer, turns_of
from tests.tolerance import of_logprobs

SHOWN = dict(
    re.findall(
        r"^```\w+\n# (\w+\.(?:py|yaml))\n(.*?)^```",
        page("docs/extending.md"),
        re.DOTALL | re.MULTILINE,
    )
)
"""Text of each file by its name, which is the first line of its block."""


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch) -> Path:
    """A folder with the page's files, from which modules are imported."""
    for name, text in SHOWN.items():
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.syspath_prepend(ROOT / "examples" / "extend")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def fit(folder: Path, *more: str, **model: Any) -> list[dict[str, Any]]:
    """Two optimizer steps on the command line; the rollouts' lines."""
    arguments = [
        "fit",
        *SMALL,
        "--trainer.default_root_dir",
        str(folder),
        "--trainer.max_steps",
        "2",
        "--model.updates_per_rollout",
        "1",
        "--trainer.limit_val_batches",
        "0",
        *more,
    ]
    for key, value in model.items():
        arguments += [f"--model.{key}", value if isinstance(value, str) else json.dumps(value)]
    assert main(arguments) == 0
    return jsonl(folder / "rollouts.jsonl")


def recipe(path: str, **options: Any) -> dict[str, Any]:
    return {"class_path": path, "init_args": {"group_size": 4, "horizon": 2, **options}}


def test_a_task_of_ones_own_reads_asks_and_grades(here):
    rows = [{"word": word} for word in ("cat", "level")]
    write_jsonl(here / "words.jsonl", rows)
    lines = fit(here / "run", "--config", "backwards.yaml")
    assert {line["question"] for line in lines} <= {
        "Spell cat backwards.",
        "Spell level backwards.",
    }
    assert "backwards.Backwards" in (here / "run" / "config.yaml").read_text()
    from backwards import Backwards

    task = Backwards()
    problem = task.from_row(rows[0])
    assert task.grade("<answer>tac</answer>", problem)
    assert not task.grade("<answer>cat</answer>", problem)
    with pytest.raises(ValueError, match="word"):
        task.from_row({"word": "4"})


def test_a_recipe_of_ones_own_trains(here):
    lines = fit(here / "run", recipe=recipe("last_turn_reward.LastTurnReward"))
    assert len(lines) == 2 * 4  # one problem a step
    assert all(line["return"] == line["turns"][-1]["reward"] for line in lines)


def test_prompts_of_ones_own_are_asked(here):
    lines = fit(here / "run", recipe=recipe("second_opinion.SecondOpinionMT"))
    assert {len(line["turns"]) for line in lines} == {2}


def test_a_reward_term_of_ones_own_is_paid_and_logged(here):
    own = recipe("svr_lightning.recipes.svr.SVR", custom_reward="short_answers.short_answers")
    lines = fit(here / "run", recipe=own)
    assert {"train/reward/correct", "train/reward/brevity"} <= logged(here / "run").keys()
    assert "train/reward/cal" not in logged(here / "run")
    turns = [turn for line in lines for turn in line["turns"]]
    assert all(turn["reward"] == turn["correct"] for turn in turns)  # none is above 200 tokens


def evaluated(here: Path, command: Any, *more: str) -> dict[str, Any]:
    """The results of a test of four problems."""
    out = ("--trainer.default_root_dir", str(here / "run"), "--data.test", embedded(4, name="few"))
    assert command(["test", *TINY, *out, *more]) == 0
    return read_json(here / "run" / "eval" / "test" / "results.json")


def test_a_stopping_rule_of_ones_own_stops(here):
    results = evaluated(here, main, "--model.evaluation.stop", "settled.Settled")
    # The shipped policy repeats its greedy answer: the third turn has nothing new.
    assert 3 <= results["datasets"]["few"]["turns"] <= 10
    assert results["config"]["model"]["evaluation"]["stop"]["class_path"] == "settled.Settled"


def test_a_metric_of_ones_own_is_in_the_results_and_in_the_printed_table(here, capsys):
    try:
        namespace = {"__name__": "turn_length"}
        exec(SHOWN["turn_length.py"], namespace)
        found = evaluated(here, namespace["main"])["datasets"]["few"]
    finally:
        DEFINITIONS.pop("turn_length", None)
        PRINTED.remove("turn_length")
    assert f"{found['turn_length']:.1f}" in capsys.readouterr().out
    assert found["turn_length"] == pytest.approx(found["avg_completion_tokens"] / found["turns"])


def test_an_engine_of_ones_own_agrees_with_the_packages_and_trains(here):
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
    trainer(here, max_steps=1).fit(fitted, data())
    assert fitted.trainer.global_step == 1
    assert {turn.sampled.policy_version for turn in turns_of(fitted)} == {0}
