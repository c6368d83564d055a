"""Every metric against numbers worked out by hand and against scikit-learn."""

import math
import random
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import brier_score_loss, roc_auc_score
from torch import nn, tensor
from torchmetrics import Metric, MetricCollection

from svr_lightning import metrics
from svr_lightning.analysis.table import ProblemTable
from svr_lightning.core.metrics import auroc, quotient, share
from svr_lightning.core.types import Verdict
from svr_lightning.metrics import (
    METRIC_NAMES,
    VERDICT_CODES,
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
    TotalTokens,
    TrajectoryMetrics,
    VerdictAccuracy,
    example_key,
    keep_first,
)
from tests.trajectories import EXPECTED, adaptive, failed, problem_tables, record, same, uncensored

C, N, U = (VERDICT_CODES[v] for v in (Verdict.CORRECT, Verdict.INCORRECT, Verdict.UNSURE))

# The six trajectories of trajectories.py, per example and per observed turn.
FINAL = tensor([True, False, True, True, False, False])
EARLY = tensor([True, True, True, False, False, False])
VERDICT = tensor([C, C, C, C, N, U, C, C, N, U, C, N, C])
CONFIDENCE = tensor(
    [0.95, 0.9, 1.0, 0.85, 0.2, 0.5, 0.99, 0.8, 0.3, 0.5, 0.8, 0.6, 0.9], dtype=torch.float64
)
CORRECT = tensor([1, 0, 0, 1, 0, 0, 1, 1, 0, 0, 0, 1, 0])

BY_HAND: list[tuple[type[Metric], tuple[torch.Tensor, ...], str]] = [
    (FinalAccuracy, (FINAL,), "accuracy"),
    (FirstTurnAccuracy, (tensor([1, 0, 0, 0, 1, 0]),), "first_turn_accuracy"),
    (AnyTurnAccuracy, (tensor([1, 0, 1, 1, 1, 1]),), "any_turn_accuracy"),
    (MeanTurns, (tensor([1, 1, 2, 3, 3, 3]),), "turns"),
    (PromptTokens, (tensor([100, 100, 300, 600, 600, 600]),), "avg_prompt_tokens"),
    (CompletionTokens, (tensor([50, 60, 552, 60, 6, 300]),), "avg_completion_tokens"),
    (TotalTokens, (tensor([150, 160, 852, 660, 606, 900]),), "avg_total_tokens"),
    (EarlyStopRate, (EARLY,), "esr"),
    (PrematureStopError, (EARLY, FINAL), "pse"),
    (VerdictAccuracy, (VERDICT, CORRECT), "verdict_accuracy"),
    (ConfidenceAUROC, (CONFIDENCE, CORRECT), "auroc"),
    (BrierScore, (CONFIDENCE, CORRECT), "brier"),
    (Overconfidence, (VERDICT, CORRECT), "overconfidence"),
]
each_metric = pytest.mark.parametrize(
    ("kind", "columns", "name"), BY_HAND, ids=[kind.__name__ for kind, _, _ in BY_HAND]
)
Columns = tuple[torch.Tensor, ...]


@each_metric
def test_a_metric_equals_the_number_worked_out_by_hand(
    kind: type[Metric], columns: Columns, name: str
) -> None:
    metric = kind()
    metric.update(*columns)
    assert metric.compute().dtype == torch.float64
    assert metric.compute().item() == pytest.approx(EXPECTED[name], rel=1e-15)


@each_metric
def test_a_metric_does_not_depend_on_how_rows_are_split_or_ordered(
    kind: type[Metric], columns: Columns, name: str
) -> None:
    whole = kind()
    whole.update(*columns)
    for sizes in ([1] * len(columns[0]), [2, 0, len(columns[0]) - 2]):
        split = kind()
        for parts in zip(*(column.split(sizes) for column in columns), strict=True):
            split.update(*parts)
        assert split.compute() == whole.compute()
    shuffled = kind()
    order = torch.randperm(len(columns[0]), generator=torch.Generator().manual_seed(0))
    shuffled.update(*(column[order] for column in columns))
    assert shuffled.compute() == whole.compute()


@each_metric
def test_rows_with_an_id_count_once_and_rows_without_all_count(
    kind: type[Metric], columns: Columns, name: str
) -> None:
    ids = torch.arange(len(columns[0])) + 2**62
    metric = kind()
    metric.update(*columns, example_ids=ids)
    metric.update(*(column[:3] for column in columns), example_ids=ids[:3])
    assert metric.compute().item() == pytest.approx(EXPECTED[name], rel=1e-15)
    anonymous = kind()
    anonymous.update(*columns)
    anonymous.update(*columns, example_ids=torch.full_like(ids, -1))
    # Every row twice leaves each of these proportions and means as it is; three rows more do not.
    assert anonymous.compute().item() == pytest.approx(EXPECTED[name], rel=1e-15)
    anonymous.update(*(column[:1] for column in columns))
    assert len(anonymous.example_ids) == 3
    assert sum(map(len, anonymous.example_ids)) == 2 * len(ids) + 1


@each_metric
def test_a_metric_of_nothing_is_nan_and_can_be_merged_and_reset(
    kind: type[Metric], columns: Columns, name: str
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torchmetrics: compute before update
        assert math.isnan(kind().compute())
    first, second, empty = kind(), kind(), kind()
    first.update(*(column[:4] for column in columns))
    first.compute()
    second.update(*(column[4:] for column in columns))
    empty.update(*(column[:0] for column in columns))
    first.merge_state(second)
    first.merge_state(empty)
    assert first.compute().item() == pytest.approx(EXPECTED[name], rel=1e-15)
    first.reset()
    first.update(*columns)
    assert first.compute().item() == pytest.approx(EXPECTED[name], rel=1e-15)


@each_metric
def test_a_metric_says_what_torchmetrics_asks_of_it(
    kind: type[Metric], columns: Columns, name: str
) -> None:
    better = {"accuracy", "first_turn_accuracy", "any_turn_accuracy", "verdict_accuracy", "auroc"}
    expected = None if name == "esr" else name in better
    assert kind.higher_is_better is expected
    assert kind.is_differentiable is False
    assert kind.full_state_update is False
    assert kind.__name__ in metrics.__all__


@each_metric
def test_a_step_value_is_of_the_batch_and_leaves_the_total_right(
    kind: type[Metric], columns: Columns, name: str
) -> None:
    stepped, batch = kind(), kind()
    stepped.update(*(column[:4] for column in columns))
    batch.update(*(column[4:] for column in columns))
    step_value = stepped(*(column[4:] for column in columns))
    assert step_value == batch.compute()
    assert stepped.compute().item() == pytest.approx(EXPECTED[name], rel=1e-15)


def test_undefined_metrics_are_nan() -> None:
    one_class = ConfidenceAUROC()
    one_class.update(tensor([0.2, 0.9]), tensor([1, 1]))
    assert math.isnan(one_class.compute())
    one_class.update(tensor([0.1]), tensor([0]))
    assert one_class.compute() == 1.0
    no_commitment = VerdictAccuracy()
    no_commitment.update(tensor([U, U]), tensor([1, 0]))
    assert math.isnan(no_commitment.compute())
    no_commitment.update(tensor([N]), tensor([0]))
    assert no_commitment.compute() == 1.0


def test_confidences_agree_with_scikit_learn_on_random_data_with_ties() -> None:
    rng = random.Random(7)
    for levels in (2, 5, 101, 10**9):
        confidence = [rng.randrange(levels) / (levels - 1) for _ in range(500)]
        correct = [int(rng.random() < 0.3 + 0.4 * value) for value in confidence]
        scores = tensor(confidence, dtype=torch.float64)
        brier, auroc = BrierScore(), ConfidenceAUROC()
        brier.update(scores, tensor(correct))
        auroc.update(scores, tensor(correct))
        assert brier.compute().item() == pytest.approx(brier_score_loss(correct, confidence))
        assert auroc.compute().item() == pytest.approx(roc_auc_score(correct, confidence))


def test_auroc_is_exact_where_confidences_differ_in_the_last_digit_only() -> None:
    # 0.1 + 0.2 exceeds 0.3 by one unit in the last place; float32 would see a tie.
    close, labels = np.array([0.1 + 0.2, 0.3]), np.array([1, 0])
    assert auroc(close, labels) == 1.0
    assert auroc(close.astype(np.float32), labels) == 0.5


def test_sums_are_exact_beyond_what_float32_holds() -> None:
    metric = TotalTokens()
    metric.update(tensor([2**40 + 1, 2**40 + 2]))
    assert metric.compute().item() == 2**40 + 1.5
    # Ten times 0.1 is 1 when correctly rounded; a running float sum gives 0.9999999999999999.
    assert quotient(*share(np.array([0.1] * 10))) == 0.1


def test_keep_first_keeps_the_first_row_of_each_id() -> None:
    assert keep_first(tensor([4, 4, -1, 0, 4, -1, 0])).tolist() == [
        *(True, False, True, True),
        *(False, True, False),
    ]
    assert keep_first(torch.empty(0, dtype=torch.int64)).tolist() == []


def test_keys_are_stable_fit_int64_and_tell_apart_what_is_counted() -> None:
    # First 8 bytes of sha256 of '["gsm8k", "test-17", null]', halved.
    assert example_key("gsm8k", "test-17") == 7929550201879951549
    keys = {
        example_key(*key)
        for key in [
            ("a", "b"),
            ("a", "b", 1),
            ("a", "b", 2),
            ("a", "b1"),
            ("ab", ""),
            ("a", "b\0c"),
            ("a\0b", "c"),
            ("a", "\ud800"),
        ]
    }
    assert len(keys) == 8
    assert all(0 <= key < 2**63 for key in keys)


@pytest.mark.parametrize(
    ("update", "message"),
    [
        (lambda: FinalAccuracy().update(tensor(1)), r"correct must be 1-D.*shape \(\)"),
        (lambda: FinalAccuracy().update(tensor([[1]])), r"shape \(1, 1\)"),
        (lambda: FinalAccuracy().update(tensor([0, 2])), r"correct .* \[0, 1\]; got 2"),
        (lambda: FinalAccuracy().update(tensor([0.5])), "integers .* got 0.5"),
        (lambda: FinalAccuracy().update(tensor([1]), tensor([1, 2])), "'example_ids': 2"),
        (lambda: FinalAccuracy().update(tensor([1]), tensor([-2])), r"\[-1, .* got -2"),
        (lambda: BrierScore().update(tensor([math.nan]), tensor([1])), "confidence .* got nan"),
        (lambda: BrierScore().update(tensor([92.0]), tensor([1])), r"in \[0, 1\]; got 92"),
        (lambda: VerdictAccuracy().update(tensor([3]), tensor([1])), "verdict .* got 3"),
        (lambda: MeanTurns().update(tensor([-1])), "turns .* got -1"),
    ],
)
def test_what_a_column_cannot_hold_is_refused(update: Callable[[], None], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        update()


def test_a_metric_copies_its_input_and_keeps_it_exact_in_a_half_precision_module() -> None:
    holder = nn.ModuleDict({"brier": BrierScore()}).to(torch.bfloat16)
    confidence = tensor([0.9], dtype=torch.float64)
    holder["brier"].update(confidence, tensor([1]))
    confidence.zero_()
    assert holder["brier"].compute().item() == pytest.approx(0.01, rel=1e-14)


def test_a_collection_never_takes_two_metrics_for_one_because_their_first_batch_agrees() -> None:
    def collection(**options: Any) -> MetricCollection:
        return MetricCollection([FinalAccuracy(), EarlyStopRate(), PrematureStopError()], **options)

    grouped = collection()
    for correct, early in [(tensor([1]), tensor([1])), (tensor([0, 0]), tensor([0, 1]))]:
        grouped.update(correct=correct, stopped_early=early)
    values = {name: value.item() for name, value in grouped.compute().items()}
    assert values == {"FinalAccuracy": 1 / 3, "EarlyStopRate": 2 / 3, "PrematureStopError": 1 / 3}


def table(rows: list[dict[str, Any]]) -> ProblemTable:
    """The per-problem table of one data set's records."""
    (found,) = problem_tables(rows).values()
    return found


def test_records_of_the_table_give_every_metric_worked_out_by_hand() -> None:
    metric = TrajectoryMetrics()
    metric.update(table(adaptive()))
    values = metric.compute()
    assert same(values, EXPECTED)
    assert list(values) == [*METRIC_NAMES, "n"]
    assert values["n"] == 6


def test_records_count_once_however_often_they_come() -> None:
    metric = TrajectoryMetrics()
    for row in adaptive():
        metric.update(table([row]))
    metric.update(table(adaptive()[:4]))
    assert same(metric.compute(), EXPECTED)
    metric.reset()
    metric.update(table(adaptive("other")))
    assert same(metric.compute(), EXPECTED)


def test_turns_after_the_returned_one_do_not_exist_for_any_metric() -> None:
    rows = [
        {**whole, "returned_turn": cut["returned_turn"], "stopped_early": cut["stopped_early"]}
        for whole, cut in zip(uncensored(), adaptive(), strict=True)
    ]
    metric = TrajectoryMetrics()
    metric.update(table(rows))
    assert same(metric.compute(), EXPECTED)


def test_a_problem_that_could_not_be_run_is_wrong_with_no_turns() -> None:
    metric = TrajectoryMetrics()
    metric.update(table([record("a", (True, "C", 0.9, 10), early=True), failed("b")]))
    # Per example over both; per turn over the one that was observed.
    assert same(
        metric.compute(),
        {
            "accuracy": 0.5,
            "first_turn_accuracy": 0.5,
            "any_turn_accuracy": 0.5,
            "turns": 0.5,
            "avg_prompt_tokens": 50.0,
            "avg_completion_tokens": 5.0,
            "avg_total_tokens": 55.0,
            "esr": 0.5,
            "pse": 0.0,
            "verdict_accuracy": 1.0,
            "auroc": math.nan,
            "brier": (0.9 - 1) ** 2,
            "overconfidence": 0.0,
            "n": 2,
        },
    )


@pytest.mark.filterwarnings("error")
def test_metrics_of_no_record_are_nan_without_a_warning() -> None:
    metric = TrajectoryMetrics()
    assert same(metric.compute(), {**dict.fromkeys(METRIC_NAMES, math.nan), "n": 0})
    metric.update(table(adaptive()))
    assert same(metric.compute(), EXPECTED)


def test_records_of_two_data_sets_are_not_mixed() -> None:
    metric = TrajectoryMetrics()
    metric.update(table(adaptive("gsm8k")))
    with pytest.raises(ValueError, match=r"\['gsm8k', 'math500'\]"):
        metric.update(table(adaptive("math500")))
