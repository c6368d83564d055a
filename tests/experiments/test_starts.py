"""The table of the starts, on outcomes worked out by hand and on the published file."""

from dataclasses import replace

import numpy as np
import pytest

from experiments.starts import outcomes
from experiments.starts.outcomes import AFTER, BEFORE, EXACT, Arm, Outcomes, Start
from experiments.starts.table import stated_auroc, t_interval, table
from svr_lightning.analysis import check_value as ways
from svr_lightning.analysis.choice import Options, choose, draw
from tests.commands import ROOT, read_json
from tests.trajectories import save, uncensored

PUBLISHED = ROOT / "experiments" / "starts" / "results"


def one_rule(right: float, tokens: float = 10.0) -> Options:
    """A rule that is right on a share of eight problems."""
    labels = np.arange(8) < 8 * right
    return Options(
        names=("a rule",),
        right=labels.astype(float)[None, None],
        tokens=np.full((1, 1, 8), tokens),
    )


def arm(ways: dict[str, Options], sure_when_right: bool = True) -> Arm:
    """An arm that states .9 for the first half of eight answers, which are right or not."""
    first_half = np.arange(8)[:, None] < 4
    stated = np.where(first_half, 90.0, 10.0)
    return Arm(ways=ways, stated=stated, correct=first_half == sure_when_right)


def two_starts() -> Outcomes:
    starts = []
    for seed, stated in ((1, 0.5), (2, 1.0)):
        before = {ways.STATED: one_rule(0.0), ways.PROBABLE: one_rule(0.125)}
        before[ways.FREE] = one_rule(0.0)
        after = {ways.FREE: one_rule(0.25), ways.STATED: one_rule(stated)}
        after[ways.PROBABLE] = one_rule(0.5)
        after[ways.PAPER] = one_rule(0.5, 31.0 if seed == 1 else 10.0)
        arms = {BEFORE: arm(before, sure_when_right=False), AFTER: arm(after)}
        if seed == 2:
            arms[EXACT] = arm({ways.STATED: one_rule(0.75)}, sure_when_right=False)
        starts.append(Start(seed=seed, budget=30.0, arms=arms))
    return Outcomes(ids=tuple("abcdefgh"), cluster=np.arange(8), starts=starts)


def test_the_table_has_means_over_starts_and_both_intervals():
    found = table(two_starts())
    stated = found["ways"][ways.STATED][AFTER]
    assert (stated["mean"], stated["by_start"]) == (0.75, {1: 0.5, 2: 1.0})
    # t with one degree of freedom: 12.706 x .3536 / sqrt(2).
    assert stated["over_starts"] == pytest.approx([0.75 - 3.1765, 0.75 + 3.1765], abs=1e-4)
    low, high = stated["over_problems"]
    assert 0.5 <= low < 0.75 < high <= 1.0  # the second start is right on every resample
    assert found["differences"]["stated: after - before"]["mean"] == 0.75
    gap = found["differences"]["stated - best free stop, after"]
    assert gap["by_start"] == {1: 0.25, 2: 0.75}
    # t = .5 / (.3536 / sqrt(2)) = 2 with one degree of freedom: 1 - 2 arctan(2) / pi.
    assert gap["p"] == pytest.approx(0.295167, abs=1e-6)
    probable = "with the probability{} after{}".format
    assert found["differences"][probable(":", " - before")]["mean"] == 0.375
    assert found["differences"][probable(" - best free stop,", "")]["mean"] == 0.25
    assert ways.PAPER not in found["ways"]  # it is over the budget of one start
    assert (found["starts"], found["problems"], found["budget"]) == ([1, 2], 8, 30.0)


def test_what_is_stated_is_ranked_before_and_after():
    found = table(two_starts())
    by_arm = {name: one["mean"] for name, one in found["auroc"].items()}
    assert by_arm == {BEFORE: 0.0, AFTER: 1.0, EXACT: 0.0}
    gain = found["differences"]["AUROC of the stated confidence: after - before"]
    assert gain["by_start"] == {1: 1.0, 2: 1.0}


def test_a_tie_between_a_right_and_a_wrong_answer_counts_one_half():
    mixed = Arm(ways={}, stated=np.array([[90.0, 90.0]]), correct=np.array([[True, False]]))
    assert stated_auroc(mixed, draw(np.arange(1), resamples=1)).tolist() == [0.5, 0.5]


def test_exact_credit_is_compared_on_the_starts_that_have_it():
    found = table(two_starts())["exact_credit"]
    assert found["stated"]["by_start"] == {2: -0.25}
    assert found["AUROC of the stated confidence"]["by_start"] == {2: -1.0}
    # One start says nothing of another.
    assert (found["stated"]["p"], found["stated"]["over_starts"]) == (None, None)


def test_the_p_value_of_exact_credit_is_that_of_the_t_test():
    both = two_starts()
    worse = {1: 0.25, 2: 0.5}  # differences -.25 and -.5: t = -3, p = 1 - 2 arctan(3) / pi
    starts = [
        replace(one, arms={**one.arms, EXACT: arm({ways.STATED: one_rule(worse[one.seed])})})
        for one in both.starts
    ]
    found = table(replace(both, starts=starts))["exact_credit"]
    assert found["stated"]["p"] == pytest.approx(0.204833, abs=1e-6)
    assert found["stated"]["p_holm"] == pytest.approx(found["stated"]["p"], abs=1e-6)  # alone
    assert found["AUROC of the stated confidence"]["p"] is None


def test_an_interval_over_three_starts():
    assert t_interval([0.4, 0.6, 0.8]) == pytest.approx([0.6 - 0.4968, 0.6 + 0.4968], abs=1e-4)


def test_what_is_written_is_read_again(tmp_path):
    given = two_starts()
    outcomes.write(tmp_path / "outcomes.npz", given)
    read = outcomes.read(tmp_path / "outcomes.npz")
    assert (read.ids, read.cluster.tolist()) == (given.ids, given.cluster.tolist())
    assert table(read) == table(given)


def test_a_new_start_replaces_the_published_one_of_its_seed():
    published = two_starts()
    first, second = published.starts
    new = replace(published, starts=[replace(second, budget=5.0)])
    assert [one.budget for one in outcomes.joined(published, new).starts] == [first.budget, 5.0]


def test_runs_may_spend_three_first_answers_of_their_trained_policy(tmp_path):
    for name in ("fresh_before", "fresh", "after"):
        save(tmp_path / "plus3" / "eval" / name, uncensored(), {})
    (start,) = outcomes.from_runs("toy", {3: tmp_path / "plus3"}).starts
    # Prompts of 100 tokens, and answers of 50, 60, 512, 10, 1 and 100.
    assert start.budget == pytest.approx(3 * (100 + 733 / 6))
    assert (start.seed, start.arms.keys()) == (3, {BEFORE, AFTER})


@pytest.mark.parametrize(
    ("task", "problems"), [("countdown", 377), ("untraced", 377), ("word_problems", 240)]
)
def test_the_published_table_is_that_of_the_published_outcomes(task, problems):
    """Of one start and two ways: the whole table takes seconds."""
    read = outcomes.read(PUBLISHED / f"{task}.npz")
    published = read_json(PUBLISHED / f"{task}.json")
    assert published["starts"] == [start.seed for start in read.starts]
    assert published["problems"] == len(read.ids) == problems
    first = read.starts[0]
    draws = draw(read.cluster, resamples=1)
    for way in {ways.PAPER, ways.TRACE} & published["ways"].keys():
        for name in (BEFORE, AFTER):
            found = choose(first.arms[name].ways[way], first.budget, draws)
            by_start = published["ways"][way][name]["by_start"]
            assert found.accuracy[0] == by_start[str(first.seed)]
