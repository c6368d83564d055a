"""Means over seeds, two-level intervals and paired tests, on cases worked out by hand."""

import math

import numpy as np
import pytest

from experiments.miniature import summary
from experiments.miniature.budgets import RIVALS, pairs_of
from experiments.miniature.recordings import Seeds
from experiments.miniature.rows import BY_NAME
from experiments.miniature.summary import Answers, Draws, Frontier
from svr_lightning.analysis.replay import replay
from svr_lightning.analysis.table import TurnTable
from svr_lightning.core.stopping import Confident
from tests.trajectories import EXPECTED, record, turn_tables, uncensored

NAMES = {"tokens": "avg_total_tokens"}


def table() -> TurnTable:
    return turn_tables(uncensored())["toy"]


def every_problem(seeds: int, problems: int) -> Draws:
    return summary.draws(np.arange(problems), seeds, resamples=4000)


def test_every_metric_is_that_of_the_table_worked_out_by_hand() -> None:
    six = table()
    outcome = replay(six, Confident(), 3)
    drawn = every_problem(1, 6)
    means = summary.mean_over_seeds([summary.ratios_of(six, outcome)], drawn)
    means["auroc"] = summary.auroc_over_seeds([(six, outcome)], drawn)
    # All six are right at one of their three turns; 3328 tokens for three right answers.
    expected = {**EXPECTED, "any_turn_accuracy": 1.0, "tokens_per_correct": 3328 / 3}
    for name, entry in means.items():
        assert math.isclose(entry["mean"], expected[NAMES.get(name, name)], rel_tol=1e-12), name
        assert entry["ci95"][0] <= entry["mean"] <= entry["ci95"][1]


def test_seeds_are_resampled_as_well_as_problems() -> None:
    """Two seeds, one always right and one always wrong: a resample has 0, 1/2 or 1."""
    column = np.ones(50)
    runs = [{"accuracy": (column, column)}, {"accuracy": (0 * column, column)}]
    entry = summary.mean_over_seeds(runs, every_problem(2, 50))["accuracy"]
    assert entry == {"mean": 0.5, "ci95": [0.0, 1.0], "seeds": [1.0, 0.0]}


def test_problems_of_one_set_of_numbers_are_drawn_together() -> None:
    def of(*names: str) -> list[int]:
        rows = [{**record(name, (True, "C", 0.9, 1)), "cluster": "same"} for name in names]
        return summary.clusters(turn_tables(rows)["toy"]).tolist()

    assert of("test-1-2-3-7-0", "test-1-2-4-8-0", "test-1-2-3-9-1") == [0, 1, 0]
    assert of("test-0-shop", "test-1-shop") == [0, 0]  # the clusters of the data set
    cluster = np.array([0, 1, 0])
    counts = summary.draws(cluster, 1).counts
    assert (counts[:, 0] == counts[:, 2]).all()
    assert counts.min() == 0


def test_a_seed_without_a_value_is_left_out_of_the_mean() -> None:
    resampled = np.array([[0.4, 0.4], [np.nan, np.nan]])
    drawn = Draws(counts=np.ones((2, 1), np.int32), weights=np.array([[0.5, 0.5], [0.0, 1.0]]))
    entry = summary.entry([0.4, math.nan], resampled, drawn)
    assert entry == {"mean": 0.4, "ci95": [0.4, 0.4], "seeds": [0.4, None]}


def test_a_comparison_is_paired_by_problem_and_seed() -> None:
    ours = Answers(
        right=np.array([[1.0, 1, 1, 0], [1, 1, 1, 0]]), tokens=np.array([[10.0] * 4] * 2)
    )
    other = Answers(
        right=np.array([[0.0, 0, 0, 0], [0, 0, 0, 0]]), tokens=np.array([[30.0] * 4] * 2)
    )
    result = summary.compare(ours, other, every_problem(2, 4))
    assert result["accuracy"]["difference"] == 0.75
    assert result["tokens"] == {
        "difference": -20.0,
        "seeds": [-20.0, -20.0],
        "ci95": [-20.0, -20.0],
    }


def test_what_svr_has_at_a_cost_is_chosen_on_other_problems() -> None:
    """Clusters 0 and 2 are one half, 1 and 3 the other; a row that costs 20.

    ``a`` is perfect on the first half, ``b`` on the second; both cost 15. ``c`` is perfect and
    costs 30. Chosen on the first half, a is measured on the second, and the other way round.
    """
    options = Frontier(
        names=("a", "b", "c"),
        answers=tuple(
            Answers(right=np.array([right]), tokens=np.full((1, 4), cost))
            for right, cost in (
                ([1.0, 0, 1, 0], 15.0),
                ([0.0, 1, 0, 1], 15.0),
                ([1.0] * 4, 30.0),
            )
        ),
    )
    row = Answers(right=np.zeros((1, 4)), tokens=np.full((1, 4), 20.0))
    drawn = summary.draws(np.arange(4), 1, 50)
    found = summary.at_cost(options, row, np.arange(4), drawn)
    # Neither option nor row is ever right: there is nothing between them.
    even = {"difference": 0.0, "seeds": [0.0], "ci95": [0.0, 0.0]}
    assert found == {"accuracy": 0.0, "tokens": 15.0, "options": ["a", "b"], "gap": even}
    cheap = Answers(right=row.right, tokens=np.full((1, 4), 10.0))
    assert summary.at_cost(options, cheap, np.arange(4), drawn) is None
    assert summary.at_cost(options, row, np.zeros(4, dtype=int), drawn) is None  # only one half


def test_changes_are_counted_of_the_turns_that_are_there() -> None:
    """All answers of the table read the same, so that only labels change.

    Turn 2: a and e break, b, c and f correct, d stays wrong. Turn 3: b stays right, d corrects, c
    and f break, a and e stay wrong. b, c, d and f begin wrong; b, c and f call it CORRECT.
    """
    ratios = summary.change_ratios(table())
    found = {name: top.sum() / of.sum() for name, (top, of) in ratios.items()}
    assert found == {
        **{"2/changed": 0.0, "2/corrected": 3 / 4, "2/broken": 2 / 2},
        **{"3/changed": 0.0, "3/corrected": 1 / 3, "3/broken": 2 / 3},
        "1/wrong_called_correct": 3 / 4,
    }


def test_the_gap_to_the_best_rival_is_measured_within_each_budget() -> None:
    """Ours is right on all problems for 60 tokens. One rival is right on half of them for 55 with
    the first seed and on none with the second, the other on all of them for 150."""
    all_right, half, none = [1] * 6, [1, 1, 1, 0, 0, 0], [0] * 6
    ours, chain, tutored = (
        Seeds(row=BY_NAME[name], seeds=(42, 43), greedy=(table(),) * 2, sampled=(), votes={})
        for name in ("svr", "grpo_mt", "murphy")
    )

    def option(name: str, right: list[list[int]], tokens: float) -> Frontier:
        answers = np.array(right, dtype=float)
        taken = Answers(right=answers, tokens=np.full(answers.shape, tokens))
        return Frontier(names=(name,), answers=(taken,))

    own = option("sure", [all_right, all_right], 60)
    cheap = option("cheap", [half, none], 55)
    late = option("late", [all_right, all_right], 150)
    free, *_ = RIVALS
    pairs = pairs_of(ours, own, [(ours, own), (chain, cheap), (tutored, late)], free)
    assert pairs["seeds"] == [42, 43]
    points = {point["budget"]: point for point in pairs["points"]}
    assert 50 not in points  # ours is not as cheap
    assert points[140]["pair"] == {"accuracy": 0.25, "tokens": 55, "options": ["cheap", "cheap"]}
    assert points[140]["gap"]["seeds"] == pytest.approx([0.5, 1.0])
    assert points[200]["pair"]["options"] == ["late", "late"]
    assert points[200]["gap"]["difference"] == 0
