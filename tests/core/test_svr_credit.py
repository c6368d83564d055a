"""The variants of SVR: who learns, with what advantage, and what their rewards are best met by."""

from dataclasses import replace
from functools import partial

import pytest

from svr_lightning.core.rewards import RewardWeights, turn_rewards
from svr_lightning.core.seeds import SeedContext
from svr_lightning.core.types import ScoredTurn, Verdict
from svr_lightning.recipes.svr_plus import SVRPlus
from tests.recipes import advantages, play, scripts


def expected_reward(rewards: object, p: float, verdict: Verdict, confidence: float) -> float:
    """Mean verification reward of a turn that is correct with probability p."""
    total = 0.0
    for correct, share in ((True, p), (False, 1 - p)):
        turn = ScoredTurn(
            correct=correct,
            truncated=False,
            verdict=verdict,
            confidence=confidence,
            completion_tokens=1,
            task_format=0.0,
            self_check_format=0.0,
        )
        total += share * rewards([turn])[0].verify  # type: ignore[operator]
    return total


proper_rewards = partial(turn_rewards, proper=True)
GRID = [i / 1000 for i in range(1001)]


@pytest.mark.parametrize("p", [0.1, 0.5, 0.7, 0.8, 0.95])
def test_the_best_confidence_is_the_probability_only_under_the_proper_reward(p: float) -> None:
    def best(rewards: object, verdict: Verdict) -> float:
        return max(GRID, key=lambda c: expected_reward(rewards, p, verdict, c))

    assert best(proper_rewards, Verdict.CORRECT) == pytest.approx(p)
    assert best(proper_rewards, Verdict.INCORRECT) == pytest.approx(p)
    assert best(turn_rewards, Verdict.CORRECT) == pytest.approx(min(max(2.1 * p - 0.8, 0), 1))


def test_the_proper_reward_pays_for_correct_above_ten_thirteenths() -> None:
    # (lambda_over + lambda_detect) / (lambda_over + lambda_detect + lambda_ready) = 1 / 1.3.
    weights = RewardWeights()
    assert (weights.over + weights.detect) / (
        weights.over + weights.detect + weights.ready
    ) == pytest.approx(1 / 1.3)
    for p, better in [(0.76, Verdict.INCORRECT), (0.78, Verdict.CORRECT)]:
        values = {v: expected_reward(proper_rewards, p, v, p) for v in Verdict}
        assert max(values, key=lambda v: values[v]) == better


def test_svr_turns_credits_a_drawn_turn_with_what_it_and_later_ones_earned() -> None:
    weights = RewardWeights(alpha=0, delta=0, keep=0, reg=0, fail=0, cal=0, fmt=0)
    recipe = SVRPlus(
        sections=False, proper=False, group_size=2, weights=weights, scale_rewards="none"
    )
    rows = ("WWR", "RWW")
    # Reward-to-go of 0 0 1: 1/3, 1/2, 1; of 1 0 0: 1/3, 0, 0. Centred per turn:
    by_turn = [[0.0, 0.0], [0.25, -0.25], [0.5, -0.5]]
    drawn = set()
    for step in range(30):
        ((group,), _) = play(recipe, scripts(*rows), place=SeedContext(step=step))
        for i, sample in enumerate(recipe.credit(group)):
            (t,) = [
                t
                for t, turn in enumerate(group.trajectories[i].turns)
                if turn.completion.token_ids is sample.completion_ids
            ]
            assert sample.advantage == pytest.approx(by_turn[t][i])
            drawn.add((i, t))
        assert advantages(recipe.credit(group)) == advantages(recipe.credit(group))
    assert len(drawn) == 6


SOLUTION = "<answer>8+4-2</answer>\n"
CHECK = "<self_check>VERDICT: {}; CONFIDENCE: {}</self_check>"


def test_svr_plus_credits_solution_and_self_check_apart() -> None:
    """Trajectory 0 is right twice and says so; trajectory 1 is wrong, then right, and unsure."""
    weights = RewardWeights(alpha=0, delta=0, keep=0, reg=0, fail=0, fmt=0)
    recipe = SVRPlus(
        group_size=2, horizon=2, weights=weights, scale_rewards="none", turns="all", proper=True
    )
    sure, unsure = CHECK.format("CORRECT", "1.00"), CHECK.format("UNSURE", "0.50")
    wrong = SOLUTION.replace("-", "*")
    said = [[SOLUTION + sure, SOLUTION + sure], [wrong + unsure, SOLUTION + unsure]]
    ((group,), _) = play(recipe, lambda program, prompt, _: said[program][prompt])
    samples = recipe.credit(group)
    # Solutions: to go 1 and 1 against 1/2 and 1. Checks: 0.5 + 0.3 against 0.5 (1 - 0.25), twice.
    check = (0.8 - 0.375) / 2
    assert advantages(samples) == pytest.approx([0.25, check, 0.0, check, -0.25, -check, 0, -check])
    start = len(SOLUTION)
    # The end of the turn belongs to the self-check.
    assert [sample.text_span for sample in samples[:2]] == [
        (0, start),
        (start, start + len(sure) + 1),
    ]


def test_svr_plus_holds_the_end_of_a_turn_to_account_for_a_missing_self_check() -> None:
    weights = RewardWeights(cal=0, over=0, detect=0, ready=0, fmt=1.0)
    recipe = SVRPlus(
        group_size=2, horizon=1, weights=weights, scale_rewards="none", turns="all", proper=False
    )
    whole = SOLUTION + CHECK.format("CORRECT", "1.00")
    ((group,), _) = play(recipe, lambda program, *_: [whole, SOLUTION][program])
    samples = recipe.credit(group)
    start = len(SOLUTION)
    assert [s.text_span for s in samples[2:]] == [(0, start), (start, start + 1)]
    # The form of a self-check earns 1, its absence -1.
    assert [samples[k].advantage for k in (1, 3)] == [1.0, -1.0]


def test_svr_plus_takes_a_turn_of_a_self_check_alone_as_one_sequence() -> None:
    recipe = SVRPlus(group_size=2, horizon=1, turns="all")
    ((group,), _) = play(recipe, lambda program, *_: ["<Self_Check>", SOLUTION][program])
    assert recipe.credit(group)[0].text_span == (0, len("<Self_Check>") + 1)
    assert len(recipe.credit(group)) == 3


def test_every_turn_is_drawn_equally_often() -> None:
    recipe = SVRPlus(sections=False, group_size=2, horizon=3)
    ((group,), _) = play(recipe, scripts("RWR", "WRW"))
    draws = [
        recipe.drawn(replace(group, seeds=SeedContext(run_seed=7, step=step)), i)
        for step in range(1500)
        for i in range(2)
    ]
    assert all(900 < draws.count(t) < 1100 for t in range(3))
