"""Metrics with their bootstrap, on six trajectories worked out by hand."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from svr_lightning.analysis.calibration import expected_calibration_error, levels_of
from svr_lightning.analysis.intervals import percentile_interval, resample_counts
from svr_lightning.analysis.metrics import diagnose, measure
from svr_lightning.analysis.replay import replayed
from svr_lightning.core.stopping import Confident
from svr_lightning.files import to_json
from svr_lightning.metrics import METRIC_NAMES
from tests.trajectories import failed, record, turn_tables, uncensored

TABLE = replayed(turn_tables(uncensored()), Confident(), 3)["toy"]


def test_values_are_the_measured_ones_and_each_has_an_interval_around_it() -> None:
    found = diagnose(TABLE, resamples=400, seed=3)
    measured = measure(TABLE)
    assert list(found) == [*METRIC_NAMES, "ece"]
    assert {name: found[name]["value"] for name in METRIC_NAMES} == {
        name: measured[name] for name in METRIC_NAMES
    }
    for metric in found.values():
        low, high = metric["ci95"]
        assert low < metric["value"] < high


def test_every_interval_is_that_of_measuring_each_resample_on_its_own() -> None:
    counts = resample_counts(TABLE.cluster, 40, seed=1)
    assert counts.sum(1).tolist() == [6] * 40
    tables = [TABLE.select(np.repeat(np.arange(6), row)) for row in counts]
    measured = [measure(table) for table in tables]
    for one, table in zip(measured, tables, strict=True):
        seen = table.observed(table.outcome)
        levels = levels_of(table.confidence[seen], table.correct[seen])
        one["ece"] = float(expected_calibration_error(levels))
    found = diagnose(TABLE, resamples=40, seed=1)
    for name, metric in found.items():
        expected = percentile_interval(np.array([m[name] for m in measured], dtype=np.float64))
        assert metric["ci95"] == pytest.approx(expected), name


def test_what_is_undefined_is_null_and_the_rest_is_json() -> None:
    nothing = diagnose(turn_tables([failed("x"), failed("y")])["toy"], resamples=20)
    unchecked = diagnose(turn_tables([record("x", (True, None, None, 10))])["toy"], resamples=20)
    found = {
        "toy": diagnose(TABLE, resamples=20, seed=2),
        "failed": nothing,
        "unchecked": unchecked,
    }
    assert json.loads(to_json(found)) == found
    assert nothing["accuracy"] == {"value": 0.0, "ci95": [0.0, 0.0]}
    assert nothing["auroc"] == nothing["ece"] == {"value": None, "ci95": None}
    assert "ece" not in unchecked
    none = diagnose(TABLE.select(np.array([], dtype=np.int64)), resamples=5)
    assert none["accuracy"] == none["ece"] == {"value": None, "ci95": None}


def test_the_glossary_describes_every_metric() -> None:
    text = (Path(__file__).resolve().parents[2] / "docs" / "metrics.md").read_text("utf-8")
    section = text.partition("\n### diagnostics\n")[2].partition("\n### ")[0]
    cells = re.findall(r"^\| (`.*?) \|", section, re.MULTILINE)
    described = re.findall(r"`(\w+)`", " ".join(cells))
    assert sorted(described) == sorted({*diagnose(TABLE, resamples=2)} - {*METRIC_NAMES})
