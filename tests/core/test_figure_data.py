"""The numbers behind figures, on the six trajectories of tests/trajectories.py, by hand."""

import math

import numpy as np
import pytest

from svr_lightning.analysis.intervals import wilson_interval
from svr_lightning.analysis.metrics import averages, groups, measure, summarize
from svr_lightning.analysis.replay import replay
from svr_lightning.analysis.table import pool
from svr_lightning.core.stopping import Confident
from svr_lightning.metrics import METRIC_NAMES
from svr_lightning.report.figures import (
    bin_of,
    draw_frontier,
    draw_thresholds,
    frontier_numbers,
    reliability_numbers,
    threshold_numbers,
)
from svr_lightning.report.runs import Method, read_methods
from tests.trajectories import record, save, turn_tables, uncensored


def test_feedback_is_no_answer_and_the_answer_before_it_stands():
    """A tutor's turns: nothing is broken at one, and nothing mended by the next answer."""
    turns = [(correct, None, None, 10) for correct in (True, None, True, None, False)]
    row = record("taught", *turns)
    for tutor in row["turns"][1::2]:
        tutor |= {"answer": None, "answer_group": 0, "feedback": True}
    assert turn_tables([row])["toy"].correct.tolist() == [[True, True, True, True, False]]
    row["turns"][0] |= {"correct": None, "feedback": True}  # a plan: nothing is answered yet
    assert turn_tables([row])["toy"].correct.tolist() == [[False, False, True, True, False]]


def test_reliability_bins_hold_their_lower_bound_and_the_last_one_holds_certainty():
    found = reliability_numbers(replay(turn_tables(uncensored())["toy"], Confident(), 3))
    bins = found["observed"]["bins"]
    assert [row["n"] for row in bins] == [0, 0, 1, 1, 0, 2, 1, 0, 3, 5]
    assert [row["accuracy"] for row in bins[8:]] == [2 / 3, 2 / 5]
    assert bins[8]["accuracy_ci95"] == wilson_interval(2 / 3, 3)
    assert bins[9]["verdicts"] == {"CORRECT": 5, "INCORRECT": 0, "UNSURE": 0}
    # .2 + .3 + 2 x .5 + .4 + (2.45 - 2) + (4.74 - 2) over thirteen turns.
    assert math.isclose(found["observed"]["ece"], 5.09 / 13)
    assert (found["stopped"]["n"], found["stopped"]["bins"][9]["n"]) == (3, 2)  # a, b; c


def test_a_confidence_at_an_edge_lies_in_the_bin_that_it_begins_and_1_in_the_last():
    edges = np.arange(11) / 10
    written = np.array([float(f"0.{k}") for k in range(10)])
    assert bin_of(edges).tolist() == [*range(10), 9]
    assert bin_of(written).tolist() == [*range(10)]
    assert bin_of(np.nextafter(edges[1:], 0)).tolist() == [*range(10)]


def test_the_interval_of_an_average_shrinks_with_the_data_sets_that_it_is_over():
    low, high = wilson_interval(0.8, 10) or (0, 0)
    one = {"accuracy": 0.8, "accuracy_ci95": [low, high], "n": 10}
    rest = dict.fromkeys((key for key in METRIC_NAMES if key != "accuracy"), 0.0)
    summary = summarize([{"gsm8k": {**one, **rest}, "math500": {**one, **rest}}])
    assert np.allclose(summary("GSM8K", "accuracy").interval, [low, high])
    mean = summary("All-2", "accuracy")
    assert math.isclose(mean.mean, 0.8)
    # Half the square root of the sum of two equal squares is 1 / sqrt(2).
    assert np.allclose(mean.interval, [0.8 - (0.8 - low) / 2**0.5, 0.8 + (high - 0.8) / 2**0.5])
    assert summary("All-3", "accuracy").mean is None
    assert summary("GSM8K", "brier").interval is None


@pytest.fixture
def svr(tmp_path) -> Method:
    """The six trajectories as a method with T_max = 3."""
    (method,) = read_methods([f"SVR={save(tmp_path / 'svr', uncensored())}"])
    return method


def test_thresholds_have_a_line_of_accuracy_and_one_of_pse(svr):
    found = threshold_numbers(svr)
    (line,) = found["lines"]
    by_threshold = dict(zip(found["thresholds"], line["accuracy"], strict=True))
    assert found["own"] == [0.85]
    assert [by_threshold[gamma] for gamma in (0.8, 0.85, 0.95)] == [2 / 3, 1 / 2, 1 / 2]
    assert line["pse"] == [row(line["name"], "pse").mean for row in svr.at_thresholds.values()]
    accuracy, pse = draw_thresholds(found).axes
    assert accuracy.get_lines()[0].get_ydata().tolist() == line["accuracy"]
    assert pse.get_lines()[1].get_xdata() == [0.85, 0.85]


def test_the_frontier_counts_prompts_and_completions_of_all_turns(svr):
    (panel,) = frontier_numbers([svr])["panels"]
    (point,) = panel["points"]
    assert point["tokens"] == 3328 / 6
    # Prompts of 100, 200 and 300; completions of 733, 272 and 283 in all.
    assert panel["lines"][0]["tokens"] == pytest.approx([1333 / 6, 2805 / 6, 4888 / 6])
    (axes,) = draw_frontier({"panels": [panel]}).axes
    (drawn,) = (line for line in axes.lines if line.get_label() == "SVR")
    assert drawn.get_xydata().tolist() == [[3328 / 6, 0.5]]


def test_pooling_keeps_every_problem_of_every_data_set():
    short = record("x", (True, "C", 0.9, 7), dataset="other", early=True)
    tables = turn_tables([*uncensored(), short])
    table = pool(tables)
    assert table.ids == ("toy/a", "toy/b", "toy/c", "toy/d", "toy/e", "toy/f", "other/x")
    assert table.length.tolist() == [3, 3, 3, 3, 3, 3, 1]
    assert measure(table)["accuracy"] == 3 / 7  # b, d at turn 3, and x
    stopped = pool({name: replay(one, Confident(), 3) for name, one in tables.items()})
    assert measure(stopped)["accuracy"] == 4 / 7  # a, c, d, and x
    assert not table.correct[6, 1:].any()


def test_a_data_set_that_is_called_like_something_else_in_tables_is_in_quotes():
    names = ["gsm8k", "GSM8K", "Math-5"]
    assert groups(names) == {"GSM8K": ["gsm8k"], "'GSM8K'": ["GSM8K"], "'Math-5'": ["Math-5"]}


def test_averages_are_those_of_the_paper_and_hold_no_other_data_set():
    math_5 = ["math500", "aime26", "amc23", "olympiadbench", "minerva_math"]
    assert averages(["toy"]) == averages(["toy", "gsm8k"]) == {}
    assert list(averages(["gsm8k", *math_5])) == ["All-6", "Math-5"]
    assert list(averages(["toy", *math_5])) == list(averages(math_5)) == ["Math-5"]
    assert list(averages(math_5[1:])) == ["All-4"]
    assert groups(["toy", "gsm8k"]) == {"GSM8K": ["gsm8k"], "toy": ["toy"]}
    # Summaries leave none of them out.
    assert groups(["toy", *math_5]) == {"Math-5": math_5, "toy": ["toy"]}
