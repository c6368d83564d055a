"""Metrics over two real processes: what a rank did not see, saw twice, or saw alone."""

import json
import math
import warnings
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from svr_lightning.metrics import METRIC_NAMES, BrierScore, FinalAccuracy, TrajectoryMetrics
from svr_lightning.training.gathering import over_ranks
from svr_lightning.training.logs import MAXIMA
from tests import forked
from tests.trajectories import EXPECTED, adaptive, problem_tables, same, summarize


@pytest.fixture(scope="module")
def by_rank(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each rank computed in every scenario below, in one pair of processes."""
    folder = tmp_path_factory.mktemp("ranks")
    torch.multiprocessing.start_processes(
        _rank, args=(str(folder),), nprocs=2, start_method=forked.METHOD
    )
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


def _rank(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/rendezvous",
        rank=rank,
        world_size=2,
        timeout=timedelta(seconds=60),
    )
    computed = {name: scenario(rank) for name, scenario in _SCENARIOS.items()}
    (Path(folder) / f"{rank}.json").write_text(json.dumps(computed))
    dist.barrier()
    dist.destroy_process_group()


def _over(rows_of_rank: Sequence[Sequence[dict[str, Any]]], rank: int) -> dict[str, float]:
    metric = TrajectoryMetrics()
    if rows_of_rank[rank]:
        metric.update(problem_tables(rows_of_rank[rank])["toy"])
    return metric.compute()


def _uneven(rank: int) -> dict[str, float]:
    rows = adaptive()
    return _over([rows[:1], rows[1:]], rank)


def _padded(rank: int) -> dict[str, float]:
    """As a distributed sampler pads: both ranks get the first, one gets its last row twice."""
    rows = adaptive()
    return _over([rows[:4], [*rows[4:], rows[5], rows[0]]], rank)


def _empty_rank(rank: int) -> dict[str, float]:
    return _over([[], adaptive()], rank)


def _nothing(rank: int) -> dict[str, float]:
    return _over([[], []], rank)


def _going_on(rank: int) -> dict[str, float]:
    """More records after a value was computed, then a second epoch."""
    rows = adaptive()
    metric = TrajectoryMetrics()
    metric.update(problem_tables(rows[rank : rank + 1])["toy"])
    metric.compute()
    metric.update(problem_tables(rows[2 + rank :: 2])["toy"])
    assert same(metric.compute(), EXPECTED)
    metric.reset()
    metric.update(problem_tables(rows[rank::2])["toy"])
    return metric.compute()


def _without_ids(rank: int) -> list[float]:
    """Rank 0 saw 1, 1, 0 and rank 1 saw 1: without ids all four rows count."""
    accuracy = FinalAccuracy()
    accuracy.update(torch.tensor([[1, 1, 0], [1]][rank]))
    never_updated = BrierScore()
    if rank == 1:
        never_updated.update(torch.tensor([0.5], dtype=torch.float64), torch.tensor([1]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torchmetrics: compute before update
        return [accuracy.compute().item(), never_updated.compute().item()]


def _alone(rank: int) -> dict[str, Any]:
    """One rank writes files while the other is elsewhere: it must not wait for it."""
    return summarize(adaptive())["datasets"]["toy"] if rank == 0 else {}


def _step_values(rank: int) -> dict[str, float]:
    """What each rank notes of a step; rank 1 has no tokens to compare with the engine."""
    own: dict[str, float] = {
        "train/kl": [0.2, 0.4][rank],
        "train/behaviour/max": [1.5, 4.0][rank],
        "memory/peak": [7.0, 3.0][rank],
    }
    if rank == 0:
        own["engine/logprob_diff"] = 0.01
    return over_ranks(own, MAXIMA)


_SCENARIOS = {
    "step_values": _step_values,
    "uneven": _uneven,
    "padded": _padded,
    "empty_rank": _empty_rank,
    "nothing": _nothing,
    "going_on": _going_on,
    "without_ids": _without_ids,
    "alone": _alone,
}


@pytest.mark.parametrize("scenario", ["uneven", "padded", "empty_rank", "going_on"])
def test_two_ranks_agree_on_the_numbers_of_one_process(
    by_rank: list[dict[str, Any]], scenario: str
) -> None:
    assert by_rank[0][scenario] == by_rank[1][scenario]
    assert same(by_rank[0][scenario], EXPECTED)


def test_a_steps_values_are_means_over_the_ranks_that_have_them_and_maxima(
    by_rank: list[dict[str, Any]],
) -> None:
    expected = {
        **{"train/kl": pytest.approx(0.3), "train/behaviour/max": 4.0},
        **{"memory/peak": 7.0, "engine/logprob_diff": 0.01},
    }
    assert by_rank[0]["step_values"] == by_rank[1]["step_values"] == expected


def test_two_ranks_that_saw_nothing_agree_on_nan(by_rank: list[dict[str, Any]]) -> None:
    nothing = {**dict.fromkeys(METRIC_NAMES, math.nan), "n": 0}
    assert all(same(values["nothing"], nothing) for values in by_rank)


def test_rows_without_ids_all_count_over_ranks(by_rank: list[dict[str, Any]]) -> None:
    assert by_rank[0]["without_ids"] == by_rank[1]["without_ids"] == [0.75, 0.25]


def test_one_rank_summarizes_files_without_the_other(by_rank: list[dict[str, Any]]) -> None:
    values = dict(by_rank[0]["alone"])
    values.pop("accuracy_ci95")
    assert same(values, EXPECTED)
