"""Rewards of the paper's appendix, every number worked by hand beside it."""

from dataclasses import asdict, replace
from functools import partial
from typing import Any

import pytest
import torch

from svr_lightning.core.rewards import (
    Reward,
    RewardWeights,
    TurnReward,
    baseline_rewards,
    calibrated_rewards,
    calibration_rewards,
    confidence_score,
    sections,
    trajectory_return,
    turn_rewards,
    verification_rewards,
)
from svr_lightning.core.types import ScoredTurn, Verdict
from svr_lightning.recipes.rlcr import RLCR

C, I, U = Verdict.CORRECT, Verdict.INCORRECT, Verdict.UNSURE  # noqa: E741
ZERO_FORMAT = ScoredTurn(
    correct=False,
    truncated=False,
    verdict=U,
    confidence=0.5,
    completion_tokens=512,
    task_format=0.0,
    self_check_format=0.0,
)
RIGHT, WRONG = replace(ZERO_FORMAT, correct=True), ZERO_FORMAT


def only(turn: ScoredTurn, length_scale: int = 1024) -> TurnReward:
    (reward,) = turn_rewards([turn], length_scale=length_scale)
    return reward


def test_the_coefficients_are_the_papers():
    assert asdict(RewardWeights()) == {
        "abs": 1.0,
        "delta": 0.3,
        "alpha": 0.5,
        "keep": 0.3,
        "reg": 0.5,
        "fail": 0.3,
        "trunc": 0.5,
        "cal": 0.5,
        "over": 0.8,
        "detect": 0.2,
        "ready": 0.3,
        "fmt": 0.4,
    }


# --- solve ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tokens", "scale", "expected"),
    [
        (256, 1024, 0.875),  # 1 - 0.5 * 256/1024
        (5000, 1024, 0.5),  # capped at the scale
        (384, 768, 0.75),  # 1 - 0.5 * 384/768
    ],
)
def test_a_shorter_correct_answer_earns_more(tokens, scale, expected):
    assert only(replace(RIGHT, completion_tokens=tokens), scale).abs == pytest.approx(expected)


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        (RIGHT, RIGHT, 0.3),  # 0.3 * 0 + 0.3
        (RIGHT, WRONG, -0.8),  # 0.3 * -1 - 0.5
        (WRONG, WRONG, -0.3),  # 0.3 * 0 - 0.3
        (WRONG, RIGHT, 0.3),  # 0.3 * 1 + 0
    ],
)
def test_progress_covers_the_four_transitions(before, now, expected):
    first, second = turn_rewards([before, now])
    assert first.prog == 0.0
    assert second.prog == pytest.approx(expected)


@pytest.mark.parametrize(("turn", "solve"), [(RIGHT, 0.75), (WRONG, 0.0)])
def test_truncation_costs_a_half_whatever_the_answer(turn, solve):
    assert only(turn).solve == pytest.approx(solve)
    assert only(replace(turn, truncated=True)).solve == pytest.approx(solve - 0.5)


# --- verify --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("turn", "verdict", "confidence", "cal", "over", "detect", "ready"),
    [
        (RIGHT, C, 0.9, 0.495, 0.0, 0.0, 0.27),  # 0.5 * (1 - 0.01), 0.3 * 0.9
        (WRONG, C, 0.9, 0.095, -0.72, 0.0, 0.0),  # 0.5 * (1 - 0.81), -0.8 * 0.9
        (WRONG, I, 0.2, 0.48, 0.0, 0.2, 0.0),  # 0.5 * (1 - 0.04)
        (WRONG, I, 1.0, 0.0, 0.0, 0.2, 0.0),  # detection does not weigh confidence
        (RIGHT, I, 0.2, 0.18, 0.0, 0.0, 0.0),  # 0.5 * (1 - 0.64)
        (WRONG, U, 0.5, 0.375, 0.0, 0.0, 0.0),  # 0.5 * (1 - 0.25)
        (RIGHT, U, 0.5, 0.375, 0.0, 0.0, 0.0),
    ],
)
def test_verification_terms(turn, verdict, confidence, cal, over, detect, ready):
    reward = only(replace(turn, verdict=verdict, confidence=confidence))
    assert reward.cal == pytest.approx(cal)
    assert reward.over == pytest.approx(over)
    assert reward.detect == pytest.approx(detect)
    assert reward.ready == pytest.approx(ready)
    assert reward.verify == pytest.approx(cal + over + detect + ready)


@pytest.mark.parametrize("turn", [RIGHT, WRONG])
@pytest.mark.parametrize("verdict", Verdict)
def test_a_truncated_turn_has_no_verification_reward(turn, verdict):
    cut = replace(turn, truncated=True, verdict=verdict, confidence=0.9)
    assert only(cut).verify == turn_rewards([cut], proper=True)[0].verify == 0.0


# --- format --------------------------------------------------------------------------------


@pytest.mark.parametrize("truncated", [False, True])
@pytest.mark.parametrize(
    ("task_format", "self_check_format", "expected"),
    [
        (1.0, 1.0, 0.8),  # 0.4 * (1 + 1)
        (0.3, 1.0, 0.52),  # 0.4 * 1.3
        (0.3, 0.0, 0.12),  # 0.4 * 0.3
        (0.0, -1.0, -0.4),  # 0.4 * -1
    ],
)
def test_format_scores_are_added_and_survive_truncation(
    task_format, self_check_format, expected, truncated
):
    turn = replace(
        WRONG, task_format=task_format, self_check_format=self_check_format, truncated=truncated
    )
    assert only(turn).format == pytest.approx(expected)


# --- whole trajectories --------------------------------------------------------------------

TRAJECTORY = [
    # solve 0; verify 0.095 - 0.72; format 0.8: 0.175
    replace(WRONG, verdict=C, confidence=0.9, task_format=1.0, self_check_format=1.0),
    # solve 0.5 + 0.3 - 0.5; verify 0; format -0.4: -0.1
    replace(RIGHT, truncated=True, completion_tokens=1024, self_check_format=-1.0),
    # solve 0.875 + 0.3; verify 0.5 + 0.3; format 0.8: 2.775
    replace(
        RIGHT,
        verdict=C,
        confidence=1.0,
        completion_tokens=256,
        task_format=1.0,
        self_check_format=1.0,
    ),
]


def test_the_return_is_the_mean_of_the_turns():
    totals = [reward.total for reward in turn_rewards(TRAJECTORY)]
    assert totals == pytest.approx([0.175, -0.1, 2.775])
    assert trajectory_return(TRAJECTORY) == pytest.approx(0.95)  # 2.85 / 3


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("abs", {"abs"}),
        ("delta", {"prog"}),
        ("alpha", {"abs"}),
        ("trunc", {"trunc"}),
        ("cal", {"cal"}),
        ("over", {"over"}),
        ("ready", {"ready"}),
        ("fmt", {"task_format", "self_check_format"}),
    ],
)
def test_a_coefficient_of_0_changes_its_own_term_alone(name, fields):
    changed = set()
    ablated = turn_rewards(TRAJECTORY, replace(RewardWeights(), **{name: 0.0}))
    for full, without in zip(turn_rewards(TRAJECTORY), ablated, strict=True):
        pairs = zip(full.terms.items(), without.terms.values(), strict=True)
        changed |= {field for (field, value), other in pairs if value != other}
    assert changed == fields


def test_a_trajectory_without_turns_is_refused():
    with pytest.raises(ValueError, match="without turns"):
        trajectory_return([])


@pytest.mark.parametrize("scale", [0, -1])
def test_a_length_scale_must_be_positive(scale):
    with pytest.raises(ValueError, match="positive"):
        turn_rewards([RIGHT], length_scale=scale)


def test_the_sections_of_a_reward_are_the_solutions_terms_and_the_self_checks():
    names = ("abs", "prog", "trunc", "cal", "over", "detect", "ready", "task_format")
    terms = {name: 2.0**place for place, name in enumerate((*names, "self_check_format"))}
    reward = TurnReward(**terms)
    assert sections(reward) == (1 + 2 + 4 + 128, 8 + 16 + 32 + 64 + 256)
    assert reward.subtotals == {"solve": 7, "verify": 120, "format": 384}
    # A term of one's own belongs to the solution.
    assert sections(Reward.of(cal=1.0, brief=0.5)) == (0.5, 1.0)


# --- methods without a self-check -----------------------------------------------------------------

CUT_SHORT = ScoredTurn(correct=True, truncated=True, completion_tokens=256, task_format=1.0)


@pytest.mark.parametrize(
    ("kind", "terms"),
    [
        ("binary", {"correct": 1.0}),
        ("binary_fmt", {"correct": 1.0, "task_format": 0.4}),
        # abs = 1 - 0.5 * 256 / 1024.
        ("solve", {"abs": 0.875, "prog": 0.0, "trunc": -0.5, "task_format": 0.4}),
    ],
)
def test_a_baselines_terms_of_a_right_answer_in_a_truncated_completion(kind, terms):
    (reward,) = baseline_rewards([CUT_SHORT], kind)
    assert dict(reward.terms) == pytest.approx(terms)
    assert reward.total == pytest.approx(sum(terms.values()))


def test_rewards_of_self_checks_need_one():
    with pytest.raises(ValueError, match="needs a self-check at every turn"):
        turn_rewards([CUT_SHORT])
    with pytest.raises(ValueError, match="needs a confidence at every turn"):
        calibrated_rewards([CUT_SHORT], "brier", RewardWeights())


# --- proper rewards -------------------------------------------------------------------------------


@pytest.mark.parametrize("confidence", [0.0, 0.3, 1.0])
@pytest.mark.parametrize(
    ("turn", "verdict", "over", "ready"),
    [
        (WRONG, C, -0.8, 0.0),
        (RIGHT, C, 0.0, 0.3),
        *((turn, verdict, 0.0, 0.0) for turn in (RIGHT, WRONG) for verdict in (I, U)),
    ],
)
def test_the_proper_reward_pays_for_verdicts_and_not_for_their_confidence(
    turn, verdict, over, ready, confidence
):
    said = replace(turn, verdict=verdict, confidence=confidence)
    (reward,) = turn_rewards([said], proper=True)
    assert (reward.over, reward.ready) == (over, ready)
    assert reward.detect == (0.2 if (turn, verdict) == (WRONG, I) else 0.0)


STATED = replace(ZERO_FORMAT, confidence=0.9, task_format=1.0, self_check_format=1.0)


@pytest.mark.parametrize(
    ("turn", "brier", "log"),
    [
        # 1 - (c - y)^2 and 1 + ln(q) / ln(1000), q = .9, .1, .8: ln q = -.10536, -2.30259, -.22314
        (replace(STATED, correct=True), 0.99, 0.984747),
        (STATED, 0.19, 2 / 3),
        (replace(STATED, confidence=0.2), 0.96, 0.967697),
        (replace(STATED, truncated=True), 0.0, 0.0),
        # Without a confidence there is nothing to score, not even the prior's 0.5.
        (replace(STATED, correct=True, confidence=0.5, self_check_format=0.0), 0.0, 0.0),
        (replace(STATED, confidence=0.5, self_check_format=-1.0), 0.0, 0.0),
    ],
)
def test_rlcr_pays_for_correctness_confidence_and_form(turn, brier, log):
    rules = {"brier": brier, "log": log}
    for rule, score in rules.items():
        (reward,) = RLCR(score=rule).reward([turn])
        form = {"task_format": 0.4, "self_check_format": 0.4 * turn.self_check_format}
        expected = {"correct": float(turn.correct), "cal": score, **form}
        assert dict(reward.terms) == pytest.approx(expected, abs=1e-6)


def expected_reward(rewards: Any, p: float, verdict: Verdict, confidence: float) -> float:
    """Mean reward of a turn that is correct with probability p."""
    said = replace(STATED, verdict=verdict, confidence=confidence)
    right, wrong = (rewards([replace(said, correct=y)])[0].total for y in (True, False))
    return float(p * right + (1 - p) * wrong)


PROPER = partial(turn_rewards, proper=True)


@pytest.mark.parametrize("p", [0.1, 0.5, 0.7, 0.8, 0.95])
def test_the_best_confidence_is_the_probability_under_proper_rewards_and_not_the_papers(p):
    def best(rewards, verdict):
        grid = [step / 1000 for step in range(1001)]
        return max(grid, key=lambda c: expected_reward(rewards, p, verdict, c))

    for verdict in (C, I):
        assert best(PROPER, verdict) == pytest.approx(p)
    for rule in ("brier", "log"):
        assert best(partial(calibrated_rewards, rule=rule, weights=RewardWeights()), U) == (
            pytest.approx(p)
        )
    assert best(turn_rewards, C) == pytest.approx(min(max(2.1 * p - 0.8, 0), 1))


@pytest.mark.parametrize("rule", ["brier", "log"])
def test_a_score_of_a_confidence_lies_between_0_and_1(rule):
    for y in (True, False):
        scores = [confidence_score(step / 100, y, rule) for step in range(101)]
        assert (min(scores) >= 0.0, max(scores)) == (True, 1.0)


# --- for other trainers --------------------------------------------------------------------


@pytest.mark.parametrize("proper", [False, True])
@pytest.mark.parametrize("confidence", [0.0, 0.35, 1.0])
def test_the_plain_verification_reward_is_that_of_a_complete_turn(confidence, proper):
    turns = [replace(y, verdict=v, confidence=confidence) for v in Verdict for y in (RIGHT, WRONG)]
    expected = [turn_rewards([turn], proper=proper)[0].verify for turn in turns]
    verdicts = [turn.verdict for turn in turns]
    labels = [turn.correct for turn in turns]
    stated = [confidence] * len(turns)
    assert verification_rewards(verdicts, stated, labels, proper=proper) == expected
    words = [str(verdict) for verdict in verdicts]
    tensors = (torch.tensor(stated, dtype=torch.float64), torch.tensor(labels))
    assert verification_rewards(words, *tensors, proper=proper) == expected


def test_what_cannot_be_read_earns_nothing_and_a_tensor_is_read_like_a_list():
    assert calibration_rewards(torch.tensor([1.0, 0.5]), torch.tensor([0, 1])) == [0.0, 0.75]
    assert verification_rewards(["CORRECT", None], [None, 0.9], [True, True]) == [0.0, 0.0]
    with pytest.raises(ValueError, match="MAYBE"):
        verification_rewards(["MAYBE"], [0.9], [True])
