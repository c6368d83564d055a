"""Group-relative advantages."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from svr_lightning.core.credit import group_advantages, is_degenerate

RETURNS = st.lists(st.floats(-10.0, 10.0, allow_subnormal=False), min_size=2, max_size=24)


def test_the_standard_deviation_is_the_samples_own_with_g_minus_one():
    # Mean 2, squares 1 + 0 + 1 over 3 - 1: standard deviation 1 (over 3 it were 0.816).
    assert group_advantages([1.0, 2.0, 3.0]) == pytest.approx([-1 / 1.0001, 0.0, 1 / 1.0001])


def test_epsilon_tames_a_group_that_hardly_differs():
    # Standard deviation 1e-4 / sqrt(2) = 7.0710678e-5: 5e-5 / 1.70710678e-4 = 0.2928932.
    assert group_advantages([0.0, 1e-4]) == pytest.approx([-0.2928932, 0.2928932], rel=1e-6)


@pytest.mark.parametrize("value", [0.0, -1.3, 0.1, 2.35, 1e6])
@pytest.mark.parametrize("size", [1, 2, 3, 8])
@pytest.mark.parametrize("scale", ["group", "none"])
def test_equal_returns_have_no_advantage_at_all(value, size, scale):
    returns = [value] * size
    assert is_degenerate(returns)
    assert group_advantages(returns, "none" if scale == "none" else "group") == [0.0] * size


def test_the_order_in_which_rewards_were_added_is_no_signal():
    assert sum([0.4, 0.095, -0.72, 0.3]) != sum([0.3, -0.72, 0.095, 0.4])
    assert is_degenerate([sum([0.4, 0.095, -0.72, 0.3]), sum([0.3, -0.72, 0.095, 0.4])])
    assert is_degenerate([1.0, 1.0, math.nextafter(1.0, 2.0)])
    assert not is_degenerate([1.0, 1.0, 1.0 + 1e-6])


@given(RETURNS)
def test_advantages_add_up_to_nothing(returns):
    for scale in ("group", "none"):
        assert math.fsum(group_advantages(returns, scale)) == pytest.approx(0.0, abs=1e-9)
