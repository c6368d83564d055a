"""The plan of the miniature experiment: every row is what it says, and all are alike in size."""

import json
import re
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonargparse import ArgumentParser

from svr_lightning.core.seeds import SeedContext
from svr_lightning.recipes.base import Recipe
from tests.recipes import WRONG, play
from tools.miniature import plan
from tools.miniature.plan import ROWS, Row, Settings

ROOT = Path(__file__).resolve().parents[2]
TRAINED = [row for row in ROWS if row.trained and row.policy_of is None]
SETTINGS = Settings(rates={"single": 1e-4, "multi": 2e-4, "svr": 3e-4})
PAPER = ROOT.parent / "shared" / "paper" / "000_0ab2db2ba4842790.txt"


def merged(below: Any, above: Any) -> Any:
    """What two configurations are together; a list replaces a list."""
    if isinstance(below, dict) and isinstance(above, dict):
        both = {key: merged(below.get(key), value) for key, value in above.items()}
        return {**below, **both}
    return above


def nested(flag: str, value: str) -> dict[str, Any]:
    """``--a.b 1`` as {"a": {"b": 1}}."""
    found: Any = yaml.safe_load(value)
    for key in reversed(flag.removeprefix("--").split(".")):
        found = {key: found}
    return dict(found)


def parts(row: Row) -> list[dict[str, Any]]:
    """The layers of a row, the last one its flags."""
    words = plan.layered(row)
    pairs = list(zip(words[::2], words[1::2], strict=True))
    files = [Path(value) for flag, value in pairs if flag == "--config"]
    flags = [nested(*pair) for pair in pairs if pair[0] != "--config"]
    return [yaml.safe_load((ROOT / path).read_text()) for path in files] + flags


def resolved(row: Row) -> tuple[dict[str, Any], Recipe]:
    """The merged configuration of a row, and its recipe."""
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--recipe", type=Recipe)
    layers = parts(row)
    found = None
    for layer in layers:
        recipe = layer.get("model", {}).get("recipe")
        if recipe:
            found = parser.parse_object({"recipe": recipe}, found)
    return reduce(merged, layers), parser.instantiate_classes(found).recipe


@pytest.mark.parametrize("row", TRAINED, ids=lambda row: row.name)
def test_every_row_has_the_same_steps_problems_and_generations(row: Row) -> None:
    config, recipe = resolved(row)
    trainer, model, data = config["trainer"], config["model"], config["data"]
    updates = model.get("updates_per_rollout", 1)
    assert (trainer["max_steps"], data["problems_per_step"]) == (100, 6)
    assert trainer["val_check_interval"] == trainer["max_steps"]
    assert updates == (4 if row.name == "gspo_published" else 1)
    _, actors = play(recipe, lambda *_: WRONG, place=SeedContext(run_seed=1))
    assert len(actors.prompts) == 24
    assert model["resample"] == "off"
    beta = 0.0 if row.name == "gspo_published" else 0.1
    assert recipe.loss.beta == beta
    assert recipe.uses_labels is row.uses_labels


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_row_knows_its_own_protocol(row: Row) -> None:
    from svr_lightning.core.stopping import StopRule

    config, recipe = resolved(row)
    turns, rule = recipe.protocol(config["model"]["evaluation"]["max_turns"], StopRule())
    assert (turns == 1) is row.single
    assert (rule is not None) is (row.interface is not None)
    if rule is not None:
        assert rule.gate == row.interface


def test_every_candidate_is_a_layer_that_parses() -> None:
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--recipe", type=Recipe)
    for layer in plan.CANDIDATES.values():
        below = parser.parse_object({"recipe": parts(plan.BY_NAME["svr"])[0]["model"]["recipe"]})
        above = parser.parse_object({"recipe": layer["model"]["recipe"]}, below)
        assert isinstance(parser.instantiate_classes(above).recipe, Recipe)


def test_a_cell_trains_and_then_judges_its_own_policy() -> None:
    row = plan.BY_NAME["grpo"]
    cell = plan.cell(row, 43, SETTINGS, ("train", "judge"))
    assert [c.name for c in cell.commands] == ["fit", "greedy", "sampled", "votes", "vote"]
    shared = (
        "--config configs/countdown_tiny.yaml --config configs/methods/grpo.yaml "
        "--config configs/experiments/miniature.yaml"
    )
    lines = [command.line for command in cell.commands]
    assert lines[0] == (
        f"python -m svr_lightning fit {shared} --seed_everything 43 --model.optimizer.lr 0.0001 "
        "--trainer.default_root_dir runs/miniature/grpo-43"
    )
    policy = "--model.policy.path runs/miniature/grpo-43/policy"
    assert all(policy in line for line in lines[1:4])
    assert "--model.evaluation.temperature 0.9 --model.evaluation.adaptive false " in lines[2]
    assert "--config configs/eval/majority_vote.yaml" in lines[3]


def test_a_row_can_judge_the_policies_of_another_one() -> None:
    cell = plan.cell(plan.BY_NAME["igrpo_turns"], 43, SETTINGS, ("train", "judge"))
    assert [command.name for command in cell.commands] == ["greedy", "sampled"]
    for command in cell.commands:
        assert "--model.policy.path runs/miniature/igrpo-43/policy" in command.line
        assert "--model.recipe.init_args.evaluate fixed" in command.line


def test_each_family_has_the_rate_that_was_tuned_for_it() -> None:
    rates = {"single": "0.0001", "multi": "0.0002", "svr": "0.0003"}
    for row in TRAINED:
        command = plan.cell(row, 42, SETTINGS, ("train",)).commands[0]
        place = command.arguments.index("--model.optimizer.lr")
        assert command.arguments[place + 1] == rates[row.family]


def test_the_warm_start_is_judged_once_and_not_trained() -> None:
    start = plan.BY_NAME["warm_start"]
    assert plan.seeds_of(start, (42, 43, 44)) == (42,)
    cell = plan.cell(start, 42, SETTINGS, ("train", "judge"))
    assert [command.name for command in cell.commands] == ["greedy", "sampled"]
    assert "embedded:countdown-tiny" in cell.commands[0].arguments


def test_nothing_is_tuned_with_the_seeds_of_the_results() -> None:
    assert not set(plan.SEEDS) & {plan.TUNING_SEED, *plan.CANDIDATE_SEEDS}
    miniature = yaml.safe_load((ROOT / plan.MINIATURE).read_text())
    assert [source["split"] for source in miniature["data"]["val"]] == ["dev"]


def test_the_papers_numbers_are_the_papers() -> None:
    golden = json.loads((ROOT / "tests" / "goldens" / "paper_tables.json").read_text())
    printed = {
        (line["table"], line["row"]): line["all"] for line in golden if line["metric"] == "accuracy"
    }
    rows = [row.paper for row in ROWS if row.paper]
    assert len(rows) == 21
    assert all(printed[table, name] == f"{value:.3f}" for table, name, value in rows)


@pytest.mark.skipif(not PAPER.is_file(), reason=f"the paper is not at {PAPER}")
def test_the_papers_majority_votes_are_the_papers() -> None:
    found = re.findall(r"GRPO Maj@(\d+)\n& ([.\d]+)", PAPER.read_text())
    assert {int(k): float(value) for k, value in found} == plan.VOTE_PAPER
