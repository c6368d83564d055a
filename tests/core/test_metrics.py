"""Every metric against numbers worked out by hand."""

import math

import numpy as np
import pytest
import torch
from torch import tensor
from torchmetrics import MetricCollection

from svr_lightning.analysis.metrics import measure_all, named_metrics
from svr_lightning.callbacks.before_after import print_comparison
from svr_lightning.core.metrics import DEFINITIONS, Definition, auroc, quotient, share
from svr_lightning.metrics import (
    AcceptedAccuracy,
    AcceptedShare,
    AnyTurnAccuracy,
    BrierScore,
    CompletionTokens,
    ConfidenceAUROC,
    EarlyStopRate,
    FinalAccuracy,
    FirstTurnAccuracy,
    MeanTurns,
    Overconfidence,
    PrematureStopError,
    PromptTokens,
    RiskCoverageArea,
    TotalTokens,
    VerdictAccuracy,
)
from svr_lightning.report.runs import read_methods
from svr_lightning.report.tables import all_tables
from tests.trajectories import EXPECTED, adaptive, record, save, summarize, turn_tables

TABLE = turn_tables(adaptive())["toy"]
KINDS = {
    FinalAccuracy: "accuracy",
    FirstTurnAccuracy: "first_turn_accuracy",
    AnyTurnAccuracy: "any_turn_accuracy",
    MeanTurns: "turns",
    PromptTokens: "avg_prompt_tokens",
    CompletionTokens: "avg_completion_tokens",
    TotalTokens: "avg_total_tokens",
    EarlyStopRate: "esr",
    PrematureStopError: "pse",
    AcceptedShare: "accepted",
    AcceptedAccuracy: "accepted_accuracy",
    VerdictAccuracy: "verdict_accuracy",
    ConfidenceAUROC: "auroc",
    BrierScore: "brier",
    Overconfidence: "overconfidence",
    RiskCoverageArea: "aurc",
}
each_metric = pytest.mark.parametrize(("kind", "name"), KINDS.items())


def columns_of(name: str) -> dict[str, torch.Tensor]:
    """Of the six trajectories of trajectories.py, per example or per observed turn."""
    rows = TABLE.rows_of(name)
    return {column: torch.from_numpy(rows[column]) for column in DEFINITIONS[name].columns}


@each_metric
def test_a_metric_equals_the_number_worked_out_by_hand_however_its_rows_come(kind, name):
    columns = [*columns_of(name).values()]
    whole = kind()
    whole.update(*columns)
    assert whole.compute().dtype == torch.float64
    assert whole.compute().item() == pytest.approx(EXPECTED[name], rel=1e-15)
    split, empty = kind(), kind()
    order = torch.randperm(len(columns[0]), generator=torch.Generator().manual_seed(0))
    for parts in zip(*(column[order].split(2) for column in columns), strict=True):
        split.update(*parts)
    assert split.compute() == whole.compute()
    empty.update(*(column[:0] for column in columns))
    assert math.isnan(empty.compute())
    whole.merge_state(empty)
    assert split.compute() == whole.compute()
    assert (kind.name, kind.higher_is_better) == (name, DEFINITIONS[name].higher_is_better)


@each_metric
def test_rows_with_an_id_count_once_and_rows_without_all_count(kind, name):
    columns = [*columns_of(name).values()]
    ids = torch.arange(len(columns[0])) + 2**62
    metric = kind()
    metric.update(*columns, example_ids=ids)
    metric.update(*(column[:3] for column in columns), example_ids=ids[:3])
    assert metric.compute().item() == pytest.approx(EXPECTED[name], rel=1e-15)
    metric.reset()
    metric.update(*columns)
    metric.update(*columns, example_ids=torch.full_like(ids, -1))
    # Every row twice leaves proportions and means as they are. Of twice the answers, the wrong ones
    # among the 1 to 12 most confident are 0 four times, then 1 to 4, 4 twice, then 5 and 6.
    wrong = [1 / 5, 2 / 6, 3 / 7, 4 / 8, 4 / 9, 4 / 10, 5 / 11, 6 / 12]
    expected = sum(wrong) / 12 if name == "aurc" else EXPECTED[name]
    assert metric.compute().item() == pytest.approx(expected, rel=1e-15)


def test_a_collection_gives_each_metric_its_own_columns():
    collection = MetricCollection([FinalAccuracy(), FirstTurnAccuracy()])
    collection.update(**columns_of("accuracy"), **columns_of("first_turn_accuracy"))
    assert collection.compute() == {"FinalAccuracy": 1 / 2, "FirstTurnAccuracy": 1 / 3}


def test_the_area_under_risk_and_coverage_takes_equal_confidences_in_random_order():
    metric = RiskCoverageArea()
    metric.update(tensor([0.7, 0.7, 0.2], dtype=torch.float64), tensor([1, 0, 0]))
    # Either order of the two: half an error of one, one of two; then two of three.
    assert metric.compute().item() == pytest.approx((1 / 2 + 1 / 2 + 2 / 3) / 3)


def test_nothing_accepted_has_no_accuracy_of_accepted_answers():
    rows = [{**record("x", (True, "U", 0.5, 1)), "accepted": False}]
    found = summarize(rows)["datasets"]["toy"]
    assert (found["accepted"], found["accepted_accuracy"]) == (0.0, None)


def test_auroc_is_exact_where_confidences_differ_in_the_last_digit_only():
    # 0.1 + 0.2 exceeds 0.3 by one unit in the last place; float32 would see a tie.
    close, labels = np.array([0.1 + 0.2, 0.3]), np.array([1, 0])
    assert auroc(close, labels) == 1.0
    assert auroc(close.astype(np.float32), labels) == 0.5


def test_sums_are_exact_beyond_what_float32_holds():
    metric = TotalTokens()
    metric.update(tensor([2**40 + 1, 2**40 + 2]))
    assert metric.compute().item() == 2**40 + 1.5
    # Ten times 0.1 is 1 when correctly rounded; a running float sum gives 0.9999999999999999.
    assert quotient(*share(np.array([0.1] * 10))) == 0.1


@pytest.mark.parametrize(
    ("update", "message"),
    [
        (lambda: FinalAccuracy().update(tensor([[1]])), r"correct must be 1-D.*shape \(1, 1\)"),
        (lambda: FinalAccuracy().update(tensor([0, 2])), r"correct .* \[0, 1\]; got 2"),
        (
            lambda: FinalAccuracy().update(tensor([1]), example_ids=tensor([1, 2])),
            "'example_ids': 2",
        ),
        (lambda: BrierScore().update(tensor([92.0]), tensor([1])), r"in \[0, 1\]; got 92"),
        (lambda: VerdictAccuracy().update(tensor([3]), tensor([1])), "verdict .* got 3"),
    ],
)
def test_what_a_column_cannot_hold_is_refused(update, message):
    with pytest.raises(ValueError, match=message):
        update()


def test_a_metric_that_is_added_to_the_list_is_in_results_logs_tables_and_report(
    tmp_path, monkeypatch, capsys
):
    new = Definition("Wrong", "share of wrong answers", ("final_correct",), lambda y: share(1 - y))
    monkeypatch.setitem(DEFINITIONS, "wrong", new)
    tables = turn_tables(adaptive())
    results = measure_all(tables)
    assert results["datasets"]["toy"]["wrong"] == results["macro"]["all"]["wrong"] == 0.5
    assert named_metrics("val", results)["val/toy/wrong"] == 0.5
    print_comparison("toy", results["datasets"]["toy"], results["datasets"]["toy"])
    assert "share of wrong answers" in capsys.readouterr().out
    (_, table, *_) = all_tables(read_methods([str(save(tmp_path, adaptive()))]))
    assert "Wrong" in table.head
