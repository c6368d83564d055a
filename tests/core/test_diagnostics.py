"""Diagnostics of an outcome and their bootstrap, on six trajectories worked out by hand."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from svr_lightning.core.stopping import StopRule
from svr_lightning.evaluation.calibration import levels_of
from svr_lightning.evaluation.diagnostics import (
    bootstrap_intervals,
    diagnose,
    diagnostics,
    level_statistics,
    stopping_ratios,
)
from svr_lightning.evaluation.intervals import percentile_interval, resample_counts
from svr_lightning.evaluation.metrics import measure
from svr_lightning.evaluation.replay import replay
from svr_lightning.evaluation.table import Outcome, TurnTable, problem_table
from svr_lightning.files import to_json
from svr_lightning.metrics import METRIC_NAMES
from tests.trajectories import EXPECTED, failed, record, turn_tables, uncensored

TABLE = turn_tables(uncensored())["toy"]
OUTCOME = replay(TABLE, StopRule(), 3)


def values(group: dict[str, dict[str, object]]) -> dict[str, object]:
    return {name: metric["value"] for name, metric in group.items()}


def test_how_the_rule_used_right_answers_is_worked_out_by_hand() -> None:
    found = values(diagnostics(TABLE, OUTCOME, resamples=10)["stopping"])
    # Stops early: a right, b wrong, c right.
    assert found["halting_precision"] == 2 / 3
    # Right before T_max: a1 and c2, where it stops; e1 and f2, which it passes.
    assert found["missed_stop_turns"] == 2 / 4
    assert found["missed_stop_problems"] == 2 / 6
    # e and f end wrong.
    assert found["harm_after_nonstop"] == 2 / 6


def test_a_pass_that_ends_well_is_missed_but_does_no_harm() -> None:
    rows = [
        record("x", (True, "I", 0.2, 1), (False, "U", 0.5, 1), (True, "C", 0.9, 1)),
        failed("y"),
    ]
    table = turn_tables(rows)["toy"]
    found = values(diagnostics(table, replay(table, StopRule(), 3), resamples=10)["stopping"])
    assert found == {
        "halting_precision": None,
        "missed_stop_turns": 1.0,
        "missed_stop_problems": 0.5,
        "harm_after_nonstop": 0.0,
    }
    # Returned is the most confident turn, 3; all three were generated, 1 and 2 passed.
    rule = StopRule(threshold=1.0, fallback="most_confident")
    assert stopping_ratios(table, replay(table, rule, 3))["missed_stop_turns"][0].tolist() == [1, 0]


def test_the_three_turn_sets_hold_the_turns_that_they_name() -> None:
    found = diagnostics(TABLE, OUTCOME, resamples=10)["calibration"]
    assert {name: part["n_turns"] for name, part in found.items()} == {
        "observed": 13,
        "first": 6,
        "recorded": 18,
    }
    assert found["observed"]["brier"]["value"] == pytest.approx(EXPECTED["brier"])
    # First turns: a .0025, b .81, c 1, d .04, e .04, f .64.
    assert found["first"]["brier"]["value"] == pytest.approx(2.5325 / 6)
    # Behind the stop: a .16 .81, b .0001 .0001, c .25 = 1.2202.
    assert found["recorded"]["brier"]["value"] == pytest.approx((4.1151 + 1.2202) / 18)
    for part in found.values():
        for bars in part["reliability"].values():
            assert sum(bar["n"] for bar in bars) == part["n_turns"]


def test_the_papers_metrics_are_the_measured_ones_and_each_has_an_interval_around_it() -> None:
    found = diagnostics(TABLE, OUTCOME, resamples=400, seed=3)["metrics"]
    assert values(found) == {name: measure(TABLE, OUTCOME)[name] for name in METRIC_NAMES}
    assert {name: metric["ci95"] for name, metric in found.items()} == bootstrap_intervals(
        problem_table(TABLE, OUTCOME), resamples=400, seed=3
    )
    for metric in found.values():
        low, high = metric["ci95"]
        assert low < metric["value"] < high


def test_every_interval_is_that_of_measuring_each_resample_on_its_own() -> None:
    counts = resample_counts(TABLE.cluster, 40, seed=1)
    assert counts.sum(1).tolist() == [6] * 40
    tables = [TABLE.select(np.repeat(np.arange(6), row)) for row in counts]
    outcomes = [replay(table, StopRule(), 3) for table in tables]
    measured = [measure(t, o) for t, o in zip(tables, outcomes, strict=True)]
    found = diagnostics(TABLE, OUTCOME, resamples=40, seed=1)
    for name in METRIC_NAMES:
        expected = percentile_interval(np.array([m[name] for m in measured], dtype=np.float64))
        assert found["metrics"][name]["ci95"] == pytest.approx(expected), name
    seen = [table.observed(outcome) for table, outcome in zip(tables, outcomes, strict=True)]
    alone = [
        level_statistics(levels_of(table.confidence[mask], table.correct[mask]))
        for table, mask in zip(tables, seen, strict=True)
    ]
    for name in alone[0]:
        expected = percentile_interval(np.array([float(one[name]) for one in alone]))
        part = found["calibration"]["observed"][name]
        assert part["ci95"] == pytest.approx(expected, abs=3e-4), name


def test_the_interval_of_an_accuracy_is_the_one_that_the_binomial_law_gives() -> None:
    rows = [record(str(k), (k % 10 < 6, "C", 0.9, 1)) for k in range(400)]
    table = turn_tables(rows)["toy"]
    found = bootstrap_intervals(problem_table(table, replay(table, StopRule(), 1)), seed=5)[
        "accuracy"
    ]
    half = 1.96 * (0.6 * 0.4 / 400) ** 0.5
    assert found == pytest.approx([0.6 - half, 0.6 + half], abs=0.008)


def test_turns_are_drawn_with_their_problem() -> None:
    # Ten equal turns of each problem tell no more than one of them.
    rows = [record(str(k), *[(k % 2 == 0, "I", 0.3, 1)] * 10) for k in range(50)]
    table = turn_tables(rows)["toy"]
    found = diagnostics(table, replay(table, StopRule(), 10), resamples=100)["calibration"]
    first = found["first"]["brier"]["ci95"]
    assert found["observed"]["brier"]["ci95"] == pytest.approx(first, rel=1e-12)


def test_what_is_undefined_is_null_and_the_rest_is_json() -> None:
    nothing = turn_tables([failed("x"), failed("y")])["toy"]
    found = diagnose(
        {"toy": TABLE, "failed": nothing},
        {"toy": OUTCOME, "failed": replay(nothing, StopRule(), 3)},
        resamples=20,
        seed=2,
    )
    assert json.loads(to_json(found)) == found
    assert found["bootstrap"] == {"resamples": 20, "seed": 2, "level": 0.95, "unit": "cluster"}
    empty = found["datasets"]["failed"]
    assert empty["metrics"]["accuracy"] == {"value": 0.0, "ci95": [0.0, 0.0]}
    assert empty["metrics"]["auroc"] == {"value": None, "ci95": None}
    assert empty["stopping"]["halting_precision"] == {"value": None, "ci95": None}
    assert empty["calibration"]["observed"]["smooth_ece"] == {"value": None, "ci95": None}
    no_problems = _without_problems(TABLE)
    assert diagnostics(no_problems, replay(no_problems, StopRule(), 3), resamples=5)["n"] == 0


def test_the_glossary_describes_every_metric() -> None:
    text = (Path(__file__).resolve().parents[2] / "docs" / "metrics.md").read_text("utf-8")
    section = text.partition("\n### diagnostics.json\n")[2].partition("\n### ")[0]
    cells = re.findall(r"^\| (`.*?) \|", section, re.MULTILINE)
    described = re.findall(r"`(\w+)`", " ".join(cells))
    found = diagnostics(TABLE, OUTCOME, resamples=2)
    metrics = found["calibration"]["observed"].keys() - {"n_turns", "reliability"}
    assert sorted(described) == sorted({*found["stopping"], *metrics})


def _without_problems(table: TurnTable) -> TurnTable:
    chosen = table.select(np.array([], dtype=np.int64))
    empty = np.array([], dtype=np.int64)
    recorded = Outcome(returned=empty, observed=empty, stopped_early=empty.astype(bool))
    return replace(chosen, recorded=recorded)
