"""Majority voting on pools worked out by hand."""

from itertools import combinations

import pytest

from svr_lightning.analysis.intervals import wilson_interval
from svr_lightning.tasks import get_task
from svr_lightning.tasks.base import AnswerNumbers
from tests.trajectories import pool, vote


@pytest.mark.parametrize(
    ("answers", "right"),
    [
        ("aab", True),
        ("abb", False),
        ("bbaaa", True),
        ("ab", True),  # a tie goes to the answer sampled first
        ("ba", False),
        ("baab", False),
        ("cabba", True),  # a and b have two votes each; a came before b
        ("..a", True),  # what cannot be read does not vote
        ("...bb.a", False),
        ("....", False),  # nothing can be read: wrong
        (".", False),
        ("a", True),
    ],
)
def test_the_whole_pool_votes_once(answers, right):
    values = vote([pool("x", answers)], [len(answers)], resamples=3)["toy"]
    assert values[f"maj@{len(answers)}"] == float(right)
    assert values["ci95"][f"maj@{len(answers)}"] == wilson_interval(float(right), 1)


def by_hand(answers: str, k: int) -> float:
    """The share of k-subsets, in the order of the pool, whose majority is ``a``."""
    wins = []
    for chosen in combinations(answers, k):
        votes = [letter for letter in chosen if letter != "."]
        wins.append(bool(votes) and max(votes, key=votes.count) == "a")  # max takes the first
    return sum(wins) / len(wins)


def test_values_of_a_small_set_by_hand():
    records = [pool("x", "aab."), pool("y", "bbbb"), pool("z", "ccca", right="a")]
    values = vote(records, [1, 4], resamples=50)["toy"]
    alone = vote([pool("x", "abab.b")], [2], 4000)["toy"]
    assert alone["ci95"]["mean@1"] == wilson_interval(2 / 6, 1)  # one problem tells little
    assert alone["maj@2"] == pytest.approx(
        by_hand("abab.b", 2), abs=0.035
    )  # four standard deviations
    assert values["n"] == 3
    assert values["samples"] == 4
    assert values["mean@1"] == pytest.approx((2 / 4 + 0 + 1 / 4) / 3)
    assert values["maj@4"] == 1 / 3  # x alone
    # Prompts of 100 tokens; completions of 10, 20, 30 and 40 have a mean of 25.
    assert (values["tokens@1"], values["tokens@4"]) == (125, 500)


def test_a_problem_that_could_not_be_run_is_wrong_and_costs_nothing():
    failed = {**pool("y", ""), "error": "the problem does not fit"}
    values = vote([pool("x", "aa"), failed], [2], resamples=20)["toy"]
    assert values["maj@2"] == values["mean@1"] == 0.5
    assert values["tokens@2"] == 230 / 2
    assert values["samples"] == 2
    alone = vote([failed], [2], resamples=20)["toy"]
    assert alone["maj@2"] == alone["tokens@2"] == alone["samples"] == 0
    uncounted = pool("x", "aa")
    uncounted["turns"][0] |= {"prompt_tokens": 0, "completion_tokens": 0}
    assert vote([uncounted], [2], resamples=20)["toy"]["tokens@2"] is None


def test_pools_of_different_sizes_draw_from_their_own():
    short, long = pool("x", "ab"), pool("y", "bbbbba")
    values = vote([short, long], [2], resamples=2000)["toy"]
    # x: "ab" is right by the tie. y: no pair has a majority of a.
    assert values["maj@2"] == 0.5
    with pytest.raises(ValueError, match="'x' of 'toy' has 2 samples and k=3; ask for at most k=2"):
        vote([long, short], [1, 3])


def test_a_data_set_has_the_same_numbers_whatever_else_is_in_the_file():
    records = [pool(str(i), "aabbc"[i % 3 :] + "ab") for i in range(9)]
    other = [{**record, "dataset": "other"} for record in records]
    once, again = vote(records, [2], 100), vote([*other, *records], [2], 100)
    assert once["toy"] == again["toy"]
    assert again["toy"]["ci95"] != again["other"]["ci95"]


@pytest.mark.parametrize(
    ("task", "answers", "classes"),
    [
        ("gsm8k", ["1,000", "$1000", "1000.000001", "1000.5"], [0, 0, 0, 1]),
        # 0 and 0.000008 are close, 0.000008 and 0.000016 too: the class is that of its first.
        ("gsm8k", ["0.000008", "0", "0.000016"], [0, 0, 0]),
        ("math", [r"\frac12", "0.5", r"x = \dfrac{1}{2}", r"\sqrt{2}"], [0, 0, 0, 1]),
        ("math", ["", "1" * 2001, None, "1"], [-1, -1, -1, 0]),
        ("countdown", ["(3+5)*2=16", "2*(5+3)", "3*2+5*2", "3+", "1/0"], [0, 0, 1, -1, -1]),
    ],
)  # fmt: skip
def test_answers_that_an_evaluator_takes_for_one_are_one_vote(task, answers, classes):
    known = AnswerNumbers(get_task(task).answer_form)
    assert [known.number(answer) - 1 for answer in answers] == classes
