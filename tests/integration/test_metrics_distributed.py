"""Metrics over two real processes: what a rank did not see, saw twice, or saw alone."""

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from svr_lightning.metrics import ConfidenceAUROC, FinalAccuracy
from svr_lightning.training.logs import combined, gather_lists
from tests import forked


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


def _shared(rank: int) -> list[float]:
    """As a distributed sampler pads: both ranks have example 0, rank 1 has its last one twice."""
    ids = [[0, 1, 2], [3, 3, 0]][rank]
    confidence = {0: 0.9, 1: 0.5, 2: 0.5, 3: 0.1}
    labels = torch.tensor([int(one in (0, 2)) for one in ids])
    auroc, accuracy = ConfidenceAUROC(), FinalAccuracy()
    stated = torch.tensor([confidence[one] for one in ids], dtype=torch.float64)
    auroc.update(stated, labels, example_ids=torch.tensor(ids))
    accuracy.update(labels, example_ids=torch.tensor(ids))
    return [auroc.compute().item(), accuracy.compute().item()]


def _step_values(rank: int) -> dict[str, float]:
    """What each rank notes of a step; rank 1 has no tokens to compare with the engine."""
    own: dict[str, float] = {
        "train/kl": [0.2, 0.4][rank],
        "train/behaviour/max": [1.5, 4.0][rank],
        "memory/peak": [7.0, 3.0][rank],
    }
    if rank == 0:
        own["engine/logprob_diff"] = 0.01
    return combined(gather_lists([own]))


_SCENARIOS = {
    "step_values": _step_values,
    "shared": _shared,
}


def test_an_example_of_two_ranks_counts_once(by_rank: list[dict[str, Any]]) -> None:
    # Right: .9 and .5, wrong: .5 and .1; three pairs are ordered and one is a tie.
    assert by_rank[0]["shared"] == by_rank[1]["shared"] == [3.5 / 4, 0.5]


def test_a_steps_values_are_means_over_the_ranks_that_have_them_and_maxima(
    by_rank: list[dict[str, Any]],
) -> None:
    expected = {
        **{"train/kl": pytest.approx(0.3), "train/behaviour/max": 4.0},
        **{"memory/peak": 7.0, "engine/logprob_diff": 0.01},
    }
    assert by_rank[0]["step_values"] == by_rank[1]["step_values"] == expected
