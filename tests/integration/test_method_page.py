"""The numbers of docs/method.md, computed by the package's own functions."""

import re
from statistics import fmean, stdev

import yaml
from transformers import AutoTokenizer

import svr_lightning as svr
from svr_lightning.core.credit import group_advantages
from tests.commands import SHIPPED
from tests.pages import blocks, page

PAGE = page("docs/method.md")
CONFIG = yaml.safe_load(page("configs/countdown_tiny.yaml"))
RECIPE = CONFIG["model"]["recipe"]["init_args"]
TOKENS = 29
"""In each completion."""


def scored(correct: bool, verdict: str, confidence: str) -> svr.ScoredTurn:
    return svr.ScoredTurn(
        correct=correct,
        truncated=False,
        verdict=svr.Verdict(verdict),
        confidence=float(confidence),
        completion_tokens=TOKENS,
        task_format=1.0,
        self_check_format=1.0,
    )


def test_its_rewards_returns_and_advantages_are_those_of_its_turns():
    cells = re.findall(r"(right|wrong), ([A-Z]+) (0\.\d\d)", PAGE)
    turns = [scored(label == "right", *check) for label, *check in cells]
    group = [turns[i : i + 3] for i in range(0, len(turns), 3)]
    assert len(group) == RECIPE["group_size"]
    length = RECIPE["length_scale"]
    returns = [svr.trajectory_return(turns, length_scale=length) for turns in group]
    advantages = group_advantages(returns)
    rewards = svr.turn_rewards(group[1], length_scale=length)
    numbers = [reward.terms[name] for name in rewards[0].terms for reward in rewards]
    numbers += [*(reward.total for reward in rewards), returns[1], fmean(returns), stdev(returns)]
    for pair in zip(returns, advantages, strict=True):
        numbers += pair
    found = re.findall(r"[-+]?\d\.\d{3}\b", PAGE)
    assert [one.lstrip("+") for one in found[: len(numbers)]] == [f"{n + 0:.3f}" for n in numbers]
    completions = CONFIG["data"]["problems_per_step"] * len(group)
    assert f"over the {completions} completions of a step" in PAGE
    assert f"l) = {advantages[1] / (completions * TOKENS):.6f}$" in PAGE


def test_its_turns_are_read_and_graded_as_it_says():
    task, tokenizer = svr.get_task("countdown"), AutoTokenizer.from_pretrained(SHIPPED)
    problem = task.from_row({"nums": [5, 4, 10], "target": 9})
    assert f"({TOKENS} in each turn" in PAGE
    read = []
    for text in blocks(PAGE, "text")[1::2]:
        assert task.format_score(text) == svr.self_check_format_score(text) == 1.0
        assert len(tokenizer.encode(text.strip(), add_special_tokens=False)) + 1 == TOKENS
        label = "right" if task.grade(text, problem) else "wrong"
        check = svr.parse_self_check(text)
        read.append(f"{label}, {check.verdict.value} {check.confidence:.2f}")
    assert f"| 2, above | {' | '.join(read)} |" in PAGE
    for weight, value in re.findall(r"[|,] ((?!turn)[a-z]+) ([\d.]+)(?= \||,)", PAGE):
        assert getattr(svr.RewardWeights(), weight) == float(value)
    assert f"$L = {RECIPE['length_scale']}$" in PAGE
