"""The plan of the miniature experiment: every row is what it says, and all are alike in size."""

import json
import re
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonargparse import ArgumentParser

from experiments.miniature import plan, tuning
from experiments.miniature.plan import ROWS, Row, Settings, Task
from svr_lightning.core.seeds import SeedContext
from svr_lightning.recipes.base import Recipe
from tests.recipes import WRONG, play

ROOT = Path(__file__).resolve().parents[2]
TRAINED = [row for row in ROWS if row.trained and row.policy_of is None]
SETTINGS = Settings(rates={n: 1e-4 * k for k, n in enumerate((*plan.TUNED_ROWS, plan.CHOSEN), 1)})
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


def parts(row: Row, task: Task = "countdown") -> list[dict[str, Any]]:
    """The layers of a row, the last one its flags."""
    words = plan.layered(row, task)
    pairs = list(zip(words[::2], words[1::2], strict=True))
    files = [Path(value) for flag, value in pairs if flag == "--config"]
    flags = [nested(*pair) for pair in pairs if pair[0] != "--config"]
    return [yaml.safe_load((ROOT / path).read_text()) for path in files] + flags


def resolved(row: Row, task: Task = "countdown") -> tuple[dict[str, Any], Recipe]:
    """The merged configuration of a row, and its recipe."""
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--recipe", type=Recipe)
    layers = parts(row, task)
    found = None
    for layer in layers:
        recipe = layer.get("model", {}).get("recipe")
        if recipe:
            found = parser.parse_object({"recipe": recipe}, found)
    return reduce(merged, layers), parser.instantiate_classes(found).recipe


@pytest.mark.parametrize(
    ("row", "task"), [(row, task) for row in TRAINED for task in row.tasks], ids=str
)
def test_every_row_has_the_same_steps_problems_and_generations(row: Row, task: Task) -> None:
    config, recipe = resolved(row, task)
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


@pytest.mark.parametrize("row", [r for r in ROWS if not r.fresh], ids=lambda row: row.name)
def test_a_row_knows_its_own_protocol(row: Row) -> None:
    from svr_lightning.core.stopping import Confident

    config, recipe = resolved(row)
    turns, rule = recipe.stop_policy(config["model"]["evaluation"]["max_turns"], Confident())
    assert (turns == 1) is row.single
    assert (rule is not None) is (row.interface is not None)
    if rule is not None:
        assert rule.needs_correct is (row.interface != "confidence")
        assert rule.threshold == (0.0 if row.interface == "verdict" else 0.85)


def test_every_candidate_is_a_layer_that_parses() -> None:
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--recipe", type=Recipe)
    for layer in tuning.CANDIDATES.values():
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


def test_a_row_of_fresh_turns_is_greedy_for_one_turn_and_sampled_for_ten() -> None:
    cell = plan.cell(plan.BY_NAME["rlcr_fresh"], 43, SETTINGS, ("train", "judge"))
    greedy, sampled = (command.line for command in cell.commands)
    assert "--model.evaluation.max_turns 1 " in greedy
    assert "--model.evaluation.max_turns 10 --model.evaluation.fresh_turns true " in sampled
    assert "--model.policy.path runs/miniature/rlcr-43/policy" in sampled


def test_each_row_has_its_own_rate_or_that_of_the_row_it_names() -> None:
    assert {"svr", "grpo_mt", "rlcr", "murphy"} <= set(plan.TUNED_ROWS)
    assert plan.CHOSEN not in plan.TUNED_ROWS  # it keeps the rate that it was chosen with
    for row in TRAINED:
        command = plan.cell(row, 42, SETTINGS, ("train",)).commands[0]
        place = command.arguments.index("--model.optimizer.lr")
        rate = SETTINGS.rates[row.rate_of or row.name]
        assert command.arguments[place + 1] == f"{rate:g}"
    assert plan.BY_NAME["without_cal"].rate_of == plan.BY_NAME["svr_400"].rate_of == "svr"


def test_rows_on_both_tasks_have_five_seeds_and_the_others_three() -> None:
    assert plan.seeds_of(plan.BY_NAME["rlcr"], plan.SEEDS) == plan.SEEDS
    assert plan.seeds_of(plan.BY_NAME["scrpo"], plan.SEEDS) == plan.SEEDS[:3]
    both = {row.name for row in plan.rows_of("arithmetic")}
    assert {"grpo", "grpo_mt", "murphy", "igrpo", "rlcr", "svr", "without_verify"} <= both
    assert "scrpo" not in both
    arithmetic = replace(SETTINGS, task="arithmetic")
    fit, *_ = plan.cell(plan.BY_NAME["svr"], 42, arithmetic, ("train",)).commands
    assert "--config configs/arithmetic_tiny.yaml" in fit.line
    assert "--config configs/experiments/miniature_arithmetic.yaml" in fit.line


def test_a_longer_row_trains_longer_and_is_judged_alike() -> None:
    longer, row = plan.BY_NAME["svr_400"], plan.BY_NAME["svr"]
    fit, *judged = plan.cell(longer, 42, SETTINGS, ("train", "judge")).commands
    assert "--trainer.max_steps 400 --trainer.val_check_interval 400" in fit.line
    _, *short = plan.cell(row, 42, SETTINGS, ("train", "judge")).commands
    assert [c.line.replace("svr_400-42", "svr-42") for c in judged] == [c.line for c in short]


def test_the_warm_start_is_judged_once_and_not_trained() -> None:
    start = plan.BY_NAME["warm_start"]
    assert plan.seeds_of(start, (42, 43, 44)) == (42,)
    cell = plan.cell(start, 42, SETTINGS, ("train", "judge"))
    assert [command.name for command in cell.commands] == ["greedy", "sampled"]
    assert "embedded:countdown-tiny" in cell.commands[0].arguments


def test_nothing_is_tuned_with_the_seeds_of_the_results() -> None:
    assert not set(plan.SEEDS) & {plan.TUNING_SEED, *plan.CANDIDATE_SEEDS}
    for bed in plan.BEDS.values():
        data = yaml.safe_load((ROOT / bed.experiment).read_text())["data"]
        assert [source["split"] for source in data["val"]] == ["dev"]
        assert [source["split"] for source in data["test"]] == ["test"]


def test_the_papers_numbers_are_the_papers() -> None:
    golden = json.loads((ROOT / "tests" / "goldens" / "paper_tables.json").read_text())
    printed = {
        (line["table"], line["row"]): line["all"] for line in golden if line["metric"] == "accuracy"
    }
    rows = [row.paper for row in ROWS if row.paper]
    assert len(rows) == 20
    assert all(printed[table, name] == f"{value:.3f}" for table, name, value in rows)


@pytest.mark.skipif(not PAPER.is_file(), reason=f"the paper is not at {PAPER}")
def test_the_papers_majority_votes_are_the_papers() -> None:
    found = re.findall(r"GRPO Maj@(\d+)\n& ([.\d]+)", PAPER.read_text())
    assert {int(k): float(value) for k, value in found} == plan.VOTE_PAPER
