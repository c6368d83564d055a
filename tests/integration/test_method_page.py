"""Rewards, returns and advantages of docs/method.md, computed by the package's own functions."""

import re
from statistics import fmean, stdev

import pytest
import yaml
from transformers import AutoTokenizer

import svr_lightning as svr
from svr_lightning.core.credit import group_advantages
from tests.commands import SHIPPED
from tests.pages import page, tables

PAGE = page("docs/method.md")
CONFIG = yaml.safe_load(page("configs/countdown_tiny.yaml"))
RECIPE = CONFIG["model"]["recipe"]["init_args"]
TASK = svr.get_task("countdown")
PROBLEM = TASK.from_row({"nums": [5, 4, 10], "target": 9})
# Prompt and completion of each turn, in turn.
COMPLETIONS = re.findall(r"^```text\n(.*?)\n```$", PAGE, re.DOTALL | re.MULTILINE)[1::2]


def rows(first_cell: str) -> list[list[str]]:
    """The cells of the table whose first column has this heading."""
    (table,) = (table for table in tables(PAGE) if table[0][0] == first_cell)
    return table[1:]


def stated(pattern: str) -> float:
    """The number that the page gives in this place."""
    return float(re.search(pattern, PAGE)[1])  # type: ignore[index]


def scored(correct: bool, verdict: str, confidence: float, tokens: int = 29) -> svr.ScoredTurn:
    return svr.ScoredTurn(
        correct=correct,
        truncated=False,
        verdict=svr.Verdict(verdict),
        confidence=confidence,
        completion_tokens=tokens,
        task_format=1.0,
        self_check_format=1.0,
    )


def turns_shown() -> list[svr.ScoredTurn]:
    """The page's three completions, read and graded."""
    tokenizer = AutoTokenizer.from_pretrained(SHIPPED)
    turns = []
    for text in COMPLETIONS:
        check = svr.parse_self_check(text)
        assert TASK.format_score(text) == svr.self_check_format_score(text) == 1.0
        tokens = len(tokenizer.encode(text, add_special_tokens=False)) + 1  # and its end
        correct = TASK.grade(text, PROBLEM)
        turns.append(scored(correct, check.verdict, check.confidence, tokens))
    return turns


def group_shown() -> list[list[svr.ScoredTurn]]:
    """The trajectories of the table, from their labels and self-checks."""
    trajectories = []
    for cells in rows("trajectory"):
        read = [re.fullmatch(r"(right|wrong), ([A-Z]+) (0\.\d\d)", cell) for cell in cells[1:4]]
        assert all(read)
        trajectories.append([scored(m[1] == "right", m[2], float(m[3])) for m in read if m])
    return trajectories


def test_every_reward_term_is_what_the_turns_earn():
    weights, turns = svr.RewardWeights(), turns_shown()
    assert [turn.completion_tokens for turn in turns] == [stated(r"\((\d+) in each turn")] * 3
    assert stated(r"\$L = (\d+)\$") == RECIPE["length_scale"]
    rewards = svr.turn_rewards(turns, length_scale=RECIPE["length_scale"])
    *terms, total = rows("term")
    assert [cells[0].strip("`") for cells in terms] == list(rewards[0].terms)
    for name, _, coefficients, *values in terms:
        earned = [
            f"{reward.terms[name.strip('`')]:.3f}".replace("-0.000", "0.000") for reward in rewards
        ]
        assert values == earned
        for weight, value in re.findall(r"(\w+) ([\d.]+)", coefficients):
            assert getattr(weights, weight) == float(value)
    assert total[3:] == [f"{reward.total:.3f}" for reward in rewards]
    assert stated(r"\$R = (\d\.\d+)\$") == round(fmean(r.total for r in rewards), 3)


def test_returns_and_advantages_of_the_group_follow_from_its_turns():
    group = group_shown()
    assert len(group) == RECIPE["group_size"]
    assert group[1] == turns_shown()
    returns = [svr.trajectory_return(turns, length_scale=RECIPE["length_scale"]) for turns in group]
    advantages = group_advantages(returns)
    table = rows("trajectory")
    assert [float(cells[4]) for cells in table] == pytest.approx(returns, abs=6e-4)
    assert [cells[5] for cells in table] == [f"{value:+.3f}" for value in advantages]
    assert stated(r"\\mu = (\d\.\d+)\$") == round(fmean(returns), 3)
    assert stated(r"\\sigma = (\d\.\d+)\$") == round(stdev(returns), 3)
    completions = CONFIG["data"]["problems_per_step"] * len(group)
    assert stated(r"over the (\d+) completions of a step") == completions
    weight = advantages[1] / (completions * group[1][-1].completion_tokens)
    assert stated(r"l\) = (0\.\d+)\$") == round(weight, 6)
