"""The table of the starts, on outcomes worked out by hand and on the published file."""

import json
from pathlib import Path

import numpy as np
import pytest

from experiments.starts import outcomes, pages
from experiments.starts.outcomes import Outcomes, Start
from experiments.starts.table import entry, t_interval, table
from svr_lightning.analysis import check_value as ways
from svr_lightning.analysis.choice import Options, choose, draw

PUBLISHED = Path(__file__).parents[2] / "experiments" / "starts" / "results" / "outcomes.npz"


def one_rule(right: float, tokens: float = 10.0) -> Options:
    """A rule that is right on a share of eight problems."""
    labels = np.arange(8) < 8 * right
    return Options(
        names=("a rule",),
        right=labels.astype(float)[None, None],
        tokens=np.full((1, 1, 8), tokens),
    )


def two_starts() -> Outcomes:
    starts = [
        Start(
            seed=seed,
            budget=30.0,
            after={ways.FREE: one_rule(0.25), ways.STATED: one_rule(stated)},
            before={ways.STATED: one_rule(0.0), ways.PAPER: one_rule(0.5, 31.0)},
        )
        for seed, stated in ((1, 0.5), (2, 1.0))
    ]
    return Outcomes(ids=tuple("abcdefgh"), cluster=np.arange(8), starts=starts)


def test_the_table_has_means_over_starts_and_both_intervals():
    found = table(two_starts())
    stated = found["ways"][ways.STATED]["after"]
    assert (stated["mean"], stated["by_start"]) == (0.75, [0.5, 1.0])
    # t with one degree of freedom: 12.706 x .3536 / sqrt(2).
    assert stated["over_starts"] == pytest.approx([0.75 - 3.1765, 0.75 + 3.1765])
    low, high = stated["over_problems"]
    assert 0.5 <= low < 0.75 < high <= 1.0  # the second start is right on every resample
    assert found["differences"]["stated: after - before"]["mean"] == 0.75
    assert found["differences"]["stated - best free stop, after"]["by_start"] == [0.25, 0.75]
    assert ways.PAPER not in found["ways"]  # it is over the budget
    assert (found["starts"], found["problems"], found["budget"]) == ([1, 2], 8, 30.0)


def test_an_interval_over_starts_needs_two():
    assert t_interval([0.5]) is None
    assert t_interval([0.4, 0.6, 0.8]) == pytest.approx([0.6 - 0.4968, 0.6 + 0.4968], abs=1e-4)
    assert entry(np.array([[0.5, 0.5]]))["over_starts"] is None


def test_what_is_written_is_read_again(tmp_path):
    given = two_starts()
    outcomes.write(tmp_path / "outcomes.npz", given)
    read = outcomes.read(tmp_path / "outcomes.npz")
    assert (read.ids, read.cluster.tolist()) == (given.ids, given.cluster.tolist())
    assert table(read) == table(given)


def test_the_published_table_is_that_of_the_published_outcomes():
    """Of one start and two ways: the whole table takes seconds."""
    read = outcomes.read(PUBLISHED)
    published = json.loads(PUBLISHED.with_name("table.json").read_text())
    assert published["starts"] == [start.seed for start in read.starts]
    assert published["problems"] == len(read.ids) == 377
    first = read.starts[0]
    draws = draw(read.cluster, resamples=1)
    for way in (ways.PAPER, ways.TRACE):
        for when, known in (("after", first.after), ("before", first.before)):
            (found,) = choose(known[way], [first.budget], draws)
            assert found.accuracy[0] == published["ways"][way][when]["by_start"][0]


def test_the_pages_give_the_interval_over_starts_where_there_are_several():
    found = json.loads(PUBLISHED.with_name("table.json").read_text())
    found["starts"] = [*range(1, 11)]
    gain = found["differences"]["stated: after - before"]
    stated = found["ways"][ways.STATED]["after"]
    gain |= {"mean": 0.3, "over_starts": [0.25, 0.35]}
    stated |= {"mean": 0.75, "over_starts": [0.7, 0.8]}
    found["ways"][ways.STATED]["before"]["mean"] = 0.5
    words = " ".join(pages.headline(found).split())
    assert "a tiny policy solves 75 % of new number puzzles" in words
    assert "means of 10 unselected starts. Training adds 30 points, 25 to 35" in words
    assert "(95 % over starts)" in words
    table_of_results = pages.grid(found)
    assert "| 95 %, over starts |" in table_of_results
    assert f"{ways.STATED} | 0.500 | 0.750 | [0.700, 0.800] |" in table_of_results
    assert "| stated: after - before | +0.300 | [+0.250, +0.350] |" in table_of_results
