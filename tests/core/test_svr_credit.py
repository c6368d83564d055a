"""The variants of SVR: who learns, with what advantage, and what their rewards are best met by."""

from functools import partial

import pytest

from svr_lightning.core.rewards import RewardWeights, turn_rewards
from svr_lightning.core.types import ScoredTurn, Verdict
from svr_lightning.recipes.svr_plus import SVRPlus
from tests.recipes import play


def expected_reward(rewards: object, p: float, verdict: Verdict, confidence: float) -> float:
    """Mean verification reward of a turn that is correct with probability p."""
    total = 0.0
    for correct, share in ((True, p), (False, 1 - p)):
        said = {"verdict": verdict, "confidence": confidence, "task_format": 0.0}
        turn = ScoredTurn(correct=correct, truncated=False, completion_tokens=1, **said)
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


SOLUTION = "<answer>8+4-2</answer>\n"
CHECK = "<self_check>VERDICT: {}; CONFIDENCE: {}</self_check>"


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
