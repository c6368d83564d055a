"""Group-relative advantages."""

import math
from itertools import product

import pytest
import torch

from svr_lightning.core.credit import group_advantages, is_degenerate, turn_advantages


@pytest.mark.parametrize("value", [0.0, -1.3, 0.1, 2.35, 1e6])
@pytest.mark.parametrize("size", [1, 2, 3, 8])
@pytest.mark.parametrize("scale", ["group", "none"])
def test_equal_returns_have_no_advantage_at_all(value, size, scale):
    returns = [value] * size
    assert is_degenerate(returns)
    assert group_advantages(returns, scale) == [0.0] * size


def test_a_difference_above_rounding_is_a_signal():
    assert not is_degenerate([1.0, 1.0, 1.0 + 1e-6])


def test_a_turn_is_compared_with_the_same_turn_of_its_group_by_what_follows():
    # To go: (0 + 2 + 4) / 3, 3, 4 and (2 + 0 + 0) / 3, 0, 0. Two values a and b are
    # (a - b) / 2 from their mean, and their standard deviation is |a - b| / sqrt(2).
    rewards = [[0.0, 2.0, 4.0], [2.0, 0.0, 0.0]]
    plain = turn_advantages(rewards, "none")
    assert plain == [pytest.approx([2 / 3, 1.5, 2.0]), pytest.approx([-2 / 3, -1.5, -2.0])]
    scaled = turn_advantages(rewards)[0]
    assert scaled == pytest.approx([a / (a * math.sqrt(2) + 1e-4) for a in (2 / 3, 1.5, 2.0)])
    assert turn_advantages(rewards, "none", to_go=False)[0] == [-1.0, 1.0, 2.0]


def test_turns_of_a_tensor_are_credited_like_those_of_a_list():
    rewards = [[0.5, 2.0], [1.0, 0.25], [0.0, 0.0]]
    assert turn_advantages(torch.tensor(rewards)) == turn_advantages(rewards)


def test_trajectories_of_unequal_length_have_no_credit_per_turn():
    with pytest.raises(ValueError, match="have 1 to 2 turns"):
        turn_advantages([[1.0, 0.0], [1.0]])


def test_credit_per_turn_is_an_unbiased_policy_gradient_but_for_groups_of_few():
    """Two turns with one bit each, groups of two, all 16 outcomes of the group enumerated."""
    p = (0.3, 0.6)  # of a 1 at either turn

    def reward(bits):
        first, second = bits
        return [2.0 * first, 1.0 - 3.0 * first * second]

    def chance(bits):
        return math.prod(q if bit else 1 - q for bit, q in zip(bits, p, strict=True))

    outcomes = list(product((0, 1), repeat=2))
    estimated = [0.0, 0.0]
    for group in product(outcomes, repeat=2):
        advantages = turn_advantages([reward(bits) for bits in group], "none")
        for bits, row in zip(group, advantages, strict=True):
            for t in (0, 1):  # the derivative of log p(bit) by its logit is bit - p
                slope = (bits[t] - p[t]) * row[t]
                estimated[t] += math.prod(chance(one) for one in group) * slope / len(group)
    # By hand p (1 - p) times the expected gain of a 1: (2 - 3 p2) / 2 to go, and then -3 p1.
    exact = [0.21 * (2 - 3 * 0.6) / 2, 0.24 * -3 * 0.3]
    assert estimated == pytest.approx([value * (2 - 1) / 2 for value in exact])
