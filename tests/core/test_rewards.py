"""Rewards of the paper's appendix, every number worked by hand beside it."""

from dataclasses import asdict, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from svr_lightning.core.rewards import RewardWeights, TurnReward, trajectory_return, turn_rewards
from svr_lightning.core.types import ScoredTurn, Verdict

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


def test_the_coefficients_are_the_papers() -> None:
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
        (0, 1024, 1.0),
        (256, 1024, 0.875),  # 1 - 0.5 * 256/1024
        (1024, 1024, 0.5),  # 1 - 0.5
        (5000, 1024, 0.5),  # capped at the scale
        (384, 768, 0.75),  # 1 - 0.5 * 384/768
        (1536, 1536, 0.5),
    ],
)
def test_a_shorter_correct_answer_earns_more(tokens: int, scale: int, expected: float) -> None:
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
def test_progress_covers_the_four_transitions(
    before: ScoredTurn, now: ScoredTurn, expected: float
) -> None:
    first, second = turn_rewards([before, now])
    assert first.prog == 0.0
    assert second.prog == pytest.approx(expected)


@pytest.mark.parametrize(("turn", "solve"), [(RIGHT, 0.75), (WRONG, 0.0)])
def test_truncation_costs_a_half_whatever_the_answer(turn: ScoredTurn, solve: float) -> None:
    assert only(turn).solve == pytest.approx(solve)
    assert only(replace(turn, truncated=True)).solve == pytest.approx(solve - 0.5)


# --- verify --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("turn", "verdict", "confidence", "cal", "over", "detect", "ready"),
    [
        (RIGHT, C, 0.9, 0.495, 0.0, 0.0, 0.27),  # 0.5 * (1 - 0.01), 0.3 * 0.9
        (RIGHT, C, 1.0, 0.5, 0.0, 0.0, 0.3),
        (WRONG, C, 0.9, 0.095, -0.72, 0.0, 0.0),  # 0.5 * (1 - 0.81), -0.8 * 0.9
        (WRONG, C, 0.0, 0.5, 0.0, 0.0, 0.0),
        (WRONG, I, 0.2, 0.48, 0.0, 0.2, 0.0),  # 0.5 * (1 - 0.04)
        (WRONG, I, 1.0, 0.0, 0.0, 0.2, 0.0),  # detection does not weigh confidence
        (RIGHT, I, 0.2, 0.18, 0.0, 0.0, 0.0),  # 0.5 * (1 - 0.64)
        (WRONG, U, 0.5, 0.375, 0.0, 0.0, 0.0),  # 0.5 * (1 - 0.25)
        (RIGHT, U, 0.5, 0.375, 0.0, 0.0, 0.0),
    ],
)
def test_verification_terms(
    turn: ScoredTurn,
    verdict: Verdict,
    confidence: float,
    cal: float,
    over: float,
    detect: float,
    ready: float,
) -> None:
    reward = only(replace(turn, verdict=verdict, confidence=confidence))
    assert reward.cal == pytest.approx(cal)
    assert reward.over == pytest.approx(over)
    assert reward.detect == pytest.approx(detect)
    assert reward.ready == pytest.approx(ready)
    assert reward.verify == pytest.approx(cal + over + detect + ready)


@pytest.mark.parametrize("turn", [RIGHT, WRONG])
@pytest.mark.parametrize("verdict", Verdict)
def test_a_truncated_turn_has_no_verification_reward(turn: ScoredTurn, verdict: Verdict) -> None:
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
        (0.0, 0.0, 0.0),
        (0.0, -1.0, -0.4),  # 0.4 * -1
        (1.0, -1.0, 0.0),
    ],
)
def test_format_scores_are_added_and_survive_truncation(
    task_format: float, self_check_format: float, expected: float, truncated: bool
) -> None:
    turn = replace(
        WRONG,
        task_format=task_format,
        self_check_format=self_check_format,
        truncated=truncated,
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


def test_the_return_is_the_mean_of_the_turns() -> None:
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
def test_a_coefficient_of_0_changes_its_own_term_alone(name: str, fields: set[str]) -> None:
    changed = set()
    ablated = turn_rewards(TRAJECTORY, replace(RewardWeights(), **{name: 0.0}))
    for full, without in zip(turn_rewards(TRAJECTORY), ablated, strict=True):
        pairs = zip(full.terms.items(), without.terms.values(), strict=True)
        changed |= {field for (field, value), other in pairs if value != other}
    assert changed == fields


@given(
    st.lists(
        st.builds(
            ScoredTurn,
            correct=st.booleans(),
            truncated=st.booleans(),
            verdict=st.sampled_from(Verdict),
            confidence=st.floats(0, 1),
            completion_tokens=st.integers(0, 4096),
            task_format=st.sampled_from([0.0, 0.3, 1.0]),
            self_check_format=st.sampled_from([-1.0, 0.0, 1.0]),
        ),
        min_size=1,
        max_size=5,
    )
)
def test_every_breakdown_adds_up_to_the_return(turns: list[ScoredTurn]) -> None:
    rewards = turn_rewards(turns)
    for reward in rewards:
        assert reward.total == pytest.approx(sum(reward.terms.values()))
        assert reward.total == pytest.approx(reward.solve + reward.verify + reward.format)
        # Extremes: 1 + 0.3 + 0.8 + 0.8, and -0.8 - 0.8 (or -0.5) - 0.4.
        assert -2.1 <= reward.total <= 2.9 + 1e-9
    mean = sum(reward.total for reward in rewards) / len(rewards)
    assert trajectory_return(turns) == pytest.approx(mean)


def test_a_trajectory_without_turns_is_refused() -> None:
    with pytest.raises(ValueError, match="without turns"):
        trajectory_return([])


@pytest.mark.parametrize("scale", [0, -1])
def test_a_length_scale_must_be_positive(scale: int) -> None:
    with pytest.raises(ValueError, match="positive"):
        turn_rewards([RIGHT], length_scale=scale)
