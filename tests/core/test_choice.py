"""The best option within a budget is measured where it was not chosen, on cases worked by hand."""

import numpy as np
import pytest

from svr_lightning.analysis import choice
from svr_lightning.analysis.choice import Options, choose, draw, gap, joined, measured
from svr_lightning.analysis.intervals import wilson_interval


def options(right: list[list[float]], tokens: list[float]) -> Options:
    """Options a, b and so on, with one training seed and the same tokens for every problem."""
    rows = np.array(right)[:, None]
    return Options(
        names=tuple("abcdef"[: len(right)]),
        right=rows,
        tokens=np.broadcast_to(np.array(tokens)[:, None, None], rows.shape).copy(),
    )


def test_what_wins_on_one_half_by_luck_is_measured_on_the_other():
    """Each of forty options is right on one problem alone: its luck does not carry over."""
    found = choose(options(np.eye(40).tolist()[:6], [5.0] * 6), 5.0, draw(np.arange(40)))
    # An option that is right in one half is right nowhere in the other.
    assert found.accuracy[0] < 1 / 40
    better = options([[0.0] * 40, [1.0] * 40], [5.0, 5.0])
    sure = choose(better, 5.0, draw(np.arange(40)))
    assert (sure.names, set(sure.accuracy)) == (("b",), {1.0})


def test_an_option_has_to_be_within_the_budget_and_of_equals_the_cheaper_one_is_taken():
    given = options([[0.5] * 8, [1.0] * 8, [1.0] * 8, [1.0] * 8], [1.0, 4.0, 3.0, 9.0])
    cheap, dear, none = (choose(given, budget, draw(np.arange(8))) for budget in (2.0, 9.0, 0.5))
    assert (cheap.names, cheap.tokens[0], cheap.accuracy[0]) == (("a",), 1.0, 0.5)
    assert (dear.names, dear.tokens[0]) == (("c",), 3.0)
    assert none is None
    # In one cluster there is nothing to choose on.
    assert choose(given, 9.0, draw(np.zeros(8, int))) is None


def test_the_interval_includes_the_choice():
    """Two options that are right on different halves of the problems: either may win a resample."""
    half = [1.0] * 20 + [0.0] * 20
    found = choose(options([half, half[::-1]], [1.0, 1.0]), 1.0, draw(np.arange(40)))
    alone = choose(options([half], [1.0]), 1.0, draw(np.arange(40)))
    # Better than its rival on one half is worse on the other, so the choice is below either.
    assert found.accuracy[0] < alone.accuracy[0] == 0.5
    assert np.std(found.accuracy[1:]) > 0


def test_seeds_are_drawn_too():
    """One seed is always right, one never: a resample has 0, 1/2 or 1."""
    right = np.array([[[1.0] * 6, [0.0] * 6]])
    given = Options(names=("a",), right=right, tokens=np.ones_like(right))
    draws = draw(np.array([0, 0, 1, 1, 2, 2]), 2)
    found = choose(given, 1.0, draws)
    assert found.accuracy[0] == 0.5
    assert set(found.accuracy.tolist()) == {0.0, 0.5, 1.0}
    assert len(np.unique(draws.halves, axis=0)) > 1  # no split decides alone


def test_none_or_all_right_have_the_interval_that_an_evaluation_gives_them():
    """Resamples of ten equal outcomes are equal, and say nothing of an eleventh problem."""
    for right, interval in ((0.0, [0.0, 0.278]), (1.0, [0.722, 1.0])):
        found = choose(options([[right] * 10], [1.0]), 1.0, draw(np.arange(10)))
        assert measured(found)["ci95"] == pytest.approx(interval, abs=5e-4)
        assert measured(found)["ci95"] == wilson_interval(right, 10)
        # Either of two such policies may be better by as much as one interval is wide.
        same = gap(found, found)
        assert (same["gap"], same["gap_ci95"]) == (0.0, pytest.approx([-0.278, 0.278], abs=5e-4))
    # In pairs that are alike they count as five.
    found = choose(options([[0.0] * 10], [1.0]), 1.0, draw(np.arange(10) // 2))
    assert measured(found)["ci95"] == wilson_interval(0.0, 5)


def test_options_that_return_the_same_are_one():
    one = options([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]], [2.0, 2.0, 2.0])
    assert joined([one, one]).names == ("a", "c")
    assert joined([one]).right.shape == (2, 1, 2)
    assert joined([one]).tokens == pytest.approx(2.0)


def test_splits_share_their_sums(monkeypatch):
    given = options([[1, 0, 1, 1, 0], [0, 1, 1, 0, 1]], [10, 12])
    draws = draw(np.arange(5), resamples=20)
    whole = choose(given, 11.5, draws)
    monkeypatch.setattr(choice, "_TOGETHER", 1)
    alone = choose(given, 11.5, draws)
    assert whole is not None
    assert alone is not None
    assert alone.names == whole.names
    assert alone.accuracy.tolist() == whole.accuracy.tolist()
    assert alone.tokens.tolist() == whole.tokens.tolist()
